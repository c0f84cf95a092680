//! Why an operation of lifecycle did not do what was asked. One closed enum; the edge turns it into a `Failure`.
//! Nothing of the store's inner text ever reaches a client.

use berth_domain::failure::Kind;
use berth_rpc::status::Failure;

use crate::{policy::Denial, store::StoreError, vault::VaultError};

const RUN_NOT_FOUND: (&str, &str) = ("RUN_NOT_FOUND", "no such run");
const TENANT_NOT_FOUND: (&str, &str) = ("TENANT_NOT_FOUND", "no such tenant");

/// What an operation answers instead of a reply.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of the request is wrong.
    #[error("{message}")]
    Invalid {
        /// The request field, in proto names.
        field: &'static str,
        /// Stable upper-case reason.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// No usable credential.
    #[error("{message}")]
    Unauthenticated {
        /// Stable upper-case reason.
        reason: &'static str,
        /// For people.
        message: &'static str,
    },
    /// Known, seen, and not allowed.
    #[error("{message}")]
    Denied {
        /// Stable upper-case reason.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// Refused by policy; reads as not found when the resource may not be seen.
    #[error(transparent)]
    Refused(#[from] Box<Denial>),
    /// Unknown, or not to be seen.
    #[error("{message}")]
    NotFound {
        /// Stable upper-case reason.
        reason: &'static str,
        /// For people; the same for unknown and foreign.
        message: &'static str,
    },
    /// It exists with another content.
    #[error("{message}")]
    Exists {
        /// Stable upper-case reason.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// The claim, launch or version the caller speaks for is over.
    #[error("{message}")]
    Stale {
        /// Stable upper-case reason.
        reason: &'static str,
        /// For people.
        message: &'static str,
    },
    /// The row is in a state that does not allow it.
    #[error("{message}")]
    IllegalState {
        /// Stable upper-case reason.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// A launch left out events.
    #[error("event {expected} of this launch is expected next")]
    SequenceGap {
        /// The launch_sequence that must come next.
        expected: u64,
    },
    /// A bound of the deployment is reached.
    #[error("{message}")]
    Exhausted {
        /// Stable upper-case reason.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// The store failed.
    #[error("the store failed")]
    Store(#[source] StoreError),
    /// A broken invariant of our own.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// A wrong request field.
    pub fn invalid(field: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { field, reason, message: message.into() }
    }

    /// The one answer for unknown, foreign and DELETED runs.
    pub const fn run_not_found() -> Self {
        Self::NotFound { reason: RUN_NOT_FOUND.0, message: RUN_NOT_FOUND.1 }
    }

    /// The worker's claim is over; it does nothing at all.
    pub const fn stale_fence() -> Self {
        Self::Stale { reason: "STALE_FENCE", message: "this claim is over" }
    }

    /// The launch is not the session's, or the session takes no events now.
    pub const fn stale_launch() -> Self {
        Self::Stale { reason: "STALE_LAUNCH", message: "this launch may not append" }
    }

    /// The row's state does not allow it.
    pub fn illegal_state(reason: &'static str, message: impl Into<String>) -> Self {
        Self::IllegalState { reason, message: message.into() }
    }

    /// The transaction lost a race to another one; nothing is wrong with the store.
    pub fn is_lost_race(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_retriable())
    }

    /// The kind, which decides the code on the wire.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Invalid { .. } => Kind::Invalid,
            Self::Unauthenticated { .. } => Kind::Unauthenticated,
            Self::Denied { .. } => Kind::Denied,
            Self::Refused(denial) if denial.visible => Kind::Denied,
            Self::Refused(_) => Kind::NotFound,
            Self::NotFound { .. } => Kind::NotFound,
            Self::Exists { .. } => Kind::Exists,
            Self::Stale { .. } => Kind::Conflict,
            Self::IllegalState { .. } | Self::SequenceGap { .. } => Kind::IllegalState,
            Self::Exhausted { .. } => Kind::Exhausted,
            Self::Store(StoreError::Unreachable(_) | StoreError::Lost(_)) => Kind::Unavailable,
            Self::Store(_) | Self::Internal(_) => Kind::Internal,
        }
    }

    /// The stable reason clients match.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Invalid { reason, .. }
            | Self::Unauthenticated { reason, .. }
            | Self::Denied { reason, .. }
            | Self::NotFound { reason, .. }
            | Self::Exists { reason, .. }
            | Self::Stale { reason, .. }
            | Self::IllegalState { reason, .. }
            | Self::Exhausted { reason, .. } => reason,
            Self::Refused(denial) if denial.visible => denial.reason,
            Self::Refused(denial) => unseen(denial).0,
            Self::SequenceGap { .. } => "SEQUENCE_GAP",
            Self::Store(StoreError::Unreachable(_) | StoreError::Lost(_)) => "STORE_UNAVAILABLE",
            Self::Store(_) | Self::Internal(_) => "INTERNAL",
        }
    }
}

/// Reason and text for what may not be seen: the same as for what does not exist.
fn unseen(denial: &Denial) -> (&'static str, &'static str) {
    if denial.about_run { RUN_NOT_FOUND } else { TENANT_NOT_FOUND }
}

impl From<VaultError> for Error {
    /// A missing master key or a damaged row is ours to mend; the client is told nothing.
    fn from(error: VaultError) -> Self {
        Self::Internal(error.to_string())
    }
}

impl From<Denial> for Error {
    fn from(denial: Denial) -> Self {
        Self::Refused(Box::new(denial))
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (kind, reason) = (error.kind(), error.reason());
        match error {
            Error::Invalid { field, message, .. } => Failure::invalid(field, reason, message),
            Error::Refused(denial) if denial.visible => {
                Failure::new(kind, reason, denial.message.clone()).with("action", denial.decision.action.clone())
            }
            Error::Refused(denial) => Failure::new(kind, reason, unseen(&denial).1),
            Error::SequenceGap { expected } => {
                Failure::new(kind, reason, error.to_string()).with("expected", expected.to_string())
            }
            // What the database or a broken invariant said stays here.
            Error::Store(_) | Error::Internal(_) if kind == Kind::Unavailable => {
                Failure::new(kind, reason, "the store cannot be reached").retry_after(std::time::Duration::from_secs(1))
            }
            Error::Store(_) | Error::Internal(_) => Failure::new(kind, reason, "internal error"),
            Error::Unauthenticated { .. }
            | Error::Denied { .. }
            | Error::NotFound { .. }
            | Error::Exists { .. }
            | Error::Stale { .. }
            | Error::IllegalState { .. }
            | Error::Exhausted { .. } => Failure::new(kind, reason, error.to_string()),
        }
    }
}

impl From<Error> for tonic::Status {
    /// The only way an error leaves this service; internal ones are logged here, once, with their chain.
    fn from(error: Error) -> Self {
        if matches!(error.kind(), Kind::Internal | Kind::Unavailable) {
            tracing::error!(error = &error as &dyn std::error::Error, reason = error.reason(), "operation failed");
        }
        Failure::from(error).into()
    }
}
