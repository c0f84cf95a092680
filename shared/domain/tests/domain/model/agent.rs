//! Session workers, the runners they start, and the agent inside: launches that land late, runners that die or whose END comes late.

use berth_domain::aggregate::Trigger;
use berth_domain::failure::FailureReason;
use berth_domain::session::{self, Action, LaunchPlan, Outcome, State as SessionState, launch_message, next_message};
use uuid::Uuid;

use super::Setup;
use super::moves::{Move, act, is_done};
use super::rules::{Answer, step};
use super::world::{Job, Mail, NOW, OLD, Phase, Runner, World};

/// What happens between lifecycle, a session worker and the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentMove {
    Claim,
    /// Claim, work and report of a healthy worker in one go.
    Whole,
    /// Liveness: CHECK finds no runner.
    ChecksDead,
    Works(usize),
    LaunchCut(usize),
    LaunchFails(usize),
    CollectFails(usize),
    Report(usize),
    ReportTwice(usize),
    StartLands(usize),
    StartVanishes(usize),
    FirstAppend(usize),
    Accepts(usize),
    HandsOn(usize),
    TurnEnds(usize),
    /// Accepts, hands on and ends the turn in one go.
    Turn(usize),
    /// A tool call: appended, then executed.
    Executes(usize),
    Exits(usize),
    Dies(usize),
    Delivers,
}

pub(crate) fn enabled(setup: &Setup, world: &World, moves: &mut Vec<Move>) {
    let mut push = |action| moves.push(Move::Agent(action));
    let fault = world.faults > 0;
    let session = &world.rows.session;
    match session.next_action {
        Some((Action::Check, _)) => {
            if setup.rules.liveness && !world.runners.iter().any(|runner| runner.launch == session.launch) {
                push(AgentMove::ChecksDead);
            }
        }
        Some((Action::Launch | Action::Collect | Action::Park, _)) => {
            push(if setup.fine_session { AgentMove::Claim } else { AgentMove::Whole })
        }
        Some((Action::Drive, _)) | None => {}
    }
    for (index, job) in world.jobs.iter().enumerate().filter(|(_, job)| job.lease == 0) {
        if is_done(&job.phase) {
            push(AgentMove::Report(index));
            if fault && setup.can.resend {
                push(AgentMove::ReportTwice(index));
            }
            continue;
        }
        push(AgentMove::Works(index));
        let launching = session.claim.as_ref().map(|claim| claim.action);
        if fault && setup.can.kill && launching == Some(Action::Launch) {
            push(AgentMove::LaunchCut(index));
            push(AgentMove::LaunchFails(index));
        }
        if fault && setup.can.kill && launching == Some(Action::Collect) {
            push(AgentMove::CollectFails(index));
        }
    }
    for index in 0..world.starts.len() {
        push(AgentMove::StartLands(index));
        push(AgentMove::StartVanishes(index));
    }
    for (index, runner) in world.runners.iter().enumerate() {
        runner_moves(setup, world, index, runner, &mut push);
    }
    let live = world.runners.iter().any(|runner| runner.launch == session.launch && runner.harness);
    if live && session.state == SessionState::Live && next_message(session).is_some() {
        push(AgentMove::Delivers);
    }
}

fn runner_moves(setup: &Setup, world: &World, index: usize, runner: &Runner, push: &mut impl FnMut(AgentMove)) {
    if !runner.harness {
        push(AgentMove::FirstAppend(index));
        return;
    }
    let free = runner.turn.is_none() && runner.handing.is_none();
    if free && !runner.inbox.is_empty() {
        push(if setup.fine_session { AgentMove::Accepts(index) } else { AgentMove::Turn(index) });
    }
    if runner.handing.is_some() {
        push(AgentMove::HandsOn(index));
    }
    if runner.turn.is_some() {
        push(AgentMove::TurnEnds(index));
    }
    let session = &world.rows.session;
    if runner.launch != session.launch || session.state != SessionState::Live {
        push(AgentMove::Executes(index));
    }
    if free && setup.fine_session {
        push(AgentMove::Exits(index));
    }
    if world.faults > 0 && setup.can.kill {
        push(AgentMove::Dies(index));
    }
}

