//! What can happen next, and what it does. Clients and time here; workers of leases in `cloud.rs`, workers of sessions and the agent in `agent.rs`.

use berth_domain::aggregate::Trigger;
use berth_domain::id::MessageId;
use berth_domain::lease::{self, Desired, State as LeaseState};
use berth_domain::run::State as RunState;
use berth_domain::session::{self, MessageKind, NewMessage, State as SessionState};
use uuid::Uuid;

use super::agent::{self, AgentMove};
use super::cloud::{self, CloudMove};
use super::rules::step;
use super::world::{Mail, NOW, OLD, OLDER, Phase, World};
use super::{Setup, rules};

/// One step of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Cancel,
    Delete,
    RetryDeletion,
    Forget,
    Release,
    Send,
    Reset,
    /// A claim ends without a report; 0 is the session's.
    Expire(u32),
    /// The worker of this job is gone, its claim stays for now.
    Crash(usize),
    LeaseDeadline(u32),
    LaunchDeadline,
    LeaseExpires(u32),
    LingerEnds,
    RunDeadline,
    DoubtSettles(u32),
    HourPasses(u32),
    Arrives(usize),
    Cloud(CloudMove),
    Agent(AgentMove),
}

/// Every move possible in `world`.
pub(crate) fn enabled(setup: &Setup, world: &World, moves: &mut Vec<Move>) {
    clients(world, moves);
    time(setup, world, moves);
    for (index, _) in world.mail.iter().enumerate() {
        moves.push(Move::Arrives(index));
    }
    cloud::enabled(setup, world, moves);
    agent::enabled(setup, world, moves);
}

fn clients(world: &World, moves: &mut Vec<Move>) {
    let state = world.rows.run.state;
    if state.is_active() {
        moves.push(Move::Cancel);
    }
    if state.is_settled() {
        moves.push(Move::Delete);
    }
    if state == RunState::DeletionFailed {
        moves.push(Move::RetryDeletion);
        moves.push(Move::Forget);
    }
    if world.sends > 0 && (state.is_active() || state == RunState::Completed) {
        moves.push(Move::Send);
    }
    if world.resets > 0 && world.rows.run.conversation && state.is_active() {
        moves.push(Move::Reset);
    }
}

fn time(setup: &Setup, world: &World, moves: &mut Vec<Move>) {
    let fault = world.faults > 0;
    for lease in 0..=world.rows.leases.len() as u32 {
        let Some(fence) = world.live_fence(lease) else { continue };
        let worked_on = world.jobs.iter().position(|job| job.lease == lease && job.fence == fence);
        if setup.rules.expiry_fires && (worked_on.is_none() || fault && setup.can.crash) {
            moves.push(Move::Expire(lease));
        }
    }
    if fault && setup.can.crash && !setup.rules.expiry_fires {
        moves.extend((0..world.jobs.len()).map(Move::Crash));
    }
    let tick = fault && setup.can.time;
    for lease in &world.rows.leases {
        let generation = lease.generation;
        let waiting = lease.claim.is_none() || lease.state == LeaseState::Allocated;
        if tick && lease.state_deadline.is_some() && lease.desired == Desired::Held && waiting {
            moves.push(Move::LeaseDeadline(generation));
        }
        if tick && lease.state == LeaseState::Ready && lease.desired == Desired::Held {
            moves.push(Move::LeaseExpires(generation));
        }
        if fault && setup.can.release && lease.desired == Desired::Held {
            moves.push(Move::Release);
        }
        let landing = world.flights.iter().any(|flight| flight.lease == generation);
        if lease.settle_at.is_some_and(|at| at > NOW) && !landing {
            moves.push(Move::DoubtSettles(generation));
        }
        if tick && lease.state == LeaseState::Releasing && lease.release_since == Some(NOW) {
            moves.push(Move::HourPasses(generation));
        }
    }
    if tick && world.rows.session.state == SessionState::Starting {
        moves.push(Move::LaunchDeadline);
    }
    let run = &world.rows.run;
    if run.state == RunState::Completed && world.rows.current().is_some_and(|lease| lease.desired == Desired::Held) {
        moves.push(Move::LingerEnds);
    }
    if tick && matches!(run.state, RunState::Provisioning | RunState::Running | RunState::Recovering) {
        moves.push(Move::RunDeadline);
    }
}

