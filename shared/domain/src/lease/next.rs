//! The transition table of the lease (machines.md §1): every trigger but reports, which are in `report.rs`.

use super::{
    Action, Beat, Cause, Claim, Desired, Effect, Lease, Observed, Receipt, ReceiptKind, State, Trigger, beat,
    next_action, report,
};
use crate::failure::{FailureClass, FailureReason};
use crate::policy::Policy;
use crate::step::Step;
use crate::time::Time;

pub(super) type LeaseStep = Step<Lease, Effect>;

/// Applies one trigger to a lease row. Total: whatever does not change the row is ignored with a reason.
pub fn next(lease: &Lease, trigger: &Trigger, policy: &Policy, now: Time) -> LeaseStep {
    if lease.is_terminal() {
        return Step::Ignored("released: absorbed");
    }
    let step = match trigger {
        Trigger::Claim { worker, action } => {
            let claim = Claim { worker: worker.clone(), action: *action, claimed_at: now, deadline: now };
            take(lease, claim, policy, now)
        }
        Trigger::Report { fence, outcome } => match live_claim(lease, *fence) {
            Some(claim) => report::report(lease, claim, outcome, policy, now),
            None => Step::Ignored("stale fence"),
        },
        Trigger::ClaimExpired { fence, claim_end } => match live_claim(lease, *fence) {
            Some(_) if *claim_end > now => Step::Ignored("the claim still holds"),
            Some(claim) => report::expired(lease, claim, *claim_end, policy, now),
            None => Step::Ignored("stale fence"),
        },
        Trigger::Unwanted(cause) => unwanted(lease, *cause, now),
        Trigger::Deadline => deadline(lease, policy, now),
        Trigger::Gone { scope, how } => gone(lease, scope, how, now),
        Trigger::Missing { how } => missing(lease, how, now),
        Trigger::Beat { observed, at, touch } => observe(lease, *observed, *at, *touch, now),
        Trigger::Outage { away } => match (lease.state, lease.desired) {
            (State::Ready, Desired::Held) => {
                let touched_at = lease.touched_at.plus(*away).min(now);
                Step::Changed(Lease { touched_at, ..lease.clone() }, vec![])
            }
            (
                State::Requested
                | State::Allocating
                | State::Allocated
                | State::Lost
                | State::Releasing
                | State::ReleaseFailed
                | State::Released,
                _,
            )
            | (State::Ready, Desired::Released) => Step::Ignored("no idle time to forgive"),
        },
        Trigger::Retry => retry(lease, now),
        Trigger::Forget { reason, by } => forget(lease, reason, by, policy, now),
    };
    match step {
        Step::Changed(mut changed, effects) => {
            changed.settle_derived();
            debug_assert_eq!(changed.receipt.is_some(), changed.state == State::Released);
            Step::Changed(changed, effects)
        }
        Step::Ignored(reason) => Step::Ignored(reason),
        Step::Refused(refusal) => Step::Refused(refusal),
    }
}

fn live_claim(lease: &Lease, fence: u64) -> Option<&Claim> {
    lease.claim.as_ref().filter(|_| lease.fence == fence)
}

fn take(lease: &Lease, claim: Claim, policy: &Policy, now: Time) -> LeaseStep {
    match next_action(lease) {
        Some((action, due)) if action == claim.action && due <= now => {}
        Some(_) => return Step::Ignored("that action is not due"),
        None => return Step::Ignored("claimed already"),
    }
    let mut next = lease.clone();
    next.fence += 1;
    let deadline = match (claim.action, lease.state) {
        (Action::Allocate, _) => {
            next.state = State::Allocating;
            next.attempt += 1;
            let started = *next.allocate_started_at.get_or_insert(now);
            let end = started.plus(policy.allocate_window);
            next.state_deadline = Some(end);
            now.plus(policy.allocate_call).min(end)
        }
        (Action::Bootstrap, _) => {
            next.bootstrap_attempt += 1;
            lease.state_deadline.unwrap_or_else(|| now.plus(policy.bootstrap))
        }
        // A failed teardown stays failed until absence is proven; looking again does not make it better.
        (Action::Release, State::ReleaseFailed) => now.plus(policy.release_call),
        (
            Action::Release,
            State::Requested
            | State::Allocating
            | State::Allocated
            | State::Ready
            | State::Lost
            | State::Releasing
            | State::Released,
        ) => {
            if next.desired == Desired::Held {
                next = next.unwant(Cause::Expired, now);
            }
            if next.state != State::Releasing {
                next.start_releasing(now);
            }
            now.plus(policy.release_call)
        }
    };
    next.claim = Some(Claim { deadline, ..claim });
    Step::Changed(next, vec![])
}

