//! Credentials and assertion keys. A credential is found by the SHA-256 of its text; the text itself is never stored.
//!
//! Must not live here: deciding what a credential may do.

use berth_domain::{caller::Role, time::Time};
use subtle::ConstantTimeEq as _;

use super::{
    Store, StoreError, audit,
    audit::AuditEntry,
    engine::{Row, Tx, args},
};

/// How many gateways' public keys are kept; the oldest are dropped beyond it.
const ASSERTION_KEYS_KEPT: i64 = 256;
/// Longest answer of [`Store::keys`].
const KEYS_LISTED: i64 = 1000;
const COLUMNS: &str = "key_id, key_hash, tenant, principal, role, service, created_at, revoked_at";

/// Whom a key identifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A caller with a role in the credential's tenant.
    Caller {
        /// Principal id.
        principal: String,
        /// Its role.
        role: Role,
    },
    /// One of Berth's services.
    Service(String),
}

/// One credential, without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Public id, `key-…`.
    pub key_id: String,
    /// The only tenant it may act for; `default` for services.
    pub tenant: String,
    /// Whom it identifies.
    pub holder: Holder,
    /// When it was made.
    pub created_at: Time,
    /// Since when it is refused.
    pub revoked_at: Option<Time>,
}

/// A credential to be stored.
pub struct NewCredential<'a> {
    /// Public id.
    pub key_id: &'a str,
    /// SHA-256 of its text.
    pub key_hash: [u8; 32],
    /// The only tenant it may act for.
    pub tenant: &'a str,
    /// Whom it identifies.
    pub holder: &'a Holder,
    /// Who made it.
    pub created_by: &'a str,
}

