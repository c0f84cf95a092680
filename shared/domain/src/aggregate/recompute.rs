//! The recomputation (R1): what follows for run, leases and session from the rows as they are, repeated until nothing changes.
//!
//! Levels, not edges: nothing here looks at what just happened, only at what is.

use super::{Aggregate, Applied, Entity, Note, Transition};
use crate::failure::FailureReason;
use crate::id::LeaseId;
use crate::lease::{self, Cause, Desired, Lease};
use crate::run::{self, Outcome};
use crate::session::{self, LeaseView};
use crate::step::Step;
use crate::time::Time;
use uuid::Uuid;

/// The longest chain of consequences is about five steps; beyond this something feeds itself.
const MOST_ROUNDS: usize = 16;

/// The rows while a transaction is decided, with what it will have to write.
pub(super) struct Draft<'a> {
    pub(super) rows: Aggregate,
    pub(super) notes: Vec<Note>,
    pub(super) now: Time,
    transitions: Vec<Transition>,
    cause: &'static str,
    ids: &'a mut dyn FnMut() -> Uuid,
}

impl<'a> Draft<'a> {
    pub(super) fn new(aggregate: &Aggregate, cause: &'static str, now: Time, ids: &'a mut dyn FnMut() -> Uuid) -> Self {
        Self { rows: aggregate.clone(), notes: vec![], now, transitions: vec![], cause, ids }
    }

    /// What `apply` answers, now that nothing changes any more.
    pub(super) fn finish(self, before: &Aggregate) -> Applied {
        if self.rows == *before {
            return Applied::Ignored("nothing to change");
        }
        Applied::Changed { next: Box::new(self.rows), transitions: self.transitions, notes: self.notes }
    }

    /// Applies a trigger to one lease, with its effects on the run.
    pub(super) fn lease(&mut self, index: usize, trigger: &lease::Trigger) -> Step<(), ()> {
        let before = &self.rows.leases[index];
        // Only the current lease, and only while it was wanted, can fail the run.
        let can_fail = index + 1 == self.rows.leases.len() && before.desired == Desired::Held;
        match lease::next(before, trigger, &self.rows.run.policy, self.now) {
            Step::Changed(next, effects) => {
                let id = next.id.clone();
                self.record(Entity::Lease, id.as_str().to_owned(), before.state.as_str(), next.state.as_str());
                if next.claim.is_some() && next.desired != self.rows.leases[index].desired {
                    self.notes.push(Note::DesireChanged);
                }
                self.rows.leases[index] = next;
                for effect in effects {
                    match effect {
                        lease::Effect::FailRun { reason, text } if can_fail => self.fail(reason, text),
                        lease::Effect::FailRun { .. } => {}
                        lease::Effect::QuotaFreed => self.notes.push(Note::QuotaFreed(id.clone())),
                        lease::Effect::ReadSoon => self.notes.push(Note::ReadSoon(id.clone())),
                    }
                }
                Step::Changed((), vec![])
            }
            Step::Ignored(reason) => Step::Ignored(reason),
            Step::Refused(refusal) => Step::Refused(refusal),
        }
    }

    /// Applies a trigger to the session, with its effects on run and leases.
    pub(super) fn session(&mut self, trigger: &session::Trigger) -> Step<(), ()> {
        let step = session::next(&self.rows.session, trigger, &self.rows.context(self.now), self.now);
        match step {
            Step::Changed(next, effects) => {
                let from = self.rows.session.state;
                self.record(Entity::Session, next.id.as_str().to_owned(), from.as_str(), next.state.as_str());
                if self.rows.session.claim.is_some()
                    && next.claim.is_some()
                    && self.rows.session.messages.len() != next.messages.len()
                {
                    self.notes.push(Note::DesireChanged);
                }
                self.rows.session = next;
                for effect in effects {
                    self.session_effect(effect);
                }
                self.rows.session.next_action = session::next_action(&self.rows.session);
                Step::Changed((), vec![])
            }
            Step::Ignored(reason) => Step::Ignored(reason),
            Step::Refused(refusal) => Step::Refused(refusal),
        }
    }

