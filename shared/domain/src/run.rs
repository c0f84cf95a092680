//! The run: not driven but *derived* from its leases and session after every change (machines.md §3).
//!
//! Here: the row, `derive` and what the states mean. Must not live here: transitions by trigger; there are none.

use crate::failure::FailureReason;
use crate::id::{RunId, TenantId};
use crate::lease::{self, Lease, words};
use crate::policy::Policy;
use crate::session::{self, Session};
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::time::Duration;

words! {
    /// Where the run is.
    State {
        /// Waits for its first sandbox, or a new one.
        Provisioning = "PROVISIONING",
        /// There is work and a sandbox.
        Running = "RUNNING",
        /// A conversation between turns; its owner is the client.
        Waiting = "WAITING",
        /// There is work; a replacement for a lost sandbox is on its way.
        Recovering = "RECOVERING",
        /// A one-shot without work. Settled.
        Completed = "COMPLETED",
        /// Failed for the reason in `outcome`. Settled.
        Failed = "FAILED",
        /// Cancelled. Settled.
        Cancelled = "CANCELLED",
        /// Being deleted.
        Deleting = "DELETING",
        /// A sandbox could not be proven absent yet.
        DeletionFailed = "DELETION_FAILED",
        /// Gone, with receipts. Terminal.
        Deleted = "DELETED",
    }
}

words! {
    /// What the agent of a RUNNING run is doing.
    Activity {
        /// The model thinks.
        Thinking = "THINKING",
        /// A tool runs.
        Executing = "EXECUTING",
        /// A steer message is taken in.
        Steering = "STEERING",
        /// The context is compacted.
        Compacting = "COMPACTING",
    }
}

words! {
    /// What happens to a run with work whose sandbox goes away.
    OnSandboxLoss {
        /// It fails.
        Fail = "FAIL",
        /// A new sandbox takes its place.
        Recreate = "RECREATE",
    }
}

/// How the run ended, where that is not plain success.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// It failed.
    Failed { reason: FailureReason, text: String },
}

/// The run row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// Whose it is.
    pub tenant: TenantId,
    /// What `derive` said last.
    pub state: State,
    /// What the agent is doing; only while RUNNING.
    pub activity: Option<Activity>,
    /// Stays WAITING after a turn; otherwise one-shot.
    pub conversation: bool,
    /// What a lost sandbox means.
    pub on_sandbox_loss: OnSandboxLoss,
    /// CancelRun was accepted.
    pub cancel_asked: bool,
    /// DeleteRun was accepted.
    pub deletion_asked: bool,
    /// The stored failure.
    pub outcome: Option<Outcome>,
    /// When it was created.
    pub created_at: Time,
    /// Since when it is in `state`.
    pub state_since: Time,
    /// When the state must be over; for COMPLETED, when the sandbox goes.
    pub deadline: Option<Time>,
    /// When the present stretch of work must be over.
    pub wall_clock_deadline: Option<Time>,
    /// How long a COMPLETED run keeps its sandbox.
    pub linger: Duration,
    /// When it settled.
    pub settled_at: Option<Time>,
    /// Its settings.
    pub policy: Policy,
}

impl State {
    /// COMPLETED, FAILED or CANCELLED: may be deleted.
    pub fn is_settled(self) -> bool {
        match self {
            State::Completed | State::Failed | State::Cancelled => true,
            State::Provisioning
            | State::Running
            | State::Waiting
            | State::Recovering
            | State::Deleting
            | State::DeletionFailed
            | State::Deleted => false,
        }
    }

    /// May be cancelled.
    pub fn is_active(self) -> bool {
        match self {
            State::Provisioning | State::Running | State::Waiting | State::Recovering => true,
            State::Completed
            | State::Failed
            | State::Cancelled
            | State::Deleting
            | State::DeletionFailed
            | State::Deleted => false,
        }
    }
}

/// The state of the run, as its rows say. The first line that matches wins.
pub fn derive(run: &Run, leases: &[Lease], session: &Session) -> State {
    if run.state == State::Deleted {
        return State::Deleted;
    }
    if run.deletion_asked {
        return derive_deletion(leases);
    }
    if matches!(run.state, State::Cancelled | State::Failed) {
        return run.state;
    }
    if run.cancel_asked {
        return State::Cancelled;
    }
    if let Some(Outcome::Failed { .. }) = run.outcome {
        return State::Failed;
    }
    if !session::work(session) {
        return if run.conversation { State::Waiting } else { State::Completed };
    }
    match leases.last() {
        Some(current) if current.state == lease::State::Ready => State::Running,
        Some(current) if current.recovery => State::Recovering,
        Some(_) | None => State::Provisioning,
    }
}

/// DELETED takes a receipt of *every* lease.
fn derive_deletion(leases: &[Lease]) -> State {
    let on_its_way = |lease: &Lease| !matches!(lease.state, lease::State::Released | lease::State::ReleaseFailed);
    if leases.iter().all(Lease::is_terminal) {
        State::Deleted
    } else if leases.iter().any(on_its_way) {
        State::Deleting
    } else {
        State::DeletionFailed
    }
}

/// Puts the run into `state`: its clock, deadlines and activity.
pub(crate) fn enter(run: &mut Run, state: State, now: Time) {
    let policy = &run.policy;
    match state {
        State::Provisioning => {
            run.settled_at = None;
            run.deadline = Some(now.plus(policy.provisioning));
        }
        State::Running => {
            run.settled_at = None;
            let end = *run.wall_clock_deadline.get_or_insert(now.plus(policy.wall_clock));
            run.deadline = Some(end);
        }
        State::Recovering => {
            let own = now.plus(policy.recovering);
            run.deadline = Some(run.wall_clock_deadline.map_or(own, |end| end.min(own)));
        }
        State::Waiting => {
            run.wall_clock_deadline = None;
            run.deadline = None;
        }
        State::Completed => {
            run.settled_at = Some(now);
            run.wall_clock_deadline = None;
            run.deadline = Some(now.plus(run.linger));
        }
        State::Failed | State::Cancelled => {
            run.settled_at = Some(now);
            run.wall_clock_deadline = None;
            run.deadline = None;
        }
        State::Deleting | State::DeletionFailed | State::Deleted => {
            run.wall_clock_deadline = None;
            run.deadline = None;
        }
    }
    if state != State::Running {
        run.activity = None;
    }
    run.state = state;
    run.state_since = now;
}
