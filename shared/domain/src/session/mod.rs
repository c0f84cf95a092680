//! The session: the conversation of a run with its agent. Messages go in, launches of a runner (or of the native loop) carry them out.
//!
//! Here: the row, its triggers, `work` and the next action. `next.rs` holds the transition table (machines.md §2), `messages.rs` what happens to the queue.
//! Must not live here: what a session means to its run or lease (see `aggregate`), event payloads, I/O.

mod messages;
mod next;
mod report;
mod trigger;

pub use messages::{launch_message, next_message};
pub use next::next;
pub use trigger::{Effect, Outcome, Trigger};

use crate::failure::FailureReason;
use crate::id::{MessageId, RunId, SessionId, WorkerId};
use crate::lease::words;
use crate::policy::Policy;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use uuid::Uuid;

words! {
    /// Where the session is.
    State {
        /// Waits for a sandbox.
        Pending = "PENDING",
        /// A launch is due or under way.
        Starting = "STARTING",
        /// Launch `launch` runs.
        Live = "LIVE",
        /// The runner ended: collect the result, then park the sandbox.
        Ending = "ENDING",
        /// Nothing runs; waits for a message.
        Idle = "IDLE",
        /// Over. Terminal.
        Closed = "CLOSED",
    }
}

words! {
    /// What a worker can be asked to do with a session.
    Action {
        /// Kill what runs, start launch n+1.
        Launch = "LAUNCH",
        /// Run the native loop, under one long claim.
        Drive = "DRIVE",
        /// See whether the runner still lives.
        Check = "CHECK",
        /// Head commit, diff, push.
        Collect = "COLLECT",
        /// Credentials off, stop the sandbox.
        Park = "PARK",
    }
}

words! {
    /// What does the thinking.
    Harness {
        /// Our own loop, outside the sandbox.
        Native = "native",
        /// Claude Code.
        ClaudeCode = "claude_code",
        /// Codex.
        Codex = "codex",
        /// Any agent that speaks ACP.
        Acp = "acp",
    }
}

words! {
    /// Why a message exists.
    MessageKind {
        /// The first, or a follow-up after a turn.
        Prompt = "PROMPT",
        /// Sent while a turn may run.
        Steer = "STEER",
        /// Ours: go on with the turn that a dead launch left.
        Continue = "CONTINUE",
    }
}

/// How far a message got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MessageState {
    /// To be delivered to the next (or running) launch.
    Queued,
    /// Written to a launch; not yet handed to the harness.
    Delivered,
    /// Handed to the harness.
    Accepted,
    /// Its turn ended.
    Done,
    /// Will never be done.
    Failed(FailureReason),
}

/// One message of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// The idempotent id.
    pub id: MessageId,
    /// Position in the conversation, from 1.
    pub ordinal: u32,
    /// Why it exists.
    pub kind: MessageKind,
    /// What it says; erased with the run.
    pub text: String,
    /// How far it got.
    pub state: MessageState,
    /// What the harness de-duplicates by; stays the same when it is sent again.
    pub uuid: Uuid,
    /// A dead launch had accepted it: it is sent again, first.
    pub resent: bool,
    /// The harness is known to have it already; a "continue" carries its turn on.
    pub held: bool,
}

/// A message to be queued.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NewMessage {
    /// The idempotent id.
    pub id: MessageId,
    /// Prompt or steer.
    pub kind: MessageKind,
    /// What it says.
    pub text: String,
    /// What the harness de-duplicates by.
    pub uuid: Uuid,
}

/// A worker's hold on one action of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// Who holds it.
    pub worker: WorkerId,
    /// What for.
    pub action: Action,
    /// Since when.
    pub claimed_at: Time,
    /// The action's own total deadline.
    pub deadline: Time,
}

/// What Claim(LAUNCH) writes before any effect.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// Last sequence of the log, plus one.
    pub first_seq: u64,
    /// SHA-256 (hex) of the fresh bearer; `None` where nothing posts (native).
    pub bearer_sha256: Option<String>,
}

