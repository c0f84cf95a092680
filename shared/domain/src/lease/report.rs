//! The transition table of the lease, second half: what a report does, or a claim that ended without one. Both spend the fence (R3).

use super::next::{LeaseStep, fail};
use super::{Action, Cause, Claim, Desired, Effect, Identity, Lease, Observed, Outcome, ReceiptKind, State};
use crate::failure::{FailureClass, FailureReason};
use crate::policy::Policy;
use crate::step::Step;
use crate::time::{Backoff, Time};
use std::time::Duration;

/// The longest wait of our own between attempts that were definitely not made: room may come at any moment.
const NOT_MADE_WAIT: Duration = Duration::from_secs(15);

/// Applies the outcome reported by the holder of the live claim.
pub(super) fn report(lease: &Lease, claim: &Claim, outcome: &Outcome, policy: &Policy, now: Time) -> LeaseStep {
    if !claim.action.answered_by(outcome) {
        return Step::Ignored("the outcome does not answer the claimed action");
    }
    let spent = spend(lease);
    match outcome {
        Outcome::CredentialsMissing { text } => match claim.action {
            Action::Allocate if lease.never_made() => refused(spent, FailureReason::CredentialsMissing, text, now),
            Action::Allocate => unknown(spent, text, now, policy, now),
            Action::Bootstrap => bootstrap_failed(spent, FailureReason::CredentialsMissing, text, now),
            Action::Release => release_failed(spent, FailureClass::NoCredentials, text, policy, now),
        },
        Outcome::Created(identity) | Outcome::Adopted(identity) => made(spent, identity, policy, now),
        Outcome::Refused { class, text } => {
            let mut next = spent;
            next.failure = Some((class.as_str().to_owned(), text.clone()));
            if next.in_doubt {
                give_up_allocating(next, FailureReason::AllocateRefused, now)
            } else {
                refused(next, FailureReason::AllocateRefused, text, now)
            }
        }
        Outcome::NotMade { text, retry_after } => not_made(spent, text, *retry_after, policy, now),
        Outcome::Unknown { text, scope } => {
            let mut next = spent;
            next.asked_scope = scope.clone().or(next.asked_scope);
            unknown(next, text, now, policy, now)
        }
        Outcome::Bootstrapped { workdir } => bootstrapped(spent, workdir, now),
        Outcome::BootstrapFailed { reason, text } => bootstrap_failed(spent, *reason, text, now),
        Outcome::BootstrapRetry { text, retry_after } => bootstrap_again(spent, text, *retry_after, policy, now),
        Outcome::Gone { scope, how } => match spent.state {
            State::Allocated if spent.identity.as_ref().is_some_and(|identity| identity.scope == *scope) => {
                Step::Changed(spent.lost(how, now), vec![])
            }
            State::Requested
            | State::Allocating
            | State::Allocated
            | State::Ready
            | State::Lost
            | State::Releasing
            | State::ReleaseFailed
            | State::Released => bootstrap_again(spent, how, None, policy, now),
        },
        Outcome::Absent { key_absent, scope, how, last_seen } => {
            let seen = Seen { key_absent: *key_absent, scope, how, last_seen };
            absent(spent, claim, &seen, policy, now)
        }
        Outcome::Accepted | Outcome::StillThere => teardown_transient(spent, None, None, policy, now),
        Outcome::TeardownFailed { class, text, retry_after } => {
            let waits = class.is_transient() || *class == FailureClass::Absent;
            if waits {
                teardown_transient(spent, Some((*class, text)), *retry_after, policy, now)
            } else {
                release_failed(spent, *class, text, policy, now)
            }
        }
    }
}

/// The claim ended at `claim_end` without a report: whatever it was doing may or may not have happened.
pub(super) fn expired(lease: &Lease, claim: &Claim, claim_end: Time, policy: &Policy, now: Time) -> LeaseStep {
    let spent = spend(lease);
    let text = "the worker's claim expired";
    match claim.action {
        Action::Allocate => unknown(spent, text, claim_end, policy, now),
        Action::Bootstrap => bootstrap_again(spent, text, None, policy, now),
        Action::Release => teardown_transient(spent, Some((FailureClass::Timeout, text)), None, policy, now),
    }
}

fn spend(lease: &Lease) -> Lease {
    let mut next = lease.clone();
    next.fence += 1;
    next.claim = None;
    next
}

