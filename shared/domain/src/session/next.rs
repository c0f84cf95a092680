//! The transition table of the session (machines.md §2): every trigger but reports, which are in `report.rs`.

use super::{
    Action, Claim, Context, Effect, LaunchPlan, LeaseView, MessageState, NewMessage, Session, State, Trigger,
    next_action, report,
};
use crate::failure::FailureReason;
use crate::step::{Refusal, Step};
use crate::time::Time;

pub(super) type SessionStep = Step<Session, Effect>;

/// Applies one trigger to a session row. Total: whatever does not change the row is ignored with a reason, or refused.
pub fn next(session: &Session, trigger: &Trigger, context: &Context<'_>, now: Time) -> SessionStep {
    if session.state == State::Closed {
        return match trigger {
            Trigger::Send { .. } | Trigger::Reset => Step::Refused(Refusal::RunEnded),
            Trigger::Claim { .. }
            | Trigger::Report { .. }
            | Trigger::ClaimExpired { .. }
            | Trigger::Deadline
            | Trigger::Delivered { .. }
            | Trigger::Accepted { .. }
            | Trigger::AlreadyHeld { .. }
            | Trigger::TurnEnded { .. }
            | Trigger::SignOfLife { .. }
            | Trigger::Failed { .. }
            | Trigger::End { .. }
            | Trigger::TerminalHeld
            | Trigger::TerminalReleased
            | Trigger::LeaseReady
            | Trigger::LeaseGone { .. }
            | Trigger::RunEnded { .. }
            | Trigger::Settle => Step::Ignored("closed: absorbed"),
        };
    }
    let step = match trigger {
        Trigger::Claim { worker, action, plan } => {
            let claim = Claim { worker: worker.clone(), action: *action, claimed_at: now, deadline: now };
            take(session, claim, plan.as_ref(), context, now)
        }
        Trigger::Report { fence, outcome } => match live_claim(session, *fence) {
            Some(claim) => report::report(session, claim, outcome, context, now),
            None => Step::Ignored("stale fence"),
        },
        Trigger::ClaimExpired { fence, claim_end } => match live_claim(session, *fence) {
            Some(_) if *claim_end > now => Step::Ignored("the claim still holds"),
            Some(claim) => report::expired(session, claim, context, now),
            None => Step::Ignored("stale fence"),
        },
        Trigger::Deadline => deadline(session, now),
        Trigger::Delivered { launch, uuid } => event(session, *launch, now, |next, takes_turns| {
            let message = next.message_mut(*uuid).filter(|_| takes_turns)?;
            (message.state == MessageState::Queued).then(|| message.state = MessageState::Delivered)
        }),
        Trigger::Accepted { launch, uuid } => event(session, *launch, now, |next, takes_turns| {
            let live = next.state == State::Live;
            let message = next.message_mut(*uuid).filter(|message| takes_turns && message.is_open())?;
            message.state = MessageState::Accepted;
            next.turn |= live;
            Some(())
        }),
        Trigger::AlreadyHeld { launch, uuid } => already_held(session, *launch, *uuid, now),
        Trigger::TurnEnded { launch, done } => turn_ended(session, *launch, done, context, now),
        Trigger::SignOfLife { launch, activity, native_id } => {
            sign_of_life(session, *launch, *activity, native_id.as_deref(), now)
        }
        Trigger::Failed { launch, reason, text } => match session.state {
            State::Live | State::Starting if *launch == session.launch => {
                Step::Changed(heard(session, now), vec![Effect::FailRun { reason: *reason, text: text.clone() }])
            }
            State::Pending | State::Starting | State::Live | State::Ending | State::Idle | State::Closed => {
                Step::Ignored("not the live launch: audited")
            }
        },
        Trigger::End { launch } => match session.state {
            State::Live if *launch == session.launch => Step::Changed(ended(session, now), vec![]),
            State::Pending | State::Starting | State::Live | State::Ending | State::Idle | State::Closed => {
                Step::Ignored("not the live launch: audited")
            }
        },
        Trigger::Send { message, new_sandbox } => send(session, message, *new_sandbox, context, now),
        Trigger::Reset => reset(session, context, now),
        Trigger::TerminalHeld => Step::Changed(Session { terminal_held: true, ..session.clone() }, vec![]),
        Trigger::TerminalReleased => terminal_released(session, context, now),
        Trigger::LeaseReady => match session.state {
            State::Pending if session.unfinished() => Step::Changed(session.clone().starting(context, now), vec![]),
            State::Pending => Step::Changed(session.clone().idle(), vec![]),
            State::Starting | State::Live | State::Ending | State::Idle | State::Closed => {
                Step::Ignored("has its lease")
            }
        },
        Trigger::LeaseGone { reason } => lease_gone(session, *reason, context),
        Trigger::RunEnded { reason } => Step::Changed(session.clone().closed(*reason), vec![]),
        Trigger::Settle => settle(session, context, now),
    };
    match step {
        Step::Changed(mut changed, effects) => {
            changed.next_action = next_action(&changed);
            Step::Changed(changed, effects)
        }
        Step::Ignored(reason) => Step::Ignored(reason),
        Step::Refused(refusal) => Step::Refused(refusal),
    }
}

