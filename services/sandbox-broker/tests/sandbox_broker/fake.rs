//! Lifecycle, played: hands out the work a test puts in, answers Extend as told, keeps every report. It knows no machine.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_domain::failure::Kind;
use berth_rpc::{
    duration_to_proto,
    lifecycle::{
        self as pb,
        extend_response::answer::Status as Extended,
        identity_service_server::{IdentityService, IdentityServiceServer},
        secret_service_server::{SecretService, SecretServiceServer},
        work_service_server::{WorkService, WorkServiceServer},
    },
    metadata,
    status::Failure,
};
use tokio::sync::Notify;
use tonic::{Request, Response, Status, service::Routes};

const ALIVE_FOR: Duration = Duration::from_secs(4);

/// The fake. Clones share state.
#[derive(Clone, Default)]
pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
    queued: Arc<Notify>,
}

/// What a test sets and reads.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) queue: VecDeque<pb::Work>,
    pub(crate) claims: Vec<pb::ClaimRequest>,
    pub(crate) reports: Vec<pb::ReportRequest>,
    /// Answer of Extend by fence; HELD where nothing is said.
    pub(crate) extended: HashMap<i64, Extended>,
    /// Handed back with the report of this fence.
    pub(crate) next: HashMap<i64, pb::Work>,
    /// Reports of this fence fail so many times with UNAVAILABLE before one is taken.
    pub(crate) report_failures: HashMap<i64, u32>,
    /// Value and hosts of github_token.
    pub(crate) token: Option<(String, Vec<String>)>,
    pub(crate) secrets_asked: Vec<pb::ResolveSecretRequest>,
    /// Behind session fence 1.
    pub(crate) lease: Option<pb::ResolveLeaseResponse>,
    /// Instead of an answer of ResolveLease.
    pub(crate) resolve_refusal: Option<Status>,
    /// ResolveLease calls so far.
    pub(crate) resolves: usize,
    pub(crate) observations: Vec<pb::ReportObservationRequest>,
    pub(crate) callers: Vec<String>,
}

impl Fake {
    pub(crate) fn routes(&self) -> Routes {
        Routes::new(WorkServiceServer::new(self.clone()))
            .add_service(SecretServiceServer::new(self.clone()))
            .add_service(IdentityServiceServer::new(self.clone()))
    }

    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn queue(&self, work: pb::Work) {
        self.state().queue.push_back(work);
        self.queued.notify_one();
    }

    pub(crate) fn report_of(&self, fence: i64) -> Option<pb::ReportRequest> {
        self.state().reports.iter().find(|report| report.fence == fence).cloned()
    }
}

#[tonic::async_trait]
impl WorkService for Fake {
    async fn claim(&self, request: Request<pb::ClaimRequest>) -> Result<Response<pb::ClaimResponse>, Status> {
        let request = request.into_inner();
        let wait = request.wait.map_or(Duration::ZERO, |wait| berth_rpc::duration_from_proto(&wait));
        let slots = usize::try_from(request.slots).unwrap();
        self.state().claims.push(request);
        let until = tokio::time::Instant::now() + wait;
        loop {
            let works: Vec<pb::Work> = {
                let mut state = self.state();
                let free = slots.min(state.queue.len());
                state.queue.drain(..free).collect()
            };
            if !works.is_empty() || tokio::time::timeout_at(until, self.queued.notified()).await.is_err() {
                return Ok(Response::new(pb::ClaimResponse { works, alive_for: Some(duration_to_proto(ALIVE_FOR)) }));
            }
        }
    }

    async fn extend(&self, request: Request<pb::ExtendRequest>) -> Result<Response<pb::ExtendResponse>, Status> {
        let state = self.state();
        let answer = |held: pb::extend_request::Held| pb::extend_response::Answer {
            status: state.extended.get(&held.fence).copied().unwrap_or(Extended::Held).into(),
            row_id: held.row_id,
            fence: held.fence,
            messages: Vec::new(),
        };
        let answers = request.into_inner().held.into_iter().map(answer).collect();
        Ok(Response::new(pb::ExtendResponse { answers, alive_for: Some(duration_to_proto(ALIVE_FOR)) }))
    }

