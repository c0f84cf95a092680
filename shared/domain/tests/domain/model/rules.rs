//! The rules as switches: each perturbs a call to the production `apply`, before or after. Production code has no switches.

use berth_domain::aggregate::{Aggregate, Applied, Trigger, apply};
use berth_domain::id::LeaseId;
use berth_domain::lease::{self, Desired, Lease, Outcome as LeaseOutcome, State as LeaseState};
use berth_domain::run::State as RunState;
use berth_domain::session::{
    self, Message, MessageKind, MessageState, State as SessionState, Trigger as SessionTrigger,
};
use uuid::Uuid;

use super::world::{NOW, World, gone_session};

/// Which part of the model a rule is looked for in first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Leases,
    Session,
    OneShot,
    Both,
}

macro_rules! rules {
    ($($family:ident $name:ident: $text:literal,)*) => {
        /// One field per rule; `true` is on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct Rules { $(pub(crate) $name: bool,)* }

        impl Rules {
            pub(crate) const ON: Rules = Rules { $($name: true,)* };
            /// Every rule: where it matters most, its name in docs/machines.md, and the rules with only it off.
            pub(crate) fn each() -> Vec<(Part, &'static str, Rules)> {
                vec![$((Part::$family, $text, Rules { $name: false, ..Rules::ON }),)*]
            }
        }
    };
}

rules! {
    Leases level: "R1 level, not edge",
    Leases claim_marks: "R2 a claim marks",
    Leases spent_fence: "R3 a report spends its fence",
    Leases desire_keeps_fence: "R4 a desire change never touches the fence",
    Leases inside_claim: "R5 act only inside the claim",
    Leases one_key: "R6 one key per lease",
    Leases sticky_doubt: "R7 doubt is sticky",
    Leases id_and_key: "R8 release by id and key",
    Leases settled_is_no_error: "R9 a settled row is no error",
    Leases expiry_fires: "R10 expired claims fire in lifecycle",
    Leases lost_releases: "LOST releases",
    Leases bootstrap_failure_releases: "bootstrap failure releases",
    Leases slow_retry: "slow retry",
    Both all_leases: "all leases",
    Session from_work: "derived from work",
    Session requeue: "requeue",
    Session liveness: "liveness",
    Session kill_first: "kill first",
    Session launch_fence: "fence by launch",
    Session send_guard: "lease guard on Send",
    Leases absence_at_claim: "absence judged at claim time",
    Leases doubt_when_released: "doubt kept when RELEASED is wanted",
    Both only_current_fails: "only the current HELD lease fails the run",
    OneShot result_is_no_message: "result_due is no message",
    OneShot loss_while_collecting: "loss while collecting",
    Session resend_first: "resend before continue",
    Session append_before_harness: "first append before the harness",
    Session append_checks_state: "append checks state",
}

/// How a trigger was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Applied,
    Ignored,
    Refused,
}

/// `apply` under the rules.
pub(crate) fn step(rules: &Rules, world: &mut World, trigger: &Trigger) -> Answer {
    let before = world.rows.clone();
    if !rules.settled_is_no_error && brings_identity(trigger) && !before.run.state.is_active() {
        return Answer::Refused;
    }
    let mut rows = before.clone();
    let trigger = prepare(rules, &mut rows, trigger);
    let applied = apply_with_ids(&rows, &trigger);
    let answer = match applied {
        Applied::Changed { next, notes, .. } => {
            world.rows = *next;
            world.note(&notes);
            Answer::Applied
        }
        Applied::Ignored(_) => Answer::Ignored,
        Applied::Refused(_) => Answer::Refused,
    };
    let answer = after(rules, world, &before, &trigger, answer);
    world.watch(&before, &trigger, answer);
    answer
}

/// Fresh ids are a function of the rows, so that equal histories give equal states.
pub(crate) fn apply_with_ids(rows: &Aggregate, trigger: &Trigger) -> Applied {
    let mut next = 10 * (1 + rows.leases.len() + rows.session.messages.len()) as u128;
    apply(rows, trigger, NOW, &mut || {
        next += 1;
        Uuid::from_u128(next)
    })
}

