//! One claimed action on one lease as the broker's own types, and what can come of it.

use std::time::{Duration, SystemTime};

use crate::provider::{Identity, ProviderFailure};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Make the sandbox.
    Allocate,
    /// Make it ready for a session.
    Bootstrap,
    /// End it and prove that.
    Release,
}

/// A claimed action. Nothing in it changes while it is held.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    /// The lease's id.
    pub(crate) lease_id: String,
    /// Its run.
    pub(crate) run_id: String,
    /// Spent by the report.
    pub(crate) fence: i64,
    /// See [`Action`].
    pub(crate) action: Action,
    /// Until the action's own deadline, from the moment the claim was asked for.
    pub(crate) time_left: Duration,
    /// W3C trace context of the run's creation.
    pub(crate) traceparent: String,
    /// Provider asked for.
    pub(crate) provider: String,
    /// The allocation key.
    pub(crate) key: String,
    /// 1 at first.
    pub(crate) attempt: i32,
    /// An earlier attempt may have made a sandbox.
    pub(crate) in_doubt: bool,
    /// What was recorded of the sandbox.
    pub(crate) identity: Option<Identity>,
    /// Empty: the provider's default.
    pub(crate) image: String,
    /// Empty: no repository.
    pub(crate) repo_url: String,
    /// Empty: the default branch.
    pub(crate) repo_ref: String,
    /// Empty: the repository's name.
    pub(crate) workdir: String,
    /// When the lease ends at the latest.
    pub(crate) hard_deadline: SystemTime,
}

/// What came of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// ALLOCATE made it.
    Created(Identity),
    /// ALLOCATE found it.
    Adopted(Identity),
    /// ALLOCATE made nothing, for certain.
    Refused(ProviderFailure),
    /// ALLOCATE ended without a definite answer.
    Unknown {
        /// What is known.
        failure: ProviderFailure,
        /// How late the sandbox may still appear.
        create_horizon: Duration,
    },
    /// BOOTSTRAP is done.
    Bootstrapped {
        /// Absolute, as the sandbox sees it.
        workdir: String,
        /// Empty when there is none.
        base_commit: String,
    },
    /// BOOTSTRAP cannot be done.
    BootstrapFailed(ProviderFailure),
    /// The sandbox is lost, by a read of its durable id.
    Gone {
        /// What was looked at.
        how: String,
    },
    /// RELEASE saw id and key absent.
    Absent {
        /// What was looked at.
        how: String,
        /// Under which account.
        account_scope: String,
    },
    /// RELEASE still sees it.
    StillThere {
        /// What was looked at.
        how: String,
    },
    /// RELEASE could not ask, or was refused.
    ReleaseFailed(ProviderFailure),
}