fn unwanted(lease: &Lease, cause: Cause, now: Time) -> LeaseStep {
    if lease.desired == Desired::Released {
        return Step::Ignored("not wanted already");
    }
    let mut next = lease.clone().unwant(cause, now);
    match lease.state {
        State::Requested => Step::Changed(
            next.released(ReceiptKind::NeverCreated, "lifecycle", "no worker ever held it", now),
            vec![Effect::QuotaFreed],
        ),
        State::Allocating if lease.claim.is_none() && lease.never_made() => Step::Changed(
            next.released(ReceiptKind::NeverCreated, "lifecycle", "every attempt was definitely refused", now),
            vec![Effect::QuotaFreed],
        ),
        State::Allocating | State::Allocated | State::Ready => {
            next.state_deadline = None;
            next.due_at = now;
            Step::Changed(next, vec![])
        }
        // LOST, RELEASING and RELEASE_FAILED are never HELD, RELEASED was absorbed: nothing to add but the desire.
        State::Lost | State::Releasing | State::ReleaseFailed | State::Released => Step::Changed(next, vec![]),
    }
}

fn deadline(lease: &Lease, policy: &Policy, now: Time) -> LeaseStep {
    if lease.teardown_deadline(policy).is_some_and(|at| at <= now) {
        let text = "no worker came to tear it down, or none finished it";
        return report::release_failed(lease.clone(), FailureClass::Unavailable, text, policy, now);
    }
    let due = lease.state_deadline.is_some_and(|at| at <= now);
    if !due {
        return Step::Ignored("the deadline has not passed");
    }
    match (lease.state, lease.desired) {
        (State::Requested, Desired::Held) => {
            let next = lease.clone().unwant(Cause::Unusable, now);
            let effects =
                vec![fail(FailureReason::ProvisionTimeout, "no worker took the lease in time"), Effect::QuotaFreed];
            Step::Changed(next.released(ReceiptKind::NeverCreated, "lifecycle", "no worker ever held it", now), effects)
        }
        (State::Allocating, Desired::Held) if lease.claim.is_some() => Step::Ignored("the claim has its own deadline"),
        (State::Allocating, Desired::Held) => {
            report::give_up_allocating(lease.clone(), FailureReason::AllocateTimeout, now)
        }
        (State::Allocated, Desired::Held) => {
            let mut next = lease.clone().unwant(Cause::Unusable, now);
            // The claim, if any, ends with the state: its deadline is the same moment.
            if next.claim.take().is_some() {
                next.fence += 1;
            }
            next.start_releasing(now);
            let text = format!("not prepared within {} s", policy.bootstrap.as_secs());
            Step::Changed(next, vec![fail(FailureReason::BootstrapTimeout, &text)])
        }
        (State::Ready | State::Lost | State::Releasing | State::ReleaseFailed | State::Released, _)
        | (State::Requested | State::Allocating | State::Allocated, Desired::Released) => {
            Step::Ignored("this state has no deadline")
        }
    }
}

fn gone(lease: &Lease, scope: &str, how: &str, now: Time) -> LeaseStep {
    match lease.state {
        State::Allocated | State::Ready => match &lease.identity {
            Some(identity) if identity.scope == scope => Step::Changed(lease.clone().lost(how, now), vec![]),
            Some(_) | None => Step::Ignored("seen in another account: proves nothing"),
        },
        State::Requested | State::Allocating => Step::Ignored("nothing is known to be made"),
        State::Lost | State::Releasing | State::ReleaseFailed | State::Released => {
            Step::Ignored("only a RELEASE proves absence")
        }
    }
}

fn missing(lease: &Lease, how: &str, now: Time) -> LeaseStep {
    match lease.state {
        State::Allocated | State::Ready => {
            let mut next = lease.clone();
            next.observed = Observed::Unknown;
            next.observed_at = Some(now);
            next.failure = Some(("MISSING".to_owned(), how.to_owned()));
            Step::Changed(next, vec![Effect::ReadSoon])
        }
        State::Requested
        | State::Allocating
        | State::Lost
        | State::Releasing
        | State::ReleaseFailed
        | State::Released => Step::Ignored("nothing to miss"),
    }
}

