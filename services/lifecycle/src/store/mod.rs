//! What lifecycle remembers, on SQLite and Postgres alike. All SQL is in this module and its children.
//!
//! One aggregate per transaction: [`Store::transact`] locks and loads a run with its leases and its session, runs a pure
//! `decide` over it, writes what that returns, commits, and then publishes hints. Lock order: the run's row first, then its
//! other rows, then the worker's row, the tenant's counter last. Only this module sees a transaction.

mod append;
pub mod audit;
mod clock;
mod decision;
mod engine;
mod events;
mod failure;
mod idempotency;
pub mod keys;
mod load;
mod migrate;
mod queue;
mod record;
mod runs;
pub mod secrets;
mod transact;
mod workers;
mod write;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use berth_domain::id::deployment_hash;
use berth_events::Bus;
use uuid::Uuid;

pub use append::{Append, Appended, Judge, LogHead};
pub use clock::Clock;
pub use decision::{Changes, Decision, NewEvent, Spent, refused};
pub use engine::Engine;
pub use events::{PAGE_EVENTS, Page};
pub use failure::StoreError;
pub use idempotency::{Created, IdempotencyKey, NewRun};
pub use queue::{Due, LeaseDemand, Lives};
pub use record::{Loaded, Progress, Record, RunSpec, Usage};
pub use runs::{RunFilter, StoredReceipt, StoredTransition};
pub use workers::{HeldRow, Worker};

/// Where the database is.
#[derive(Clone, Debug)]
pub enum Database {
    /// A file; its folder must exist.
    Sqlite(std::path::PathBuf),
    /// A `postgres://` URL; may hold a password and is never printed.
    Postgres(secrecy::SecretString),
}

/// The open store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pools: engine::Pools,
    clock: Clock,
    bus: Bus,
    deployment: Uuid,
    deployment_hash: String,
    appends: append::Grouping,
    /// Content was erased since the last checkpoint.
    erased: AtomicBool,
}

impl Store {
    /// Opens the database, applies migrations, reads (or first writes) the deployment's id.
    ///
    /// # Errors
    /// The database cannot be reached, or its schema is newer than this binary.
    pub async fn open(database: &Database, clock: Clock, bus: Bus) -> Result<Self, StoreError> {
        let pools = migrate::open(database).await?;
        let deployment = migrate::deployment(&pools).await?;
        let appends = append::Grouping::default();
        Ok(Self {
            inner: Arc::new(Inner {
                pools,
                clock,
                bus,
                deployment,
                deployment_hash: deployment_hash(deployment),
                appends,
                // By an earlier process, perhaps.
                erased: AtomicBool::new(true),
            }),
        })
    }

    /// Ends all connections; what is in flight finishes first.
    pub async fn close(&self) {
        self.inner.pools.close().await;
    }

    /// Moves the write-ahead log into the database and empties it (SQLite; Postgres does so by itself). What was erased is
    /// in no file afterwards.
    ///
    /// # Errors
    /// [`StoreError`]; it may be tried again later.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        let due = self.inner.erased.swap(false, Ordering::Relaxed);
        let done = self.inner.pools.checkpoint().await;
        if !matches!(done, Ok(true)) && due {
            self.note_erased();
        }
        done.map(|_| ())
    }

    /// Content was erased that the write-ahead log may still hold.
    pub fn owes_checkpoint(&self) -> bool {
        self.inner.erased.load(Ordering::Relaxed)
    }

    fn note_erased(&self) {
        self.inner.erased.store(true, Ordering::Relaxed);
    }

    /// Which database this is.
    pub fn engine(&self) -> Engine {
        self.inner.pools.engine()
    }

    /// The deployment's id: audience of assertions.
    pub fn deployment(&self) -> Uuid {
        self.inner.deployment
    }

    /// Ten hexadecimal digits that tell our sandboxes from another deployment's.
    pub fn deployment_hash(&self) -> &str {
        &self.inner.deployment_hash
    }

    /// The bus hints are published on.
    pub fn bus(&self) -> &Bus {
        &self.inner.bus
    }

    /// A writing transaction for the access tables (keys, secrets, audit), which hang on no run.
    pub(crate) async fn begin(&self) -> Result<engine::Tx, StoreError> {
        self.inner.pools.begin().await
    }

    /// A reading transaction: one snapshot.
    pub(crate) async fn begin_read(&self) -> Result<engine::Tx, StoreError> {
        self.inner.pools.begin_read().await
    }

    /// The moment now as this store judges it: call inside the transaction it is for.
    pub(crate) async fn now(&self, tx: &mut engine::Tx) -> Result<berth_domain::time::Time, StoreError> {
        self.inner.clock.now(tx).await
    }
}