/// The session row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// The run it belongs to.
    pub run: RunId,
    /// What does the thinking.
    pub harness: Harness,
    /// Where it is.
    pub state: State,
    /// Number of the newest launch; events and reports of others change nothing.
    pub launch: u32,
    /// The newest launch numbers its events from here.
    pub first_seq: u64,
    /// Hash of the newest launch's bearer; `None` when no bearer is valid.
    pub bearer_sha256: Option<String>,
    /// The harness's own name of the conversation, to resume it.
    pub native_id: Option<String>,
    /// A turn is in flight.
    pub turn: bool,
    /// The result is still to be collected.
    pub result_due: bool,
    /// Somebody has a terminal open: the sandbox is not stopped.
    pub terminal_held: bool,
    /// The next message may have a new lease whatever the policy (after a reset).
    pub renew_lease: bool,
    /// Launches since the last event.
    pub launches_without_event: u32,
    /// COLLECT or PARK claims since ENDING began or the result was collected.
    pub park_attempt: u32,
    /// When the newest launch was last heard of.
    pub last_sign_of_life: Time,
    /// Who is at it.
    pub claim: Option<Claim>,
    /// Bumped by claim, report and expiry, and when a claim is ended from outside (R3).
    pub fence: u64,
    /// Not before this moment the next action.
    pub due_at: Time,
    /// What `next_action` says, stored for the claim query.
    pub next_action: Option<(Action, Time)>,
    /// When the present state must be over.
    pub state_deadline: Option<Time>,
    /// How long a runner may be silent; a copy of the policy's.
    pub liveness: Duration,
    /// The queue, by ordinal.
    pub messages: Vec<Message>,
}

/// What a session must know of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseView {
    /// READY, HELD, not expired.
    Ready,
    /// HELD, on its way to READY.
    Coming,
    /// Not wanted any more, for this reason.
    Gone(FailureReason),
}

/// What a session must know of its run and lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context<'a> {
    /// The current lease.
    pub lease: LeaseView,
    /// Conversation, or one-shot.
    pub conversation: bool,
    /// A lost sandbox may be replaced.
    pub recreate: bool,
    /// The run is FAILED, CANCELLED or being deleted.
    pub ended: Option<FailureReason>,
    /// When the work must be over.
    pub wall_clock_deadline: Option<Time>,
    /// The run's settings.
    pub policy: &'a Policy,
}

/// Whether there is anything left to do: a message, a turn, or the result.
pub fn work(session: &Session) -> bool {
    session.unfinished() || session.result_due
}

/// What is to be done next and not before when; none while claimed. PENDING, IDLE and CLOSED wait for lease or client.
pub fn next_action(session: &Session) -> Option<(Action, Time)> {
    if session.claim.is_some() {
        return None;
    }
    match (session.state, session.harness) {
        (State::Pending | State::Idle | State::Closed, _) => None,
        (State::Starting, _) => Some((Action::Launch, session.due_at)),
        (State::Live, Harness::Native) => Some((Action::Drive, session.due_at)),
        (State::Live, Harness::ClaudeCode | Harness::Codex | Harness::Acp) => {
            let silent = session.last_sign_of_life.plus(session.liveness);
            Some((Action::Check, silent.max(session.due_at)))
        }
        (State::Ending, _) if session.result_due => Some((Action::Collect, session.due_at)),
        (State::Ending, _) => Some((Action::Park, session.due_at)),
    }
}

impl Session {
    /// A fresh session with the first prompt queued.
    pub fn open(id: SessionId, run: RunId, harness: Harness, prompt: NewMessage, policy: &Policy, now: Time) -> Self {
        let mut session = Self {
            id,
            run,
            harness,
            state: State::Pending,
            launch: 0,
            first_seq: 1,
            bearer_sha256: None,
            native_id: None,
            turn: false,
            result_due: false,
            terminal_held: false,
            renew_lease: false,
            launches_without_event: 0,
            park_attempt: 0,
            last_sign_of_life: now,
            claim: None,
            fence: 0,
            due_at: now,
            next_action: None,
            state_deadline: None,
            liveness: policy.liveness,
            messages: Vec::new(),
        };
        session.enqueue(prompt);
        session
    }

    /// A message that is not DONE or FAILED, or a turn in flight; `result_due` is no message.
    pub fn unfinished(&self) -> bool {
        self.turn || self.messages.iter().any(Message::is_open)
    }
}

impl Message {
    /// Neither DONE nor FAILED.
    pub fn is_open(&self) -> bool {
        match self.state {
            MessageState::Queued | MessageState::Delivered | MessageState::Accepted => true,
            MessageState::Done | MessageState::Failed(_) => false,
        }
    }
}
