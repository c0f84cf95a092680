//! What one trigger does to one row, and why a request is refused.

use crate::failure::Kind;

/// The result of applying a trigger to a row of type `R` with effects of type `E`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<R, E> {
    /// The row changed; the effects belong into the same transaction.
    Changed(R, Vec<E>),
    /// Recorded and ignored (R9): the row stays as it is, the transaction goes on.
    Ignored(&'static str),
    /// The request must be told no; nothing changes.
    Refused(Refusal),
}

/// Why a request is told no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The run is DELETED, or the lease is not of this run.
    #[error("not found")]
    NotFound,
    /// The fence is spent or was never given out: the worker does nothing at all.
    #[error("the fence is stale")]
    StaleFence,
    /// DeleteRun on an active run.
    #[error("the run is active: cancel it first")]
    CancelFirst,
    /// RetryDeletion or Forget on a run that is not being deleted.
    #[error("the run is not being deleted")]
    NotDeleting,
    /// Forget before the teardown had its time.
    #[error("the teardown still has time")]
    TooEarlyToForget,
    /// A message to a run that has ended.
    #[error("the run has ended")]
    RunEnded,
    /// A message to a run whose sandbox is gone and may not be replaced.
    #[error("the sandbox is released")]
    SandboxReleased,
    /// Reset of a one-shot run.
    #[error("the run is not a conversation")]
    NotConversation,
    /// The lease is not held, or not ready.
    #[error("the lease is not ready")]
    LeaseNotReady,
    /// The recomputation does not come to rest: our own fault, and nothing is written.
    #[error("the rows do not settle")]
    Unsettled,
}

impl Refusal {
    /// The kind of error it is.
    pub fn kind(self) -> Kind {
        match self {
            Refusal::NotFound => Kind::NotFound,
            Refusal::StaleFence => Kind::Conflict,
            Refusal::CancelFirst
            | Refusal::NotDeleting
            | Refusal::TooEarlyToForget
            | Refusal::RunEnded
            | Refusal::SandboxReleased
            | Refusal::NotConversation
            | Refusal::LeaseNotReady => Kind::IllegalState,
            Refusal::Unsettled => Kind::Internal,
        }
    }

    /// The stable upper-case reason clients match on.
    pub fn reason(self) -> &'static str {
        match self {
            Refusal::NotFound => "NOT_FOUND",
            Refusal::StaleFence => "STALE_FENCE",
            Refusal::CancelFirst => "CANCEL_FIRST",
            Refusal::NotDeleting => "NOT_DELETING",
            Refusal::TooEarlyToForget => "TOO_EARLY_TO_FORGET",
            Refusal::RunEnded => "RUN_ENDED",
            Refusal::SandboxReleased => "SANDBOX_RELEASED",
            Refusal::NotConversation => "NOT_CONVERSATION",
            Refusal::LeaseNotReady => "LEASE_NOT_READY",
            Refusal::Unsettled => "UNSETTLED",
        }
    }
}

impl<R, E> Step<R, E> {
    /// Whether the row changed.
    pub fn is_changed(&self) -> bool {
        matches!(self, Step::Changed(..))
    }
}