    fn session_effect(&mut self, effect: session::Effect) {
        match effect {
            session::Effect::FailRun { reason, text } => self.fail(reason, text),
            session::Effect::QueueContinue => {
                let uuid = (self.ids)();
                self.rows.session.queue_continue(uuid);
            }
            session::Effect::NewLease { recovery } => self.new_lease(recovery),
            session::Effect::ReleaseLease => self.unwant_current(Cause::Reset),
            session::Effect::TouchLease => self.touch_current(),
            session::Effect::CollectFailed { reason, text } => self.notes.push(Note::CollectFailed { reason, text }),
            session::Effect::Stop => self.notes.push(Note::StopRunner),
            session::Effect::Activity(activity) => {
                if self.rows.run.state == run::State::Running {
                    self.rows.run.activity = Some(activity);
                }
            }
        }
    }

    /// RetryDeletion, RetryRelease, DeleteRun: the backoff of every teardown starts over.
    pub(super) fn retry_leases(&mut self) {
        for index in 0..self.rows.leases.len() {
            self.lease(index, &lease::Trigger::Retry);
        }
    }

    /// Stores the failure, unless the run is settled: the first failure stays.
    pub(super) fn fail(&mut self, reason: FailureReason, text: String) {
        let run = &mut self.rows.run;
        if run.state.is_active() && run.outcome.is_none() && !run.cancel_asked {
            run.outcome = Some(Outcome::Failed { reason, text });
        }
    }

    /// Repeats until nothing changes: what is wanted of the leases, what the session does about lease and run, what the run is.
    /// False when it does not settle: nothing of it may be written then.
    pub(super) fn recompute(&mut self) -> bool {
        for _ in 0..MOST_ROUNDS {
            let leases = self.recompute_leases();
            let session = self.recompute_session();
            let run = self.recompute_run();
            if !(leases || session || run) {
                return true;
            }
        }
        debug_assert!(false, "the recomputation does not settle: {:?}", self.rows);
        false
    }

    fn recompute_leases(&mut self) -> bool {
        let ended = self.rows.ended().map(cause_of);
        let current = self.rows.leases.len().saturating_sub(1);
        let mut changed = false;
        for index in 0..self.rows.leases.len() {
            let replaced = (index < current).then_some(Cause::Replaced);
            let Some(cause) = ended.or(replaced) else { continue };
            if self.rows.leases[index].desired == Desired::Held {
                changed |= self.lease(index, &lease::Trigger::Unwanted(cause)).is_changed();
            }
        }
        changed
    }

    fn recompute_session(&mut self) -> bool {
        let context = self.rows.context(self.now);
        let state = self.rows.session.state;
        let waits_or_works = !matches!(state, session::State::Idle | session::State::Closed);
        let trigger = match (context.ended, context.lease) {
            (Some(reason), _) if state != session::State::Closed => session::Trigger::RunEnded { reason },
            // Expiry is a desire change of the lease first: Tick or a claim makes it, so that both agree.
            (None, LeaseView::Gone(reason))
                if waits_or_works && self.rows.current().is_some_and(|lease| lease.desired == Desired::Released) =>
            {
                session::Trigger::LeaseGone { reason }
            }
            (None, LeaseView::Ready) if state == session::State::Pending => session::Trigger::LeaseReady,
            (None, LeaseView::Ready) if matches!(state, session::State::Starting | session::State::Ending) => {
                session::Trigger::Settle
            }
            (Some(_), _) | (None, LeaseView::Ready | LeaseView::Coming | LeaseView::Gone(_)) => return false,
        };
        self.session(&trigger).is_changed()
    }