    async fn report(&self, request: Request<pb::ReportRequest>) -> Result<Response<pb::ReportResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state();
        if let Some(left) = state.report_failures.get_mut(&request.fence).filter(|left| **left > 0) {
            *left -= 1;
            return Err(Status::unavailable("busy"));
        }
        let next = if request.take_next { state.next.remove(&request.fence) } else { None };
        state.reports.push(request);
        Ok(Response::new(pb::ReportResponse { next }))
    }

    async fn report_observation(
        &self,
        request: Request<pb::ReportObservationRequest>,
    ) -> Result<Response<pb::ReportObservationResponse>, Status> {
        self.state().observations.push(request.into_inner());
        Ok(Response::new(pb::ReportObservationResponse {}))
    }

    async fn resolve_lease(
        &self,
        request: Request<pb::ResolveLeaseRequest>,
    ) -> Result<Response<pb::ResolveLeaseResponse>, Status> {
        let mut state = self.state();
        state.resolves += 1;
        if let Some(refusal) = &state.resolve_refusal {
            return Err(refusal.clone());
        }
        if request.into_inner().session_fence != 1 {
            return Err(Failure::new(Kind::Conflict, "STALE_FENCE", "the claim is over").into());
        }
        let lease = state.lease.clone();
        lease.map(Response::new).ok_or_else(|| Failure::new(Kind::IllegalState, "LEASE_NOT_READY", "none").into())
    }
}

#[tonic::async_trait]
impl SecretService for Fake {
    async fn put_secret(&self, _: Request<pb::PutSecretRequest>) -> Result<Response<pb::Secret>, Status> {
        Err(Status::permission_denied("not the broker's"))
    }

    async fn list_secrets(
        &self,
        _: Request<pb::ListSecretsRequest>,
    ) -> Result<Response<pb::ListSecretsResponse>, Status> {
        Err(Status::permission_denied("not the broker's"))
    }

    async fn delete_secret(
        &self,
        _: Request<pb::DeleteSecretRequest>,
    ) -> Result<Response<pb::DeleteSecretResponse>, Status> {
        Err(Status::permission_denied("not the broker's"))
    }

    async fn resolve_secret(
        &self,
        request: Request<pb::ResolveSecretRequest>,
    ) -> Result<Response<pb::ResolveSecretResponse>, Status> {
        let mut state = self.state();
        state.secrets_asked.push(request.into_inner());
        match state.token.clone() {
            Some((value, hosts)) => Ok(Response::new(pb::ResolveSecretResponse { value, hosts, version: 1 })),
            None => Err(Failure::new(Kind::NotFound, "SECRET_NOT_FOUND", "none").into()),
        }
    }
}

#[tonic::async_trait]
impl IdentityService for Fake {
    async fn check_access(
        &self,
        request: Request<pb::CheckAccessRequest>,
    ) -> Result<Response<pb::CheckAccessResponse>, Status> {
        let caller = request.metadata().get(metadata::CALLER).and_then(|value| value.to_str().ok()).unwrap_or_default();
        self.state().callers.push(format!("{caller} {}", request.get_ref().action));
        if caller == "bearer viewer-key" {
            return Ok(Response::new(pb::CheckAccessResponse {
                tenant: "default".to_owned(),
                principal: "v".to_owned(),
            }));
        }
        Err(Failure::new(Kind::Denied, "ACCESS_DENIED", "no").into())
    }

    async fn authenticate(
        &self,
        _: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        Err(Status::permission_denied("not the broker's"))
    }

    async fn register_assertion_key(
        &self,
        _: Request<pb::RegisterAssertionKeyRequest>,
    ) -> Result<Response<pb::RegisterAssertionKeyResponse>, Status> {
        Err(Status::permission_denied("not the broker's"))
    }
}
