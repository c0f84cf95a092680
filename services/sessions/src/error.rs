//! What can go wrong in an operation of this service, and how it leaves it. Errors of the native loop are not here: they end turns, not calls.

use berth_domain::failure::Kind;
use berth_rpc::status::Failure;
use tonic::{Code, Status};

/// Longest message text, in bytes.
pub(crate) const MAX_TEXT_BYTES: usize = 1 << 20;

/// Why an operation was refused or failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Neither a forwarded caller nor a bearer credential.
    #[error("a credential is required")]
    CredentialMissing,
    /// A field of the request is wrong.
    #[error("{message}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// Stable, upper-case.
        reason: &'static str,
        /// For people.
        message: String,
    },
    /// Lifecycle refused or did not answer.
    #[error("lifecycle refused or did not answer")]
    Lifecycle(#[source] Status),
    /// The log lifecycle read to us is not gapless.
    #[error("the event log has a gap after {after_sequence}")]
    LogGap {
        /// The last number before the gap.
        after_sequence: i64,
    },
}

impl Error {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Error::CredentialMissing => Kind::Unauthenticated,
            Error::Invalid { .. } => Kind::Invalid,
            Error::Lifecycle(status) => berth_rpc::status::kind(status.code()),
            Error::LogGap { .. } => Kind::Internal,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        match error {
            Error::CredentialMissing => Failure::new(kind, "CREDENTIAL_MISSING", error.to_string()).into(),
            Error::Invalid { field, reason, message } => Failure::invalid(field, reason, message).into(),
            Error::Lifecycle(status) => passed_on(&status),
            Error::LogGap { after_sequence } => {
                tracing::error!(after_sequence, "the event log has a gap");
                Failure::new(kind, "INTERNAL", "internal error").into()
            }
        }
    }
}

/// Lifecycle's own refusals pass unchanged; a transport's words stay inside.
fn passed_on(status: &Status) -> Status {
    if berth_rpc::status::reason(status).is_some() {
        return Failure::from_status(status).into();
    }
    tracing::warn!(code = ?status.code(), error = status.message(), "lifecycle did not answer properly");
    match status.code() {
        Code::DeadlineExceeded => {
            Failure::new(Kind::Timeout, "LIFECYCLE_TIMEOUT", "lifecycle did not answer in time").into()
        }
        Code::Unavailable | Code::Cancelled | Code::Unknown => {
            Failure::new(Kind::Unavailable, "LIFECYCLE_UNAVAILABLE", "lifecycle cannot be reached").into()
        }
        code => Failure::new(berth_rpc::status::kind(code), "LIFECYCLE_FAILED", "lifecycle refused the call").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_pass_unchanged_and_transport_texts_do_not() {
        let refusal = Status::from(Failure::new(Kind::NotFound, "RUN_NOT_FOUND", "no such run"));
        let passed = Failure::from_status(&Status::from(Error::Lifecycle(refusal)));
        assert_eq!(
            (passed.kind, passed.reason.as_str(), passed.message.as_str()),
            (Kind::NotFound, "RUN_NOT_FOUND", "no such run")
        );

        let cut = Status::from(Error::Lifecycle(Status::unavailable("tcp connect error: 10.1.2.3:99")));
        assert_eq!(berth_rpc::status::reason(&cut).as_deref(), Some("LIFECYCLE_UNAVAILABLE"));
        assert!(!cut.message().contains("10.1.2.3"));
    }
}
