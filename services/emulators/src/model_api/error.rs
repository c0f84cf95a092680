//! Error answers in the vendor's shape; the only place that maps an HTTP status to an error type.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode};
use serde_json::json;

/// An answer other than 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    pub(super) status: u16,
    pub(super) message: String,
    /// The `retry-after` header, in seconds.
    pub(super) retry_after_s: Option<u64>,
}

impl ApiError {
    pub(super) fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after_s: None }
    }

    /// The answer, with `request-id` in the body; the header is set by the caller for every answer alike.
    pub(super) fn response(&self, request_id: &str) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = json!({
            "type": "error", "error": {"type": error_type(self.status), "message": self.message},
            "request_id": request_id,
        });
        let mut response = (status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert("retry-after", HeaderValue::from(seconds));
        }
        if self.status == 429 {
            let headers = response.headers_mut();
            headers.insert("anthropic-ratelimit-requests-limit", HeaderValue::from_static("50"));
            headers.insert("anthropic-ratelimit-requests-remaining", HeaderValue::from_static("0"));
        }
        response
    }
}

/// The vendor's name for an error of this status.
pub(super) fn error_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        409 => "conflict_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}