fn live_claim(session: &Session, fence: u64) -> Option<&Claim> {
    session.claim.as_ref().filter(|_| session.fence == fence)
}

fn take(session: &Session, claim: Claim, plan: Option<&LaunchPlan>, context: &Context<'_>, now: Time) -> SessionStep {
    match next_action(session) {
        Some((action, due)) if action == claim.action && due <= now => {}
        Some(_) => return Step::Ignored("that action is not due"),
        None => return Step::Ignored("claimed already, or nothing to do"),
    }
    if context.lease != LeaseView::Ready {
        return Step::Ignored("the lease is not usable");
    }
    let policy = context.policy;
    let mut next = session.clone();
    next.fence += 1;
    let deadline = match claim.action {
        Action::Launch => {
            let Some(plan) = plan else { return Step::Ignored("a launch needs a plan") };
            // An earlier launch may still run: the worker kills it first, so whatever it had is to be done again.
            next.requeue();
            next.launch += 1;
            next.first_seq = plan.first_seq;
            next.bearer_sha256 = plan.bearer_sha256.clone();
            next.launches_without_event += 1;
            next.deliver_first();
            session.state_deadline.unwrap_or_else(|| now.plus(policy.launch))
        }
        Action::Drive => {
            context.wall_clock_deadline.filter(|at| *at > now).unwrap_or_else(|| now.plus(policy.wall_clock))
        }
        Action::Check => now.plus(policy.liveness),
        Action::Collect | Action::Park => {
            next.park_attempt += 1;
            now.plus(policy.park)
        }
    };
    next.claim = Some(Claim { deadline, ..claim });
    Step::Changed(next, vec![])
}

fn deadline(session: &Session, now: Time) -> SessionStep {
    let due = session.state_deadline.is_some_and(|at| at <= now);
    match session.state {
        State::Starting if due => {
            let text = "the launch took too long".to_owned();
            Step::Changed(
                session.clone().closed(FailureReason::LaunchFailed),
                vec![Effect::FailRun { reason: FailureReason::LaunchFailed, text }],
            )
        }
        State::Pending | State::Starting | State::Live | State::Ending | State::Idle | State::Closed => {
            Step::Ignored("no deadline has passed")
        }
    }
}

/// An appended event of `launch`: a sign of life wherever it is logged; messages move only in LIVE and under a running LAUNCH.
fn event(session: &Session, launch: u32, now: Time, act: impl FnOnce(&mut Session, bool) -> Option<()>) -> SessionStep {
    if launch != session.launch {
        return Step::Ignored("another launch: audited");
    }
    let takes_turns = match session.state {
        State::Live => true,
        State::Starting => session.claim.is_some(),
        State::Ending => false,
        State::Pending | State::Idle | State::Closed => return Step::Ignored("no launch may append now"),
    };
    let mut next = heard(session, now);
    act(&mut next, takes_turns);
    Step::Changed(next, vec![Effect::TouchLease])
}

fn heard(session: &Session, now: Time) -> Session {
    Session { last_sign_of_life: session.last_sign_of_life.max(now), launches_without_event: 0, ..session.clone() }
}

