//! Everything that can happen to a session, what a worker can have learned, and what else a change entails.
//!
//! Must not live here: what happens then (`next.rs`, `report.rs`).

use super::{Action, LaunchPlan, NewMessage};
use crate::failure::FailureReason;
use crate::id::WorkerId;
use crate::run::Activity;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use uuid::Uuid;

/// What a worker learned by its action.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// LAUNCH: launch n runs; its first message went with it.
    Launched,
    /// LAUNCH: failed for good.
    LaunchFailed { reason: FailureReason, text: String },
    /// LAUNCH: may or may not run; try again (which kills it first).
    LaunchUnknown { text: String, retry_after: Option<Duration> },
    /// DRIVE: the loop ended, or hands over.
    DriveEnded,
    /// CHECK: the runner lives.
    Alive,
    /// CHECK: there is no runner.
    NoRunner,
    /// CHECK: nobody could tell.
    CheckUnknown { text: String },
    /// COLLECT: stored.
    Collected,
    /// COLLECT: will not come; the reason is stored in the result.
    CollectFailed { reason: FailureReason, text: String },
    /// PARK: credentials off, sandbox stopped.
    Parked,
    /// PARK: the queue, re-read just before the stop, was not empty.
    ParkAborted,
    /// COLLECT or PARK: worth another try.
    Retry { text: String, retry_after: Option<Duration> },
}

/// Everything that can happen to a session row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Trigger {
    /// A worker takes the next action; LAUNCH needs a plan.
    Claim { worker: WorkerId, action: Action, plan: Option<LaunchPlan> },
    /// The holder of `fence` says what it learned.
    Report { fence: u64, outcome: Outcome },
    /// The claim under `fence` ended without a report.
    ClaimExpired { fence: u64, claim_end: Time },
    /// `state_deadline` passed.
    Deadline,
    /// A message was written to launch `launch`.
    Delivered { launch: u32, uuid: Uuid },
    /// AppendEvents: the message is about to be handed to the harness.
    Accepted { launch: u32, uuid: Uuid },
    /// AppendEvents: the harness had the message already (a lone "completed").
    AlreadyHeld { launch: u32, uuid: Uuid },
    /// AppendEvents: the turn of these messages ended; empty: of all accepted ones.
    TurnEnded { launch: u32, done: Vec<Uuid> },
    /// AppendEvents: anything else by this launch.
    SignOfLife { launch: u32, activity: Option<Activity>, native_id: Option<String> },
    /// AppendEvents: the run cannot go on (budget, model error, refusal).
    Failed { launch: u32, reason: FailureReason, text: String },
    /// The runner of `launch` says it ended.
    End { launch: u32 },
    /// A client sends a message.
    Send { message: NewMessage, new_sandbox: bool },
    /// A client starts the conversation over.
    Reset,
    /// A terminal was opened.
    TerminalHeld,
    /// The last terminal was closed.
    TerminalReleased,
    /// Recompute: the current lease is READY.
    LeaseReady,
    /// Recompute: the current lease is not wanted any more.
    LeaseGone { reason: FailureReason },
    /// Recompute: the run is FAILED, CANCELLED or being deleted.
    RunEnded { reason: FailureReason },
    /// Recompute: ENDING with work, STARTING without, too many silent launches.
    Settle,
}

/// What else belongs into the transaction of a session change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The run fails.
    FailRun { reason: FailureReason, text: String },
    /// A "continue" with a new uuid is to be queued.
    QueueContinue,
    /// A new lease generation; `recovery` when it replaces a lost or expired one under work.
    NewLease { recovery: bool },
    /// The current lease is not wanted (reset).
    ReleaseLease,
    /// The current lease was used.
    TouchLease,
    /// The result could not be collected.
    CollectFailed { reason: FailureReason, text: String },
    /// The runner is to be told to stop.
    Stop,
    /// What the agent is doing.
    Activity(Activity),
}

impl Action {
    /// Whether `outcome` can be the answer to this action.
    pub(super) fn answered_by(self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Launched | Outcome::LaunchFailed { .. } | Outcome::LaunchUnknown { .. } => self == Action::Launch,
            Outcome::DriveEnded => self == Action::Drive,
            Outcome::Alive | Outcome::NoRunner | Outcome::CheckUnknown { .. } => self == Action::Check,
            Outcome::Collected | Outcome::CollectFailed { .. } => self == Action::Collect,
            Outcome::Parked | Outcome::ParkAborted => self == Action::Park,
            Outcome::Retry { .. } => matches!(self, Action::Collect | Action::Park),
        }
    }
}

impl Outcome {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Launched => "Launched",
            Outcome::LaunchFailed { .. } => "LaunchFailed",
            Outcome::LaunchUnknown { .. } => "LaunchUnknown",
            Outcome::DriveEnded => "DriveEnded",
            Outcome::Alive => "Alive",
            Outcome::NoRunner => "NoRunner",
            Outcome::CheckUnknown { .. } => "CheckUnknown",
            Outcome::Collected => "Collected",
            Outcome::CollectFailed { .. } => "CollectFailed",
            Outcome::Parked => "Parked",
            Outcome::ParkAborted => "ParkAborted",
            Outcome::Retry { .. } => "Retry",
        }
    }
}

impl Trigger {
    /// The name under which a transition caused by it is recorded.
    pub fn name(&self) -> &'static str {
        match self {
            Trigger::Claim { action: Action::Launch, .. } => "Claim(LAUNCH)",
            Trigger::Claim { action: Action::Drive, .. } => "Claim(DRIVE)",
            Trigger::Claim { action: Action::Check, .. } => "Claim(CHECK)",
            Trigger::Claim { action: Action::Collect, .. } => "Claim(COLLECT)",
            Trigger::Claim { action: Action::Park, .. } => "Claim(PARK)",
            Trigger::Report { outcome, .. } => outcome.name(),
            Trigger::ClaimExpired { .. } => "ClaimExpired",
            Trigger::Deadline => "Deadline",
            Trigger::Delivered { .. } => "Delivered",
            Trigger::Accepted { .. } => "Accepted",
            Trigger::AlreadyHeld { .. } => "AlreadyHeld",
            Trigger::TurnEnded { .. } => "TurnEnded",
            Trigger::SignOfLife { .. } => "SignOfLife",
            Trigger::Failed { .. } => "Failed",
            Trigger::End { .. } => "End",
            Trigger::Send { .. } => "SendMessage",
            Trigger::Reset => "Reset",
            Trigger::TerminalHeld => "TerminalHeld",
            Trigger::TerminalReleased => "TerminalReleased",
            Trigger::LeaseReady => "LeaseReady",
            Trigger::LeaseGone { .. } => "LeaseGone",
            Trigger::RunEnded { .. } => "RunEnded",
            Trigger::Settle => "Settle",
        }
    }
}
