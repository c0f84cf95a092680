//! The two database engines behind one small surface: transactions, statements with `$n` placeholders, rows read by
//! column name. Statements that must differ are chosen by [`Engine`]; nothing outside the store sees this module.

use std::time::Duration;

use berth_domain::time::Time;
use sqlx::{
    Column as _, Postgres, Row as _, SqlSafeStr, Sqlite, Transaction,
    postgres::{PgPool, PgRow},
    sqlite::{SqlitePool, SqliteRow},
};

use super::failure::StoreError;

/// Waiting longer than this for a connection is UNAVAILABLE.
pub(crate) const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// Which database this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// One file, one writer.
    Sqlite,
    /// A server, many writers.
    Postgres,
}

/// The open pools. SQLite has one writing connection and several reading ones.
#[derive(Clone, Debug)]
pub(crate) enum Pools {
    Sqlite { write: SqlitePool, read: SqlitePool },
    Postgres(PgPool),
}

/// An open transaction; dropping it rolls it back.
pub(crate) enum Tx {
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(Transaction<'static, Postgres>),
}

/// One argument of a statement. The typed nulls keep Postgres from guessing.
#[derive(Clone, Debug)]
pub(crate) enum Arg {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

/// One row of an answer.
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// Builds the argument list of a statement.
macro_rules! args {
    ($($value:expr),* $(,)?) => { vec![$($crate::store::engine::Arg::from($value)),*] };
}
pub(crate) use args;

impl Pools {
    pub(crate) fn engine(&self) -> Engine {
        match self {
            Self::Sqlite { .. } => Engine::Sqlite,
            Self::Postgres(_) => Engine::Postgres,
        }
    }

    /// A writing transaction. On SQLite it holds the writer lock from the start, so it never has to be upgraded.
    pub(crate) async fn begin(&self) -> Result<Tx, StoreError> {
        Ok(match self {
            Self::Sqlite { write, .. } => Tx::Sqlite(write.begin_with("BEGIN IMMEDIATE").await?),
            Self::Postgres(pool) => begin_postgres(pool.clone(), "BEGIN").await?,
        })
    }

    /// A reading transaction: one snapshot over all its statements.
    pub(crate) async fn begin_read(&self) -> Result<Tx, StoreError> {
        Ok(match self {
            Self::Sqlite { read, .. } => Tx::Sqlite(read.begin().await?),
            Self::Postgres(pool) => {
                begin_postgres(pool.clone(), "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?
            }
        })
    }

    /// Empties SQLite's write-ahead log; false when readers kept it. Postgres needs none.
    pub(crate) async fn checkpoint(&self) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite { write, .. } => {
                let row = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(write).await?;
                Ok(row.try_get::<i64, _>(0)? == 0)
            }
            Self::Postgres(_) => Ok(true),
        }
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Sqlite { write, read } => {
                read.close().await;
                write.close().await;
            }
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

/// Begins in a task of its own. A caller may go away at any await, and sqlx 0.9 forgets a `BEGIN` that was sent and not yet
/// answered: the connection would go back to the pool inside a transaction. A task ends, and its transaction is rolled back.
async fn begin_postgres(pool: PgPool, statement: &'static str) -> Result<Tx, StoreError> {
    let begun = tokio::spawn(async move { pool.begin_with(statement).await }).await;
    Ok(Tx::Postgres(begun.unwrap_or(Err(sqlx::Error::WorkerCrashed))?))
}

macro_rules! bind_all {
    ($sql:expr, $arguments:expr) => {{
        let mut query = sqlx::query($sql);
        for argument in $arguments {
            query = match argument {
                Arg::Int(value) => query.bind(value),
                Arg::Text(value) => query.bind(value),
                Arg::Bytes(value) => query.bind(value),
            };
        }
        query
    }};
}

impl Tx {
    pub(crate) fn engine(&self) -> Engine {
        match self {
            Self::Sqlite(_) => Engine::Sqlite,
            Self::Postgres(_) => Engine::Postgres,
        }
    }

    /// Runs a statement; the number of rows it touched.
    pub(crate) async fn execute(&mut self, sql: impl SqlSafeStr, arguments: Vec<Arg>) -> Result<u64, StoreError> {
        Ok(match self {
            Self::Sqlite(tx) => bind_all!(sql, arguments).execute(&mut **tx).await?.rows_affected(),
            Self::Postgres(tx) => bind_all!(sql, arguments).execute(&mut **tx).await?.rows_affected(),
        })
    }

