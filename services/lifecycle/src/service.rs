//! Transport: one line per RPC. Takes the proof of the admission layer and the body, asks the operation, translates.
//!
//! Must not live here: any decision.

use berth_rpc::lifecycle::{
    self as proto,
    identity_service_server::{IdentityService, IdentityServiceServer},
    key_service_server::{KeyService, KeyServiceServer},
    log_service_server::{LogService, LogServiceServer},
    run_service_server::{RunService, RunServiceServer},
    secret_service_server::{SecretService, SecretServiceServer},
    work_service_server::{WorkService, WorkServiceServer},
};
use tonic::{
    Request, Response, Status,
    service::{Routes, RoutesBuilder},
};
use tower::Layer as _;

use crate::{
    Lifecycle,
    admission::{Admission, admitted},
    authenticate::Admitted,
    error::Error,
    operations as op,
};

/// Largest request; beyond every limit an operation names itself (prompt, append batch), so that it can name it.
const MAX_REQUEST_BYTES: usize = 16 << 20;

/// Every service, behind the admission layer.
pub(crate) fn routes(app: Lifecycle) -> Routes {
    let admission = Admission::new(app.authenticator.clone());
    let mut routes = RoutesBuilder::default();
    routes
        .add_service(admission.layer(RunServiceServer::new(app.clone()).max_decoding_message_size(MAX_REQUEST_BYTES)))
        .add_service(
            admission.layer(SecretServiceServer::new(app.clone()).max_decoding_message_size(MAX_REQUEST_BYTES)),
        )
        .add_service(admission.layer(KeyServiceServer::new(app.clone()).max_decoding_message_size(MAX_REQUEST_BYTES)))
        .add_service(
            admission.layer(IdentityServiceServer::new(app.clone()).max_decoding_message_size(MAX_REQUEST_BYTES)),
        )
        .add_service(admission.layer(WorkServiceServer::new(app.clone()).max_decoding_message_size(MAX_REQUEST_BYTES)))
        .add_service(admission.layer(LogServiceServer::new(app.clone()).max_decoding_message_size(MAX_REQUEST_BYTES)));
    routes.routes()
}

fn split<T>(request: Request<T>) -> Result<(Admitted, T), Status> {
    let call = admitted(&request)?;
    Ok((call, request.into_inner()))
}

/// What an operation came to; a denial leaves its line in the audit trail.
async fn reply<R>(app: &Lifecycle, outcome: Result<R, Error>) -> Result<Response<R>, Status> {
    if let Err(Error::Refused(denial)) = &outcome {
        app.authenticator.record_denial(denial).await;
    }
    outcome.map(Response::new).map_err(Status::from)
}

#[tonic::async_trait]
impl RunService for Lifecycle {
    async fn create_run(&self, request: Request<proto::CreateRunRequest>) -> Result<Response<proto::Run>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::create_run::create_run(self, &call, body).await).await
    }

    async fn get_run(&self, request: Request<proto::GetRunRequest>) -> Result<Response<proto::Run>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::get_run::get_run(self, &call, body).await).await
    }

    async fn list_runs(
        &self,
        request: Request<proto::ListRunsRequest>,
    ) -> Result<Response<proto::ListRunsResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::list_runs::list_runs(self, &call, body).await).await
    }

    async fn cancel_run(&self, request: Request<proto::CancelRunRequest>) -> Result<Response<proto::Run>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::cancel_run::cancel_run(self, &call, body).await).await
    }

    async fn delete_run(&self, request: Request<proto::DeleteRunRequest>) -> Result<Response<proto::Run>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::delete_run::delete_run(self, &call, body).await).await
    }

    async fn retry_deletion(
        &self,
        request: Request<proto::RetryDeletionRequest>,
    ) -> Result<Response<proto::Run>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::retry_deletion::retry_deletion(self, &call, body).await).await
    }

    async fn forget_run(&self, request: Request<proto::ForgetRunRequest>) -> Result<Response<proto::Run>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::forget_run::forget_run(self, &call, body).await).await
    }

    async fn list_transitions(
        &self,
        request: Request<proto::ListTransitionsRequest>,
    ) -> Result<Response<proto::ListTransitionsResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::list_transitions::list_transitions(self, &call, body).await).await
    }

    async fn get_receipt(
        &self,
        request: Request<proto::GetReceiptRequest>,
    ) -> Result<Response<proto::GetReceiptResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::get_receipt::get_receipt(self, &call, body).await).await
    }

    type WatchRunStream = op::watch_run::RunStream;

    async fn watch_run(
        &self,
        request: Request<proto::WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::watch_run::watch_run(self, &call, body).await).await
    }
}

