//! Lease workers and the provider: creates that land late, sandboxes that vanish, destroys that are refused.

use berth_domain::aggregate::Trigger;
use berth_domain::failure::{FailureClass, FailureReason};
use berth_domain::lease::{self, Action, Desired, Identity, Outcome, State as LeaseState};

use super::Setup;
use super::moves::{Move, act, is_done};
use super::rules::{Answer, step};
use super::world::{Flight, Job, Mail, NOW, Phase, Sandbox, World};

/// What happens between lifecycle and a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CloudMove {
    Claim(u32),
    /// Claim, work and report of a healthy worker in one go.
    Whole(u32),
    Work(usize, Work),
    Report(usize),
    ReportTwice(usize),
    Lands(usize),
    Vanishes(usize),
    VendorLoses(usize),
    ReadsGone(u32),
    Sweep(u32),
}

/// What a worker's call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Well,
    Call,
    Answered,
    Cut,
    Refused,
    Unauthorized,
    AcceptedOnly,
}

pub(crate) fn enabled(setup: &Setup, world: &World, moves: &mut Vec<Move>) {
    let mut push = |action| moves.push(Move::Cloud(action));
    let fault = world.faults > 0;
    for lease in &world.rows.leases {
        let generation = lease.generation;
        if claimable(setup, world, generation).is_some() {
            push(if setup.fine_leases { CloudMove::Claim(generation) } else { CloudMove::Whole(generation) });
        }
        let read = matches!(lease.state, LeaseState::Allocated | LeaseState::Ready);
        if read && world.recorded(generation).is_some_and(|id| !world.alive.iter().any(|sandbox| sandbox.id == id)) {
            push(CloudMove::ReadsGone(generation));
        }
        if sweepable(world, generation).next().is_some() {
            push(CloudMove::Sweep(generation));
        }
    }
    for (index, job) in world.jobs.iter().enumerate().filter(|(_, job)| job.lease != 0) {
        if is_done(&job.phase) {
            push(CloudMove::Report(index));
            if fault && setup.can.resend {
                push(CloudMove::ReportTwice(index));
            }
            continue;
        }
        if matches!(job.phase, Phase::Creating(_)) {
            push(CloudMove::Work(index, Work::Answered));
            if fault && setup.can.cut {
                push(CloudMove::Work(index, Work::Cut));
            }
            if fault && setup.can.refuse {
                push(CloudMove::Work(index, Work::Refused));
            }
            continue;
        }
        match action_of(world, job) {
            Some(Action::Allocate) => push(CloudMove::Work(index, Work::Call)),
            Some(Action::Bootstrap) => {
                push(CloudMove::Work(index, Work::Well));
                if fault && setup.can.bootstrap {
                    push(CloudMove::Work(index, Work::Refused));
                }
            }
            Some(Action::Release) => {
                push(CloudMove::Work(index, Work::Well));
                if fault && setup.can.teardown {
                    push(CloudMove::Work(index, Work::Unauthorized));
                    push(CloudMove::Work(index, Work::AcceptedOnly));
                }
            }
            None => {}
        }
    }
    for index in 0..world.flights.len() {
        push(CloudMove::Lands(index));
        push(CloudMove::Vanishes(index));
    }
    if fault && setup.can.lose {
        (0..world.alive.len()).for_each(|index| push(CloudMove::VendorLoses(index)));
    }
}

/// The action a worker could claim now, under the rules.
pub(crate) fn claimable(setup: &Setup, world: &World, generation: u32) -> Option<Action> {
    let lease = world.lease(generation);
    let stuck = !setup.rules.lost_releases && lease.state == LeaseState::Lost
        || !setup.rules.slow_retry && lease.state == LeaseState::ReleaseFailed;
    lease.next_action.filter(|(_, due)| *due <= NOW && !stuck).map(|(action, _)| action)
}