    /// All rows of an answer; callers bound it with LIMIT.
    pub(crate) async fn rows(&mut self, sql: impl SqlSafeStr, arguments: Vec<Arg>) -> Result<Vec<Row>, StoreError> {
        Ok(match self {
            Self::Sqlite(tx) => {
                bind_all!(sql, arguments).fetch_all(&mut **tx).await?.into_iter().map(Row::Sqlite).collect()
            }
            Self::Postgres(tx) => {
                bind_all!(sql, arguments).fetch_all(&mut **tx).await?.into_iter().map(Row::Postgres).collect()
            }
        })
    }

    /// The first row, if there is one.
    pub(crate) async fn row(&mut self, sql: impl SqlSafeStr, arguments: Vec<Arg>) -> Result<Option<Row>, StoreError> {
        Ok(match self {
            Self::Sqlite(tx) => bind_all!(sql, arguments).fetch_optional(&mut **tx).await?.map(Row::Sqlite),
            Self::Postgres(tx) => bind_all!(sql, arguments).fetch_optional(&mut **tx).await?.map(Row::Postgres),
        })
    }

    pub(crate) async fn commit(self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(tx) => tx.commit().await?,
            Self::Postgres(tx) => tx.commit().await?,
        }
        Ok(())
    }
}

impl Row {
    pub(crate) fn int(&self, column: &str) -> Result<i64, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column)?,
            Self::Postgres(row) => row.try_get(column)?,
        })
    }

    pub(crate) fn opt_int(&self, column: &str) -> Result<Option<i64>, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column)?,
            Self::Postgres(row) => row.try_get(column)?,
        })
    }

    pub(crate) fn text(&self, column: &str) -> Result<String, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column)?,
            Self::Postgres(row) => row.try_get(column)?,
        })
    }

    pub(crate) fn opt_text(&self, column: &str) -> Result<Option<String>, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column)?,
            Self::Postgres(row) => row.try_get(column)?,
        })
    }

    pub(crate) fn bytes(&self, column: &str) -> Result<Vec<u8>, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column)?,
            Self::Postgres(row) => row.try_get(column)?,
        })
    }

    pub(crate) fn opt_bytes(&self, column: &str) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column)?,
            Self::Postgres(row) => row.try_get(column)?,
        })
    }

    pub(crate) fn time(&self, column: &str) -> Result<Time, StoreError> {
        self.int(column).map(Time)
    }

    /// A JSON document column.
    pub(crate) fn document<T: serde::de::DeserializeOwned>(&self, column: &str) -> Result<T, StoreError> {
        serde_json::from_str(&self.text(column)?)
            .map_err(|error| StoreError::Corrupt { column: column.to_owned(), source: error })
    }
}

impl std::fmt::Debug for Row {
    /// Column names only: values may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = match self {
            Self::Sqlite(row) => row.columns().iter().map(|column| column.name()).collect(),
            Self::Postgres(row) => row.columns().iter().map(|column| column.name()).collect(),
        };
        f.debug_tuple("Row").field(&names).finish()
    }
}

impl From<i64> for Arg {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}

impl From<u64> for Arg {
    fn from(value: u64) -> Self {
        Self::Int(Some(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl From<u32> for Arg {
    fn from(value: u32) -> Self {
        Self::Int(Some(i64::from(value)))
    }
}

impl From<Time> for Arg {
    fn from(value: Time) -> Self {
        Self::Int(Some(value.0))
    }
}

impl From<Option<i64>> for Arg {
    fn from(value: Option<i64>) -> Self {
        Self::Int(value)
    }
}

impl From<Option<Time>> for Arg {
    fn from(value: Option<Time>) -> Self {
        Self::Int(value.map(|time| time.0))
    }
}

impl From<&str> for Arg {
    fn from(value: &str) -> Self {
        Self::Text(Some(value.to_owned()))
    }
}

impl From<String> for Arg {
    fn from(value: String) -> Self {
        Self::Text(Some(value))
    }
}

impl From<Option<String>> for Arg {
    fn from(value: Option<String>) -> Self {
        Self::Text(value)
    }
}

impl From<Option<&str>> for Arg {
    fn from(value: Option<&str>) -> Self {
        Self::Text(value.map(str::to_owned))
    }
}

impl From<Vec<u8>> for Arg {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(Some(value))
    }
}

impl From<Option<Vec<u8>>> for Arg {
    fn from(value: Option<Vec<u8>>) -> Self {
        Self::Bytes(value)
    }
}
