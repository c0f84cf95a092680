//! Claim: hands due rows of a queue to a worker. Long poll: woken by hints, or looking again every second.

use std::time::Duration;

use berth_domain::{failure::Kind, id::WorkerId};
use berth_events::{Hint, Queue};
use berth_rpc::{duration_from_proto, duration_to_proto, lifecycle as proto};
use prost::Message as _;
use proto::claim_request::Queue as Asked;
use tokio::time::Instant;

use crate::{
    Lifecycle,
    assignment::assign,
    authenticate::Admitted,
    error::Error,
    policy::Service,
    store::{Changes, Decision, Due, LeaseDemand, Worker},
};

const MAX_WAIT: Duration = Duration::from_secs(30);
const MAX_SLOTS: u32 = 64;
const MAX_LOCALITIES: usize = 64;
const MAX_NAME_BYTES: usize = 512;
/// No further work joins an answer that is larger; with the last one it stays well below what a client decodes (12 MiB).
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Rows looked at beyond the slots, so that a few that cannot be read do not stop the queue.
const SPARE: u32 = 100;

/// What a worker asked for, checked.
struct Demand {
    worker: Worker,
    worker_id: WorkerId,
    queue: Queue,
    slots: u32,
    provider_slots: Vec<(String, u32)>,
    wait: Duration,
}

/// Due work, as soon as there is some; empty after `wait`.
///
/// # Errors
/// INVALID_ARGUMENT; PERMISSION_DENIED (QUEUE_FORBIDDEN) for the other service's queue.
pub(crate) async fn claim(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::ClaimRequest,
) -> Result<proto::ClaimResponse, Error> {
    let demand = parse(call.service()?, request)?;
    let alive = app.config.limits.alive;
    let until = Instant::now() + demand.wait;
    // Before the first look, so that nothing that becomes due in between is missed.
    let mut hints = app.store.bus().subscribe();
    app.store.register_worker(&demand.worker, alive).await?;
    let works = loop {
        let works = take(app, &demand).await?;
        let left = until.saturating_duration_since(Instant::now());
        if !works.is_empty() || left.is_zero() || app.shutdown.is_cancelled() {
            break works;
        }
        tokio::select! {
            () = hints.wait_for(|hint| *hint == Hint::Work(demand.queue)) => {}
            () = tokio::time::sleep(left.min(app.config.poll_every)) => {}
            () = app.shutdown.cancelled() => {}
        }
    };
    Ok(proto::ClaimResponse { works, alive_for: Some(duration_to_proto(alive)) })
}

fn parse(service: Service, request: proto::ClaimRequest) -> Result<Demand, Error> {
    let queue = match (request.queue(), service) {
        (Asked::Lease, Service::SandboxBroker) => Queue::Lease,
        (Asked::Session, Service::Sessions) => Queue::Session,
        (Asked::Unspecified, _) => return Err(Error::invalid("queue", "QUEUE_INVALID", "a queue is required")),
        (Asked::Lease | Asked::Session, _) => {
            let message = "this queue belongs to another service".to_owned();
            return Err(Error::Denied { reason: "QUEUE_FORBIDDEN", message });
        }
    };
    let worker_id = WorkerId::parse(&request.worker_id)
        .map_err(|_| Error::invalid("worker_id", "WORKER_ID_INVALID", "a worker id is [a-z0-9-]{1,64}"))?;
    let names = request.localities.iter().chain([&request.endpoint]);
    if request.localities.len() > MAX_LOCALITIES || names.into_iter().any(|name| name.len() > MAX_NAME_BYTES) {
        let message = "at most 64 localities, each and the endpoint at most 512 bytes";
        return Err(Error::invalid("localities", "LOCALITIES_INVALID", message));
    }
    let positive = |slots: i32| u32::try_from(slots).unwrap_or_default().min(MAX_SLOTS);
    let provider_slots = request.provider_slots.into_iter().map(|(name, slots)| (name, positive(slots))).collect();
    Ok(Demand {
        worker: Worker {
            id: worker_id.to_string(),
            service: service.as_str().to_owned(),
            endpoint: request.endpoint,
            localities: request.localities,
        },
        worker_id,
        queue,
        slots: positive(request.slots),
        provider_slots,
        wait: request.wait.as_ref().map(duration_from_proto).unwrap_or_default().min(MAX_WAIT),
    })
}

/// One look at the queue. A run that another transaction holds is left to a later look, and so is one that cannot be read:
/// it keeps no other from its worker. What is claimed already always reaches the worker.
async fn take(app: &Lifecycle, demand: &Demand) -> Result<Vec<proto::Work>, Error> {
    let mut works: Vec<proto::Work> = Vec::new();
    let mut bytes = 0;
    for (slots, group) in candidates(app, demand).await? {
        let before = works.len();
        for due in group {
            if works.len() >= demand.slots as usize || works.len() - before >= slots as usize {
                break;
            }
            if bytes > MAX_ANSWER_BYTES {
                return Ok(works);
            }
            match take_one(app, demand, &due).await {
                Ok(Some(mut work)) => {
                    app.fill_texts(&mut work).await;
                    bytes += work.encoded_len();
                    works.push(work);
                }
                Ok(None) => {}
                Err(error) if error.kind() == Kind::Unavailable && works.is_empty() && !error.is_lost_race() => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(run_id = %due.run_id, error = &error as &dyn std::error::Error, "claim failed");
                }
            }
        }
    }
    Ok(works)
}

/// Rows that seem due, with how many of them may be taken. More than that are looked at: some may turn out not to be due.
async fn candidates(app: &Lifecycle, demand: &Demand) -> Result<Vec<(u32, Vec<Due>)>, Error> {
    match demand.queue {
        Queue::Session => {
            let due = app.store.due_sessions(demand.slots + SPARE).await?;
            Ok(vec![(demand.slots, due)])
        }
        Queue::Lease => {
            let mut groups = Vec::new();
            for (provider, slots) in &demand.provider_slots {
                let slots = (*slots).min(demand.slots);
                if slots == 0 {
                    continue;
                }
                let host_bound = app.config.host_bound_providers.contains(provider);
                let localities =
                    Some(demand.worker.localities.as_slice()).filter(|some| host_bound && !some.is_empty());
                let due = app.store.due_leases(&LeaseDemand { provider, localities, limit: slots + SPARE }).await?;
                groups.push((slots, due));
            }
            Ok(groups)
        }
    }
}

async fn take_one(app: &Lifecycle, demand: &Demand, due: &Due) -> Result<Option<proto::Work>, Error> {
    let worker = (&demand.worker, app.config.limits.alive);
    app.store
        .claim(&due.run_id, worker, |loaded| {
            let mut changes = Changes { actor: demand.worker.id.clone(), ..Changes::default() };
            if !app.can_reach(loaded, &due.row_id, &demand.worker.localities) {
                return Ok(Decision::unchanged(None));
            }
            let row = (due.row_id.as_str(), &demand.worker_id);
            let work = assign(loaded, &mut changes, row, app.store.deployment_hash())?;
            app.remember_scope(&mut changes, &due.row_id, &demand.worker.localities);
            Ok(Decision::changed(work, changes))
        })
        .await
}
