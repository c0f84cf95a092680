//! The worker: claims session work, acts, reports; the reply of a report may hand it the row's next action.
//!
//! LAUNCH of a native session has nothing to start; DRIVE runs the loop; COLLECT asks the broker for head commit and diff; PARK
//! has nothing to stop. On ABORTED the worker does nothing at all.

use std::sync::Arc;
use std::time::Duration;

use berth_rpc::broker::{CollectRequest, Hold as BrokerHold};
use berth_rpc::lifecycle::{
    ClaimRequest, Ended, Error as ErrorText, Launched, Parked, ProviderFailure, ReportRequest, SessionWork, Work,
    claim_request::Queue, provider_failure::Class, report_request::Outcome, work::Action,
};
use berth_rpc::status::Failure;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Code;
use tracing::Instrument as _;

use crate::claims::{Claim, Claims, Ending};
use crate::config::Config;
use crate::native::{Drive, Hold, ModelApi, Stop};
use crate::upstream::{CALL_TIMEOUT, Upstream, within, worth_retrying};

/// How long a claim call waits for work.
const CLAIM_WAIT: Duration = Duration::from_secs(20);
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
/// A turn is ended this long before the claim is, so that its last words are still accepted.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long work in flight may take to hand itself back at shutdown.
const GOODBYE: Duration = Duration::from_secs(3);

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Worker {
    pub(crate) config: Arc<Config>,
    pub(crate) upstream: Upstream,
    pub(crate) api: ModelApi,
    pub(crate) claims: Arc<Claims>,
    pub(crate) shutdown: CancellationToken,
}

impl Worker {
    /// Works until shutdown, then hands back what it holds.
    pub(crate) async fn run(self) {
        if self.config.slots == 0 {
            return self.shutdown.cancelled().await;
        }
        let stop_extending = CancellationToken::new();
        let keeping = tokio::spawn(self.claims.clone().keep(self.upstream.work.clone(), stop_extending.clone()));
        let tasks = TaskTracker::new();
        tokio::select! {
            () = self.shutdown.cancelled() => {}
            () = self.claim_for_ever(&tasks) => {}
        }
        tasks.close();
        if tokio::time::timeout(GOODBYE, tasks.wait()).await.is_err() {
            tracing::warn!(claims = tasks.len(), "work in flight was not handed back in time");
        }
        stop_extending.cancel();
        let _ = keeping.await;
    }

    async fn claim_for_ever(&self, tasks: &TaskTracker) {
        let slots = Arc::new(Semaphore::new(self.config.slots.min(64)));
        let mut backoff = FIRST_BACKOFF;
        loop {
            // At least one slot is free from here on: only this loop takes them.
            match slots.clone().acquire_owned().await {
                Ok(permit) => drop(permit),
                Err(_) => return,
            }
            let sent = Instant::now();
            match self.claim(slots.available_permits()).await {
                Ok(works) => {
                    backoff = FIRST_BACKOFF;
                    for work in works {
                        let Ok(permit) = slots.clone().try_acquire_owned() else { break };
                        let worker = self.clone();
                        tasks.spawn(async move { worker.follow(work, sent, permit).await });
                    }
                }
                Err(status) => {
                    tracing::debug!(code = ?status.code(), "claim not answered");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(LONGEST_BACKOFF);
                }
            }
        }
    }

    async fn claim(&self, free: usize) -> Result<Vec<Work>, tonic::Status> {
        let request = ClaimRequest {
            queue: Queue::Session.into(),
            worker_id: self.claims.worker_id().to_owned(),
            endpoint: self.config.endpoint.clone(),
            slots: free as i32,
            wait: Some(berth_rpc::duration_to_proto(CLAIM_WAIT)),
            ..ClaimRequest::default()
        };
        let sent = Instant::now();
        let answer = within(CLAIM_WAIT + CALL_TIMEOUT, self.upstream.work.clone().claim(request)).await?;
        self.claims.alive(sent, answer.alive_for.as_ref());
        if !answer.works.is_empty() && !self.claims.is_alive() {
            // The answer came later than it was good for; one Extend tells whether the claims still hold.
            self.claims.extend(&self.upstream.work, None).await;
        }
        Ok(answer.works)
    }

    /// Acts on a row as long as its next action is handed to us.
    async fn follow(self, work: Work, sent: Instant, _slot: OwnedSemaphorePermit) {
        let mut next = Some((work, sent));
        while let Some((work, sent)) = next.take() {
            let claim = self.claims.hold(&work, sent);
            let span = berth_serve::trace::work_span(span_name(work.action()), &work.traceparent, &work.run_id);
            next = Box::pin(self.act_and_report(work, claim)).instrument(span).await;
        }
    }

    async fn act_and_report(&self, work: Work, claim: Claim) -> Option<(Work, Instant)> {
        let outcome = tokio::select! {
            biased;
            ending = claim.ended() => match ending {
                Ending::Gone => None,
                Ending::DesireChanged => interrupted(work.action()),
            },
            () = self.shutdown.cancelled() => interrupted(work.action()),
            outcome = self.act(&work, &claim) => outcome,
        };
        let Some(outcome) = outcome else {
            tracing::debug!(row_id = %work.row_id, action = ?work.action(), "dropped without a report");
            return None;
        };
        self.report(&work, &claim, outcome).await
    }

