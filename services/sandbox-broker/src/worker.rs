//! The worker: claims lease work for its free slots, runs one task per claim, keeps the claims alive, reports what came of
//! each, and goes on with the row's next action when the reply hands it over. It remembers nothing: a worker that dies
//! leaves claims that expire.

use std::{collections::HashMap, sync::Arc, time::Duration};

use berth_rpc::{duration_from_proto, duration_to_proto, lifecycle as pb};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tracing::Instrument as _;

use crate::{
    actions::{self, Context},
    claims::{Answer, Claim, Claims},
    from_proto,
    task::{Action, Outcome, Task},
    to_proto,
};

/// How often held claims are extended, and the longest one such call may take.
const EXTEND_EVERY: Duration = Duration::from_secs(1);
const EXTEND_LIMIT: Duration = Duration::from_secs(3);
/// Wait after a claim that lifecycle did not answer, and between resends of a report.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Most slots one claim may ask for.
const MAX_SLOTS: usize = 64;

/// One broker process as lifecycle sees it.
pub(crate) struct Worker {
    context: Context,
    claims: Claims,
    worker_id: String,
    endpoint: String,
    slots: HashMap<&'static str, Arc<Semaphore>>,
    freed: Arc<Notify>,
    shutdown: CancellationToken,
}

impl Worker {
    /// `slots`: actions in flight per provider.
    pub(crate) fn new(context: Context, endpoint: String, slots: u32, shutdown: CancellationToken) -> Self {
        let names = context.registry.iter().map(|provider| provider.declaration().name);
        let slots = names.map(|name| (name, Arc::new(Semaphore::new(slots as usize)))).collect();
        Self {
            context,
            claims: Claims::default(),
            worker_id: format!("broker-{}", uuid::Uuid::new_v4().simple()),
            endpoint,
            slots,
            freed: Arc::new(Notify::new()),
            shutdown,
        }
    }

    /// Works until shutdown; then running actions get `drain` to finish, and what is left expires with its claims.
    pub(crate) async fn run(self) {
        let this = Arc::new(self);
        let stop_extending = CancellationToken::new();
        let extending = tokio::spawn(Arc::clone(&this).keep_alive(stop_extending.clone()));
        let mut tasks = JoinSet::new();
        while !this.shutdown.is_cancelled() {
            tokio::select! {
                () = this.shutdown.cancelled() => break,
                () = this.claim_and_spawn(&mut tasks) => {}
            }
            while tasks.try_join_next().is_some() {}
        }
        let drained = timeout(this.context.timeouts.drain, async { while tasks.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            tracing::warn!(left = tasks.len(), "actions cut at shutdown; their claims expire");
            tasks.shutdown().await;
        }
        stop_extending.cancel();
        let _ = extending.await;
    }

    async fn claim_and_spawn(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let freed = self.freed.notified();
        let provider_slots: HashMap<String, i32> = self
            .slots
            .iter()
            .map(|(name, slots)| ((*name).to_owned(), slots.available_permits().min(MAX_SLOTS) as i32))
            .filter(|(_, free)| *free > 0)
            .collect();
        if provider_slots.is_empty() {
            return freed.await;
        }
        let wait = self.context.timeouts.claim_wait;
        let request = pb::ClaimRequest {
            queue: pb::claim_request::Queue::Lease.into(),
            worker_id: self.worker_id.clone(),
            endpoint: self.endpoint.clone(),
            slots: provider_slots.values().sum::<i32>().min(MAX_SLOTS as i32),
            provider_slots,
            localities: self.context.registry.localities(),
            wait: Some(duration_to_proto(wait)),
        };
        let sent = Instant::now();
        match self.context.lifecycle.claim(request, wait).await {
            Ok(answer) => {
                self.alive(sent, answer.alive_for);
                for task in answer.works.into_iter().filter_map(from_proto::task) {
                    self.spawn(task, sent, tasks);
                }
            }
            Err(status) => {
                tracing::warn!(code = ?status.code(), "claim not answered");
                sleep(RETRY_AFTER).await;
            }
        }
    }

    fn spawn(self: &Arc<Self>, task: Task, sent: Instant, tasks: &mut JoinSet<()>) {
        // Without a slot (lifecycle handed out more than was asked for) the claim is left to expire.
        let permit =
            self.slots.get(task.provider.as_str()).and_then(|slots| Arc::clone(slots).try_acquire_owned().ok());
        let Some(permit) = permit else {
            tracing::error!(lease_id = task.lease_id, provider = task.provider, "claimed without a free slot");
            return;
        };
        let claim = self.claims.take(&task, sent);
        let this = Arc::clone(self);
        tasks.spawn(async move { this.follow(task, claim, permit).await });
    }

    /// One row, from action to action as long as lifecycle hands the next one over.
    async fn follow(self: Arc<Self>, task: Task, claim: Claim, permit: OwnedSemaphorePermit) {
        let mut current = Some((task, claim));
        while let Some((task, claim)) = current.take() {
            let span = berth_serve::trace::work_span(span_name(task.action), &task.traceparent, &task.run_id);
            let next = self.step(&task, &claim).instrument(span).await;
            self.claims.drop_claim(&claim);
            current = next;
        }
        drop(permit);
        self.freed.notify_one();
    }

    async fn step(&self, task: &Task, claim: &Claim) -> Option<(Task, Claim)> {
        tracing::info!(lease_id = task.lease_id, action = ?task.action, attempt = task.attempt, "action begins");
        let outcome = tokio::select! {
            biased;
            () = claim.over() => {
                tracing::warn!(lease_id = task.lease_id, action = ?task.action, "claim over; nothing is reported");
                return None;
            }
            outcome = actions::act(&self.context, task, claim) => outcome,
        };
        tracing::info!(lease_id = task.lease_id, action = ?task.action, outcome = outcome_name(&outcome), "action ended");
        self.report(task, claim, outcome).await
    }

    /// Sends the outcome until it is answered or the claim is over; a resend of the same body is answered the same.
    async fn report(&self, task: &Task, claim: &Claim, outcome: Outcome) -> Option<(Task, Claim)> {
        let request = pb::ReportRequest {
            row_id: task.lease_id.clone(),
            run_id: task.run_id.clone(),
            fence: task.fence,
            worker_id: self.worker_id.clone(),
            take_next: !self.shutdown.is_cancelled(),
            outcome: Some(to_proto::report(outcome)),
        };
        loop {
            let sent = Instant::now();
            let status = match self.context.lifecycle.report(request.clone()).await {
                Ok(answer) => {
                    let next = answer.next.and_then(from_proto::task)?;
                    let claim = self.claims.take(&next, sent);
                    return Some((next, claim));
                }
                Err(status) => status,
            };
            match status.code() {
                Code::Unavailable
                | Code::DeadlineExceeded
                | Code::Cancelled
                | Code::Unknown
                | Code::ResourceExhausted
                    if claim.is_live() =>
                {
                    tracing::warn!(lease_id = task.lease_id, code = ?status.code(), "report not answered, sending it again");
                    sleep(RETRY_AFTER).await;
                }
                code => {
                    // ABORTED: the claim was over; whoever holds the row now decides. Nothing is cleaned up here.
                    tracing::warn!(lease_id = task.lease_id, ?code, message = status.message(), "report not accepted");
                    return None;
                }
            }
        }
    }

    async fn keep_alive(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(EXTEND_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => self.extend().await,
            }
        }
    }

