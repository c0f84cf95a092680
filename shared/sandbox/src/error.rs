//! What can go wrong, in one list. `kind()` is what callers match on; the text is for people and holds no secret.

use std::io;

use crate::config::Missing;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, SandboxError>;

/// The closed list of failure kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request can never succeed as it is.
    Invalid,
    /// The kernel, or our rights on it, offer too little.
    Unsupported,
    /// A sandbox of that key exists already.
    Exists,
    /// No sandbox of that key.
    NotFound,
    /// The sandbox is there but its init is not running.
    NotRunning,
    /// The command could not be started inside.
    NotStarted,
    /// A bounded wait ended.
    Timeout,
    /// Anything else.
    Internal,
}

/// Failure of an operation on sandboxes.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The key is not `[a-z0-9-]{1,64}` with an alphanumeric start.
    #[error("invalid sandbox key {0:?}")]
    InvalidKey(String),
    /// A setting or argument makes no sense.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// What is invalid.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// The kernel offers too little and the configuration does not allow for it.
    #[error("the kernel offers too little for a sandbox: {} ({detail}); name it in the setting of what the local provider may do without, or run where it is available", names(.missing))]
    Missing {
        /// What is missing and not allowed to be.
        missing: Vec<Missing>,
        /// What was tried and how it failed.
        detail: String,
    },
    /// Something without which no sandbox is possible at all.
    #[error("no sandbox is possible here: {0}")]
    Impossible(String),
    /// The key is taken.
    #[error("sandbox {0} exists already")]
    Exists(String),
    /// There is no such sandbox.
    #[error("no sandbox {0}")]
    NotFound(String),
    /// The sandbox has no running init.
    #[error("sandbox {0} is not running")]
    NotRunning(String),
    /// Creation failed inside the init process.
    #[error("sandbox init failed at {step}: {message}")]
    Init {
        /// Which step.
        step: String,
        /// The system's answer.
        message: String,
    },
    /// The command could not be started.
    #[error("command not started, {step}: {source}")]
    NotStarted {
        /// Which step: `execute`, `working directory`, …
        step: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A bounded wait ended.
    #[error("timed out: {0}")]
    Timeout(&'static str),
    /// The init process answered something unexpected, or the connection was cut.
    #[error("sandbox connection: {0}")]
    Connection(String),
    /// A system call failed.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

fn names(missing: &[Missing]) -> String {
    missing.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
}

impl SandboxError {
    /// The kind of this failure.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidKey(_) | Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Missing { .. } | Self::Impossible(_) => ErrorKind::Unsupported,
            Self::Exists(_) => ErrorKind::Exists,
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::NotRunning(_) => ErrorKind::NotRunning,
            Self::NotStarted { .. } => ErrorKind::NotStarted,
            Self::Timeout(_) => ErrorKind::Timeout,
            Self::Init { .. } | Self::Connection(_) | Self::Io { .. } => ErrorKind::Internal,
        }
    }

    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }
}

/// Names what was being done when a system call failed.
pub(crate) trait During<T> {
    fn during(self, what: &str) -> Result<T>;
}

impl<T, E: Into<io::Error>> During<T> for std::result::Result<T, E> {
    fn during(self, what: &str) -> Result<T> {
        self.map_err(|source| SandboxError::io(what, source))
    }
}
