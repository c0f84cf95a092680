//! Failures of the broker's own RPCs.

use berth_domain::failure::Kind;
use berth_rpc::status::Failure;
use tonic::Status;

use crate::{
    git::clone::GitError,
    provider::{ExecError, ProviderFailure},
};

/// Why an RPC of the broker failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// One field of the request is wrong.
    #[error("{field}: {message}")]
    Invalid {
        /// Name of the field.
        field: &'static str,
        /// Stable.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// Something in the sandbox is not as the request needs it.
    #[error("{message}")]
    Precondition {
        /// Stable.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// The file is not there.
    #[error("no such file")]
    FileNotFound,
    /// The same exec is running already.
    #[error("this exec_id is running already")]
    ExecRunning,
    /// The sandbox is gone, observed so.
    #[error("the sandbox is gone: {how}")]
    SandboxLost {
        /// What was looked at.
        how: String,
    },
    /// The lease is served by the broker of another host.
    #[error("the sandbox is reached through another broker")]
    Elsewhere {
        /// Where.
        endpoint: String,
    },
    /// Nobody is named as caller.
    #[error("no credential")]
    CredentialMissing,
    /// The provider failed.
    #[error(transparent)]
    Provider(#[from] ProviderFailure),
    /// Lifecycle answered so; passed through.
    #[error("lifecycle: {}", .0.message())]
    Lifecycle(Status),
    /// A reply that makes no sense.
    #[error("unexpected answer: {0}")]
    Unexpected(&'static str),
}

impl Error {
    /// What kind of failure it is.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Error::Invalid { .. } => Kind::Invalid,
            Error::Precondition { .. } | Error::SandboxLost { .. } | Error::Elsewhere { .. } => Kind::IllegalState,
            Error::FileNotFound => Kind::NotFound,
            Error::ExecRunning => Kind::Exists,
            Error::CredentialMissing => Kind::Unauthenticated,
            Error::Provider(failure) if failure.reason == "TIMEOUT" => Kind::Timeout,
            Error::Provider(_) => Kind::Unavailable,
            Error::Lifecycle(status) => berth_rpc::status::kind(status.code()),
            Error::Unexpected(_) => Kind::Internal,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        let failure = match error {
            Error::Invalid { field, reason, message } => Failure::invalid(field, reason, message),
            Error::Precondition { reason, message } => Failure::new(kind, reason, message),
            Error::FileNotFound => Failure::new(kind, "FILE_NOT_FOUND", "no such file"),
            Error::ExecRunning => Failure::new(kind, "EXEC_RUNNING", "this exec_id is running already"),
            Error::SandboxLost { how } => Failure::new(kind, "SANDBOX_LOST", how),
            Error::Elsewhere { endpoint } => {
                Failure::new(kind, "SERVED_ELSEWHERE", "the sandbox is reached through another broker")
                    .with("endpoint", endpoint)
            }
            Error::CredentialMissing => Failure::new(kind, "CREDENTIAL_MISSING", "no credential was given"),
            Error::Provider(failure) => Failure::new(kind, failure.reason, failure.message),
            Error::Lifecycle(status) => return status,
            Error::Unexpected(what) => {
                tracing::error!(what, "unexpected answer");
                Failure::new(kind, "INTERNAL", "an internal error happened")
            }
        };
        failure.into()
    }
}

/// A command's failure once it is known that the sandbox itself is there.
impl From<ExecError> for Error {
    fn from(error: ExecError) -> Self {
        match error {
            ExecError::NoSandbox => Error::Provider(ProviderFailure::new(
                crate::provider::Class::Transient,
                "NO_CONTACT",
                "the sandbox does not answer",
            )),
            ExecError::NotStarted(message) => Error::Precondition { reason: "EXEC_NOT_STARTED", message },
            ExecError::Invalid(message) => Error::Invalid { field: "argv", reason: "EXEC_INVALID", message },
            ExecError::Provider(failure) => Error::Provider(failure),
        }
    }
}

impl From<GitError> for Error {
    fn from(error: GitError) -> Self {
        match error {
            GitError::Failed(failure) => Error::Provider(failure),
            GitError::Exec(error) => error.into(),
        }
    }
}
