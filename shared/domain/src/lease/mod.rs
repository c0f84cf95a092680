//! The lease: our durable claim on one provider sandbox, from the intent to create it to the receipt that it is gone.
//!
//! Here: the row, its triggers and its next action. `next.rs` and `report.rs` hold the transition table (machines.md §1), `time.rs` the time rule.
//! Must not live here: what a lease means to its run or session (see `aggregate`), I/O, clocks.

mod next;
mod report;
mod time;
mod trigger;

pub use next::next;
pub use time::{Beat, beat, expires_at};
pub use trigger::{Effect, Outcome, Trigger};

use crate::id::{LeaseId, RunId, WorkerId};
use crate::policy::Policy;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::time::Duration;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant,)* }

        impl $name {
            /// Every member.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The stable upper-case name.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// The member of that name, if there is one.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some($name::$variant),)* _ => None }
            }
        }
    };
}
pub(crate) use words;

words! {
    /// Where the lease is.
    State {
        /// Intended; no worker ever held it.
        Requested = "REQUESTED",
        /// A worker has held it: a sandbox may exist.
        Allocating = "ALLOCATING",
        /// The identity is durable.
        Allocated = "ALLOCATED",
        /// Prepared; sessions may launch in it.
        Ready = "READY",
        /// Being destroyed.
        Releasing = "RELEASING",
        /// Destroying failed; retried slowly for ever.
        ReleaseFailed = "RELEASE_FAILED",
        /// The provider says the sandbox is gone; still to be released.
        Lost = "LOST",
        /// Over; there is a receipt. Terminal.
        Released = "RELEASED",
    }
}

words! {
    /// What we want; goes from HELD to RELEASED once, never back.
    Desired {
        /// Keep it.
        Held = "HELD",
        /// Get rid of it.
        Released = "RELEASED",
    }
}

words! {
    /// What the provider last said, apart from what we want.
    Observed {
        /// Nothing lately.
        Unknown = "UNKNOWN",
        /// It runs.
        Running = "RUNNING",
        /// Paused with its memory.
        Paused = "PAUSED",
        /// Stopped.
        Stopped = "STOPPED",
        /// It is not there.
        Absent = "ABSENT",
    }
}

words! {
    /// What a worker can be asked to do with a lease.
    Action {
        /// Make the sandbox, or find the one made before.
        Allocate = "ALLOCATE",
        /// Prepare it.
        Bootstrap = "BOOTSTRAP",
        /// Destroy it, by recorded id and by key.
        Release = "RELEASE",
    }
}

words! {
    /// The kinds of proof that a sandbox is absent (R8).
    ReceiptKind {
        /// No attempt was made, or every one was definitely refused.
        NeverCreated = "NEVER_CREATED",
        /// Seen absent by id and key, in the right account, after the doubt settled.
        ObservedAbsent = "OBSERVED_ABSENT",
        /// An administrator took responsibility.
        Forgotten = "FORGOTTEN",
    }
}

words! {
    /// Why a lease is no longer wanted.
    Cause {
        /// The run was cancelled.
        Cancelled = "CANCELLED",
        /// The run is being deleted.
        Deleted = "DELETED",
        /// The run failed.
        Failed = "FAILED",
        /// The conversation was reset.
        Reset = "RESET",
        /// Another lease took its place.
        Replaced = "REPLACED",
        /// A client released it.
        Asked = "ASKED",
        /// Its time was over.
        Expired = "EXPIRED",
        /// The run completed and its linger time is over.
        Lingered = "LINGERED",
        /// The provider lost the sandbox.
        Lost = "LOST",
        /// No sandbox came of it, or none that works.
        Unusable = "UNUSABLE",
    }
}

/// What the provider calls the sandbox, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The provider's durable id.
    pub sandbox_id: String,
    /// Where it answers; empty when it does not.
    pub sandbox_url: String,
    /// The account it was made in: team, project, region, secret version.
    pub scope: String,
    /// The provider really used.
    pub provider: String,
    /// When the provider itself will end or suspend it.
    pub provider_deadline: Option<Time>,
}

/// A worker's hold on one action of a lease. It ends at the worker's `alive_until` or at `deadline`, whichever is earlier (R5).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// Who holds it.
    pub worker: WorkerId,
    /// What for.
    pub action: Action,
    /// Since when; absence is judged by it (R8).
    pub claimed_at: Time,
    /// The action's own total deadline; `Extend` never passes it.
    pub deadline: Time,
}

