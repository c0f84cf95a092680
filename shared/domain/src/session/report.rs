//! The transition table of the session, second half: what a report does, or a claim that ended without one. Both spend the fence (R3).

use super::next::{SessionStep, ended};
use super::{Action, Claim, Context, Effect, Outcome, Session, State};
use crate::step::Step;
use crate::time::Time;
use std::time::Duration;

/// Applies the outcome reported by the holder of the live claim.
pub(super) fn report(
    session: &Session,
    claim: &Claim,
    outcome: &Outcome,
    context: &Context<'_>,
    now: Time,
) -> SessionStep {
    if !claim.action.answered_by(outcome) {
        return Step::Ignored("the outcome does not answer the claimed action");
    }
    let mut spent = spend(session);
    match outcome {
        Outcome::Launched => Step::Changed(spent.live(now).end_if_spent(context, now), vec![Effect::TouchLease]),
        Outcome::LaunchFailed { reason, text } => {
            let effect = Effect::FailRun { reason: *reason, text: text.clone() };
            Step::Changed(spent.closed(*reason), vec![effect])
        }
        Outcome::LaunchUnknown { retry_after, .. } => {
            wait(&mut spent, session.launches_without_event, *retry_after, context, now);
            Step::Changed(spent, vec![])
        }
        Outcome::DriveEnded | Outcome::NoRunner => Step::Changed(ended(&spent, now), vec![]),
        Outcome::Alive => {
            spent.last_sign_of_life = now;
            Step::Changed(spent, vec![Effect::TouchLease])
        }
        Outcome::CheckUnknown { .. } => {
            wait(&mut spent, 3, None, context, now);
            Step::Changed(spent, vec![])
        }
        Outcome::Collected => Step::Changed(collected(spent, now), vec![]),
        Outcome::CollectFailed { reason, text } => {
            Step::Changed(collected(spent, now), vec![Effect::CollectFailed { reason: *reason, text: text.clone() }])
        }
        Outcome::Parked if spent.unfinished() => Step::Changed(spent.starting(context, now), vec![]),
        Outcome::Parked => Step::Changed(spent.idle(), vec![]),
        Outcome::ParkAborted => {
            spent.park_attempt = 0;
            Step::Changed(spent, vec![])
        }
        Outcome::Retry { retry_after, .. } => {
            wait(&mut spent, session.park_attempt, *retry_after, context, now);
            Step::Changed(spent, vec![])
        }
    }
}

/// The claim ended without a report: the launch, the stop, the check may or may not have happened.
pub(super) fn expired(session: &Session, claim: &Claim, context: &Context<'_>, now: Time) -> SessionStep {
    let mut spent = spend(session);
    match claim.action {
        Action::Launch => {
            wait(&mut spent, session.launches_without_event, None, context, now);
            Step::Changed(spent, vec![])
        }
        // The native loop dies with its claim: that is its End.
        Action::Drive => Step::Changed(ended(&spent, now), vec![]),
        Action::Check => {
            wait(&mut spent, 1, None, context, now);
            Step::Changed(spent, vec![])
        }
        Action::Collect | Action::Park => {
            wait(&mut spent, session.park_attempt, None, context, now);
            Step::Changed(spent, vec![])
        }
    }
}

fn spend(session: &Session) -> Session {
    let mut next = session.clone();
    next.fence += 1;
    next.claim = None;
    next
}

fn wait(session: &mut Session, attempt: u32, retry_after: Option<Duration>, context: &Context<'_>, now: Time) {
    session.due_at = now.plus(context.policy.retry.wait(attempt, session.id.as_str(), retry_after));
}

fn collected(session: Session, now: Time) -> Session {
    debug_assert_eq!(session.state, State::Ending);
    Session { result_due: false, park_attempt: 0, due_at: now, ..session }
}