/// Sweep class 3: ours and known, but not the recorded sandbox of a live lease; two agreeing inventories, so nothing that is still being made.
fn sweepable(world: &World, generation: u32) -> impl Iterator<Item = usize> {
    let lease = world.lease(generation);
    let live = matches!(lease.state, LeaseState::Allocated | LeaseState::Ready) && lease.desired == Desired::Held;
    let recorded = world.recorded(generation);
    world
        .alive
        .iter()
        .enumerate()
        .filter(move |(_, sandbox)| {
            live && sandbox.lease == generation && sandbox.key == 0 && recorded != Some(sandbox.id)
        })
        .map(|(index, _)| index)
}

fn action_of(world: &World, job: &Job) -> Option<Action> {
    world
        .lease(job.lease)
        .claim
        .as_ref()
        .filter(|_| world.lease(job.lease).fence == job.fence)
        .map(|claim| claim.action)
}

pub(crate) fn make(setup: &Setup, world: &mut World, action: &CloudMove) {
    match action {
        CloudMove::Claim(generation) => claim(setup, world, *generation),
        CloudMove::Whole(generation) => {
            claim(setup, world, *generation);
            let index = world.jobs.len() - 1;
            work(setup, world, index, Work::Well);
            report(setup, world, index);
        }
        CloudMove::Work(index, how) => work(setup, world, *index, *how),
        CloudMove::Report(index) => report(setup, world, *index),
        CloudMove::ReportTwice(index) => {
            world.faults -= 1;
            let job = &world.jobs[*index];
            if let Phase::LeaseDone(outcome) = &job.phase {
                world.mail.push(Mail::Lease { lease: job.lease, fence: job.fence, outcome: outcome.clone() });
            }
            report(setup, world, *index);
        }
        CloudMove::Lands(index) => {
            let flight = world.flights.remove(*index);
            put(world, flight.lease, flight.key);
        }
        CloudMove::Vanishes(index) => {
            world.flights.remove(*index);
        }
        CloudMove::VendorLoses(index) => {
            world.faults -= 1;
            world.alive.remove(*index);
        }
        CloudMove::ReadsGone(generation) => {
            let id = world.lease_id(*generation);
            act(
                &setup.rules,
                world,
                &Trigger::Lease(id, lease::Trigger::Gone { scope: "s".to_owned(), how: String::new() }),
            );
        }
        CloudMove::Sweep(generation) => {
            let doomed: Vec<usize> = sweepable(world, *generation).collect();
            for index in doomed.into_iter().rev() {
                world.alive.remove(index);
            }
        }
    }
}

fn claim(setup: &Setup, world: &mut World, generation: u32) {
    let Some(action) = claimable(setup, world, generation) else { return };
    let id = world.lease_id(generation);
    let trigger = Trigger::Lease(id, lease::Trigger::Claim { worker: world.idle_worker(), action });
    if step(&setup.rules, world, &trigger) == Answer::Applied {
        let fence = world.lease(generation).fence;
        world.jobs.push(Job { lease: generation, fence, phase: Phase::Claimed });
    }
}

fn put(world: &mut World, lease: u32, key: u8) -> u8 {
    world.made += 1;
    world.alive.push(Sandbox { lease, key, id: world.made });
    world.made
}

fn identity(id: u8) -> Identity {
    Identity {
        sandbox_id: id.to_string(),
        sandbox_url: String::new(),
        scope: "s".to_owned(),
        provider: "p".to_owned(),
        provider_deadline: None,
    }
}