pub(crate) fn make(setup: &Setup, world: &mut World, action: &AgentMove) {
    match action {
        AgentMove::Claim => claim(setup, world),
        AgentMove::Whole => {
            claim(setup, world);
            if let Some(index) = world.jobs.iter().position(|job| job.lease == 0) {
                works(setup, world, index);
                report(setup, world, index);
            }
            if let Some(index) = world.runners.iter().position(|runner| !runner.harness) {
                first_append(setup, world, index);
            }
        }
        AgentMove::ChecksDead => {
            world.rows.session.last_sign_of_life = OLD;
            world.rows.session.next_action = session::next_action(&world.rows.session);
            claim(setup, world);
            if let Some(index) = world.jobs.iter().position(|job| job.lease == 0) {
                world.jobs[index].phase = Phase::SessionDone(Outcome::NoRunner);
                report(setup, world, index);
            }
        }
        AgentMove::Works(index) => works(setup, world, *index),
        AgentMove::LaunchCut(index) => {
            world.faults -= 1;
            kill_runners(setup, world);
            let first = launch_message(&world.rows.session).map(|message| message.ordinal);
            world.starts.push((world.rows.session.launch, first));
            world.jobs[*index].phase =
                Phase::SessionDone(Outcome::LaunchUnknown { text: String::new(), retry_after: None });
        }
        AgentMove::LaunchFails(index) => {
            world.faults -= 1;
            world.jobs[*index].phase =
                Phase::SessionDone(Outcome::LaunchFailed { reason: FailureReason::LaunchFailed, text: String::new() });
        }
        AgentMove::CollectFails(index) => {
            world.faults -= 1;
            world.jobs[*index].phase = Phase::SessionDone(Outcome::CollectFailed {
                reason: FailureReason::CollectFailed,
                text: String::new(),
            });
        }
        AgentMove::Report(index) => report(setup, world, *index),
        AgentMove::ReportTwice(index) => {
            world.faults -= 1;
            if let Phase::SessionDone(outcome) = &world.jobs[*index].phase {
                world.mail.push(Mail::Session { fence: world.jobs[*index].fence, outcome: outcome.clone() });
            }
            report(setup, world, *index);
        }
        AgentMove::StartLands(index) => {
            let (launch, first) = world.starts.remove(*index);
            start(setup, world, launch, first);
        }
        AgentMove::StartVanishes(index) => {
            world.starts.remove(*index);
        }
        AgentMove::FirstAppend(index) => first_append(setup, world, *index),
        AgentMove::Accepts(index) => accepts(setup, world, *index),
        AgentMove::HandsOn(index) => hands_on(world, *index),
        AgentMove::TurnEnds(index) => turn_ends(setup, world, *index),
        AgentMove::Turn(index) => {
            let launch = world.runners[*index].launch;
            accepts(setup, world, *index);
            if world.runners.get(*index).is_some_and(|runner| runner.launch == launch && runner.handing.is_some()) {
                hands_on(world, *index);
                turn_ends(setup, world, *index);
            }
        }
        AgentMove::Executes(index) => executes(setup, world, *index),
        AgentMove::Exits(index) => {
            let launch = world.runners.remove(*index).launch;
            world.mail.push(Mail::End { launch });
        }
        AgentMove::Dies(index) => {
            world.faults -= 1;
            world.runners.remove(*index);
        }
        AgentMove::Delivers => {
            let session = &world.rows.session;
            let Some((uuid, ordinal)) = next_message(session).map(|message| (message.uuid, message.ordinal)) else {
                return;
            };
            let launch = session.launch;
            act(&setup.rules, world, &Trigger::Session(session::Trigger::Delivered { launch, uuid }));
            if let Some(runner) = world.runners.iter_mut().find(|runner| runner.launch == launch) {
                runner.inbox.push(ordinal);
            }
        }
    }
}

fn claim(setup: &Setup, world: &mut World) {
    let Some((action, due)) = world.rows.session.next_action else { return };
    if due > NOW {
        return;
    }
    let plan = (action == Action::Launch).then_some(LaunchPlan { first_seq: 1, bearer_sha256: None });
    let trigger = Trigger::Session(session::Trigger::Claim { worker: world.idle_worker(), action, plan });
    if step(&setup.rules, world, &trigger) == Answer::Applied {
        let fence = world.rows.session.fence;
        world.jobs.push(Job { lease: 0, fence, phase: Phase::Claimed });
    }
}

fn kill_runners(setup: &Setup, world: &mut World) {
    if setup.rules.kill_first {
        world.runners.clear();
    }
}

fn start(setup: &Setup, world: &mut World, launch: u32, first: Option<u32>) {
    let lease = world.rows.leases.len() as u32;
    let harness = !setup.rules.append_before_harness;
    world.runners.push(Runner {
        launch,
        lease,
        harness,
        inbox: first.into_iter().collect(),
        handing: None,
        turn: None,
    });
}

