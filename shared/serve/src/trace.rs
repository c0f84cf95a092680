//! Trace context across services: a server layer that opens one span per RPC under the caller's `traceparent`, and the
//! client side that writes it. Span names are the RPC's `Service/Method` (OpenTelemetry RPC conventions).

use std::task::{Context, Poll};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use opentelemetry::propagation::{Extractor, Injector};
use tower::{Layer, Service};
use tracing::{Instrument as _, Span, instrument::Instrumented};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The layer of every server.
pub fn layer() -> TraceLayer {
    TraceLayer
}

/// See [`layer`].
#[derive(Clone, Copy, Debug)]
pub struct TraceLayer;

impl<S> Layer<S> for TraceLayer {
    type Service = TraceService<S>;

    fn layer(&self, inner: S) -> TraceService<S> {
        TraceService { inner }
    }
}

/// See [`layer`].
#[derive(Clone, Debug)]
pub struct TraceService<S> {
    inner: S,
}

impl<S, B, R> Service<Request<B>> for TraceService<S>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Instrumented<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let span = span(request.uri().path(), request.headers());
        let future = span.in_scope(|| self.inner.call(request));
        future.instrument(span)
    }
}

/// A span for one incoming call, child of the `traceparent` it carries.
pub fn span(path: &str, headers: &HeaderMap) -> Span {
    let name = path.trim_start_matches('/');
    let (service, method) = name.rsplit_once('/').unwrap_or(("", name));
    let span = tracing::info_span!(
        "rpc",
        otel.name = name,
        otel.kind = "server",
        rpc.system = "grpc",
        rpc.service = service,
        rpc.method = method
    );
    let parent = opentelemetry::global::get_text_map_propagator(|p| p.extract(&Headers(headers)));
    // Fails only when no OpenTelemetry layer is installed; the span then simply has no remote parent.
    let _ = span.set_parent(parent);
    span
}

/// A span for claimed work, child of the run's own trace (`traceparent` as stored with the run).
pub fn work_span(name: &'static str, traceparent: &str, run_id: &str) -> Span {
    let span = tracing::info_span!("work", otel.name = name, otel.kind = "consumer", run_id);
    if let Ok(value) = HeaderValue::from_str(traceparent) {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", value);
        let parent = opentelemetry::global::get_text_map_propagator(|p| p.extract(&Headers(&headers)));
        let _ = span.set_parent(parent);
    }
    span
}

/// Writes the current span's context into outgoing headers.
pub fn inject(headers: &mut HeaderMap) {
    let context = Span::current().context();
    opentelemetry::global::get_text_map_propagator(|p| p.inject_context(&context, &mut HeadersMut(headers)));
}

/// The current span's W3C traceparent; empty when there is no trace.
pub fn traceparent() -> String {
    let mut headers = HeaderMap::new();
    inject(&mut headers);
    headers.get("traceparent").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|v| v.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct HeadersMut<'a>(&'a mut HeaderMap);

impl Injector for HeadersMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(key.as_bytes()), HeaderValue::from_str(&value)) {
            self.0.insert(name, value);
        }
    }
}
