//! The services below this one, and the time a plain call to them may take.

use std::future::Future;
use std::time::Duration;

use berth_rpc::broker::sandbox_service_client::SandboxServiceClient;
use berth_rpc::lifecycle::{
    log_service_client::LogServiceClient, secret_service_client::SecretServiceClient,
    work_service_client::WorkServiceClient,
};
use berth_serve::peer::{MAX_MESSAGE_BYTES, ServiceChannel};
use tonic::{Code, Response, Status};

/// A plain call to lifecycle.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Clients of lifecycle and broker. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) log: LogServiceClient<ServiceChannel>,
    pub(crate) work: WorkServiceClient<ServiceChannel>,
    pub(crate) secrets: SecretServiceClient<ServiceChannel>,
    pub(crate) sandbox: SandboxServiceClient<ServiceChannel>,
}

impl Upstream {
    pub(crate) fn new(lifecycle: ServiceChannel, broker: ServiceChannel) -> Self {
        let log = LogServiceClient::new(lifecycle.clone());
        let work = WorkServiceClient::new(lifecycle.clone());
        let sandbox = SandboxServiceClient::new(broker);
        Self {
            log: log.max_decoding_message_size(MAX_MESSAGE_BYTES).max_encoding_message_size(MAX_MESSAGE_BYTES),
            work: work.max_decoding_message_size(MAX_MESSAGE_BYTES).max_encoding_message_size(MAX_MESSAGE_BYTES),
            secrets: SecretServiceClient::new(lifecycle),
            sandbox: sandbox.max_decoding_message_size(MAX_MESSAGE_BYTES).max_encoding_message_size(MAX_MESSAGE_BYTES),
        }
    }
}

/// The answer, or DEADLINE_EXCEEDED after `limit`.
pub(crate) async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map(Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("no answer in time")),
    }
}

/// Whether the same call may succeed a little later: the service was not reached, or did not answer.
pub(crate) fn worth_retrying(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown)
}
