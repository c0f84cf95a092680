//! The aggregate: a run with its leases and its session, the unit of every transaction.
//!
//! `apply` runs one row's `next`, then recomputes everything level-wise (R1) until nothing changes, and says what to write.
//! Must not live here: I/O, clocks, random numbers (`ids` is handed in), who may do what.
//!
//! Beyond the agreed interface: `next` of a row also takes the run's `Policy` (lease) or a `Context` (session), and its `Step` has a third case
//! `Refused`; `Claim` of a LAUNCH carries a `LaunchPlan` (first sequence, bearer hash); `ClaimExpired` carries `claim_end`; an enum of
//! `Note`s says what else belongs into the transaction.

mod apply;
mod create;
mod recompute;
mod tick;

pub use apply::apply;
pub use create::{CreateSpec, create};
pub use tick::due;

use crate::failure::FailureReason;
use crate::id::LeaseId;
use crate::lease::{self, Lease};
use crate::run::{OnSandboxLoss, Outcome, Run};
use crate::session::{self, Context, LeaseView, Session};
use crate::step::Refusal;
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// A run and everything it is derived from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Aggregate {
    /// The run row.
    pub run: Run,
    /// Its leases by generation; the last is the current one.
    pub leases: Vec<Lease>,
    /// Its session.
    pub session: Session,
}

/// Everything that can happen to a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Trigger {
    /// CancelRun.
    Cancel,
    /// DeleteRun.
    Delete,
    /// RetryDeletion.
    RetryDeletion,
    /// ForgetRun: an administrator takes responsibility for every unproven lease.
    Forget { reason: String, by: String },
    /// A client releases one lease.
    ReleaseLease(LeaseId),
    /// Something happened to one lease.
    Lease(LeaseId, lease::Trigger),
    /// Something happened to the session.
    Session(session::Trigger),
    /// Time passed: expired claims, deadlines, expiry.
    Tick,
}

/// What a trigger did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Write `next`, the transitions and what the notes ask for, in one transaction.
    Changed {
        /// The rows as they are now.
        next: Box<Aggregate>,
        /// Every state change of any row, in order.
        transitions: Vec<Transition>,
        /// What else belongs into the transaction.
        notes: Vec<Note>,
    },
    /// Recorded and ignored; the request is answered OK.
    Ignored(&'static str),
    /// The request is told no.
    Refused(Refusal),
}

/// Which row a transition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Entity {
    /// The run.
    Run,
    /// A lease.
    Lease,
    /// The session.
    Session,
}

/// One state change of one row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transition {
    /// Which kind of row.
    pub entity: Entity,
    /// Its id.
    pub id: String,
    /// The state it left; empty for a new row.
    pub from: String,
    /// The state it entered.
    pub to: String,
    /// The trigger's name.
    pub cause: String,
    /// When.
    pub at: Time,
}

/// What else belongs into the transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Note {
    /// A lease was added: reserve its place in the quota.
    QuotaReserved(LeaseId),
    /// A lease is proven absent or forgotten: its place is free.
    QuotaFreed(LeaseId),
    /// Read this sandbox by its id soon.
    ReadSoon(LeaseId),
    /// Erase prompt, messages, events and result.
    Erase,
    /// Store in the result that it could not be collected.
    CollectFailed { reason: FailureReason, text: String },
    /// Tell the runner to stop.
    StopRunner,
    /// Audit the Forget of this lease.
    Forgotten { lease: LeaseId, reason: String, by: String },
    /// The holder of this session's or lease's claim must hear that what we want has changed (its next `Extend`).
    DesireChanged,
}

impl Aggregate {
    /// The current lease. Every aggregate has one.
    pub fn current(&self) -> Option<&Lease> {
        self.leases.last()
    }

    /// The lease of that id.
    pub fn lease(&self, id: &LeaseId) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.id == *id)
    }

    /// What the session must know of run and lease.
    pub fn context(&self, now: Time) -> Context<'_> {
        Context {
            lease: self.lease_view(now),
            conversation: self.run.conversation,
            recreate: self.run.on_sandbox_loss == OnSandboxLoss::Recreate,
            ended: self.ended(),
            wall_clock_deadline: self.run.wall_clock_deadline,
            policy: &self.run.policy,
        }
    }

    /// Why the run takes no more work, if it does not.
    pub(crate) fn ended(&self) -> Option<FailureReason> {
        if self.run.deletion_asked
            || matches!(
                self.run.state,
                crate::run::State::Deleting | crate::run::State::DeletionFailed | crate::run::State::Deleted
            )
        {
            return Some(FailureReason::Deleted);
        }
        if self.run.cancel_asked {
            return Some(FailureReason::Cancelled);
        }
        self.run.outcome.as_ref().map(|Outcome::Failed { reason, .. }| *reason)
    }

    fn lease_view(&self, now: Time) -> LeaseView {
        let Some(current) = self.current() else { return LeaseView::Coming };
        let expired = current.state == lease::State::Ready && now >= current.expires_at;
        match (current.desired, current.unwanted) {
            (lease::Desired::Held, _) if expired => LeaseView::Gone(FailureReason::LeaseExpired),
            (lease::Desired::Held, _) if current.state == lease::State::Ready => LeaseView::Ready,
            (lease::Desired::Held, _) => LeaseView::Coming,
            (lease::Desired::Released, Some((cause, _))) => LeaseView::Gone(gone_for(cause)),
            (lease::Desired::Released, None) => LeaseView::Gone(FailureReason::LeaseReleased),
        }
    }
}

/// What a run with work fails with when its lease is no longer wanted for this cause.
fn gone_for(cause: lease::Cause) -> FailureReason {
    match cause {
        lease::Cause::Lost => FailureReason::SandboxLost,
        lease::Cause::Expired | lease::Cause::Lingered => FailureReason::LeaseExpired,
        lease::Cause::Asked | lease::Cause::Replaced => FailureReason::LeaseReleased,
        lease::Cause::Cancelled => FailureReason::Cancelled,
        lease::Cause::Deleted => FailureReason::Deleted,
        lease::Cause::Reset => FailureReason::Reset,
        lease::Cause::Failed | lease::Cause::Unusable => FailureReason::AllocateRefused,
    }
}

impl Trigger {
    /// The name under which a transition caused by it is recorded.
    pub fn name(&self) -> &'static str {
        match self {
            Trigger::Cancel => "CancelRun",
            Trigger::Delete => "DeleteRun",
            Trigger::RetryDeletion => "RetryDeletion",
            Trigger::Forget { .. } => "ForgetRun",
            Trigger::ReleaseLease(_) => "ReleaseLease",
            Trigger::Lease(_, trigger) => trigger.name(),
            Trigger::Session(trigger) => trigger.name(),
            Trigger::Tick => "Tick",
        }
    }
}

impl Entity {
    /// The stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            Entity::Run => "run",
            Entity::Lease => "lease",
            Entity::Session => "session",
        }
    }
}