#[tonic::async_trait]
impl SecretService for Lifecycle {
    async fn put_secret(&self, request: Request<proto::PutSecretRequest>) -> Result<Response<proto::Secret>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::put_secret::put_secret(self, &call, body).await).await
    }

    async fn list_secrets(
        &self,
        request: Request<proto::ListSecretsRequest>,
    ) -> Result<Response<proto::ListSecretsResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::list_secrets::list_secrets(self, &call, body).await).await
    }

    async fn delete_secret(
        &self,
        request: Request<proto::DeleteSecretRequest>,
    ) -> Result<Response<proto::DeleteSecretResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::delete_secret::delete_secret(self, &call, body).await).await
    }

    async fn resolve_secret(
        &self,
        request: Request<proto::ResolveSecretRequest>,
    ) -> Result<Response<proto::ResolveSecretResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::resolve_secret::resolve_secret(self, &call, body).await).await
    }
}

#[tonic::async_trait]
impl KeyService for Lifecycle {
    async fn create_key(
        &self,
        request: Request<proto::CreateKeyRequest>,
    ) -> Result<Response<proto::CreateKeyResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::create_key::create_key(self, &call, body).await).await
    }

    async fn list_keys(
        &self,
        request: Request<proto::ListKeysRequest>,
    ) -> Result<Response<proto::ListKeysResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::list_keys::list_keys(self, &call, body).await).await
    }

    async fn revoke_key(&self, request: Request<proto::RevokeKeyRequest>) -> Result<Response<proto::Key>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::revoke_key::revoke_key(self, &call, body).await).await
    }
}

#[tonic::async_trait]
impl IdentityService for Lifecycle {
    async fn check_access(
        &self,
        request: Request<proto::CheckAccessRequest>,
    ) -> Result<Response<proto::CheckAccessResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::check_access::check_access(self, &call, body).await).await
    }

    async fn authenticate(
        &self,
        request: Request<proto::AuthenticateRequest>,
    ) -> Result<Response<proto::AuthenticateResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::authenticate::authenticate(self, &call, body).await).await
    }

    async fn register_assertion_key(
        &self,
        request: Request<proto::RegisterAssertionKeyRequest>,
    ) -> Result<Response<proto::RegisterAssertionKeyResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::register_assertion_key::register_assertion_key(self, &call, body).await).await
    }
}

#[tonic::async_trait]
impl WorkService for Lifecycle {
    async fn claim(&self, request: Request<proto::ClaimRequest>) -> Result<Response<proto::ClaimResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::claim::claim(self, &call, body).await).await
    }

    async fn extend(&self, request: Request<proto::ExtendRequest>) -> Result<Response<proto::ExtendResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::extend::extend(self, &call, body).await).await
    }

    async fn report(&self, request: Request<proto::ReportRequest>) -> Result<Response<proto::ReportResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::report::report(self, &call, body).await).await
    }

    async fn report_observation(
        &self,
        request: Request<proto::ReportObservationRequest>,
    ) -> Result<Response<proto::ReportObservationResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::report_observation::report_observation(self, &call, body).await).await
    }

    async fn resolve_lease(
        &self,
        request: Request<proto::ResolveLeaseRequest>,
    ) -> Result<Response<proto::ResolveLeaseResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::resolve_lease::resolve_lease(self, &call, body).await).await
    }
}

#[tonic::async_trait]
impl LogService for Lifecycle {
    async fn append(&self, request: Request<proto::AppendRequest>) -> Result<Response<proto::AppendResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::append_events::append_events(self, &call, body).await).await
    }

    async fn read(&self, request: Request<proto::ReadRequest>) -> Result<Response<proto::ReadResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::read_log::read_log(self, &call, body).await).await
    }

    async fn replay(&self, request: Request<proto::ReplayRequest>) -> Result<Response<proto::ReadResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::replay::replay(self, &call, body).await).await
    }

    async fn queue_message(
        &self,
        request: Request<proto::QueueMessageRequest>,
    ) -> Result<Response<proto::QueueMessageResponse>, Status> {
        let (call, body) = split(request)?;
        reply(self, op::queue_message::queue_message(self, &call, body).await).await
    }
}
