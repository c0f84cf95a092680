//! Opens the pools, applies the migrations of the engine at hand, and keeps the deployment's id.

use std::{borrow::Cow, path::Path, str::FromStr as _, time::Duration};

use secrecy::ExposeSecret as _;
use sqlx::{
    SqlSafeStr as _,
    migrate::{Migration, MigrationType, Migrator},
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use uuid::Uuid;

use super::{
    Database, StoreError,
    engine::{ACQUIRE_TIMEOUT, Pools, args},
};

/// How long SQLite waits for another process that writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that only read.
const SQLITE_READERS: u32 = 4;
/// Connections to a server.
const POSTGRES_CONNECTIONS: u32 = 16;

/// Version, name, SQLite text, Postgres text. Only ever added to.
const MIGRATIONS: [(i64, &str, &str, &str); 3] = [
    (
        1,
        "runs",
        include_str!("../../migrations/sqlite/0001_runs.sql"),
        include_str!("../../migrations/postgres/0001_runs.sql"),
    ),
    (
        2,
        "access",
        include_str!("../../migrations/sqlite/0002_access.sql"),
        include_str!("../../migrations/postgres/0002_access.sql"),
    ),
    (
        3,
        "run_list",
        include_str!("../../migrations/sqlite/0003_run_list.sql"),
        include_str!("../../migrations/postgres/0003_run_list.sql"),
    ),
];

pub(super) async fn open(database: &Database) -> Result<Pools, StoreError> {
    match database {
        Database::Sqlite(path) => open_sqlite(path).await,
        Database::Postgres(url) => open_postgres(url.expose_secret()).await,
    }
}

async fn open_sqlite(path: &Path) -> Result<Pools, StoreError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        // Content of a DELETED run is overwritten, not only unlinked.
        .pragma("secure_delete", "ON")
        .busy_timeout(BUSY_TIMEOUT);
    let write = SqlitePoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_with(options.clone())
        .await?;
    migrator(|(_, _, sqlite, _)| sqlite).run(&write).await?;
    let read = SqlitePoolOptions::new()
        .max_connections(SQLITE_READERS)
        .test_before_acquire(false)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_lazy_with(options.read_only(true).create_if_missing(false));
    Ok(Pools::Sqlite { write, read })
}

async fn open_postgres(url: &str) -> Result<Pools, StoreError> {
    let options = PgConnectOptions::from_str(url)?.application_name("berth-lifecycle").options([
        ("statement_timeout", "20s"),
        ("idle_in_transaction_session_timeout", "30s"),
        ("lock_timeout", "10s"),
    ]);
    let pool = PgPoolOptions::new()
        .max_connections(POSTGRES_CONNECTIONS)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_with(options)
        .await?;
    migrator(|(_, _, _, postgres)| postgres).run(&pool).await?;
    Ok(Pools::Postgres(pool))
}

fn migrator(text: impl Fn((i64, &'static str, &'static str, &'static str)) -> &'static str) -> Migrator {
    let migrations = MIGRATIONS
        .iter()
        .map(|row| {
            let sql = text(*row).into_sql_str();
            Migration::new(row.0, Cow::Borrowed(row.1), MigrationType::Simple, sql, false)
        })
        .collect();
    Migrator::with_migrations(migrations)
}

/// The deployment's id, written by whoever opens the database first.
pub(super) async fn deployment(pools: &Pools) -> Result<Uuid, StoreError> {
    let mut tx = pools.begin().await?;
    tx.execute(
        "INSERT INTO meta (key, value) VALUES ('deployment_id', $1) ON CONFLICT (key) DO NOTHING",
        args![Uuid::new_v4().to_string()],
    )
    .await?;
    let row = tx.row("SELECT value FROM meta WHERE key = 'deployment_id'", vec![]).await?;
    let text = row.ok_or_else(|| StoreError::Unknown("no deployment id".to_owned()))?.text("value")?;
    tx.commit().await?;
    Uuid::parse_str(&text).map_err(|_| StoreError::Unknown("the deployment id is no UUID".to_owned()))
}