    async fn extend(&self) {
        let held = self.claims.rows().into_iter();
        let held = held
            .map(|row| pb::extend_request::Held { row_id: row.lease_id, run_id: row.run_id, fence: row.fence })
            .collect();
        let sent = Instant::now();
        let request = pb::ExtendRequest { worker_id: self.worker_id.clone(), held };
        match self.context.lifecycle.extend(request, EXTEND_LIMIT).await {
            Ok(answer) => {
                self.alive(sent, answer.alive_for);
                for row in answer.answers {
                    use pb::extend_response::answer::Status;
                    let answer = match row.status() {
                        Status::DesireChanged => Answer::DesireChanged,
                        Status::Gone => Answer::Gone,
                        Status::Held | Status::Unspecified => Answer::Held,
                    };
                    self.claims.answered(&row.row_id, row.fence, answer);
                }
            }
            Err(status) => tracing::warn!(code = ?status.code(), "extend not answered"),
        }
    }

    fn alive(&self, sent: Instant, alive_for: Option<prost_types::Duration>) {
        if let Some(alive_for) = alive_for {
            self.claims.alive(sent, duration_from_proto(&alive_for));
        }
    }
}

fn span_name(action: Action) -> &'static str {
    match action {
        Action::Allocate => "provision/allocate",
        Action::Bootstrap => "provision/bootstrap",
        Action::Release => "destroy/release",
    }
}

fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Created(_) => "created",
        Outcome::Adopted(_) => "adopted",
        Outcome::Refused(_) => "refused",
        Outcome::Unknown { .. } => "unknown",
        Outcome::Bootstrapped { .. } => "bootstrapped",
        Outcome::BootstrapFailed(_) => "bootstrap failed",
        Outcome::Gone { .. } => "gone",
        Outcome::Absent { .. } => "absent",
        Outcome::StillThere { .. } => "still there",
        Outcome::ReleaseFailed(_) => "release failed",
    }
}