    fn recompute_run(&mut self) -> bool {
        let rows = &self.rows;
        let state = run::derive(&rows.run, &rows.leases, &rows.session);
        let from = rows.run.state;
        if state == from {
            return false;
        }
        self.record(Entity::Run, self.rows.run.id.as_str().to_owned(), from.as_str(), state.as_str());
        run::enter(&mut self.rows.run, state, self.now);
        if state == run::State::Deleted {
            self.erase();
            self.notes.push(Note::Erase);
        }
        true
    }

    /// What was said, by whomever, goes with the deletion; the reasons stay.
    fn erase(&mut self) {
        for message in &mut self.rows.session.messages {
            message.text.clear();
        }
        if let Some(Outcome::Failed { text, .. }) = &mut self.rows.run.outcome {
            text.clear();
        }
        for lease in &mut self.rows.leases {
            if let Some((_, text)) = &mut lease.failure {
                text.clear();
            }
        }
    }

    fn new_lease(&mut self, recovery: bool) {
        let Some(last) = self.rows.current() else { return };
        let id = LeaseId::new((self.ids)());
        let mut lease =
            Lease::acquire(id.clone(), self.rows.run.id.clone(), &last.traits(), &self.rows.run.policy, self.now);
        lease.generation = last.generation + 1;
        lease.recovery = recovery;
        self.record(Entity::Lease, id.as_str().to_owned(), "", lease.state.as_str());
        self.rows.leases.push(lease);
        self.notes.push(Note::QuotaReserved(id));
    }

    pub(super) fn unwant_current(&mut self, cause: Cause) {
        if let Some(index) = self.rows.leases.len().checked_sub(1) {
            self.lease(index, &lease::Trigger::Unwanted(cause));
        }
    }

    /// Activity of the agent is activity of the lease; written at most thirty times per idle window, not with every event.
    fn touch_current(&mut self) {
        let now = self.now;
        let Some(index) = self.rows.leases.len().checked_sub(1) else { return };
        let lease = &self.rows.leases[index];
        if now.since(lease.touched_at) >= lease.idle_timeout / 30 {
            let observed = lease.observed;
            self.lease(index, &lease::Trigger::Beat { observed, at: now, touch: true });
        }
    }

    fn record(&mut self, entity: Entity, id: String, from: &str, to: &str) {
        if from != to {
            self.transitions.push(Transition {
                entity,
                id,
                from: from.to_owned(),
                to: to.to_owned(),
                cause: self.cause.to_owned(),
                at: self.now,
            });
        }
    }
}

/// Why leases are not wanted when the run ended for `reason`.
fn cause_of(reason: FailureReason) -> Cause {
    match reason {
        FailureReason::Deleted => Cause::Deleted,
        FailureReason::Cancelled => Cause::Cancelled,
        FailureReason::BudgetTurns
        | FailureReason::BudgetTokens
        | FailureReason::BudgetWallClock
        | FailureReason::ModelError
        | FailureReason::ModelRefused
        | FailureReason::ModelKeyMissing
        | FailureReason::RateLimited
        | FailureReason::ContextWindowExceeded
        | FailureReason::BootstrapFailed
        | FailureReason::BootstrapTimeout
        | FailureReason::CloneFailed
        | FailureReason::RefNotFound
        | FailureReason::RepoUnreachable
        | FailureReason::RepoAuthRefused
        | FailureReason::RepoNotFound
        | FailureReason::CloneTimeout
        | FailureReason::WorkdirRefused
        | FailureReason::SecretUnavailable
        | FailureReason::RepoAddressRefused
        | FailureReason::LaunchFailed
        | FailureReason::HarnessFailed
        | FailureReason::SandboxLost
        | FailureReason::LeaseExpired
        | FailureReason::LeaseReleased
        | FailureReason::AllocateRefused
        | FailureReason::AllocateTimeout
        | FailureReason::CredentialsMissing
        | FailureReason::ProvisionTimeout
        | FailureReason::RecoveryTimeout
        | FailureReason::CollectFailed
        | FailureReason::PushRefused
        | FailureReason::PushTimeout
        | FailureReason::Reset
        | FailureReason::Internal => Cause::Failed,
    }
}
