//! Everything that can happen to a lease, what a worker can have learned, and what else a change entails.
//!
//! Must not live here: what happens then (`next.rs`, `report.rs`).

use super::{Action, Cause, Identity, Observed};
use crate::failure::{FailureClass, FailureReason};
use crate::id::WorkerId;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a worker learned by its action.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// Any action: the credential is missing; no provider call was made.
    CredentialsMissing { text: String },
    /// ALLOCATE: made.
    Created(Identity),
    /// ALLOCATE: found under the key, from an earlier attempt.
    Adopted(Identity),
    /// ALLOCATE: definitely refused, for good.
    Refused { class: FailureClass, text: String },
    /// ALLOCATE: definitely not made, but worth another try (429 with a definite meaning, connection never opened).
    NotMade { text: String, retry_after: Option<Duration> },
    /// ALLOCATE: no definite answer; a sandbox may exist. `scope`: the account it was tried in.
    Unknown { text: String, scope: Option<String> },
    /// BOOTSTRAP: prepared.
    Bootstrapped { workdir: String },
    /// BOOTSTRAP: failed for good.
    BootstrapFailed { reason: FailureReason, text: String },
    /// BOOTSTRAP: worth another try.
    BootstrapRetry { text: String, retry_after: Option<Duration> },
    /// RELEASE: the recorded id is absent, and with `key_absent` nothing is found under the key either.
    Absent { key_absent: bool, scope: String, how: String, last_seen: Option<String> },
    /// RELEASE: the destroy was accepted, absence not yet seen.
    Accepted,
    /// RELEASE: still seen.
    StillThere,
    /// RELEASE: failed.
    TeardownFailed { class: FailureClass, text: String, retry_after: Option<Duration> },
    /// BOOTSTRAP: a control-plane read of the durable id says the sandbox is gone.
    Gone { scope: String, how: String },
}

/// Everything that can happen to a lease row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Trigger {
    /// A worker takes the next action.
    Claim { worker: WorkerId, action: Action },
    /// The holder of `fence` says what it learned.
    Report { fence: u64, outcome: Outcome },
    /// The claim under `fence` ended at `claim_end` without a report.
    ClaimExpired { fence: u64, claim_end: Time },
    /// `desired` becomes RELEASED; never touches the fence (R4).
    Unwanted(Cause),
    /// `state_deadline` passed.
    Deadline,
    /// A control-plane read of the durable id answered 404/410 or a final state.
    Gone { scope: String, how: String },
    /// Something hints that the sandbox is not there; proves nothing.
    Missing { how: String },
    /// What was observed at `at`; `touch` when it is activity.
    Beat { observed: Observed, at: Time, touch: bool },
    /// Our own service was away for so long; the idle part of the time rule is forgiven.
    Outage { away: Duration },
    /// Try the teardown again now.
    Retry,
    /// An administrator takes responsibility.
    Forget { reason: String, by: String },
}

/// What else belongs into the transaction of a lease change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The run fails, provided the lease was current and HELD.
    FailRun { reason: FailureReason, text: String },
    /// The lease's place in the quota is free again.
    QuotaFreed,
    /// Somebody must read the sandbox by id soon.
    ReadSoon,
}

impl Action {
    /// Whether `outcome` can be the answer to this action.
    pub(super) fn answered_by(self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::CredentialsMissing { .. } => true,
            Outcome::Created(_)
            | Outcome::Adopted(_)
            | Outcome::Refused { .. }
            | Outcome::NotMade { .. }
            | Outcome::Unknown { .. } => self == Action::Allocate,
            Outcome::Bootstrapped { .. }
            | Outcome::BootstrapFailed { .. }
            | Outcome::BootstrapRetry { .. }
            | Outcome::Gone { .. } => self == Action::Bootstrap,
            Outcome::Absent { .. } | Outcome::Accepted | Outcome::StillThere | Outcome::TeardownFailed { .. } => {
                self == Action::Release
            }
        }
    }
}

impl Trigger {
    /// The name under which a transition caused by it is recorded.
    pub fn name(&self) -> &'static str {
        match self {
            Trigger::Claim { action: Action::Allocate, .. } => "Claim(ALLOCATE)",
            Trigger::Claim { action: Action::Bootstrap, .. } => "Claim(BOOTSTRAP)",
            Trigger::Claim { action: Action::Release, .. } => "Claim(RELEASE)",
            Trigger::Report { outcome, .. } => outcome.name(),
            Trigger::ClaimExpired { .. } => "ClaimExpired",
            Trigger::Unwanted(_) => "Unwanted",
            Trigger::Deadline => "Deadline",
            Trigger::Gone { .. } => "Gone",
            Trigger::Missing { .. } => "Missing",
            Trigger::Beat { .. } => "Beat",
            Trigger::Outage { .. } => "Outage",
            Trigger::Retry => "Retry",
            Trigger::Forget { .. } => "Forget",
        }
    }
}

impl Outcome {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::CredentialsMissing { .. } => "CredentialsMissing",
            Outcome::Created(_) => "Created",
            Outcome::Adopted(_) => "Adopted",
            Outcome::Refused { .. } => "Refused",
            Outcome::NotMade { .. } => "NotMade",
            Outcome::Unknown { .. } => "Unknown",
            Outcome::Bootstrapped { .. } => "Bootstrapped",
            Outcome::BootstrapFailed { .. } => "BootstrapFailed",
            Outcome::BootstrapRetry { .. } => "BootstrapRetry",
            Outcome::Absent { .. } => "Absent",
            Outcome::Accepted => "Accepted",
            Outcome::StillThere => "StillThere",
            Outcome::TeardownFailed { .. } => "TeardownFailed",
            Outcome::Gone { .. } => "Gone",
        }
    }
}
