//! Can everything still end? From any state, with workers and provider behaving from now on, a fair schedule must bring the run to rest, and then
//! cancel and delete must bring it to DELETED with nothing left at the provider.
//!
//! stateright's own `eventually` does not see cycles; following one fair schedule does, and a cycle counts as stuck.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use berth_domain::lease::{Desired, ReceiptKind, State as LeaseState};
use berth_domain::run::State as RunState;

use super::Machine;
use super::agent::AgentMove;
use super::cloud::{CloudMove, Work};
use super::moves::{self, Move};
use super::world::World;

/// More steps than any fair schedule needs.
const MOST_STEPS: usize = 300;

/// Whether `world` comes to rest and can then be deleted.
pub(crate) fn ends(machine: &Machine, world: &World) -> bool {
    follow(machine, world, &mut |_, _| {})
}

/// The fair schedule from `world`, for people.
pub(crate) fn schedule(machine: &Machine, world: &World) -> Vec<String> {
    let mut steps = vec![];
    machine.ends.lock().expect("no panic under the lock").clear();
    follow(machine, world, &mut |action, after| steps.push(format!("  then {action:?} {after}")));
    steps
}

fn follow(machine: &Machine, world: &World, told: &mut dyn FnMut(&Move, &World)) -> bool {
    let known = |key: &u64| machine.ends.lock().expect("no panic under the lock").contains(key);
    let mut now = World { faults: 0, sends: 0, resets: 0, ..world.clone() };
    let mut path = vec![];
    let mut visited = HashSet::new();
    for _ in 0..MOST_STEPS {
        if now.wrong.is_some() {
            return false;
        }
        let key = fingerprint(&now);
        let ended = known(&key) || nothing_left(&now);
        path.push(key);
        visited.insert(key);
        if ended {
            machine.ends.lock().expect("no panic under the lock").extend(path);
            return true;
        }
        let next = match fairest(machine, &now, &visited) {
            Some(next) => Some(next),
            None if !at_rest(&now) => return false,
            None => client(&now).and_then(|action| Some((moves::make(&machine.setup, &now, &action)?, action))),
        };
        let Some((changed, action)) = next else { return false };
        told(&action, &changed);
        now = changed;
    }
    false
}

/// DELETED, and nothing at the provider but what an administrator took responsibility for.
fn nothing_left(world: &World) -> bool {
    let forgotten = |generation: u32| {
        world.lease(generation).receipt.as_ref().is_some_and(|receipt| receipt.kind == ReceiptKind::Forgotten)
    };
    world.rows.run.state == RunState::Deleted
        && world.alive.iter().all(|sandbox| forgotten(sandbox.lease))
        && world.flights.iter().all(|flight| forgotten(flight.lease))
}

fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Nothing is under way: the run waits for its client, and each kept lease has exactly its own sandbox.
fn at_rest(world: &World) -> bool {
    let still = match world.rows.run.state {
        RunState::Waiting | RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::Deleted => true,
        RunState::Provisioning
        | RunState::Running
        | RunState::Recovering
        | RunState::Deleting
        | RunState::DeletionFailed => false,
    };
    let one_sandbox = world.rows.leases.iter().all(|lease| {
        let mine: Vec<u8> =
            world.alive.iter().filter(|sandbox| sandbox.lease == lease.generation).map(|sandbox| sandbox.id).collect();
        match (lease.state, lease.desired) {
            (LeaseState::Ready, Desired::Held) => {
                mine.len() <= 1 && mine.first().is_none_or(|id| world.recorded(lease.generation) == Some(*id))
            }
            (LeaseState::Released, _) => mine.is_empty(),
            (_, Desired::Held) => true,
            (_, Desired::Released) => false,
        }
    });
    still && one_sandbox
}

/// What the client does once everything rests.
fn client(world: &World) -> Option<Move> {
    let state = world.rows.run.state;
    if state.is_active() { Some(Move::Cancel) } else { state.is_settled().then_some(Move::Delete) }
}

/// The next step of a fair schedule that leads anywhere new: what is under way first, new claims last.
fn fairest(machine: &Machine, world: &World, visited: &HashSet<u64>) -> Option<(World, Move)> {
    let mut enabled = vec![];
    moves::enabled(&machine.setup, world, &mut enabled);
    let mut ranked: Vec<(u8, Move)> = enabled.into_iter().filter_map(|action| Some((rank(&action)?, action))).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().find_map(|(_, action)| {
        let next = moves::make(&machine.setup, world, &action)?;
        (!visited.contains(&fingerprint(&next))).then_some((next, action))
    })
}

fn rank(action: &Move) -> Option<u8> {
    match action {
        Move::Cancel
        | Move::Delete
        | Move::RetryDeletion
        | Move::Forget
        | Move::Release
        | Move::Send
        | Move::Reset
        | Move::LingerEnds => None,
        Move::LeaseDeadline(_)
        | Move::LaunchDeadline
        | Move::LeaseExpires(_)
        | Move::RunDeadline
        | Move::HourPasses(_)
        | Move::Crash(_) => None,
        Move::Arrives(_) => Some(0),
        Move::Cloud(CloudMove::Lands(_)) | Move::Agent(AgentMove::StartLands(_)) => Some(1),
        Move::Cloud(CloudMove::Work(_, Work::Well | Work::Call | Work::Answered))
        | Move::Agent(AgentMove::Works(_)) => Some(2),
        Move::Cloud(CloudMove::Report(_)) | Move::Agent(AgentMove::Report(_)) => Some(2),
        Move::Expire(_) => Some(3),
        Move::Cloud(CloudMove::ReadsGone(_) | CloudMove::Sweep(_)) => Some(4),
        Move::Agent(AgentMove::FirstAppend(_) | AgentMove::HandsOn(_) | AgentMove::TurnEnds(_)) => Some(5),
        Move::Agent(AgentMove::Executes(_)) => Some(6),
        Move::Agent(AgentMove::Accepts(_) | AgentMove::Turn(_)) => Some(7),
        Move::Agent(AgentMove::Delivers) => Some(7),
        Move::DoubtSettles(_) => Some(8),
        Move::Cloud(CloudMove::Claim(_) | CloudMove::Whole(_)) => Some(9),
        Move::Agent(AgentMove::Claim | AgentMove::Whole | AgentMove::ChecksDead) => Some(9),
        Move::Cloud(CloudMove::Work(_, Work::Cut | Work::Refused | Work::Unauthorized | Work::AcceptedOnly)) => None,
        Move::Cloud(CloudMove::ReportTwice(_) | CloudMove::Vanishes(_) | CloudMove::VendorLoses(_)) => None,
        Move::Agent(
            AgentMove::LaunchCut(_)
            | AgentMove::LaunchFails(_)
            | AgentMove::CollectFails(_)
            | AgentMove::ReportTwice(_),
        ) => None,
        Move::Agent(AgentMove::StartVanishes(_) | AgentMove::Exits(_) | AgentMove::Dies(_)) => None,
    }
}