fn work(setup: &Setup, world: &mut World, index: usize, how: Work) {
    let generation = world.jobs[index].lease;
    let key = if setup.rules.one_key { 0 } else { world.lease(generation).attempt as u8 };
    if !matches!(how, Work::Well | Work::Call | Work::Answered) {
        world.faults -= 1;
    }
    let outcome = match action_of(world, &world.jobs[index]) {
        Some(Action::Allocate) => match how {
            Work::Well | Work::Call
                if world.lease(generation).attempt > 1 && setup.lookup && found(world, generation, key).is_some() =>
            {
                found(world, generation, key).map(|id| Outcome::Adopted(identity(id)))
            }
            Work::Call => {
                world.jobs[index].phase = Phase::Creating(key);
                return;
            }
            Work::Cut => {
                world.flights.push(Flight { lease: generation, key });
                Some(Outcome::Unknown { text: String::new(), scope: None })
            }
            Work::Refused => Some(Outcome::Refused { class: FailureClass::Rejected, text: String::new() }),
            Work::Well | Work::Answered | Work::Unauthorized | Work::AcceptedOnly => {
                let id = put(world, generation, key);
                Some(Outcome::Created(identity(id)))
            }
        },
        Some(Action::Bootstrap) => match how {
            Work::Refused => {
                Some(Outcome::BootstrapFailed { reason: FailureReason::BootstrapFailed, text: String::new() })
            }
            Work::Well | Work::Call | Work::Answered | Work::Cut | Work::Unauthorized | Work::AcceptedOnly => {
                Some(Outcome::Bootstrapped { workdir: String::new() })
            }
        },
        Some(Action::Release) => Some(destroy(setup, world, generation, key, how)),
        None => None,
    };
    if let Some(outcome) = outcome {
        world.jobs[index].phase = Phase::LeaseDone(outcome);
    }
}

fn found(world: &World, generation: u32, key: u8) -> Option<u8> {
    world.alive.iter().find(|sandbox| sandbox.lease == generation && sandbox.key == key).map(|sandbox| sandbox.id)
}

fn destroy(setup: &Setup, world: &mut World, generation: u32, key: u8, how: Work) -> Outcome {
    if how == Work::Unauthorized {
        return Outcome::TeardownFailed { class: FailureClass::Unauthorized, text: String::new(), retry_after: None };
    }
    if how == Work::AcceptedOnly {
        return Outcome::Accepted;
    }
    let recorded = world.recorded(generation);
    let by_key = setup.lookup && setup.rules.id_and_key;
    world.alive.retain(|sandbox| {
        !(recorded == Some(sandbox.id) || by_key && sandbox.lease == generation && sandbox.key == key)
    });
    Outcome::Absent { key_absent: setup.lookup, scope: "s".to_owned(), how: String::new(), last_seen: None }
}

fn report(setup: &Setup, world: &mut World, index: usize) {
    let job = world.jobs.remove(index);
    let Phase::LeaseDone(outcome) = job.phase else { return };
    let made = match &outcome {
        Outcome::Created(identity) | Outcome::Adopted(identity) => Some(identity.sandbox_id.clone()),
        _ => None,
    };
    let id = world.lease_id(job.lease);
    let answer = step(&setup.rules, world, &Trigger::Lease(id, lease::Trigger::Report { fence: job.fence, outcome }));
    // Without R5 a worker that is told ABORTED cleans up what it takes for its own.
    if let (Answer::Refused, false, Some(made)) = (answer, setup.rules.inside_claim, made) {
        let row = world.lease(job.lease);
        let lives =
            row.desired == Desired::Held && row.identity.as_ref().is_some_and(|identity| identity.sandbox_id == made);
        world.alive.retain(|sandbox| sandbox.id.to_string() != made);
        if lives {
            world.wrong = Some("a worker destroyed the sandbox of a live lease");
        }
    }
}

/// The worker of this job stops; a create it was waiting for goes on without it.
pub(crate) fn lose_job(world: &mut World, index: usize) {
    let job = world.jobs.remove(index);
    if let Phase::Creating(key) = job.phase {
        world.flights.push(Flight { lease: job.lease, key });
    }
}

/// R5: a worker whose claim is over drops its call. Without it, the worker goes on until it reports.
pub(crate) fn drop_dead_jobs(setup: &Setup, world: &mut World) {
    let dead = |world: &World, job: &Job| world.live_fence(job.lease) != Some(job.fence);
    let mut index = 0;
    while index < world.jobs.len() {
        let stubborn = !setup.rules.inside_claim && is_done(&world.jobs[index].phase);
        if dead(world, &world.jobs[index]) && !stubborn { lose_job(world, index) } else { index += 1 }
    }
}