fn brings_identity(trigger: &Trigger) -> bool {
    let made = |outcome: &LeaseOutcome| matches!(outcome, LeaseOutcome::Created(_) | LeaseOutcome::Adopted(_));
    matches!(trigger, Trigger::Lease(_, lease::Trigger::Report { outcome, .. }) if made(outcome))
}

/// What a rule that is off changes before the call.
fn prepare(rules: &Rules, rows: &mut Aggregate, trigger: &Trigger) -> Trigger {
    let mut trigger = trigger.clone();
    match &mut trigger {
        Trigger::Lease(id, lease::Trigger::Report { fence, outcome }) => {
            let Some(row) = rows.leases.iter_mut().find(|row| row.id == *id) else { return trigger };
            if !rules.spent_fence && row.claim.is_some() {
                *fence = row.fence;
            }
            if !rules.absence_at_claim
                && matches!(outcome, LeaseOutcome::Absent { .. })
                && let Some(claim) = &mut row.claim
            {
                claim.claimed_at = NOW;
            }
        }
        Trigger::Session(
            SessionTrigger::End { launch }
            | SessionTrigger::SignOfLife { launch, .. }
            | SessionTrigger::Accepted { launch, .. },
        ) if !rules.launch_fence => *launch = rows.session.launch,
        _ => {}
    }
    trigger
}

/// What a rule that is off changes after the call.
fn after(rules: &Rules, world: &mut World, before: &Aggregate, trigger: &Trigger, answer: Answer) -> Answer {
    let rows = &mut world.rows;
    if !rules.level
        && matches!(trigger, Trigger::Delete)
        && before.run.state != rows.run.state
        && rows.run.state == RunState::Deleted
    {
        rows.run.state = RunState::Deleting;
    }
    if !rules.all_leases && rows.run.deletion_asked && rows.leases.last().is_some_and(Lease::is_terminal) {
        rows.run.state = RunState::Deleted;
    }
    if !rules.from_work
        && rows.run.state == RunState::Waiting
        && rows.current().is_some_and(|lease| lease.state == LeaseState::Ready)
    {
        rows.run.state = RunState::Running;
    }
    for index in 0..rows.leases.len() {
        let old = before.leases.get(index).cloned();
        after_lease(rules, rows, index, old.as_ref(), trigger);
    }
    after_session(rules, world, before, trigger, answer)
}

fn after_lease(rules: &Rules, rows: &mut Aggregate, index: usize, old: Option<&Lease>, trigger: &Trigger) {
    let row = &mut rows.leases[index];
    let Some(old) = old else { return };
    let mine = |id: &LeaseId| *id == old.id;
    let Trigger::Lease(id, event) = trigger else {
        if !rules.desire_keeps_fence && old.desired != row.desired && row.claim.take().is_some() {
            row.fence += 1;
        }
        row.next_action = lease::next_action(row);
        return;
    };
    if !mine(id) {
        return;
    }
    if !rules.claim_marks && matches!(event, lease::Trigger::Claim { .. }) && old.state == LeaseState::Requested {
        row.state = LeaseState::Requested;
    }
    if !rules.sticky_doubt {
        row.in_doubt = false;
        row.settle_at = None;
    }
    let unanswered = matches!(
        event,
        lease::Trigger::ClaimExpired { .. } | lease::Trigger::Report { outcome: LeaseOutcome::Unknown { .. }, .. }
    );
    if !rules.doubt_when_released && unanswered && old.desired == Desired::Released {
        row.in_doubt = old.in_doubt;
        row.settle_at = old.settle_at;
    }
    let bootstrap_failed =
        matches!(event, lease::Trigger::Report { outcome: LeaseOutcome::BootstrapFailed { .. }, .. });
    if !rules.bootstrap_failure_releases
        && bootstrap_failed
        && old.state == LeaseState::Allocated
        && old.desired == Desired::Held
    {
        row.state = old.state;
        row.desired = old.desired;
        row.unwanted = None;
    }
    let refused = matches!(event, lease::Trigger::Report { outcome: LeaseOutcome::Refused { .. }, .. });
    let waiting = rows.run.state.is_active();
    if !rules.only_current_fails && refused && waiting {
        rows.run.state = RunState::Failed;
    }
    let row = &mut rows.leases[index];
    row.next_action = lease::next_action(row);
}

