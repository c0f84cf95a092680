//! How a database fails, in four classes. Engine error codes end here.

/// A failure of the store. Its text is for logs; it never leaves the process.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The transaction lost a race (serialisation, deadlock, busy); running it again may succeed.
    #[error("the transaction lost a race")]
    Lost(#[source] sqlx::Error),
    /// No connection, or none in time.
    #[error("the database cannot be reached")]
    Unreachable(#[source] sqlx::Error),
    /// A constraint refused the write.
    #[error("a constraint refused the write")]
    Constraint(#[source] sqlx::Error),
    /// A stored document cannot be read.
    #[error("column {column} cannot be read")]
    Corrupt {
        /// The column.
        column: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// A stored value is outside what this version knows.
    #[error("a stored value is unknown: {0}")]
    Unknown(String),
    /// Migrations could not be applied.
    #[error("migrations cannot be applied")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// Anything else the database said.
    #[error("the database refused a statement")]
    Statement(#[source] sqlx::Error),
}

impl StoreError {
    /// True when the same transaction may succeed on another try.
    pub fn is_retriable(&self) -> bool {
        matches!(self, Self::Lost(_))
    }

    /// True when a unique or foreign key constraint refused the write.
    pub fn is_constraint(&self) -> bool {
        matches!(self, Self::Constraint(_))
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => {
                Self::Unreachable(error)
            }
            sqlx::Error::Database(database) => {
                if database.is_unique_violation() || database.is_foreign_key_violation() {
                    return Self::Constraint(error);
                }
                match database.code().as_deref() {
                    // Postgres: serialization_failure, deadlock_detected; SQLite: BUSY, LOCKED and their extended codes.
                    Some("40001" | "40P01" | "5" | "6" | "261" | "262" | "517" | "773") => Self::Lost(error),
                    // Our own lock and statement timeouts; 57P0x is the server going away.
                    Some("55P03" | "57014" | "57P01" | "57P02" | "57P03" | "53300") => Self::Unreachable(error),
                    Some(_) | None => Self::Statement(error),
                }
            }
            _ => Self::Statement(error),
        }
    }
}

impl From<sqlx::migrate::MigrateError> for StoreError {
    fn from(error: sqlx::migrate::MigrateError) -> Self {
        Self::Migrate(error)
    }
}
