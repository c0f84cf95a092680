//! The workers table: who is alive until when, and where callers reach them.
//!
//! Expiry and renewal of one worker exclude each other by its row: whoever judges a worker dead holds the row locked until
//! the claims are ended, so that a renewal after it sees them gone, and a renewal before it keeps them.

use std::time::Duration;

use berth_domain::{id::RunId, lease::Lease, session::Session, time::Time};

use super::{
    Store, StoreError,
    engine::{Engine, Row, Tx, args},
};

/// Workers not heard of for this long are removed.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);

/// A worker as it introduces itself with every Claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// Chosen by it at its start.
    pub id: String,
    /// `sandbox-broker` or `sessions`.
    pub service: String,
    /// Where callers reach it for host-bound leases.
    pub endpoint: String,
    /// Hosts it serves.
    pub localities: Vec<String>,
}

/// A row held by a worker, as Extend sees it.
#[derive(Clone, Debug, PartialEq)]
pub enum HeldRow {
    /// A lease.
    Lease(Box<Lease>),
    /// A session; with the ids of the messages that wait for it.
    Session(Box<Session>, Vec<String>),
}

impl Store {
    /// Writes the worker's row and lets it live for `alive`, unless it is there unchanged with half its life before it: a
    /// claim that finds nothing should cost no write.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn register_worker(&self, worker: &Worker, alive: Duration) -> Result<(), StoreError> {
        let mut reading = self.begin_read().await?;
        let now = self.now(&mut reading).await?;
        if known_until(&mut reading, worker).await?.is_some_and(|until| until > now.plus(alive / 2)) {
            return Ok(());
        }
        drop(reading);
        let mut tx = self.begin().await?;
        let now = self.now(&mut tx).await?;
        register(&mut tx, worker, now.plus(alive)).await?;
        tx.commit().await
    }

    /// Renews a worker of a service and lists every row it holds by claim, as of after the renewal.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn extend_worker(
        &self,
        (worker_id, service): (&str, &str),
        alive: Duration,
    ) -> Result<(Vec<HeldRow>, Time), StoreError> {
        let mut tx = self.begin().await?;
        let now = self.now(&mut tx).await?;
        // A worker unknown here has no claims; it appears with its next Claim.
        tx.execute(
            "UPDATE workers SET alive_until = $2 WHERE worker_id = $1 AND service = $3 AND alive_until < $2",
            args![worker_id, now.plus(alive), service],
        )
        .await?;
        let mut held = Vec::new();
        for row in tx.rows("SELECT doc FROM leases WHERE claimed_by = $1 LIMIT 1000", args![worker_id]).await? {
            held.extend(readable(&row).map(|lease| HeldRow::Lease(Box::new(lease))));
        }
        for row in tx.rows("SELECT doc FROM sessions WHERE claimed_by = $1 LIMIT 1000", args![worker_id]).await? {
            let Some(session) = readable::<Session>(&row) else { continue };
            let waiting = waiting(&mut tx, &session.run).await?;
            held.push(HeldRow::Session(Box::new(session), waiting));
        }
        tx.commit().await?;
        Ok((held, now))
    }

    /// True while the worker counts as alive.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn is_alive(&self, worker_id: &str) -> Result<bool, StoreError> {
        let mut tx = self.begin_read().await?;
        let now = self.now(&mut tx).await?;
        let row = tx.row("SELECT alive_until FROM workers WHERE worker_id = $1", args![worker_id]).await?;
        Ok(row.map(|row| row.time("alive_until")).transpose()?.is_some_and(|until| until > now))
    }

    /// Where callers reach the broker that serves `locality`; None when no living one does.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn endpoint_of(&self, locality: &str) -> Result<Option<String>, StoreError> {
        let mut tx = self.begin_read().await?;
        let now = self.now(&mut tx).await?;
        let rows = tx
            .rows(
                "SELECT endpoint, localities FROM workers
                 WHERE service = 'sandbox-broker' AND alive_until > $1 ORDER BY alive_until DESC LIMIT 1000",
                args![now],
            )
            .await?;
        for row in rows {
            let localities: Vec<String> = row.document("localities")?;
            if localities.iter().any(|served| served == locality) {
                return Ok(Some(row.text("endpoint")?));
            }
        }
        Ok(None)
    }

    /// Removes workers that have been gone for a day.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn forget_workers(&self) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let now = self.now(&mut tx).await?;
        let before = now.0.saturating_sub(i64::try_from(FORGOTTEN_AFTER.as_micros()).unwrap_or(i64::MAX));
        let gone = tx.execute("DELETE FROM workers WHERE alive_until < $1", args![before]).await?;
        tx.commit().await?;
        Ok(gone)
    }
}

/// A row that cannot be read is logged and passed over: the worker's other claims live on.
fn readable<T: serde::de::DeserializeOwned>(row: &Row) -> Option<T> {
    row.document("doc")
        .inspect_err(|error| tracing::error!(error = error as &dyn std::error::Error, "a held row cannot be read"))
        .ok()
}

/// Until when the worker lives; None when its row is missing or says something else.
async fn known_until(tx: &mut Tx, worker: &Worker) -> Result<Option<Time>, StoreError> {
    let row = tx
        .row(
            "SELECT service, endpoint, localities, alive_until FROM workers WHERE worker_id = $1",
            args![worker.id.as_str()],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    let same = row.text("service")? == worker.service
        && row.text("endpoint")? == worker.endpoint
        && row.document::<Vec<String>>("localities")? == worker.localities;
    if same { row.time("alive_until").map(Some) } else { Ok(None) }
}

/// Ids of the messages that wait for a session, oldest first.
async fn waiting(tx: &mut Tx, run_id: &RunId) -> Result<Vec<String>, StoreError> {
    tx.rows(
        "SELECT message_id FROM messages WHERE run_id = $1 AND state = 'QUEUED' ORDER BY ordinal LIMIT 100",
        args![run_id.as_str()],
    )
    .await?
    .iter()
    .map(|row| row.text("message_id"))
    .collect()
}

/// Writes the worker's row; its life is never shortened.
pub(super) async fn register(tx: &mut Tx, worker: &Worker, alive_until: Time) -> Result<(), StoreError> {
    let localities = super::write::document(&worker.localities)?;
    tx.execute(
        "INSERT INTO workers (worker_id, service, endpoint, localities, alive_until) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (worker_id) DO UPDATE SET
           service = excluded.service, endpoint = excluded.endpoint, localities = excluded.localities,
           alive_until = CASE WHEN workers.alive_until > excluded.alive_until THEN workers.alive_until
                              ELSE excluded.alive_until END",
        args![worker.id.as_str(), worker.service.as_str(), worker.endpoint.as_str(), localities, alive_until],
    )
    .await?;
    Ok(())
}

/// Locks the worker's row against renewal and tells until when it lives; long past for an unknown worker.
pub(super) async fn lock_life(tx: &mut Tx, worker_id: &str) -> Result<Time, StoreError> {
    let sql = match tx.engine() {
        Engine::Sqlite => "SELECT alive_until FROM workers WHERE worker_id = $1",
        Engine::Postgres => "SELECT alive_until FROM workers WHERE worker_id = $1 FOR UPDATE",
    };
    let row = tx.row(sql, args![worker_id]).await?;
    Ok(row.map(|row| row.time("alive_until")).transpose()?.unwrap_or(Time(0)))
}
