//! The fake lifecycle: the generated traits over one [`Ledger`], with switches for what may go wrong on the way.

use std::collections::HashMap;
use std::result::Result;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use berth_domain::failure::Kind;
use berth_rpc::lifecycle::{
    log_service_server::LogService, secret_service_server::SecretService, work_service_server::WorkService, *,
};
use berth_rpc::metadata::{ACTION, CALLER};
use berth_rpc::status::Failure;
use prost::Message as _;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::ledger::{Ledger, RUN};

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
const MAX_PAGE_BYTES: usize = 4 << 20;
const ALIVE: Duration = Duration::from_secs(4);

/// A secret's value and the hosts it is bound to.
pub(crate) type Bound = (String, Vec<String>);

#[derive(Default)]
struct Workers {
    seen: HashMap<String, Instant>,
    holder: Option<String>,
}

/// A claim call while it waits.
struct Waiting(Arc<watch::Sender<usize>>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

#[derive(Clone)]
pub(crate) struct Lifecycle {
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    changed: Arc<watch::Sender<u64>>,
    /// What ResolveSecret answers.
    pub(crate) secret: Arc<Mutex<Option<Bound>>>,
    /// Claim calls that wait now.
    pub(crate) waiting: Arc<watch::Sender<usize>>,
    /// When each worker last gave a sign of life, and who holds the claim.
    workers: Arc<Mutex<Workers>>,
    /// Claim calls so far.
    pub(crate) claim_calls: Arc<watch::Sender<usize>>,
    /// Extends say that something else is wanted now.
    pub(crate) desire_changed: Arc<AtomicBool>,
    /// Appends that are applied but whose answer is lost.
    pub(crate) lose_append_answers: Arc<AtomicUsize>,
    /// Extends are not answered any more.
    pub(crate) deaf: Arc<AtomicBool>,
    /// Refuses callers from now on.
    pub(crate) revoked: Arc<AtomicBool>,
    /// Actions of the reads received.
    pub(crate) actions: Arc<Mutex<Vec<String>>>,
    /// Events read by callers so far.
    pub(crate) events_read: Arc<AtomicUsize>,
}

impl Lifecycle {
    pub(crate) fn new(ledger: Ledger) -> Self {
        Self {
            ledger: Arc::new(Mutex::new(ledger)),
            changed: Arc::new(watch::Sender::new(0)),
            secret: Arc::default(),
            waiting: Arc::new(watch::Sender::new(0)),
            workers: Arc::default(),
            claim_calls: Arc::new(watch::Sender::new(0)),
            desire_changed: Arc::default(),
            lose_append_answers: Arc::default(),
            deaf: Arc::default(),
            revoked: Arc::default(),
            actions: Arc::default(),
            events_read: Arc::default(),
        }
    }

    /// Changes the facts and tells whoever waits.
    pub(crate) fn change<T>(&self, act: impl FnOnce(&mut Ledger) -> T) -> T {
        let value = act(&mut self.ledger.lock().unwrap());
        self.changed.send_modify(|version| *version += 1);
        value
    }

    pub(crate) fn see<T>(&self, look: impl FnOnce(&Ledger) -> T) -> T {
        look(&self.ledger.lock().unwrap())
    }

    /// Waits until the facts satisfy `wanted`.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&Ledger) -> bool) {
        let mut changes = self.changed.subscribe();
        let met = tokio::time::timeout(DEADLINE, async {
            while !self.see(&wanted) {
                changes.changed().await.unwrap();
            }
        });
        if met.await.is_err() {
            panic!("never happened: {what}; {}", self.see(|ledger| format!("{:#?}", ledger.events)));
        }
    }

    /// Ends the claims of workers that gave no sign of life, for ever.
    pub(crate) async fn expire_due(self) {
        let mut ticks = tokio::time::interval(Duration::from_millis(500));
        loop {
            ticks.tick().await;
            let dead = {
                let mut workers = self.workers.lock().unwrap();
                let seen = workers.holder.as_ref().and_then(|holder| workers.seen.get(holder));
                let dead = seen.is_some_and(|seen| seen.elapsed() > ALIVE);
                if dead {
                    workers.holder = None;
                }
                dead
            };
            if dead && self.see(|ledger| ledger.claimed.is_some()) {
                self.change(Ledger::expire);
            }
        }
    }

    fn hand_out(&self, worker_id: &str, work: Option<Work>) -> Option<Work> {
        let mut workers = self.workers.lock().unwrap();
        workers.seen.insert(worker_id.to_owned(), Instant::now());
        if work.is_some() {
            workers.holder = Some(worker_id.to_owned());
        }
        work
    }

    fn caller(&self, metadata: &tonic::metadata::MetadataMap) -> Result<(), Status> {
        let caller = metadata.get(CALLER).and_then(|value| value.to_str().ok());
        if caller != Some("bearer ada-key") || self.revoked.load(Ordering::SeqCst) {
            return Err(Failure::new(Kind::Unauthenticated, "CREDENTIAL_INVALID", "not accepted").into());
        }
        let action = metadata.get(ACTION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        self.actions.lock().unwrap().push(action.to_owned());
        Ok(())
    }

    fn page(&self, run_id: &str, after: i64, limit: i32) -> Result<ReadResponse, Status> {
        if run_id != RUN {
            return Err(Failure::new(Kind::NotFound, "RUN_NOT_FOUND", "no such run").into());
        }
        Ok(self.see(|ledger| {
            let mut bytes = 0;
            let asked = ledger.events.iter().skip(after.max(0) as usize).take(limit as usize);
            let fits = asked.take_while(|event| {
                bytes += event.encoded_len();
                bytes <= MAX_PAGE_BYTES
            });
            let events: Vec<Event> = fits.cloned().collect();
            ReadResponse { events, last_sequence: ledger.last(), run_state: ledger.run.into() }
        }))
    }
}

#[tonic::async_trait]
impl WorkService for Lifecycle {
    async fn claim(&self, request: Request<ClaimRequest>) -> Result<Response<ClaimResponse>, Status> {
        let wait = request.get_ref().wait.as_ref().map(berth_rpc::duration_from_proto).unwrap_or_default();
        self.claim_calls.send_modify(|calls| *calls += 1);
        self.waiting.send_modify(|waiting| *waiting += 1);
        let _waiting = Waiting(self.waiting.clone());
        let mut changes = self.changed.subscribe();
        let claimed = tokio::time::timeout(wait, async {
            loop {
                if let Some(work) = self.change_quietly(Ledger::next_work) {
                    return work;
                }
                let _ = changes.changed().await;
            }
        });
        let work = claimed.await.ok();
        let works = self.hand_out(&request.get_ref().worker_id, work).into_iter().collect();
        Ok(Response::new(ClaimResponse { works, alive_for: Some(berth_rpc::duration_to_proto(ALIVE)) }))
    }

    async fn extend(&self, request: Request<ExtendRequest>) -> Result<Response<ExtendResponse>, Status> {
        use extend_response::{Answer, answer::Status as Answered};
        if self.deaf.load(Ordering::SeqCst) {
            return std::future::pending().await;
        }
        self.hand_out(&request.get_ref().worker_id, None);
        let answers = self.see(|ledger| {
            let answer = |held: &extend_request::Held| {
                let holds = ledger.claimed.is_some() && held.fence == ledger.fence;
                let status = match holds {
                    true if self.desire_changed.load(Ordering::SeqCst) => Answered::DesireChanged,
                    true => Answered::Held,
                    false => Answered::Gone,
                };
                Answer {
                    row_id: held.row_id.clone(),
                    fence: held.fence,
                    status: status.into(),
                    messages: ledger.queued(),
                }
            };
            request.get_ref().held.iter().map(answer).collect()
        });
        Ok(Response::new(ExtendResponse { answers, alive_for: Some(berth_rpc::duration_to_proto(ALIVE)) }))
    }

    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        let report = request.into_inner();
        let next = self.change(|ledger| {
            ledger.report(report.fence, report.outcome.expect("a report has an outcome"))?;
            Ok::<_, Status>(if report.take_next { ledger.next_work() } else { None })
        })?;
        Ok(Response::new(ReportResponse { next: self.hand_out(&report.worker_id, next) }))
    }

    async fn report_observation(
        &self,
        _: Request<ReportObservationRequest>,
    ) -> Result<Response<ReportObservationResponse>, Status> {
        Err(Status::internal("sessions never asks this"))
    }

    async fn resolve_lease(&self, _: Request<ResolveLeaseRequest>) -> Result<Response<ResolveLeaseResponse>, Status> {
        Err(Status::internal("sessions never asks this"))
    }
}

