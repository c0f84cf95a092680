//! The audit trail: denials, administrative writes, secrets handed out. Written in the transaction it speaks of.

use berth_domain::time::Time;

use super::{
    Store, StoreError,
    engine::{Tx, args},
};

/// One line of the trail. Never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// Whose trail.
    pub tenant: String,
    /// Principal, service or worker.
    pub actor: String,
    /// RPC or trigger.
    pub action: String,
    /// What it was about.
    pub resource: String,
    /// ALLOWED, DENIED or IGNORED.
    pub decision: String,
    /// Policies that determined it, comma separated.
    pub policies: String,
    /// Reason, purpose, name.
    pub detail: String,
}

impl Store {
    /// Appends one line on its own: for what changed nothing else.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let now = self.now(&mut tx).await?;
        insert(&mut tx, entry, now).await?;
        tx.commit().await
    }

    /// The newest lines of a tenant's trail, newest first; at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn audit_trail(&self, tenant: &str, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
        let mut tx = self.begin_read().await?;
        let sql = "SELECT tenant, actor, action, resource, decision, policies, detail FROM audit
                   WHERE tenant = $1 ORDER BY at DESC, audit_id DESC LIMIT $2";
        let rows = tx.rows(sql, args![tenant, limit]).await?;
        rows.iter()
            .map(|row| {
                Ok(AuditEntry {
                    tenant: row.text("tenant")?,
                    actor: row.text("actor")?,
                    action: row.text("action")?,
                    resource: row.text("resource")?,
                    decision: row.text("decision")?,
                    policies: row.text("policies")?,
                    detail: row.text("detail")?,
                })
            })
            .collect()
    }
}

/// Appends one line.
pub(crate) async fn insert(tx: &mut Tx, entry: &AuditEntry, now: Time) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO audit (audit_id, tenant, actor, action, resource, decision, policies, detail, at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        args![
            uuid::Uuid::now_v7().simple().to_string(),
            entry.tenant.as_str(),
            entry.actor.as_str(),
            entry.action.as_str(),
            entry.resource.as_str(),
            entry.decision.as_str(),
            entry.policies.as_str(),
            entry.detail.as_str(),
            now
        ],
    )
    .await?;
    Ok(())
}