fn refused(lease: Lease, reason: FailureReason, text: &str, now: Time) -> LeaseStep {
    let mut next = lease.unwant(Cause::Unusable, now);
    next.failure = Some((reason.as_str().to_owned(), text.to_owned()));
    let next = next.released(ReceiptKind::NeverCreated, "lifecycle", "every attempt was definitely refused", now);
    Step::Changed(next, vec![fail(reason, text), Effect::QuotaFreed])
}

/// No definite answer: doubt, which sticks (R7), then another attempt, or the release.
fn unknown(lease: Lease, text: &str, claim_end: Time, policy: &Policy, now: Time) -> LeaseStep {
    let mut next = lease;
    let settle = claim_end.plus(next.create_horizon);
    next.in_doubt = true;
    next.settle_at = Some(next.settle_at.map_or(settle, |at| at.max(settle)));
    next.failure = Some((FailureClass::Timeout.as_str().to_owned(), text.to_owned()));
    let due_at = now.plus(policy.retry.wait(next.attempt, next.id.as_str(), None));
    try_again_or_give_up(next, due_at, policy, now)
}

/// Nothing was made, for certain: it waits for room, a little while each time, as long as the window is open.
fn not_made(lease: Lease, text: &str, retry_after: Option<Duration>, policy: &Policy, now: Time) -> LeaseStep {
    let mut next = lease;
    next.not_made = next.not_made.saturating_add(1);
    next.failure = Some((FailureClass::Unavailable.as_str().to_owned(), text.to_owned()));
    let wait = Backoff { cap: policy.retry.cap.min(NOT_MADE_WAIT), ..policy.retry };
    let due_at = now.plus(wait.wait(next.attempt, next.id.as_str(), retry_after));
    try_again_or_give_up(next, due_at, policy, now)
}

fn try_again_or_give_up(lease: Lease, due_at: Time, policy: &Policy, now: Time) -> LeaseStep {
    let window_over = lease.state_deadline.is_some_and(|at| at <= now);
    let counted = lease.attempt.saturating_sub(lease.not_made);
    match lease.desired {
        Desired::Held if counted < policy.allocate_attempts && !window_over => {
            let mut next = lease;
            next.due_at = due_at;
            Step::Changed(next, vec![])
        }
        Desired::Held => give_up_allocating(lease, FailureReason::AllocateTimeout, now),
        Desired::Released if lease.never_made() => {
            let next =
                lease.released(ReceiptKind::NeverCreated, "lifecycle", "every attempt was definitely refused", now);
            Step::Changed(next, vec![Effect::QuotaFreed])
        }
        Desired::Released => {
            let mut next = lease;
            next.start_releasing(now);
            Step::Changed(next, vec![])
        }
    }
}

/// Attempts or time are used up: released if nothing can exist, else torn down.
pub(super) fn give_up_allocating(lease: Lease, reason: FailureReason, now: Time) -> LeaseStep {
    let text = lease.failure.as_ref().map_or_else(|| "no sandbox in time".to_owned(), |(_, text)| text.clone());
    if lease.never_made() {
        return refused(lease, reason, &text, now);
    }
    let mut next = lease.unwant(Cause::Unusable, now);
    next.start_releasing(now);
    Step::Changed(next, vec![fail(reason, &text)])
}

/// A sandbox exists: its identity is stored whatever we want by now.
fn made(lease: Lease, identity: &Identity, policy: &Policy, now: Time) -> LeaseStep {
    let mut next = lease;
    next.identity = Some(identity.clone());
    next.asked_scope = None;
    next.observed = Observed::Running;
    next.observed_at = Some(now);
    next.failure = None;
    match next.desired {
        Desired::Held => {
            next.state = State::Allocated;
            next.state_deadline = Some(now.plus(policy.bootstrap));
            next.due_at = now;
            next.touched_at = now;
        }
        Desired::Released => next.start_releasing(now),
    }
    Step::Changed(next, vec![])
}

fn bootstrapped(lease: Lease, workdir: &str, now: Time) -> LeaseStep {
    let mut next = lease;
    next.workdir = Some(workdir.to_owned());
    match (next.state, next.desired) {
        (State::Allocated, Desired::Held) => {
            next.state = State::Ready;
            next.state_deadline = None;
            next.ready_at = Some(now);
            next.touched_at = now;
            next.failure = None;
        }
        (State::Allocated, Desired::Released) => next.start_releasing(now),
        // LOST while it was prepared: the release goes on.
        (
            State::Requested
            | State::Allocating
            | State::Ready
            | State::Lost
            | State::Releasing
            | State::ReleaseFailed
            | State::Released,
            _,
        ) => {}
    }
    Step::Changed(next, vec![])
}