fn sign_of_life(
    session: &Session,
    launch: u32,
    activity: Option<crate::run::Activity>,
    native_id: Option<&str>,
    now: Time,
) -> SessionStep {
    let step = event(session, launch, now, |next, _| {
        next.native_id = native_id.map(str::to_owned).or(next.native_id.take());
        Some(())
    });
    match (step, activity) {
        (Step::Changed(next, mut effects), Some(activity)) => {
            effects.push(Effect::Activity(activity));
            Step::Changed(next, effects)
        }
        (step, _) => step,
    }
}

fn already_held(session: &Session, launch: u32, uuid: uuid::Uuid, now: Time) -> SessionStep {
    let mut held = false;
    let step = event(session, launch, now, |next, takes_turns| {
        let message = next.message_mut(uuid).filter(|message| takes_turns && message.is_open())?;
        message.state = MessageState::Accepted;
        message.resent = false;
        message.held = true;
        held = true;
        next.turn = next.accepted();
        Some(())
    });
    match step {
        Step::Changed(next, mut effects) => {
            if held {
                effects.push(Effect::QueueContinue);
            }
            Step::Changed(next, effects)
        }
        step @ (Step::Ignored(_) | Step::Refused(_)) => step,
    }
}

fn turn_ended(session: &Session, launch: u32, done: &[uuid::Uuid], context: &Context<'_>, now: Time) -> SessionStep {
    let step = event(session, launch, now, |next, takes_turns| {
        if takes_turns {
            let live = next.state == State::Live;
            next.finish_turn(done);
            next.turn &= live;
            // Also under a LAUNCH whose report is still to come: no instant without work before the result is collected.
            next.result_due |= !context.conversation && !next.unfinished();
        }
        Some(())
    });
    match step {
        Step::Changed(next, mut effects) if next.state == State::Live => {
            let next = next.end_if_spent(context, now);
            if next.state == State::Ending {
                effects.push(Effect::Stop);
            }
            Step::Changed(next, effects)
        }
        step @ (Step::Changed(..) | Step::Ignored(_) | Step::Refused(_)) => step,
    }
}

/// ENDING: the launch is over, what it had not finished is queued again.
pub(super) fn ended(session: &Session, now: Time) -> Session {
    let mut next = session.clone();
    next.requeue();
    next.ending(now)
}

fn send(session: &Session, message: &NewMessage, new_sandbox: bool, context: &Context<'_>, now: Time) -> SessionStep {
    if session.messages.iter().any(|known| known.id == message.id) {
        return Step::Ignored("known message");
    }
    let mut next = session.clone();
    next.enqueue(message.clone());
    let renew = context.recreate || new_sandbox || session.renew_lease;
    match (session.state, context.lease) {
        (State::Pending | State::Starting | State::Live | State::Ending, _) => Step::Changed(next, vec![]),
        (State::Idle, LeaseView::Ready) => Step::Changed(next.starting(context, now), vec![]),
        (State::Idle, LeaseView::Coming) => Step::Changed(next.pending(), vec![]),
        (State::Idle, LeaseView::Gone(_)) if renew => {
            Step::Changed(next.pending(), vec![Effect::NewLease { recovery: false }])
        }
        (State::Idle, LeaseView::Gone(_)) => Step::Refused(Refusal::SandboxReleased),
        (State::Closed, _) => Step::Refused(Refusal::RunEnded),
    }
}

fn reset(session: &Session, context: &Context<'_>, _now: Time) -> SessionStep {
    if !context.conversation {
        return Step::Refused(Refusal::NotConversation);
    }
    let mut next = session.clone();
    next.fail_messages(FailureReason::Reset);
    next.native_id = None;
    next.renew_lease = true;
    Step::Changed(next.idle(), vec![Effect::ReleaseLease])
}

fn terminal_released(session: &Session, context: &Context<'_>, now: Time) -> SessionStep {
    let next = Session { terminal_held: false, ..session.clone() };
    match (session.state, context.lease) {
        (State::Idle, LeaseView::Ready) if session.terminal_held => Step::Changed(next.ending(now), vec![]),
        (State::Idle, LeaseView::Ready | LeaseView::Coming | LeaseView::Gone(_))
        | (State::Pending | State::Starting | State::Live | State::Ending | State::Closed, _) => {
            Step::Changed(next, vec![])
        }
    }
}

