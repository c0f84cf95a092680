//! Time passes (R10): what is overdue, and when to look again. Fired by lifecycle itself, in the same transactions as everything else.

use super::Aggregate;
use super::recompute::Draft;
use crate::failure::FailureReason;
use crate::lease::{self, Cause, Desired};
use crate::policy::Policy;
use crate::run::State;
use crate::session;
use crate::time::Time;

/// The earliest moment at which Tick has something to do; `now` when it has already passed.
pub fn due(aggregate: &Aggregate, now: Time) -> Option<Time> {
    let leases = aggregate.leases.iter().flat_map(|lease| lease_times(lease, &aggregate.run.policy));
    let session = &aggregate.session;
    let session_times = [session.claim.as_ref().map(|claim| claim.deadline), session.state_deadline];
    let run_time = run_deadline(aggregate);
    let earliest = leases.chain(session_times).chain([run_time]).flatten().min();
    earliest.map(|at| at.max(now))
}

fn lease_times(lease: &lease::Lease, policy: &Policy) -> [Option<Time>; 4] {
    let expiry = (lease.state == lease::State::Ready && lease.desired == Desired::Held).then_some(lease.expires_at);
    // While ALLOCATING is claimed, the claim's own deadline counts.
    let claimed_allocate = lease.state == lease::State::Allocating && lease.claim.is_some();
    let deadline = lease.state_deadline.filter(|_| !claimed_allocate && lease.desired == Desired::Held);
    [lease.claim.as_ref().map(|claim| claim.deadline), deadline, expiry, lease.teardown_deadline(policy)]
}

/// The run's deadline while it means something: after its linger time a COMPLETED run has none once the lease is not wanted.
fn run_deadline(aggregate: &Aggregate) -> Option<Time> {
    let held = aggregate.current().is_some_and(|lease| lease.desired == Desired::Held);
    match aggregate.run.state {
        State::Completed => aggregate.run.deadline.filter(|_| held),
        State::Provisioning | State::Running | State::Recovering => aggregate.run.deadline,
        State::Waiting
        | State::Failed
        | State::Cancelled
        | State::Deleting
        | State::DeletionFailed
        | State::Deleted => None,
    }
}

/// Everything that is overdue at the draft's `now`, each through the row's own `next`.
pub(super) fn tick(draft: &mut Draft<'_>) {
    let now = draft.now;
    for index in 0..draft.rows.leases.len() {
        let lease = &draft.rows.leases[index];
        let fence = lease.fence;
        if let Some(claim_end) = lease.claim.as_ref().map(|claim| claim.deadline).filter(|at| *at <= now) {
            draft.lease(index, &lease::Trigger::ClaimExpired { fence, claim_end });
        }
        let lease = &draft.rows.leases[index];
        let deadlines = [lease.state_deadline, lease.teardown_deadline(&draft.rows.run.policy)];
        if deadlines.into_iter().flatten().any(|at| at <= now) {
            draft.lease(index, &lease::Trigger::Deadline);
        }
        let lease = &draft.rows.leases[index];
        if lease.state == lease::State::Ready && lease.desired == Desired::Held && now >= lease.expires_at {
            draft.lease(index, &lease::Trigger::Unwanted(Cause::Expired));
        }
    }
    let session = &draft.rows.session;
    let fence = session.fence;
    if let Some(claim_end) = session.claim.as_ref().map(|claim| claim.deadline).filter(|at| *at <= now) {
        draft.session(&session::Trigger::ClaimExpired { fence, claim_end });
    }
    if draft.rows.session.state_deadline.is_some_and(|at| at <= now) {
        draft.session(&session::Trigger::Deadline);
    }
    run_overdue(draft);
}

fn run_overdue(draft: &mut Draft<'_>) {
    let now = draft.now;
    if run_deadline(&draft.rows).is_none_or(|at| at > now) {
        return;
    }
    let wall_clock = draft.rows.run.wall_clock_deadline.is_some_and(|at| at <= now);
    match draft.rows.run.state {
        State::Provisioning => draft.fail(FailureReason::ProvisionTimeout, "no sandbox was ready in time".to_owned()),
        State::Running => draft.fail(FailureReason::BudgetWallClock, "the wall-clock budget is used up".to_owned()),
        State::Recovering if wall_clock => {
            draft.fail(FailureReason::BudgetWallClock, "the wall-clock budget is used up".to_owned())
        }
        State::Recovering => {
            draft.fail(FailureReason::RecoveryTimeout, "the replacement sandbox was not ready in time".to_owned())
        }
        State::Completed => draft.unwant_current(Cause::Lingered),
        State::Waiting
        | State::Failed
        | State::Cancelled
        | State::Deleting
        | State::DeletionFailed
        | State::Deleted => {}
    }
}