fn observe(lease: &Lease, observed: Observed, at: Time, touch: bool, now: Time) -> LeaseStep {
    match beat(lease, now) {
        Beat::Allowed => {}
        Beat::RefusedExpired => return Step::Ignored("expired"),
        Beat::NotRunning => return Step::Ignored("not ready"),
        Beat::LeaseLost => return Step::Ignored("not held"),
    }
    let mut next = lease.clone();
    if lease.observed_at.is_none_or(|seen| seen <= at) {
        next.observed = observed;
        next.observed_at = Some(at);
    }
    if touch {
        next.touched_at = next.touched_at.max(at.min(now));
    }
    if next == *lease { Step::Ignored("nothing new") } else { Step::Changed(next, vec![]) }
}

fn retry(lease: &Lease, now: Time) -> LeaseStep {
    let mut next = lease.clone();
    match lease.state {
        State::ReleaseFailed => next.start_releasing(now),
        State::Releasing if lease.claim.is_some() => return Step::Ignored("a worker is at it"),
        State::Releasing => {
            next.release_attempt = 0;
            next.due_at = now;
        }
        State::Requested | State::Allocating | State::Allocated | State::Ready | State::Lost | State::Released => {
            return Step::Ignored("no teardown to retry");
        }
    }
    Step::Changed(next, vec![])
}

fn forget(lease: &Lease, reason: &str, by: &str, policy: &Policy, now: Time) -> LeaseStep {
    let old = |since: Option<Time>| since.is_some_and(|at| now.since(at) >= policy.teardown);
    let allowed = match lease.state {
        State::ReleaseFailed => true,
        State::Releasing => old(lease.release_since) || old(lease.unwanted.map(|(_, at)| at)),
        // Not wanted for so long and still not even RELEASING: nobody does the work.
        State::Requested | State::Allocating | State::Allocated | State::Ready | State::Lost => {
            old(lease.unwanted.map(|(_, at)| at))
        }
        State::Released => false,
    };
    if !allowed {
        return Step::Ignored("the teardown still has time");
    }
    let mut next = lease.clone();
    if next.claim.take().is_some() {
        next.fence += 1;
    }
    Step::Changed(next.released(ReceiptKind::Forgotten, by, reason, now), vec![Effect::QuotaFreed])
}

pub(super) fn fail(reason: FailureReason, text: &str) -> Effect {
    Effect::FailRun { reason, text: text.to_owned() }
}

impl Lease {
    /// Not wanted any more. Does not touch the fence (R4).
    pub(super) fn unwant(mut self, cause: Cause, now: Time) -> Self {
        if self.desired == Desired::Held {
            self.desired = Desired::Released;
            self.unwanted = Some((cause, now));
        }
        self
    }

    /// No attempt was made, or every one was definitely refused (R8).
    pub(super) fn never_made(&self) -> bool {
        !self.in_doubt && self.identity.is_none()
    }

    /// RELEASING from now on, with a fresh hour of fast retries.
    pub(super) fn start_releasing(&mut self, now: Time) {
        self.state = State::Releasing;
        self.state_deadline = None;
        self.release_since = Some(now);
        self.release_attempt = 0;
        self.due_at = now;
    }

    pub(super) fn lost(self, how: &str, now: Time) -> Self {
        let mut next = self.unwant(Cause::Lost, now);
        next.state = State::Lost;
        next.state_deadline = None;
        next.observed = Observed::Absent;
        next.observed_at = Some(now);
        next.failure = Some((FailureReason::SandboxLost.as_str().to_owned(), how.to_owned()));
        next.due_at = now;
        next
    }

    pub(super) fn released(mut self, kind: ReceiptKind, by: &str, how: &str, now: Time) -> Self {
        self.release(kind, by, how, now);
        self
    }

    pub(super) fn release(&mut self, kind: ReceiptKind, by: &str, how: &str, now: Time) {
        let scope = self.identity.as_ref().map(|identity| identity.scope.clone()).or_else(|| self.asked_scope.clone());
        let last_seen = self.identity.as_ref().map(|identity| identity.sandbox_id.clone());
        self.state = State::Released;
        self.state_deadline = None;
        self.claim = None;
        self.due_at = now;
        if kind != ReceiptKind::Forgotten {
            self.observed = Observed::Absent;
            self.observed_at = Some(now);
        }
        self.receipt = Some(Receipt {
            kind,
            at: now,
            by: by.to_owned(),
            how: how.to_owned(),
            last_seen,
            account_scope: scope.unwrap_or_default(),
        });
    }
}