/// The proof that the sandbox is absent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Receipt {
    /// What kind of proof.
    pub kind: ReceiptKind,
    /// When.
    pub at: Time,
    /// The worker or principal that gave it.
    pub by: String,
    /// How it was observed, or why it was forgotten.
    pub how: String,
    /// What was last seen of the sandbox.
    pub last_seen: Option<String>,
    /// The account it was looked for in.
    pub account_scope: String,
}

/// The lease row.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// Never reused; the sandbox's key is made of it (R6).
    pub id: LeaseId,
    /// The run it serves.
    pub run: RunId,
    /// 1 for the first lease of a run.
    pub generation: u32,
    /// Made to replace a lost or expired one while there was work.
    pub recovery: bool,
    /// The provider asked for.
    pub provider: String,
    /// Where it is.
    pub state: State,
    /// What we want.
    pub desired: Desired,
    /// Since when and why it is not wanted.
    pub unwanted: Option<(Cause, Time)>,
    /// What the provider last said.
    pub observed: Observed,
    /// When it said so.
    pub observed_at: Option<Time>,
    /// Some ALLOCATE attempt ended without a definite answer; never cleared (R7).
    pub in_doubt: bool,
    /// Absence seen by a RELEASE claimed earlier proves nothing while in doubt.
    pub settle_at: Option<Time>,
    /// ALLOCATE attempts made.
    pub attempt: u32,
    /// Those of them that were definitely not made; they are not counted against the limit, only the window ends them.
    #[serde(default)]
    pub not_made: u32,
    /// When the first one was claimed.
    pub allocate_started_at: Option<Time>,
    /// BOOTSTRAP attempts made.
    pub bootstrap_attempt: u32,
    /// What was made; absent until a worker reported it.
    pub identity: Option<Identity>,
    /// The account ALLOCATE was last tried in, when its claim or a report without identity said so.
    pub asked_scope: Option<String>,
    /// The effective working directory, reported by BOOTSTRAP.
    pub workdir: Option<String>,
    /// Who is at it.
    pub claim: Option<Claim>,
    /// Bumped by claim, report and expiry, by nothing else (R3, R4).
    pub fence: u64,
    /// Not before this moment the next action.
    pub due_at: Time,
    /// What `next_action` says, stored for the claim query.
    pub next_action: Option<(Action, Time)>,
    /// When it became RELEASING.
    pub release_since: Option<Time>,
    /// RELEASE attempts since then.
    pub release_attempt: u32,
    /// The last failure: its class or reason, and text for people.
    pub failure: Option<(String, String)>,
    /// Present exactly when RELEASED.
    pub receipt: Option<Receipt>,
    /// When it was acquired.
    pub created_at: Time,
    /// When it became READY.
    pub ready_at: Option<Time>,
    /// The last activity.
    pub touched_at: Time,
    /// From this moment on it is expired; see [`expires_at`].
    pub expires_at: Time,
    /// Longest time without activity.
    pub idle_timeout: Duration,
    /// Longest life.
    pub max_lifetime: Duration,
    /// When the present state must be over.
    pub state_deadline: Option<Time>,
    /// Whether the provider can find a sandbox by our key.
    pub can_lookup_key: bool,
    /// How late a create that got no answer may still take effect.
    pub create_horizon: Duration,
}

/// What a provider is like, as far as a lease must know.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProviderTraits {
    /// Its name.
    pub provider: String,
    /// Whether it can find a sandbox by our key.
    pub can_lookup_key: bool,
    /// How late a create that got no answer may still take effect.
    pub create_horizon: Duration,
}

impl Lease {
    /// A fresh lease: the intent. Quota is reserved in the same transaction.
    pub fn acquire(id: LeaseId, run: RunId, traits: &ProviderTraits, policy: &Policy, now: Time) -> Self {
        let mut lease = Self {
            id,
            run,
            generation: 1,
            recovery: false,
            provider: traits.provider.clone(),
            state: State::Requested,
            desired: Desired::Held,
            unwanted: None,
            observed: Observed::Unknown,
            observed_at: None,
            in_doubt: false,
            settle_at: None,
            attempt: 0,
            not_made: 0,
            allocate_started_at: None,
            bootstrap_attempt: 0,
            identity: None,
            asked_scope: None,
            workdir: None,
            claim: None,
            fence: 0,
            due_at: now,
            next_action: None,
            release_since: None,
            release_attempt: 0,
            failure: None,
            receipt: None,
            created_at: now,
            ready_at: None,
            touched_at: now,
            expires_at: now,
            idle_timeout: policy.idle_timeout,
            max_lifetime: policy.max_lifetime,
            state_deadline: Some(now.plus(policy.requested)),
            can_lookup_key: traits.can_lookup_key,
            create_horizon: traits.create_horizon,
        };
        lease.settle_derived();
        lease
    }

