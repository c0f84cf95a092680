//! Tenant secrets as the vault sealed them. Nothing here can read one.

use berth_domain::time::Time;

use super::{
    Store, StoreError, audit,
    audit::AuditEntry,
    engine::{Row, Tx, args},
};
use crate::vault::Sealed;

/// Longest answer of [`Store::secrets`], and the most secrets a tenant may have.
pub const SECRETS_PER_TENANT: u32 = 1000;
const COLUMNS: &str = "tenant, name, hosts, version, master_key_id, wrapped_key, ciphertext, created_at, updated_at";

/// A stored secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSecret {
    /// Whose.
    pub tenant: String,
    /// Its name.
    pub name: String,
    /// Hosts it may be used for, as `host` or `host:port`.
    pub hosts: Vec<String>,
    /// 1, 2, … with every replacement.
    pub version: u64,
    /// The value, sealed.
    pub sealed: Sealed,
    /// When it was first put.
    pub created_at: Time,
    /// When it was last put.
    pub updated_at: Time,
}

impl Store {
    /// Creates or replaces a secret; None when the tenant has [`SECRETS_PER_TENANT`] others already.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put_secret(
        &self,
        (tenant, name): (&str, &str),
        hosts: &[String],
        sealed: &Sealed,
        trail: &AuditEntry,
    ) -> Result<Option<StoredSecret>, StoreError> {
        let mut tx = self.begin().await?;
        let now = self.now(&mut tx).await?;
        let others = tx
            .row("SELECT COUNT(*) AS n FROM secrets WHERE tenant = $1 AND name <> $2", args![tenant, name])
            .await?
            .map_or(Ok(0), |row| row.int("n"))?;
        if others >= i64::from(SECRETS_PER_TENANT) {
            return Ok(None);
        }
        let hosts = serde_json::Value::from(hosts.to_vec()).to_string();
        tx.execute(
            "INSERT INTO secrets (tenant, name, hosts, version, master_key_id, wrapped_key, ciphertext, created_at, updated_at)
             VALUES ($1, $2, $3, 1, $4, $5, $6, $7, $7)
             ON CONFLICT (tenant, name) DO UPDATE SET hosts = $3, version = secrets.version + 1, master_key_id = $4,
             wrapped_key = $5, ciphertext = $6, updated_at = $7",
            args![
                tenant,
                name,
                hosts,
                sealed.key_id.as_str(),
                sealed.wrapped_key.clone(),
                sealed.ciphertext.clone(),
                now
            ],
        )
        .await?;
        audit::insert(&mut tx, trail, now).await?;
        let stored = by_name(&mut tx, tenant, name).await?;
        tx.commit().await?;
        Ok(stored)
    }

    /// One secret.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn secret(&self, tenant: &str, name: &str) -> Result<Option<StoredSecret>, StoreError> {
        let mut tx = self.begin_read().await?;
        by_name(&mut tx, tenant, name).await
    }

    /// The tenant's secrets by name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn secrets(&self, tenant: &str) -> Result<Vec<StoredSecret>, StoreError> {
        let mut tx = self.begin_read().await?;
        let sql =
            sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM secrets WHERE tenant = $1 ORDER BY name LIMIT $2"));
        let rows = tx.rows(sql, args![tenant, SECRETS_PER_TENANT]).await?;
        rows.iter().map(read).collect()
    }

    /// Erases a secret; false when there is none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn delete_secret(&self, tenant: &str, name: &str, trail: &AuditEntry) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let now = self.now(&mut tx).await?;
        let gone = tx.execute("DELETE FROM secrets WHERE tenant = $1 AND name = $2", args![tenant, name]).await? > 0;
        if gone {
            audit::insert(&mut tx, trail, now).await?;
        }
        tx.commit().await?;
        Ok(gone)
    }

    /// Ids of the master keys that stored secrets need.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn master_keys_in_use(&self) -> Result<Vec<String>, StoreError> {
        let mut tx = self.begin_read().await?;
        let rows =
            tx.rows("SELECT DISTINCT master_key_id FROM secrets ORDER BY master_key_id LIMIT 100", args![]).await?;
        rows.iter().map(|row| row.text("master_key_id")).collect()
    }
}

async fn by_name(tx: &mut Tx, tenant: &str, name: &str) -> Result<Option<StoredSecret>, StoreError> {
    let sql = sqlx::AssertSqlSafe(format!("SELECT {COLUMNS} FROM secrets WHERE tenant = $1 AND name = $2"));
    tx.row(sql, args![tenant, name]).await?.as_ref().map(read).transpose()
}

fn read(row: &Row) -> Result<StoredSecret, StoreError> {
    Ok(StoredSecret {
        tenant: row.text("tenant")?,
        name: row.text("name")?,
        hosts: row.document("hosts")?,
        version: row.int("version")?.unsigned_abs(),
        sealed: Sealed {
            key_id: row.text("master_key_id")?,
            wrapped_key: row.bytes("wrapped_key")?,
            ciphertext: row.bytes("ciphertext")?,
        },
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}
