//! How REST says no: one JSON shape for every error, whether an upstream or the gateway refused.
//!
//! `{"error":{"code":404,"status":"NOT_FOUND","reason":"RUN_NOT_FOUND","message":"…","details":[…]}}`

use std::sync::OnceLock;

use berth_domain::failure::Kind;
use berth_rpc::status::{self, Failure};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage as _, Value as Field};
use serde_json::{Value, json};
use tonic::{Code, Status, body::Body};
use tonic_types::StatusExt as _;

use super::json;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TYPE_PREFIX: &str = "type.googleapis.com/";

/// Why a REST request was not served.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The upstream's answer, or a refusal that has a gRPC code of its own.
    Status(Status),
    /// No route has this path.
    NoRoute,
    /// The path exists with other methods.
    MethodNotAllowed { allow: String },
    /// The route only streams, and the client did not ask for a stream.
    StreamOnly,
    /// Larger than this many bytes.
    BodyTooLarge { limit: usize },
    /// The body did not arrive in time.
    BodyTimeout,
}

impl Refusal {
    /// INVALID_ARGUMENT about a field.
    pub(crate) fn field(field: impl Into<String>, reason: &str, message: impl Into<String>) -> Self {
        Self::Status(Failure::invalid(field, reason, message).into())
    }

    /// INVALID_ARGUMENT about the request as a whole.
    pub(crate) fn invalid(reason: &str, message: impl Into<String>) -> Self {
        Self::Status(Failure::new(Kind::Invalid, reason, message).into())
    }

    /// The code that is counted.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Status(status) => status.code(),
            Self::NoRoute => Code::NotFound,
            Self::MethodNotAllowed { .. } | Self::StreamOnly | Self::BodyTooLarge { .. } => Code::InvalidArgument,
            Self::BodyTimeout => Code::DeadlineExceeded,
        }
    }

    /// The whole answer.
    pub(crate) fn into_response(self) -> Response<Body> {
        let (http, status) = self.parts();
        let retry_after = status.get_details_retry_info().and_then(|info| info.retry_delay);
        let mut response = full(http, JSON, body(http, &status).to_string().into());
        let headers = response.headers_mut();
        if let Some(delay) = retry_after {
            // Rounded up: whole seconds are all the header can say.
            headers.insert(
                header::RETRY_AFTER,
                delay.as_millis().div_ceil(1000).max(1).to_string().parse().expect("digits"),
            );
        }
        if http == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Self::MethodNotAllowed { allow } = &self
            && let Ok(value) = allow.parse()
        {
            headers.insert(header::ALLOW, value);
        }
        response
    }

    /// HTTP code and the status that says the rest.
    fn parts(&self) -> (StatusCode, Status) {
        let of = |kind: Kind, reason: &str, message: String| Status::from(Failure::new(kind, reason, message));
        match self {
            Self::Status(status) => (status::http_status(status.code()), status.clone()),
            Self::NoRoute => {
                (StatusCode::NOT_FOUND, of(Kind::NotFound, "ROUTE_NOT_FOUND", "no route has this path".to_owned()))
            }
            Self::MethodNotAllowed { allow } => (
                StatusCode::METHOD_NOT_ALLOWED,
                of(Kind::Invalid, "METHOD_NOT_ALLOWED", format!("this path takes {allow}")),
            ),
            Self::StreamOnly => (
                StatusCode::NOT_ACCEPTABLE,
                of(
                    Kind::Invalid,
                    "STREAM_ONLY",
                    "this route only streams: send the header accept: text/event-stream".to_owned(),
                ),
            ),
            Self::BodyTooLarge { limit } => (
                StatusCode::PAYLOAD_TOO_LARGE,
                of(Kind::Invalid, "BODY_TOO_LARGE", format!("the body is larger than {limit} bytes")),
            ),
            Self::BodyTimeout => (
                StatusCode::REQUEST_TIMEOUT,
                of(Kind::Timeout, "BODY_TIMEOUT", "the body did not arrive in time".to_owned()),
            ),
        }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// The JSON of an error, also the data of an SSE `error` event.
pub(crate) fn of_status(status: &Status) -> Value {
    body(status::http_status(status.code()), status)
}

fn body(http: StatusCode, status: &Status) -> Value {
    json!({"error": {
        "code": http.as_u16(),
        "status": status::code_name(status.code()),
        "reason": Failure::from_status(status).reason,
        // Already percent-decoded by tonic.
        "message": status.message(),
        "details": details(status.details()),
    }})
}

/// The typed details, each as JSON with its `@type`; types nobody here knows are left out.
fn details(encoded: &[u8]) -> Vec<Value> {
    let pool = error_pool();
    let Some(descriptor) = pool.get_message_by_name("google.rpc.Status") else { return Vec::new() };
    let Ok(status) = DynamicMessage::decode(descriptor, encoded) else { return Vec::new() };
    match status.get_field_by_name("details").as_deref() {
        Some(Field::List(items)) => items.iter().filter_map(|item| detail(pool, item.as_message()?)).collect(),
        _ => Vec::new(),
    }
}

fn detail(pool: &DescriptorPool, any: &DynamicMessage) -> Option<Value> {
    let url = any.get_field_by_name("type_url")?;
    let name = url.as_str()?.rsplit_once('/')?.1;
    let value = any.get_field_by_name("value")?;
    let message = DynamicMessage::decode(pool.get_message_by_name(name)?, value.as_bytes()?.clone()).ok()?;
    let mut fields = json::to_value(&message).ok()?;
    let map = fields.as_object_mut()?;
    map.insert("@type".to_owned(), format!("{TYPE_PREFIX}{}", message.descriptor().full_name()).into());
    Some(fields)
}

fn error_pool() -> &'static DescriptorPool {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    POOL.get_or_init(|| {
        DescriptorPool::decode(tonic_types::pb::FILE_DESCRIPTOR_SET).expect("tonic-types ships its own descriptors")
    })
}

/// A response whose body is in memory.
pub(crate) fn full(code: StatusCode, content_type: HeaderValue, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(body)));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn details_are_typed_json() {
        let failure = Failure::invalid("repo_url", "REPO_URL_INVALID", "not a url").with("k", "v");
        let body = of_status(&failure.retry_after(Duration::from_millis(1500)).into());
        let error = &body["error"];
        assert_eq!(error["code"], 400);
        assert_eq!(error["status"], "INVALID_ARGUMENT");
        assert_eq!(error["reason"], "REPO_URL_INVALID");
        assert_eq!(error["message"], "not a url");
        let of_type = |name: &str| {
            let url = format!("{TYPE_PREFIX}google.rpc.{name}");
            error["details"].as_array().unwrap().iter().find(|d| d["@type"] == url.as_str()).unwrap().clone()
        };
        assert_eq!(of_type("ErrorInfo")["metadata"]["k"], "v");
        assert_eq!(of_type("ErrorInfo")["domain"], "berth");
        assert_eq!(of_type("BadRequest")["field_violations"][0]["field"], "repo_url");
        assert_eq!(of_type("RetryInfo")["retry_delay"], "1.500s");
    }

    #[test]
    fn a_status_without_details_still_has_a_reason() {
        let body = of_status(&Status::not_found("gone"));
        assert_eq!(body["error"]["reason"], "UPSTREAM_NOT_FOUND");
        assert_eq!(body["error"]["details"], json!([]));
    }
}