impl Lifecycle {
    /// A claim that found nothing wakes nobody.
    fn change_quietly<T>(&self, act: impl FnOnce(&mut Ledger) -> Option<T>) -> Option<T> {
        let value = act(&mut self.ledger.lock().unwrap())?;
        self.changed.send_modify(|version| *version += 1);
        Some(value)
    }
}

#[tonic::async_trait]
impl LogService for Lifecycle {
    async fn append(&self, request: Request<AppendRequest>) -> Result<Response<AppendResponse>, Status> {
        let answer = self.change(|ledger| {
            ledger.append(request.into_inner())?;
            let queued_messages = ledger.queued().len() as i32;
            Ok::<_, Status>(AppendResponse { last_sequence: ledger.last(), queued_messages })
        })?;
        let lost =
            self.lose_append_answers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if lost.is_ok() {
            return Err(Status::unavailable("the answer was lost"));
        }
        Ok(Response::new(answer))
    }

    async fn read(&self, request: Request<ReadRequest>) -> Result<Response<ReadResponse>, Status> {
        self.caller(request.metadata())?;
        let read = request.into_inner();
        let page = self.page(&read.run_id, read.after_sequence, read.limit)?;
        self.events_read.fetch_add(page.events.len(), Ordering::SeqCst);
        Ok(Response::new(page))
    }