/// The state after `action`, if it changes anything.
pub(crate) fn make(setup: &Setup, world: &World, action: &Move) -> Option<World> {
    let mut next = world.clone();
    let rules = &setup.rules;
    match action {
        Move::Cancel => act(rules, &mut next, &Trigger::Cancel),
        Move::Delete => act(rules, &mut next, &Trigger::Delete),
        Move::RetryDeletion => act(rules, &mut next, &Trigger::RetryDeletion),
        Move::Forget => act(rules, &mut next, &Trigger::Forget { reason: "r".to_owned(), by: "a".to_owned() }),
        Move::Release => {
            next.faults -= 1;
            let id = next.lease_id(next.rows.leases.len() as u32);
            act(rules, &mut next, &Trigger::ReleaseLease(id));
        }
        Move::Send => send(rules, &mut next),
        Move::Reset => {
            next.resets -= 1;
            act(rules, &mut next, &Trigger::Session(session::Trigger::Reset));
        }
        Move::Expire(lease) => expire(setup, &mut next, *lease),
        Move::Crash(index) => {
            next.faults -= 1;
            cloud::lose_job(&mut next, *index);
        }
        Move::LeaseDeadline(lease) => {
            next.faults -= 1;
            next.lease_mut(*lease).state_deadline = Some(OLD);
            act(rules, &mut next, &Trigger::Tick);
        }
        Move::LaunchDeadline => {
            next.faults -= 1;
            next.rows.session.state_deadline = Some(OLD);
            act(rules, &mut next, &Trigger::Tick);
        }
        Move::LeaseExpires(lease) => {
            next.faults -= 1;
            let row = next.lease_mut(*lease);
            row.touched_at = OLD;
            row.expires_at = lease::expires_at(row.created_at, row.max_lifetime, row.touched_at, row.idle_timeout);
            act(rules, &mut next, &Trigger::Tick);
        }
        Move::LingerEnds => {
            next.rows.run.deadline = Some(OLD);
            act(rules, &mut next, &Trigger::Tick);
        }
        Move::RunDeadline => {
            next.faults -= 1;
            next.rows.run.deadline = Some(OLD);
            act(rules, &mut next, &Trigger::Tick);
        }
        Move::DoubtSettles(lease) => {
            let row = next.lease_mut(*lease);
            row.settle_at = Some(OLD);
            if let Some(claim) = &mut row.claim {
                claim.claimed_at = OLDER;
            }
        }
        Move::HourPasses(lease) => {
            next.faults -= 1;
            next.lease_mut(*lease).release_since = Some(OLD);
        }
        Move::Arrives(index) => arrive(rules, &mut next, *index),
        Move::Cloud(action) => cloud::make(setup, &mut next, action),
        Move::Agent(action) => agent::make(setup, &mut next, action),
    }
    cloud::drop_dead_jobs(setup, &mut next);
    agent::sandbox_gone(&mut next);
    next.canonical();
    Some(next)
}

pub(crate) fn act(rules: &rules::Rules, world: &mut World, trigger: &Trigger) {
    step(rules, world, trigger);
}

fn send(rules: &rules::Rules, world: &mut World) {
    world.sends -= 1;
    let uuid = Uuid::from_u128(500 + world.rows.session.messages.len() as u128);
    let message = NewMessage { id: MessageId::new(uuid), kind: MessageKind::Prompt, text: String::new(), uuid };
    if world.rows.session.state == SessionState::Idle || world.rows.session.state == SessionState::Ending {
        world.result = None;
    }
    act(rules, world, &Trigger::Session(session::Trigger::Send { message, new_sandbox: false }));
}

fn expire(setup: &Setup, world: &mut World, lease: u32) {
    let fence = world.live_fence(lease).unwrap_or_default();
    let job = world.jobs.iter().position(|job| job.lease == lease && job.fence == fence);
    if let Some(index) = job {
        world.faults -= 1;
        if setup.rules.inside_claim {
            cloud::lose_job(world, index);
        }
    }
    let trigger = if lease == 0 {
        Trigger::Session(session::Trigger::ClaimExpired { fence, claim_end: NOW })
    } else {
        Trigger::Lease(world.lease_id(lease), lease::Trigger::ClaimExpired { fence, claim_end: NOW })
    };
    act(&setup.rules, world, &trigger);
}

fn arrive(rules: &rules::Rules, world: &mut World, index: usize) {
    match world.mail.remove(index) {
        Mail::Lease { lease, fence, outcome } => {
            let id = world.lease_id(lease);
            act(rules, world, &Trigger::Lease(id, lease::Trigger::Report { fence, outcome }));
        }
        Mail::Session { fence, outcome } => {
            act(rules, world, &Trigger::Session(session::Trigger::Report { fence, outcome }))
        }
        Mail::End { launch } => act(rules, world, &Trigger::Session(session::Trigger::End { launch })),
    }
}

/// A job's phase is over and waits to be reported.
pub(crate) fn is_done(phase: &Phase) -> bool {
    matches!(phase, Phase::LeaseDone(_) | Phase::SessionDone(_))
}