fn works(setup: &Setup, world: &mut World, index: usize) {
    let Some(action) = world.rows.session.claim.as_ref().map(|claim| claim.action) else { return };
    let outcome = match action {
        Action::Launch => {
            kill_runners(setup, world);
            let first = launch_message(&world.rows.session).map(|message| message.ordinal);
            let launch = world.rows.session.launch;
            start(setup, world, launch, first);
            Outcome::Launched
        }
        Action::Collect => Outcome::Collected,
        Action::Park if world.rows.session.unfinished() => Outcome::ParkAborted,
        Action::Park => {
            let launch = world.rows.session.launch;
            if world.runners.iter().any(|runner| runner.launch == launch && runner.turn.is_some()) {
                world.wrong = Some("the sandbox was stopped under a live turn");
            }
            world.runners.clear();
            Outcome::Parked
        }
        Action::Drive | Action::Check => return,
    };
    world.jobs[index].phase = Phase::SessionDone(outcome);
}

fn report(setup: &Setup, world: &mut World, index: usize) {
    let job = world.jobs.remove(index);
    let Phase::SessionDone(outcome) = job.phase else { return };
    let live = world.live_fence(0) == Some(job.fence);
    if live && matches!(outcome, Outcome::Collected) {
        world.result = Some(world.rows.leases.len() as u32);
    }
    act(&setup.rules, world, &Trigger::Session(session::Trigger::Report { fence: job.fence, outcome }));
}

fn first_append(setup: &Setup, world: &mut World, index: usize) {
    let launch = world.runners[index].launch;
    let trigger = session::Trigger::SignOfLife { launch, activity: None, native_id: None };
    if step(&setup.rules, world, &Trigger::Session(trigger)) == Answer::Applied {
        world.runners[index].harness = true;
    } else {
        world.runners.remove(index);
    }
}

fn uuid_of(world: &World, ordinal: u32) -> Uuid {
    world.rows.session.messages[ordinal as usize - 1].uuid
}

fn accepts(setup: &Setup, world: &mut World, index: usize) {
    let launch = world.runners[index].launch;
    let ordinal = world.runners[index].inbox.remove(0);
    let uuid = uuid_of(world, ordinal);
    let known = world.seen.contains(&ordinal);
    let event = if known {
        session::Trigger::AlreadyHeld { launch, uuid }
    } else {
        session::Trigger::Accepted { launch, uuid }
    };
    if step(&setup.rules, world, &Trigger::Session(event)) != Answer::Applied {
        world.runners.remove(index);
    } else if !known {
        world.runners[index].handing = Some(ordinal);
    }
}

fn hands_on(world: &mut World, index: usize) {
    let runner = &mut world.runners[index];
    runner.turn = runner.handing.take();
    world.seen.extend(runner.turn);
}

fn turn_ends(setup: &Setup, world: &mut World, index: usize) {
    let runner = &mut world.runners[index];
    let (launch, lease) = (runner.launch, runner.lease);
    let Some(ordinal) = runner.turn.take() else { return };
    let uuid = uuid_of(world, ordinal);
    let before = (world.worked_in, world.result);
    world.worked_in = lease;
    world.result = None;
    let trigger = session::Trigger::TurnEnded { launch, done: vec![uuid] };
    if step(&setup.rules, world, &Trigger::Session(trigger)) != Answer::Applied {
        (world.worked_in, world.result) = before;
        world.runners.remove(index);
    }
}

fn executes(setup: &Setup, world: &mut World, index: usize) {
    let launch = world.runners[index].launch;
    let trigger = session::Trigger::SignOfLife { launch, activity: None, native_id: None };
    let answer = step(&setup.rules, world, &Trigger::Session(trigger));
    let state = world.rows.session.state;
    let over = matches!(state, SessionState::Pending | SessionState::Idle | SessionState::Closed)
        || launch != world.rows.session.launch;
    if answer != Answer::Applied && setup.rules.append_checks_state {
        world.runners.remove(index);
    } else if over {
        world.wrong = Some("a tool ran after the end");
    }
}

/// Runners die with their sandbox, and starts on their way to it come to nothing.
pub(crate) fn sandbox_gone(world: &mut World) {
    let stands = |world: &World, lease: u32| {
        world.recorded(lease).is_some_and(|id| world.alive.iter().any(|sandbox| sandbox.id == id))
    };
    let standing: Vec<bool> = (1..=world.rows.leases.len() as u32).map(|lease| stands(world, lease)).collect();
    world.runners.retain(|runner| standing[runner.lease as usize - 1]);
    if !standing.last().copied().unwrap_or_default() {
        world.starts.clear();
    }
}
