//! What `decide` hands back: the reply, and everything that must be written with it in the one transaction.

use berth_domain::{
    aggregate::{Aggregate, Applied, Note, Transition, Trigger},
    id::RunId,
    run::State,
    step::Refusal,
    time::Time,
};
use berth_rpc::lifecycle as proto;
use uuid::Uuid;

use super::{
    audit::AuditEntry,
    record::{Loaded, Progress},
};
use crate::error::Error;

/// A pure decision over one [`Loaded`] run.
#[derive(Debug)]
pub struct Decision<R> {
    /// What the caller gets after the commit.
    pub reply: R,
    /// Everything to write.
    pub changes: Changes,
}

/// Everything one transaction writes. The default writes nothing.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Who made the change, for the timeline: principal, worker or `lifecycle`.
    pub actor: String,
    /// The rows after the change; absent: unchanged.
    pub next: Option<Box<Aggregate>>,
    /// State changes, in order.
    pub transitions: Vec<Transition>,
    /// What the machines asked for beside the rows, in order. The store itself erases on DELETED and stores a failed
    /// collection in the result; the rest is for the operation (an audit line per forgotten lease).
    pub notes: Vec<Note>,
    /// The counters after the change; absent: unchanged.
    pub progress: Option<Progress>,
    /// The result after the change; absent: unchanged.
    pub result: Option<proto::Result>,
    /// Events to append, in order; the store numbers them. `run_state_changed` events are added by the store.
    pub events: Vec<NewEvent>,
    /// Lines for the audit trail.
    pub audit: Vec<AuditEntry>,
    /// The fence this spends, with the reply a resend will get.
    pub spent: Option<Spent>,
}

/// An event on its way into the log.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// The launch that wrote it; 0: lifecycle itself.
    pub launch: u32,
    /// Its number within the launch; 0 for lifecycle's own.
    pub launch_sequence: u64,
    /// When it happened.
    pub at: Time,
    /// What happened.
    pub payload: proto::event::Payload,
}

/// A spent fence of a lease or session row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Lease or session id.
    pub row_id: String,
    /// The fence the report named.
    pub fence: u64,
    /// Hash of the report.
    pub request_hash: Vec<u8>,
    /// The stored reply.
    pub reply: Vec<u8>,
}

impl<R> Decision<R> {
    /// Writes nothing.
    pub fn unchanged(reply: R) -> Self {
        Self { reply, changes: Changes::default() }
    }

    /// Writes `changes`.
    pub fn changed(reply: R, changes: Changes) -> Self {
        Self { reply, changes }
    }

    /// Adds a line to the audit trail.
    pub fn audited(mut self, entry: AuditEntry) -> Self {
        self.changes.audit.push(entry);
        self
    }
}

impl Changes {
    /// True when nothing but the audit trail is written.
    pub(crate) fn leaves_run_alone(&self) -> bool {
        self.next.is_none()
            && self.transitions.is_empty()
            && self.progress.is_none()
            && self.result.is_none()
            && self.events.is_empty()
            && self.spent.is_none()
    }

    /// Follows one applied trigger with another, on the same rows.
    fn follow(&mut self, next: Box<Aggregate>, mut transitions: Vec<Transition>, mut notes: Vec<Note>) {
        self.next = Some(next);
        self.transitions.append(&mut transitions);
        self.notes.append(&mut notes);
    }
}

impl Loaded {
    /// The run's id.
    pub fn run_id(&self) -> &RunId {
        &self.aggregate.run.id
    }

    /// Applies one trigger of the machines to the rows as `changes` has them so far. Ignored triggers change nothing (R9);
    /// the answer says whether anything changed.
    ///
    /// # Errors
    /// A refusal of the machine, as the error clients get.
    pub fn apply(&self, changes: &mut Changes, trigger: &Trigger) -> Result<bool, Error> {
        let applied = berth_domain::aggregate::apply(self.after(changes), trigger, self.now, &mut Uuid::now_v7);
        match applied {
            Applied::Changed { next, transitions, notes } => {
                for note in &notes {
                    if let Note::CollectFailed { reason, text } = note {
                        let mut result = changes.result.clone().or(self.record.result.clone()).unwrap_or_default();
                        result.collect_error =
                            Some(proto::Error { reason: reason.as_str().to_owned(), message: text.clone() });
                        changes.result = Some(result);
                    }
                }
                changes.follow(next, transitions, notes);
                Ok(true)
            }
            Applied::Ignored(_) => Ok(false),
            Applied::Refused(refusal) => Err(refused(refusal)),
        }
    }

    /// The rows after `changes`.
    pub fn after<'a>(&'a self, changes: &'a Changes) -> &'a Aggregate {
        changes.next.as_deref().unwrap_or(&self.aggregate)
    }

    /// The run as it will stand once `changes` are committed (its cursor excepted, which the commit assigns).
    pub fn with(&self, changes: &Changes) -> Self {
        let mut next = self.clone();
        if let Some(aggregate) = &changes.next {
            next.aggregate = (**aggregate).clone();
            next.record.updated_at = self.now;
        }
        if let Some(progress) = &changes.progress {
            next.record.progress = progress.clone();
        }
        if let Some(result) = &changes.result {
            next.record.result = Some(result.clone());
        }
        if next.aggregate.run.state == State::Deleted {
            // As the transaction erases it.
            next.record.prompt.clear();
            next.record.spec.system_prompt.clear();
            next.record.result = None;
        }
        next
    }
}

/// How a refusal of the machine reads to clients.
pub fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::NotFound => Error::run_not_found(),
        Refusal::StaleFence => Error::stale_fence(),
        Refusal::Unsettled => Error::Internal(refusal.to_string()),
        Refusal::CancelFirst => Error::illegal_state("RUN_ACTIVE", refusal.to_string()),
        Refusal::RunEnded => Error::illegal_state("RUN_SETTLED", refusal.to_string()),
        Refusal::NotDeleting
        | Refusal::TooEarlyToForget
        | Refusal::SandboxReleased
        | Refusal::NotConversation
        | Refusal::LeaseNotReady => Error::illegal_state(refusal.reason(), refusal.to_string()),
    }
}
