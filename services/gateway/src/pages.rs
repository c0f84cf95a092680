//! The gateway's own pages: alive, ready, metrics, OpenAPI. None needs a credential, none tells anything about a tenant.

use std::sync::Arc;

use berth_serve::telemetry::MetricsText;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use tonic::body::Body;

use crate::{
    config::Config,
    openapi,
    probe::Readiness,
    rest::refusal::{Refusal, full},
};

const ALLOWED: &str = "GET, HEAD, OPTIONS";
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What the pages show. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pages {
    readiness: Readiness,
    metrics: MetricsText,
    openapi: Arc<Bytes>,
}

impl Pages {
    pub(crate) fn new(config: &Config, readiness: Readiness, metrics: MetricsText) -> Self {
        let document = openapi::document(config.public_url.as_deref()).to_string();
        Self { readiness, metrics, openapi: Arc::new(document.into()) }
    }

    /// None when the path is not one of ours.
    pub(crate) fn answer(&self, request: &Request<Body>) -> Option<Response<Body>> {
        let page = match request.uri().path() {
            "/healthz" => Self::healthz,
            "/readyz" => Self::readyz,
            "/metrics" => Self::metrics,
            "/openapi.json" => Self::openapi,
            _ => return None,
        };
        Some(match *request.method() {
            Method::GET => page(self),
            Method::HEAD => page(self).map(|_| Body::empty()),
            Method::OPTIONS => options(ALLOWED),
            _ => Refusal::MethodNotAllowed { allow: ALLOWED.to_owned() }.into_response(),
        })
    }

    fn healthz(&self) -> Response<Body> {
        full(StatusCode::OK, TEXT, "ok\n".into())
    }

    fn readyz(&self) -> Response<Body> {
        let code = if self.readiness.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        full(code, JSON, self.readiness.page().to_string().into())
    }

    fn metrics(&self) -> Response<Body> {
        full(StatusCode::OK, PROMETHEUS, self.metrics.render().into())
    }

    fn openapi(&self) -> Response<Body> {
        full(StatusCode::OK, JSON, Bytes::clone(&self.openapi))
    }
}

/// What may be done with a path.
pub(crate) fn options(allow: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    if let Ok(value) = HeaderValue::from_str(allow) {
        response.headers_mut().insert(header::ALLOW, value);
    }
    response
}
