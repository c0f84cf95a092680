//! What the gateway itself refuses, with the kind that decides the code and a stable reason. What upstreams answer passes
//! through untouched and is not here.

use std::time::Duration;

use berth_domain::failure::Kind;
use berth_rpc::status::Failure;
use tonic::Status;

/// How long a client should wait before it asks again while something is starting, stopping or away.
const RETRY: Duration = Duration::from_secs(1);

/// A refusal of the gateway's own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no credential: send the header authorization: Bearer <key>")]
    CredentialMissing,
    #[error("the authorization header must be Bearer <key>")]
    CredentialMalformed,
    #[error("x-tenant-id is not a tenant name")]
    TenantMalformed,
    #[error("the gateway is starting: lifecycle has not answered yet")]
    Starting,
    #[error("the gateway is stopping; continue elsewhere")]
    Stopping,
    #[error("{0} does not answer")]
    UpstreamUnavailable(&'static str),
    #[error("the deadline of the call has passed")]
    DeadlineExceeded,
    #[error("grpc-timeout is not valid")]
    TimeoutInvalid,
    #[error("a message is larger than {0} bytes")]
    MessageTooLarge(usize),
    #[error("{0} is for Berth's own services and is not offered here")]
    NotPublic(String),
    #[error("the upstream's answer could not be read")]
    UpstreamBroken,
}

impl Error {
    /// What a transport failure means to the client. The transport's own words go to the log only.
    pub(crate) fn of_transport(failure: &(dyn std::error::Error + 'static), upstream: &'static str) -> Self {
        let chain = std::iter::successors(Some(failure), |cause| cause.source());
        if chain.into_iter().any(|cause| cause.is::<tonic::TimeoutExpired>()) {
            return Self::DeadlineExceeded;
        }
        tracing::warn!(upstream, error = failure, "upstream did not answer");
        Self::UpstreamUnavailable(upstream)
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::CredentialMissing | Self::CredentialMalformed => Kind::Unauthenticated,
            Self::TenantMalformed | Self::TimeoutInvalid => Kind::Invalid,
            Self::Starting | Self::Stopping | Self::UpstreamUnavailable(_) => Kind::Unavailable,
            Self::DeadlineExceeded => Kind::Timeout,
            Self::MessageTooLarge(_) => Kind::Exhausted,
            Self::NotPublic(_) => Kind::Denied,
            Self::UpstreamBroken => Kind::Internal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::CredentialMissing => "CREDENTIAL_MISSING",
            Self::CredentialMalformed => "CREDENTIAL_INVALID",
            Self::TenantMalformed => "TENANT_INVALID",
            Self::Starting => "GATEWAY_STARTING",
            Self::Stopping => "GATEWAY_STOPPING",
            Self::UpstreamUnavailable(_) => "UPSTREAM_UNAVAILABLE",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::TimeoutInvalid => "TIMEOUT_INVALID",
            Self::MessageTooLarge(_) => "MESSAGE_TOO_LARGE",
            Self::NotPublic(_) => "RPC_NOT_PUBLIC",
            Self::UpstreamBroken => "UPSTREAM_BROKEN",
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let failure = Failure::new(error.kind(), error.reason(), error.to_string());
        match error {
            Error::Starting | Error::Stopping | Error::UpstreamUnavailable(_) => failure.retry_after(RETRY).into(),
            _ => failure.into(),
        }
    }
}