fn lease_gone(session: &Session, reason: FailureReason, context: &Context<'_>) -> SessionStep {
    match session.state {
        State::Idle | State::Closed => Step::Ignored("needs no lease"),
        State::Pending | State::Starting | State::Live | State::Ending => {
            let mut next = session.clone();
            next.requeue();
            if next.unfinished() && context.recreate {
                return Step::Changed(next.pending(), vec![Effect::NewLease { recovery: true }]);
            }
            if next.unfinished() {
                let text = "the sandbox went away while there was work".to_owned();
                return Step::Changed(next.closed(reason), vec![Effect::FailRun { reason, text }]);
            }
            let effects = if next.result_due {
                vec![Effect::CollectFailed { reason, text: "the sandbox went away".to_owned() }]
            } else {
                vec![]
            };
            next.result_due = false;
            Step::Changed(next.idle(), effects)
        }
    }
}

fn settle(session: &Session, context: &Context<'_>, now: Time) -> SessionStep {
    if session.claim.is_some() {
        // Also keeps a relaunch out while the unwinding (PARK, COLLECT) of the last launch is under way.
        return Step::Ignored("a worker is at it");
    }
    match session.state {
        State::Starting if session.launches_without_event >= context.policy.launch_attempts => {
            let text = format!("{} launches without a single event", session.launches_without_event);
            Step::Changed(
                session.clone().closed(FailureReason::LaunchFailed),
                vec![Effect::FailRun { reason: FailureReason::LaunchFailed, text }],
            )
        }
        State::Starting if !session.unfinished() => Step::Changed(session.clone().ending(now), vec![]),
        State::Ending if session.unfinished() => Step::Changed(session.clone().starting(context, now), vec![]),
        State::Ending if session.result_due && session.park_attempt >= context.policy.park_attempts => {
            let mut next = session.clone();
            next.result_due = false;
            next.park_attempt = 0;
            Step::Changed(
                next,
                vec![Effect::CollectFailed {
                    reason: FailureReason::CollectFailed,
                    text: "every attempt was cut".to_owned(),
                }],
            )
        }
        State::Ending
            if !session.result_due
                && (session.terminal_held || session.park_attempt >= context.policy.park_attempts) =>
        {
            Step::Changed(session.clone().idle(), vec![])
        }
        State::Pending | State::Starting | State::Live | State::Ending | State::Idle | State::Closed => {
            Step::Ignored("settled")
        }
    }
}

impl Session {
    /// Leaving a state other than by the holder's report ends the claim (fence + 1).
    fn end_claim(&mut self) {
        if self.claim.take().is_some() {
            self.fence += 1;
        }
    }

    pub(super) fn starting(mut self, context: &Context<'_>, now: Time) -> Self {
        self.end_claim();
        self.state = State::Starting;
        self.due_at = now;
        self.state_deadline = Some(now.plus(context.policy.launch));
        self
    }

    pub(super) fn ending(mut self, now: Time) -> Self {
        self.end_claim();
        self.state = State::Ending;
        self.park_attempt = 0;
        self.due_at = now;
        self.state_deadline = None;
        self
    }

    pub(super) fn pending(mut self) -> Self {
        self.end_claim();
        self.state = State::Pending;
        self.state_deadline = None;
        self.bearer_sha256 = None;
        self.renew_lease = false;
        self
    }

    pub(super) fn idle(mut self) -> Self {
        self.end_claim();
        self.state = State::Idle;
        self.state_deadline = None;
        self.bearer_sha256 = None;
        self
    }

    pub(super) fn closed(mut self, reason: FailureReason) -> Self {
        self.fail_messages(reason);
        self.end_claim();
        self.state = State::Closed;
        self.state_deadline = None;
        self.bearer_sha256 = None;
        self
    }

    /// LIVE without a message or turn: a one-shot is ENDING with its result due, a conversation stays LIVE and waits.
    pub(super) fn end_if_spent(self, context: &Context<'_>, now: Time) -> Self {
        if self.state != State::Live || self.unfinished() || context.conversation {
            return self;
        }
        Session { result_due: true, ..self }.ending(now)
    }

    /// Launch n runs.
    pub(super) fn live(mut self, now: Time) -> Self {
        self.state = State::Live;
        self.state_deadline = None;
        self.last_sign_of_life = now;
        self.due_at = now;
        self.turn = self.accepted();
        self
    }
}