    /// The tombstone of a CancelAcquire that came before its Acquire: RELEASED at once, so that a later Acquire is refused.
    pub fn tombstone(id: LeaseId, run: RunId, traits: &ProviderTraits, policy: &Policy, now: Time, by: &str) -> Self {
        let lease = Self::acquire(id, run, traits, policy, now);
        let mut gone = lease.unwant(Cause::Cancelled, now);
        gone.release(ReceiptKind::NeverCreated, by, "cancelled before it was acquired", now);
        gone.settle_derived();
        gone
    }

    /// What the provider must be like, for a replacement lease.
    pub fn traits(&self) -> ProviderTraits {
        ProviderTraits {
            provider: self.provider.clone(),
            can_lookup_key: self.can_lookup_key,
            create_horizon: self.create_horizon,
        }
    }

    /// READY, wanted and not expired: a session may work in it.
    pub fn usable(&self, now: Time) -> bool {
        self.state == State::Ready && self.desired == Desired::Held && now < self.expires_at
    }

    /// When a teardown that nobody takes up counts as failed; none while claimed, wanted, failed or over.
    pub fn teardown_deadline(&self, policy: &Policy) -> Option<Time> {
        let since = match (self.state, self.desired) {
            _ if self.claim.is_some() => None,
            (State::Releasing, _) => self.release_since,
            (State::Allocating | State::Allocated | State::Ready | State::Lost, Desired::Released) => {
                self.unwanted.map(|(_, at)| at)
            }
            (State::Allocating | State::Allocated | State::Ready | State::Lost, Desired::Held)
            | (State::Requested | State::ReleaseFailed | State::Released, _) => None,
        };
        since.map(|at| at.plus(policy.teardown))
    }

    /// The account that alone can tell whether there is a sandbox; none while nothing can have been made, or nobody knows.
    pub fn bound_to(&self) -> Option<&str> {
        let doubtful = self.asked_scope.as_deref().filter(|_| self.in_doubt || self.claim.is_some());
        self.identity.as_ref().map(|identity| identity.scope.as_str()).or(doubtful)
    }

    /// An ALLOCATE was claimed that will be tried in this account. Whatever an earlier attempt left in doubt stays where it
    /// was asked for: absence here would prove nothing about it.
    pub fn asked_in(&mut self, scope: Option<&str>) {
        let allocating = self.claim.as_ref().is_some_and(|claim| claim.action == Action::Allocate);
        if allocating && !self.in_doubt {
            self.asked_scope = scope.map(str::to_owned);
        }
    }

    /// RELEASED; absorbs everything.
    pub fn is_terminal(&self) -> bool {
        self.state == State::Released
    }

    /// Brings the derived columns (`expires_at`, `next_action`) up to date.
    pub(crate) fn settle_derived(&mut self) {
        self.expires_at = expires_at(self.created_at, self.max_lifetime, self.touched_at, self.idle_timeout);
        self.next_action = next_action(self);
    }
}

/// What is to be done next and not before when; none while claimed, none when RELEASED.
pub fn next_action(lease: &Lease) -> Option<(Action, Time)> {
    if lease.claim.is_some() {
        return None;
    }
    match (lease.state, lease.desired) {
        (State::Released, Desired::Held | Desired::Released) => None,
        (State::Requested | State::Allocating, Desired::Held) => Some((Action::Allocate, lease.due_at)),
        (State::Allocated, Desired::Held) => Some((Action::Bootstrap, lease.due_at)),
        (State::Ready, Desired::Held) => Some((Action::Release, lease.expires_at)),
        (State::Requested | State::Allocating | State::Allocated | State::Ready, Desired::Released) => {
            Some((Action::Release, lease.due_at))
        }
        (State::Releasing | State::ReleaseFailed | State::Lost, Desired::Held | Desired::Released) => {
            Some((Action::Release, lease.due_at))
        }
    }
}
