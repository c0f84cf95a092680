//! The broker's calls to lifecycle, each with its own bound in time. What lifecycle answers is passed on as it is.

use std::time::Duration;

use berth_rpc::{
    lifecycle::{
        self as pb, identity_service_client::IdentityServiceClient, secret_service_client::SecretServiceClient,
        work_service_client::WorkServiceClient,
    },
    metadata::ForwardedCaller,
};
use berth_serve::peer::{MAX_MESSAGE_BYTES, ServiceChannel};
use secrecy::SecretString;
use tonic::{Request, Response, Status};

/// Name of the secret that opens private repositories.
const GITHUB_TOKEN: &str = "github_token";

/// A repository token and the hosts it may be shown to.
#[derive(Clone, Debug)]
pub(crate) struct RepoToken {
    /// The token.
    pub(crate) value: SecretString,
    /// `host` or `host:port`.
    pub(crate) hosts: Vec<String>,
}

/// Which row of lifecycle's is acted for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<'a> {
    /// The run.
    pub(crate) run_id: &'a str,
    /// The lease or session.
    pub(crate) row_id: &'a str,
    /// Its live fence.
    pub(crate) fence: i64,
}

/// Clients of lifecycle. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Lifecycle {
    work: WorkServiceClient<ServiceChannel>,
    secrets: SecretServiceClient<ServiceChannel>,
    identity: IdentityServiceClient<ServiceChannel>,
    call: Duration,
}

impl Lifecycle {
    /// `call` bounds every unary call but a claim.
    pub(crate) fn new(channel: ServiceChannel, call: Duration) -> Self {
        Self {
            work: WorkServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES),
            secrets: SecretServiceClient::new(channel.clone()),
            identity: IdentityServiceClient::new(channel),
            call,
        }
    }

    pub(crate) async fn claim(&self, request: pb::ClaimRequest, wait: Duration) -> Result<pb::ClaimResponse, Status> {
        bounded(wait + self.call, self.work.clone().claim(request)).await
    }

    pub(crate) async fn extend(
        &self,
        request: pb::ExtendRequest,
        limit: Duration,
    ) -> Result<pb::ExtendResponse, Status> {
        bounded(limit, self.work.clone().extend(request)).await
    }

    pub(crate) async fn report(&self, request: pb::ReportRequest) -> Result<pb::ReportResponse, Status> {
        bounded(self.call, self.work.clone().report(request)).await
    }

    pub(crate) async fn report_observation(&self, request: pb::ReportObservationRequest) -> Result<(), Status> {
        bounded(self.call, self.work.clone().report_observation(request)).await.map(|_| ())
    }

    pub(crate) async fn resolve_lease(
        &self,
        request: pb::ResolveLeaseRequest,
    ) -> Result<pb::ResolveLeaseResponse, Status> {
        bounded(self.call, self.work.clone().resolve_lease(request)).await
    }

    /// The tenant's repository token; None when none is stored.
    pub(crate) async fn repo_token(&self, held: Held<'_>, purpose: &str) -> Result<Option<RepoToken>, Status> {
        let request = pb::ResolveSecretRequest {
            name: GITHUB_TOKEN.to_owned(),
            purpose: purpose.to_owned(),
            run_id: held.run_id.to_owned(),
            row_id: held.row_id.to_owned(),
            fence: held.fence,
        };
        match bounded(self.call, self.secrets.clone().resolve_secret(request)).await {
            Ok(secret) => Ok(Some(RepoToken { value: SecretString::from(secret.value), hosts: secret.hosts })),
            Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Whether the forwarded caller may do `action`.
    pub(crate) async fn check_access(&self, caller: &ForwardedCaller, action: &'static str) -> Result<(), Status> {
        let mut request = Request::new(pb::CheckAccessRequest { action: action.to_owned() });
        caller.apply(request.metadata_mut(), action);
        bounded(self.call, self.identity.clone().check_access(request)).await.map(|_| ())
    }
}

async fn bounded<T>(limit: Duration, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map(Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("lifecycle did not answer in time")),
    }
}
