//! The only place that knows gRPC and HTTP codes. A failure is a kind, a stable upper-case reason, a text for people and
//! optional metadata; it travels as `google.rpc.ErrorInfo` (domain `berth`) beside the status.

use std::{collections::HashMap, time::Duration};

use berth_domain::failure::Kind;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// `ErrorInfo.domain` of every error Berth makes.
pub const DOMAIN: &str = "berth";

/// An error ready to leave a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Decides the gRPC and HTTP code.
    pub kind: Kind,
    /// Stable, upper-case; what clients match.
    pub reason: String,
    /// For people; never holds internals or secrets.
    pub message: String,
    /// `ErrorInfo.metadata`.
    pub metadata: HashMap<String, String>,
    /// The request field an Invalid failure is about.
    pub field: Option<String>,
    /// When to try again.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure without metadata.
    pub fn new(kind: Kind, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind,
            reason: reason.into(),
            message: message.into(),
            metadata: HashMap::new(),
            field: None,
            retry_after: None,
        }
    }

    /// INVALID_ARGUMENT about one field of the request.
    pub fn invalid(field: impl Into<String>, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(Kind::Invalid, reason, message) }
    }

    /// Adds one `ErrorInfo` metadata entry.
    pub fn with(mut self, key: &str, value: impl Into<String>) -> Self {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }

    /// Adds `RetryInfo`.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Reads a status back; a status without our detail gets the reason `UPSTREAM_<CODE>`.
    pub fn from_status(status: &Status) -> Self {
        let details = status.get_error_details();
        let (reason, metadata) = match details.error_info() {
            Some(info) => (info.reason.clone(), info.metadata.clone()),
            None => (format!("UPSTREAM_{}", code_name(status.code())), HashMap::new()),
        };
        let field =
            details.bad_request().and_then(|bad| bad.field_violations.first()).map(|violation| violation.field.clone());
        Self {
            kind: kind(status.code()),
            reason,
            message: status.message().to_owned(),
            metadata,
            field,
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
        }
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        let mut details = ErrorDetails::new();
        details.set_error_info(failure.reason.clone(), DOMAIN, failure.metadata);
        if let Some(field) = failure.field {
            details.add_bad_request_violation(field, failure.message.clone());
        }
        if failure.kind == Kind::IllegalState {
            details.add_precondition_failure_violation(failure.reason, "", failure.message.clone());
        }
        if let Some(delay) = failure.retry_after {
            details.set_retry_info(Some(delay));
        }
        Status::with_error_details(code(failure.kind), failure.message, details)
    }
}

/// The stable reason of a status, if it is ours.
pub fn reason(status: &Status) -> Option<String> {
    status.get_error_details().error_info().map(|info| info.reason.clone())
}

/// gRPC code of a kind.
pub fn code(kind: Kind) -> Code {
    match kind {
        Kind::Invalid => Code::InvalidArgument,
        Kind::Unauthenticated => Code::Unauthenticated,
        Kind::Denied => Code::PermissionDenied,
        Kind::NotFound => Code::NotFound,
        Kind::Exists => Code::AlreadyExists,
        Kind::Conflict => Code::Aborted,
        Kind::IllegalState => Code::FailedPrecondition,
        Kind::Exhausted => Code::ResourceExhausted,
        Kind::Unavailable => Code::Unavailable,
        Kind::Timeout => Code::DeadlineExceeded,
        Kind::Internal => Code::Internal,
    }
}

/// Kind of a gRPC code; codes Berth never sends map to the nearest.
pub fn kind(code: Code) -> Kind {
    match code {
        Code::InvalidArgument | Code::OutOfRange => Kind::Invalid,
        Code::Unauthenticated => Kind::Unauthenticated,
        Code::PermissionDenied => Kind::Denied,
        Code::NotFound => Kind::NotFound,
        Code::AlreadyExists => Kind::Exists,
        Code::Aborted => Kind::Conflict,
        Code::FailedPrecondition => Kind::IllegalState,
        Code::ResourceExhausted => Kind::Exhausted,
        Code::Unavailable | Code::Cancelled => Kind::Unavailable,
        Code::DeadlineExceeded => Kind::Timeout,
        Code::Ok | Code::Unknown | Code::Unimplemented | Code::Internal | Code::DataLoss => Kind::Internal,
    }
}

/// HTTP status of a gRPC code (the mapping of google.rpc.Code).
pub fn http_status(code: Code) -> http::StatusCode {
    use http::StatusCode as S;
    match code {
        Code::Ok => S::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => S::BAD_REQUEST,
        Code::Unauthenticated => S::UNAUTHORIZED,
        Code::PermissionDenied => S::FORBIDDEN,
        Code::NotFound => S::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => S::CONFLICT,
        Code::ResourceExhausted => S::TOO_MANY_REQUESTS,
        Code::Cancelled => S::from_u16(499).expect("499 is in range"),
        Code::Unimplemented => S::NOT_IMPLEMENTED,
        Code::Unavailable => S::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => S::GATEWAY_TIMEOUT,
        Code::Unknown | Code::Internal | Code::DataLoss => S::INTERNAL_SERVER_ERROR,
    }
}

/// Upper-case name as in google.rpc.Code.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 11] = [
        Kind::Invalid,
        Kind::Unauthenticated,
        Kind::Denied,
        Kind::NotFound,
        Kind::Exists,
        Kind::Conflict,
        Kind::IllegalState,
        Kind::Exhausted,
        Kind::Unavailable,
        Kind::Timeout,
        Kind::Internal,
    ];

    #[test]
    fn every_kind_survives_the_round_trip() {
        for kind in KINDS {
            let failure = Failure { field: None, ..Failure::new(kind, "SOME_REASON", "some text").with("k", "v") };
            let back = Failure::from_status(&Status::from(failure.clone()));
            assert_eq!(back, failure);
        }
    }

    #[test]
    fn invalid_names_the_field() {
        let status = Status::from(Failure::invalid("repo_url", "REPO_URL_INVALID", "not a url"));
        assert_eq!(Failure::from_status(&status).field.as_deref(), Some("repo_url"));
    }
}