    /// What the action came to; `None`: nothing may be reported.
    async fn act(&self, work: &Work, claim: &Claim) -> Option<Outcome> {
        let Some(session) = session_of(work) else {
            tracing::error!(row_id = %work.row_id, "session work without its detail");
            return None;
        };
        match work.action() {
            Action::Launch => Some(Outcome::Launched(Launched {})),
            Action::Drive => self.drive(work, session, claim).await,
            Action::Collect => self.collect(work, session, claim).await,
            Action::Park => Some(Outcome::Parked(Parked {})),
            action @ (Action::Unspecified | Action::Allocate | Action::Bootstrap | Action::Release | Action::Check) => {
                tracing::error!(?action, "not an action of native sessions");
                None
            }
        }
    }

    async fn drive(&self, work: &Work, session: &SessionWork, claim: &Claim) -> Option<Outcome> {
        let held = (hold(work, session), claim.clone());
        let (config, api, upstream) = (self.config.clone(), self.api.clone(), self.upstream.clone());
        let wall_clock = wall_clock(session, claim);
        let drive = Drive::new(config, api, upstream, held, session.clone(), wall_clock);
        let failure = match drive.run().await {
            Ok(()) | Err(Stop::SandboxGone) => None,
            Err(Stop::Lost) => return None,
            Err(Stop::Broken(text)) => {
                tracing::error!(run_id = %work.run_id, error = %text, "native loop cannot go on");
                Some(ErrorText { reason: "INTERNAL".into(), message: "the native loop cannot go on".into() })
            }
        };
        Some(Outcome::Ended(Ended { failure }))
    }

    async fn collect(&self, work: &Work, session: &SessionWork, claim: &Claim) -> Option<Outcome> {
        let Hold { run_id, session_id, fence, launch } = hold(work, session);
        let request = CollectRequest {
            hold: Some(BrokerHold { run_id, session_id, session_fence: fence, launch }),
            push_branch: session.push_branch.clone(),
        };
        let left = claim.deadline().saturating_duration_since(Instant::now());
        match within(left.saturating_sub(LAST_WORDS), self.upstream.sandbox.clone().collect(request)).await {
            Ok(answer) => Some(Outcome::Collected(answer.result.unwrap_or_default())),
            Err(status) if status.code() == Code::Aborted => None,
            Err(status) => {
                let failure = Failure::from_status(&status);
                let class = if worth_retrying(&status) { Class::Transient } else { Class::Permanent };
                tracing::warn!(run_id = %work.run_id, reason = %failure.reason, "result not collected");
                Some(Outcome::CollectFailed(ProviderFailure {
                    class: class.into(),
                    reason: failure.reason,
                    message: "the result could not be collected".into(),
                }))
            }
        }
    }

    /// Repeats the same report until it is answered or the claim ends; a resend gets the stored reply.
    async fn report(&self, work: &Work, claim: &Claim, outcome: Outcome) -> Option<(Work, Instant)> {
        let finished = matches!(outcome, Outcome::Ended(Ended { failure: None }));
        let request = ReportRequest {
            row_id: work.row_id.clone(),
            run_id: work.run_id.clone(),
            fence: work.fence,
            worker_id: self.claims.worker_id().to_owned(),
            take_next: !self.shutdown.is_cancelled(),
            outcome: Some(outcome),
        };
        let mut backoff = FIRST_BACKOFF;
        while claim.is_held() {
            let sent = Instant::now();
            match within(CALL_TIMEOUT, self.upstream.work.clone().report(request.clone())).await {
                Ok(answer) => return answer.next.map(|next| (next, sent)),
                Err(status) if worth_retrying(&status) => {
                    tracing::warn!(row_id = %work.row_id, code = ?status.code(), "report not answered, trying again");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(LONGEST_BACKOFF);
                }
                // With the last turn of a one-shot lifecycle ends the claim itself.
                Err(status) if finished && status.code() == Code::Aborted => {
                    tracing::debug!(row_id = %work.row_id, "the claim had ended with its last turn");
                    return None;
                }
                Err(status) => {
                    tracing::info!(row_id = %work.row_id, code = ?status.code(), "report refused");
                    return None;
                }
            }
        }
        None
    }
}

/// What is known of an action that was stopped.
fn interrupted(action: Action) -> Option<Outcome> {
    match action {
        Action::Drive => Some(Outcome::Ended(Ended { failure: None })),
        Action::Collect => Some(Outcome::CollectFailed(ProviderFailure {
            class: Class::Transient.into(),
            reason: "COLLECT_FAILED".into(),
            message: "interrupted".into(),
        })),
        Action::Unspecified
        | Action::Allocate
        | Action::Bootstrap
        | Action::Release
        | Action::Launch
        | Action::Check
        | Action::Park => None,
    }
}

fn hold(work: &Work, session: &SessionWork) -> Hold {
    Hold { run_id: work.run_id.clone(), session_id: work.row_id.clone(), fence: work.fence, launch: session.launch }
}

/// When the turns of a run with a wall clock must end: shortly before the claim does, which for DRIVE ends with that clock.
/// By durations only: the deadline itself is a time of the database's clock, and says nothing about ours.
fn wall_clock(session: &SessionWork, claim: &Claim) -> Option<Instant> {
    session.wall_clock_deadline.map(|_| claim.deadline() - LAST_WORDS)
}

fn session_of(work: &Work) -> Option<&SessionWork> {
    match &work.detail {
        Some(berth_rpc::lifecycle::work::Detail::Session(session)) => Some(session),
        Some(berth_rpc::lifecycle::work::Detail::Lease(_)) | None => None,
    }
}

fn span_name(action: Action) -> &'static str {
    match action {
        Action::Launch => "session launch",
        Action::Drive => "session drive",
        Action::Collect => "session collect",
        Action::Park => "session park",
        Action::Unspecified | Action::Allocate | Action::Bootstrap | Action::Release | Action::Check => "session work",
    }
}