impl Store {
    /// The credential with this hash, revoked or not.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn credential_by_hash(&self, hash: &[u8; 32]) -> Result<Option<Credential>, StoreError> {
        let mut tx = self.begin_read().await?;
        let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM credentials WHERE key_hash = $1"));
        let Some(row) = tx.row(sql, args![hash.to_vec()]).await? else { return Ok(None) };
        // The index compared hashes of 256-bit random keys; this comparison takes the same time for every near miss.
        if !bool::from(row.bytes("key_hash")?.ct_eq(hash)) {
            return Ok(None);
        }
        read(&row).map(Some)
    }

    /// The credential with this public id, revoked or not.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn credential_by_id(&self, key_id: &str) -> Result<Option<Credential>, StoreError> {
        let mut tx = self.begin_read().await?;
        by_id(&mut tx, key_id).await
    }

    /// The keys of a tenant, oldest first; with `services` also those of services.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn keys(&self, tenant: &str, services: bool) -> Result<Vec<Credential>, StoreError> {
        let mut tx = self.begin_read().await?;
        let sql = sqlx::AssertSqlSafe(format!(
            "SELECT {COLUMNS} FROM credentials
             WHERE (tenant = $1 AND service = '') OR (service <> '' AND $2 = 1) ORDER BY created_at, key_id LIMIT $3"
        ));
        let rows = tx.rows(sql, args![tenant, i64::from(services), KEYS_LISTED]).await?;
        rows.iter().map(read).collect()
    }

    /// Stores a new credential with its audit line.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn insert_key(&self, key: &NewCredential<'_>, trail: &AuditEntry) -> Result<Credential, StoreError> {
        let mut tx = self.begin().await?;
        let now = self.now(&mut tx).await?;
        insert(&mut tx, key, now).await?;
        audit::insert(&mut tx, trail, now).await?;
        let stored = by_id(&mut tx, key.key_id).await?;
        tx.commit().await?;
        stored.ok_or_else(|| StoreError::Unknown("a credential just inserted is missing".to_owned()))
    }

    /// Revokes a key for ever; a revoked one keeps its first revocation. None when there is no such key.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn revoke_key(&self, key_id: &str, trail: &AuditEntry) -> Result<Option<Credential>, StoreError> {
        let mut tx = self.begin().await?;
        let now = self.now(&mut tx).await?;
        let sql = "UPDATE credentials SET revoked_at = $2 WHERE key_id = $1 AND revoked_at IS NULL";
        if tx.execute(sql, args![key_id, now]).await? > 0 {
            audit::insert(&mut tx, trail, now).await?;
        }
        let stored = by_id(&mut tx, key_id).await?;
        tx.commit().await?;
        Ok(stored)
    }

    /// Makes a key given by the configuration the one with its id. Unchanged when it is already stored (also when it was
    /// revoked: revocation is for ever); another key under the id takes its place.
    ///
    /// # Errors
    /// [`StoreError`]; a constraint failure when the same key is stored under another id.
    pub async fn configure_key(&self, key: &NewCredential<'_>) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let now = self.now(&mut tx).await?;
        let sql = "SELECT key_id FROM credentials WHERE key_id = $1 AND key_hash = $2";
        if tx.row(sql, args![key.key_id, key.key_hash.to_vec()]).await?.is_none() {
            tx.execute("DELETE FROM credentials WHERE key_id = $1", args![key.key_id]).await?;
            insert(&mut tx, key, now).await?;
        }
        tx.commit().await
    }

    /// The public key a gateway registered under this id, and the moment now.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn assertion_key(&self, key_id: &str) -> Result<Option<([u8; 32], Time)>, StoreError> {
        let mut tx = self.begin_read().await?;
        let row = tx.row("SELECT public_key FROM assertion_keys WHERE key_id = $1", args![key_id]).await?;
        let Some(row) = row else { return Ok(None) };
        let bytes = row.bytes("public_key")?;
        let key = <[u8; 32]>::try_from(bytes);
        let key = key.map_err(|_| StoreError::Unknown("an assertion key of another length".to_owned()))?;
        Ok(Some((key, self.now(&mut tx).await?)))
    }

    /// Stores a gateway's public key. False when another key has this id.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn register_assertion_key(&self, key_id: &str, public_key: &[u8; 32]) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let now = self.now(&mut tx).await?;
        let sql = "INSERT INTO assertion_keys (key_id, public_key, registered_at) VALUES ($1, $2, $3)
                   ON CONFLICT (key_id) DO UPDATE SET registered_at = $3
                   WHERE assertion_keys.public_key = excluded.public_key";
        let stored = tx.execute(sql, args![key_id, public_key.to_vec(), now]).await? > 0;
        let prune = "DELETE FROM assertion_keys WHERE key_id NOT IN
                     (SELECT key_id FROM assertion_keys ORDER BY registered_at DESC, key_id LIMIT $1)";
        tx.execute(prune, args![ASSERTION_KEYS_KEPT]).await?;
        tx.commit().await?;
        Ok(stored)
    }
}

async fn by_id(tx: &mut Tx, key_id: &str) -> Result<Option<Credential>, StoreError> {
    let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM credentials WHERE key_id = $1"));
    tx.row(sql, args![key_id]).await?.as_ref().map(read).transpose()
}

async fn insert(tx: &mut Tx, key: &NewCredential<'_>, now: Time) -> Result<(), StoreError> {
    let (principal, role, service) = match key.holder {
        Holder::Caller { principal, role } => (principal.as_str(), role.as_str(), ""),
        Holder::Service(service) => ("", "", service.as_str()),
    };
    tx.execute(
        "INSERT INTO credentials (key_id, key_hash, tenant, principal, role, service, created_by, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        args![key.key_id, key.key_hash.to_vec(), key.tenant, principal, role, service, key.created_by, now],
    )
    .await?;
    Ok(())
}

fn read(row: &Row) -> Result<Credential, StoreError> {
    let service = row.text("service")?;
    let holder = if service.is_empty() {
        let role = row.text("role")?;
        let role = Role::parse(&role).ok_or_else(|| StoreError::Unknown(format!("role {role}")))?;
        Holder::Caller { principal: row.text("principal")?, role }
    } else {
        Holder::Service(service)
    };
    Ok(Credential {
        key_id: row.text("key_id")?,
        tenant: row.text("tenant")?,
        holder,
        created_at: row.time("created_at")?,
        revoked_at: row.opt_int("revoked_at")?.map(Time),
    })
}
