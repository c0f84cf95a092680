//! `apply`: one trigger, then the recomputation of everything that depends on it.

use super::recompute::Draft;
use super::{Aggregate, Applied, Note, Trigger, tick};
use crate::id::LeaseId;
use crate::lease::{self, Cause};
use crate::run::State;
use crate::session;
use crate::step::{Refusal, Step};
use crate::time::Time;
use uuid::Uuid;

/// Applies one trigger to a run at `now`. `ids` is asked once for every lease or message that has to be made.
pub fn apply(aggregate: &Aggregate, trigger: &Trigger, now: Time, ids: &mut dyn FnMut() -> Uuid) -> Applied {
    let mut draft = Draft::new(aggregate, trigger.name(), now, ids);
    let done = match trigger {
        Trigger::Cancel => cancel(&mut draft),
        Trigger::Delete => delete(&mut draft),
        Trigger::RetryDeletion => retry_deletion(&mut draft),
        Trigger::Forget { reason, by } => forget(&mut draft, reason, by),
        Trigger::ReleaseLease(id) => lease_trigger(&mut draft, id, &lease::Trigger::Unwanted(Cause::Asked)),
        Trigger::Lease(id, trigger) => lease_trigger(&mut draft, id, trigger),
        Trigger::Session(trigger) => session_trigger(&mut draft, trigger),
        Trigger::Tick => {
            tick::tick(&mut draft);
            Done::Applied
        }
    };
    match done {
        Done::Applied => {
            if draft.recompute() {
                draft.finish(aggregate)
            } else {
                Applied::Refused(Refusal::Unsettled)
            }
        }
        Done::Ignored(reason) => Applied::Ignored(reason),
        Done::Refused(refusal) => Applied::Refused(refusal),
    }
}

enum Done {
    Applied,
    Ignored(&'static str),
    Refused(Refusal),
}

fn cancel(draft: &mut Draft<'_>) -> Done {
    let state = draft.rows.run.state;
    if state == State::Deleted {
        return Done::Refused(Refusal::NotFound);
    }
    if !state.is_active() {
        return Done::Ignored("settled or being deleted");
    }
    draft.rows.run.cancel_asked = true;
    Done::Applied
}

fn delete(draft: &mut Draft<'_>) -> Done {
    match draft.rows.run.state {
        State::Completed | State::Failed | State::Cancelled => {
            draft.rows.run.deletion_asked = true;
            draft.retry_leases();
            Done::Applied
        }
        State::Deleting | State::DeletionFailed => {
            draft.retry_leases();
            Done::Applied
        }
        State::Deleted => Done::Ignored("deleted already"),
        State::Provisioning | State::Running | State::Waiting | State::Recovering => {
            Done::Refused(Refusal::CancelFirst)
        }
    }
}

fn retry_deletion(draft: &mut Draft<'_>) -> Done {
    match draft.rows.run.state {
        State::Deleting | State::DeletionFailed => {
            draft.retry_leases();
            Done::Applied
        }
        State::Deleted => Done::Refused(Refusal::NotFound),
        State::Completed
        | State::Failed
        | State::Cancelled
        | State::Provisioning
        | State::Running
        | State::Waiting
        | State::Recovering => Done::Refused(Refusal::NotDeleting),
    }
}

fn forget(draft: &mut Draft<'_>, reason: &str, by: &str) -> Done {
    let run = &draft.rows.run;
    let allowed = match run.state {
        State::DeletionFailed => true,
        State::Deleting => draft.now.since(run.state_since) >= run.policy.teardown,
        State::Deleted => return Done::Refused(Refusal::NotFound),
        State::Completed
        | State::Failed
        | State::Cancelled
        | State::Provisioning
        | State::Running
        | State::Waiting
        | State::Recovering => return Done::Refused(Refusal::NotDeleting),
    };
    if !allowed {
        return Done::Refused(Refusal::TooEarlyToForget);
    }
    let trigger = lease::Trigger::Forget { reason: reason.to_owned(), by: by.to_owned() };
    for index in 0..draft.rows.leases.len() {
        if let Step::Changed(..) = draft.lease(index, &trigger) {
            let lease = draft.rows.leases[index].id.clone();
            draft.notes.push(Note::Forgotten { lease, reason: reason.to_owned(), by: by.to_owned() });
        }
    }
    Done::Applied
}

fn lease_trigger(draft: &mut Draft<'_>, id: &LeaseId, trigger: &lease::Trigger) -> Done {
    let Some(index) = draft.rows.leases.iter().position(|lease| lease.id == *id) else {
        return Done::Refused(Refusal::NotFound);
    };
    let row = &draft.rows.leases[index];
    if let lease::Trigger::Report { fence, .. } | lease::Trigger::ClaimExpired { fence, .. } = trigger
        && (row.claim.is_none() || row.fence != *fence)
    {
        return Done::Refused(Refusal::StaleFence);
    }
    done(draft.lease(index, trigger))
}

fn session_trigger(draft: &mut Draft<'_>, trigger: &session::Trigger) -> Done {
    let row = &draft.rows.session;
    if let session::Trigger::Report { fence, .. } | session::Trigger::ClaimExpired { fence, .. } = trigger
        && (row.claim.is_none() || row.fence != *fence)
    {
        return Done::Refused(Refusal::StaleFence);
    }
    done(draft.session(trigger))
}

fn done<R, E>(step: Step<R, E>) -> Done {
    match step {
        Step::Changed(..) => Done::Applied,
        Step::Ignored(reason) => Done::Ignored(reason),
        Step::Refused(refusal) => Done::Refused(refusal),
    }
}