fn after_session(rules: &Rules, world: &mut World, before: &Aggregate, trigger: &Trigger, answer: Answer) -> Answer {
    let rows = &mut world.rows;
    let session = &mut rows.session;
    let launch_over = matches!(
        trigger,
        Trigger::Session(
            SessionTrigger::End { .. } | SessionTrigger::Report { outcome: session::Outcome::NoRunner, .. }
        )
    ) && answer == Answer::Applied;
    let relaunch = matches!(trigger, Trigger::Session(SessionTrigger::Claim { action: session::Action::Launch, .. }));
    if !rules.requeue && (launch_over || relaunch && before.session.launch > 0) && answer == Answer::Applied {
        session.messages.clone_from(&before.session.messages);
    }
    if !rules.resend_first && launch_over {
        continue_instead(session);
    }
    if !rules.result_is_no_message
        && session.state == SessionState::Ending
        && session.result_due
        && session.claim.is_none()
    {
        session.state = SessionState::Starting;
    }
    if !rules.send_guard
        && answer == Answer::Refused
        && session.state == SessionState::Idle
        && let Trigger::Session(SessionTrigger::Send { message, .. }) = trigger
    {
        let ordinal = session.messages.len() as u32 + 1;
        session.messages.push(Message {
            id: message.id.clone(),
            ordinal,
            kind: message.kind,
            text: String::new(),
            state: MessageState::Queued,
            uuid: message.uuid,
            resent: false,
            held: false,
        });
        session.state = SessionState::Starting;
        session.next_action = session::next_action(session);
        return Answer::Applied;
    }
    session.next_action = session::next_action(session);
    if !rules.loss_while_collecting
        && gone_session(before, rows)
        && rows.run.on_sandbox_loss == berth_domain::run::OnSandboxLoss::Recreate
    {
        collect_elsewhere(world, before);
    }
    answer
}

fn continue_instead(session: &mut session::Session) {
    let mut cut = false;
    for message in session.messages.iter_mut().filter(|message| message.resent && message.state == MessageState::Queued)
    {
        message.state = MessageState::Accepted;
        message.resent = false;
        message.held = true;
        cut = true;
    }
    if cut {
        let ordinal = session.messages.len() as u32 + 1;
        let uuid = Uuid::from_u128(1000 + u128::from(ordinal));
        session.messages.push(Message {
            id: berth_domain::id::MessageId::new(uuid),
            ordinal,
            kind: MessageKind::Continue,
            text: String::new(),
            state: MessageState::Queued,
            uuid,
            resent: false,
            held: false,
        });
    }
}

/// The rule's absence: the result is collected in the replacement sandbox.
fn collect_elsewhere(world: &mut World, before: &Aggregate) {
    let rows = &mut world.rows;
    if before.session.result_due && !rows.session.result_due && rows.leases.len() < 2 {
        let last = rows.leases[0].clone();
        let mut lease =
            Lease::acquire(LeaseId::new(Uuid::from_u128(77)), last.run.clone(), &last.traits(), &rows.run.policy, NOW);
        lease.generation = 2;
        rows.leases.push(lease);
        world.result = None;
        let rows = &mut world.rows;
        rows.session.result_due = true;
        rows.session.state = SessionState::Pending;
        rows.run.state = RunState::Recovering;
        rows.run.deadline = Some(NOW);
    } else if rows.session.result_due && rows.session.state == SessionState::Idle {
        rows.session.state = SessionState::Ending;
        rows.session.next_action = session::next_action(&rows.session);
    }
}