    async fn replay(&self, request: Request<ReplayRequest>) -> Result<Response<ReadResponse>, Status> {
        let replay = request.into_inner();
        if replay.fence != self.see(|ledger| ledger.fence) {
            return Err(Failure::new(Kind::Conflict, "STALE_FENCE", "the fence is spent").into());
        }
        Ok(Response::new(self.page(&replay.run_id, replay.after_sequence, replay.limit)?))
    }

    async fn queue_message(
        &self,
        request: Request<QueueMessageRequest>,
    ) -> Result<Response<QueueMessageResponse>, Status> {
        self.caller(request.metadata())?;
        let message = request.into_inner();
        self.page(&message.run_id, 0, 0)?;
        let message_id = if message.message_id.is_empty() { "msg-made".to_owned() } else { message.message_id };
        self.change(|ledger| ledger.queue(&message_id, &message.text));
        let state = self.see(|ledger| ledger.run).into();
        Ok(Response::new(QueueMessageResponse { message_id, run: Some(Run { state, ..Run::default() }) }))
    }
}

#[tonic::async_trait]
impl SecretService for Lifecycle {
    async fn put_secret(&self, _: Request<PutSecretRequest>) -> Result<Response<Secret>, Status> {
        Err(Status::internal("sessions never asks this"))
    }

    async fn list_secrets(&self, _: Request<ListSecretsRequest>) -> Result<Response<ListSecretsResponse>, Status> {
        Err(Status::internal("sessions never asks this"))
    }

    async fn delete_secret(&self, _: Request<DeleteSecretRequest>) -> Result<Response<DeleteSecretResponse>, Status> {
        Err(Status::internal("sessions never asks this"))
    }

    async fn resolve_secret(
        &self,
        request: Request<ResolveSecretRequest>,
    ) -> Result<Response<ResolveSecretResponse>, Status> {
        let asked = request.into_inner();
        assert_eq!((asked.name.as_str(), asked.purpose.as_str()), ("anthropic_api_key", "MODEL"));
        if asked.fence != self.see(|ledger| ledger.fence) {
            return Err(Failure::new(Kind::Conflict, "STALE_FENCE", "the fence is spent").into());
        }
        match self.secret.lock().unwrap().clone() {
            Some((value, hosts)) => Ok(Response::new(ResolveSecretResponse { value, hosts, version: 1 })),
            None => Err(Failure::new(Kind::NotFound, "SECRET_NOT_FOUND", "no such secret").into()),
        }
    }
}
