//! REST: requests become messages by descriptor, answers become canonical JSON or server-sent events. Everything about a
//! single RPC comes from the protos; nothing here knows one by name.

mod call;
mod json;
mod query;
pub(crate) mod refusal;
mod request;
pub(crate) mod routes;
mod sse;
mod template;

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use tonic::{Status, body::Body};
use tracing::Instrument as _;

use self::{
    call::Call,
    refusal::{Refusal, full},
    routes::{Matched, Route, Routes},
    sse::Events,
};
use crate::{
    Gateway,
    error::Error,
    observe::{Observation, UNMATCHED},
    pages::options,
};

pub use self::routes::RouteError;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The REST side. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Rest {
    gateway: Arc<Gateway>,
    routes: Arc<Routes>,
}

impl Rest {
    /// # Errors
    /// When an annotation cannot be served.
    pub(crate) fn new(gateway: Arc<Gateway>) -> Result<Self, RouteError> {
        let routes = Arc::new(Routes::new(&gateway.rpcs.public())?);
        Ok(Self { gateway, routes })
    }

    pub(crate) async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        let response = self.route(request).await;
        if is_head { response.map(|_| Body::empty()) } else { response }
    }

    async fn route(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        if head.method == Method::OPTIONS
            && let Some(allow) = self.routes.allowed(path)
        {
            return options(&allow);
        }
        let refusal = match self.routes.find(&head.method, path) {
            Matched::Found { unary, stream, variables } => match choose(unary, stream, &head) {
                Some(route) => return self.serve(route, &variables, &head, body).await,
                None => Refusal::StreamOnly,
            },
            Matched::OtherMethods(allow) => Refusal::MethodNotAllowed { allow },
            Matched::None => Refusal::NoRoute,
        };
        self.gateway.metrics.begin("rest", UNMATCHED).ended(refusal.code());
        request::discard(&head.headers, body, self.gateway.config.limits.body_timeout).await;
        refusal.into_response()
    }

    async fn serve(&self, route: &Route, variables: &[(&str, String)], head: &Parts, body: Body) -> Response<Body> {
        let label = format!("{} {}", route.method, route.template);
        let mut observation = self.gateway.metrics.begin("rest", &label);
        let span = berth_serve::trace::span(route.rpc.path.as_str(), &head.headers);
        let served = self.attempt(route, variables, head, body).instrument(span).await;
        match served {
            Ok(Answer::Json(response)) => {
                observation.ended(tonic::Code::Ok);
                response
            }
            Ok(Answer::Stream(events)) => events.into_response(self.gateway.shutdown.clone(), observation),
            Err(refusal) => refused(refusal, &mut observation),
        }
    }

    async fn attempt(
        &self,
        route: &Route,
        variables: &[(&str, String)],
        head: &Parts,
        body: Body,
    ) -> Result<Answer, Refusal> {
        let limits = &self.gateway.config.limits;
        let caller = match self.gateway.authenticator.caller(&head.headers).await {
            Ok(caller) => caller,
            Err(status) => {
                request::discard(&head.headers, body, limits.body_timeout).await;
                return Err(status.into());
            }
        };
        let body = request::body(&head.headers, body, limits.max_body_bytes, limits.body_timeout).await?;
        let message = request::message(route, variables, head, &body)?;
        let call = Call { gateway: &self.gateway, rpc: &route.rpc, caller: &caller, headers: &head.headers };
        if route.rpc.method.is_server_streaming() {
            let stream = call.stream(message).await?;
            return Ok(Answer::Stream(Events::begin(stream, route.rpc.clone()).await?));
        }
        let answer = call.unary(message).await?;
        let text = json::to_text(&answer).map_err(|_| Status::from(Error::UpstreamBroken))?;
        Ok(Answer::Json(full(StatusCode::OK, JSON, text.into())))
    }
}

enum Answer {
    Json(Response<Body>),
    Stream(Events),
}

/// The RPC a request means: the streaming one when it asks for an event stream. None: it can only stream, and was not asked to.
fn choose<'a>(unary: Option<&'a Route>, stream: Option<&'a Route>, head: &Parts) -> Option<&'a Route> {
    match (unary, stream) {
        (_, Some(stream)) if head.method != Method::HEAD && wants_event_stream(&head.headers) => Some(stream),
        (unary, _) => unary,
    }
}

fn wants_event_stream(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    ranges.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next().is_some_and(|media| media.eq_ignore_ascii_case("text/event-stream"));
        named && !parts.any(|parameter| matches!(parameter, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

fn refused(refusal: Refusal, observation: &mut Observation) -> Response<Body> {
    observation.ended(refusal.code());
    refusal.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_stream_is_only_sent_to_those_who_ask() {
        let wants = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(value));
            wants_event_stream(&headers)
        };
        assert!(wants("text/event-stream"));
        assert!(wants("application/json, Text/Event-Stream; q=0.5"));
        assert!(!wants("*/*"));
        assert!(!wants("text/event-stream;q=0"));
        assert!(!wants("application/json"));
    }
}