fn bootstrap_failed(lease: Lease, reason: FailureReason, text: &str, now: Time) -> LeaseStep {
    let mut next = lease.unwant(Cause::Unusable, now);
    next.failure = Some((reason.as_str().to_owned(), text.to_owned()));
    if next.state == State::Allocated {
        next.start_releasing(now);
    }
    Step::Changed(next, vec![fail(reason, text)])
}

fn bootstrap_again(lease: Lease, text: &str, retry_after: Option<Duration>, policy: &Policy, now: Time) -> LeaseStep {
    let mut next = lease;
    match (next.state, next.desired) {
        (State::Allocated, Desired::Held) => {
            next.failure = Some((FailureReason::BootstrapFailed.as_str().to_owned(), text.to_owned()));
            next.due_at = now.plus(policy.retry.wait(next.bootstrap_attempt, next.id.as_str(), retry_after));
        }
        (State::Allocated, Desired::Released) => next.start_releasing(now),
        (
            State::Requested
            | State::Allocating
            | State::Ready
            | State::Lost
            | State::Releasing
            | State::ReleaseFailed
            | State::Released,
            _,
        ) => {}
    }
    Step::Changed(next, vec![])
}

struct Seen<'a> {
    key_absent: bool,
    scope: &'a str,
    how: &'a str,
    last_seen: &'a Option<String>,
}

/// Absence is a receipt only in the right account, by id and key, and after the doubt had settled when the RELEASE was claimed (R8).
fn absent(lease: Lease, claim: &Claim, seen: &Seen<'_>, policy: &Policy, now: Time) -> LeaseStep {
    let made_in = lease.identity.as_ref().map(|identity| identity.scope.as_str()).or(lease.asked_scope.as_deref());
    if made_in.is_some_and(|scope| scope != seen.scope) {
        return release_failed(lease, FailureClass::ScopeChanged, "looked for it in another account", policy, now);
    }
    let id_is_not_enough = lease.in_doubt || lease.identity.is_none();
    if id_is_not_enough && !lease.can_lookup_key {
        return release_failed(
            lease,
            FailureClass::NoLookup,
            "a sandbox may exist under the key, which this provider cannot look up",
            policy,
            now,
        );
    }
    if lease.can_lookup_key && !seen.key_absent {
        return teardown_transient(lease, None, None, policy, now);
    }
    match lease.settle_at {
        Some(settle_at) if lease.in_doubt && claim.claimed_at < settle_at => {
            let mut next = lease;
            next.due_at = settle_at;
            Step::Changed(next, vec![])
        }
        Some(_) | None => {
            let mut next = lease;
            next.failure = None;
            let mut next = next.released(ReceiptKind::ObservedAbsent, claim.worker.as_str(), seen.how, now);
            if let Some(receipt) = &mut next.receipt {
                receipt.account_scope = seen.scope.to_owned();
                receipt.last_seen = seen.last_seen.clone().or_else(|| receipt.last_seen.take());
            }
            Step::Changed(next, vec![Effect::QuotaFreed])
        }
    }
}

/// Not absent yet, and waiting may help: fast retries inside the teardown time, RELEASE_FAILED after it.
fn teardown_transient(
    lease: Lease,
    failure: Option<(FailureClass, &str)>,
    retry_after: Option<Duration>,
    policy: &Policy,
    now: Time,
) -> LeaseStep {
    let (class, text) = failure.unwrap_or((FailureClass::Timeout, "absence not seen yet"));
    let since = lease.release_since.unwrap_or(now);
    let over = now.since(since) >= policy.teardown;
    if lease.state == State::ReleaseFailed || over {
        return release_failed(lease, class, text, policy, now);
    }
    let mut next = lease;
    if failure.is_some() {
        next.failure = Some((class.as_str().to_owned(), text.to_owned()));
    }
    next.release_attempt += 1;
    next.due_at = now.plus(policy.release_retry.wait(next.release_attempt, next.id.as_str(), retry_after));
    Step::Changed(next, vec![])
}

pub(super) fn release_failed(lease: Lease, class: FailureClass, text: &str, policy: &Policy, now: Time) -> LeaseStep {
    let mut next = lease;
    next.state_deadline = None;
    next.release_since = next.release_since.or(Some(now));
    let first = next.state != State::ReleaseFailed;
    next.state = State::ReleaseFailed;
    next.failure = Some((class.as_str().to_owned(), text.to_owned()));
    next.release_attempt = if first { 1 } else { next.release_attempt.saturating_add(1) };
    next.due_at = now.plus(policy.slow_retry.wait(next.release_attempt, next.id.as_str(), None));
    Step::Changed(next, vec![])
}
