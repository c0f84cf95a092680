//! gRPC pass-through: finds the upstream of an RPC, puts the verified caller in place of the credential and hands the
//! bodies on as they are, both ways, with trailers. No message is decoded here and no access decided.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::AtomicBool},
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::time::Instant;
use tonic::{Status, body::Body, service::Routes};
use tower::{Service, ServiceExt as _};
use tracing::Instrument as _;

use crate::{
    Gateway,
    error::Error,
    frames::{self, Ends, RequestBody, ResponseBody},
    observe::{Observation, UNMATCHED},
    rpcs::{Found, Rpc},
};

const GRPC_TIMEOUT: &str = "grpc-timeout";
/// Added to the deadline an upstream is told: ours ends the call first (and cancels it there), so that the client is told the
/// same code wherever the time ran out.
pub(crate) const UPSTREAM_GRACE: Duration = Duration::from_millis(250);
/// Largest number grpc-timeout can carry (eight digits).
const MOST_TIMEOUT_UNITS: u128 = 99_999_999;

/// Serves every gRPC path: public RPCs by forwarding, reflection and health from `local`.
#[derive(Clone)]
pub(crate) struct Forward {
    gateway: Arc<Gateway>,
    local: Routes,
}

impl Forward {
    pub(crate) fn new(gateway: Arc<Gateway>, local: Routes) -> Self {
        Self { gateway, local: local.prepare() }
    }

    async fn answer(self, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path();
        match self.gateway.rpcs.find(path) {
            Found::Public(rpc) => {
                let rpc = rpc.clone();
                let span = berth_serve::trace::span(path, request.headers());
                forward(&self.gateway, &rpc, request).instrument(span).await
            }
            Found::Internal => refuse(Error::NotPublic(path.trim_start_matches('/').to_owned()).into()),
            // Reflection and health; anything else gets the standard's UNIMPLEMENTED.
            Found::Unknown => self.local(request).await,
        }
    }

    async fn local(mut self, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path();
        let route = if path.starts_with("/grpc.") { path } else { UNMATCHED };
        let mut observation = self.gateway.metrics.begin("grpc", route);
        let answer = self.local.call(request).await;
        let response = answer.unwrap_or_else(|never: Infallible| match never {});
        let ends = Ends::new(None, Some(self.gateway.shutdown.clone()), Arc::default(), "gateway");
        if let Some(code) = frames::code(response.headers()) {
            observation.ended(code);
        }
        let limit = self.gateway.config.limits.max_message_bytes;
        response.map(|body| Body::new(ResponseBody::new(body, limit, ends, observation)))
    }
}

impl Service<Request<Body>> for Forward {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.answer(request).await) })
    }
}

async fn forward(gateway: &Gateway, rpc: &Rpc, request: Request<Body>) -> Response<Body> {
    let mut observation = gateway.metrics.begin("grpc", rpc.path.as_str());
    match attempt(gateway, rpc, request).await {
        Ok((response, ends)) => {
            if let Some(code) = frames::code(response.headers()) {
                observation.ended(code);
            }
            let limit = gateway.config.limits.max_message_bytes;
            response.map(|body| Body::new(ResponseBody::new(body, limit, ends, observation)))
        }
        Err(status) => refuse_observed(status, &mut observation),
    }
}

/// The head of the upstream's answer, and what may end its body early.
async fn attempt(gateway: &Gateway, rpc: &Rpc, request: Request<Body>) -> Result<(Response<Body>, Ends), Status> {
    let (head, body) = request.into_parts();
    let deadline = deadline(&head.headers, rpc, gateway.config.limits.unary_timeout)?;
    let oversized = Arc::new(AtomicBool::new(false));
    let stop = (!rpc.is_unary()).then(|| gateway.shutdown.clone());
    let ends = Ends::new(deadline, stop, oversized.clone(), rpc.upstream.name());

    let answer = async {
        let caller = gateway.authenticator.caller(&head.headers).await?;
        let mut headers = caller.forwarded(&head.headers);
        if let Some(at) = deadline {
            headers.insert(GRPC_TIMEOUT, timeout_value(at.saturating_duration_since(Instant::now()) + UPSTREAM_GRACE));
        }
        let limit = gateway.config.limits.max_message_bytes;
        let body = Body::new(RequestBody::new(body, limit, oversized.clone()));
        let mut request = Request::post(rpc.path.as_str()).body(body).map_err(|_| Error::UpstreamBroken)?;
        *request.headers_mut() = headers;
        let mut channel = gateway.upstreams.channel(rpc.upstream).clone();
        let answer = match channel.ready().await {
            Ok(channel) => channel.call(request).await,
            Err(error) => Err(error),
        };
        answer.map_err(|error| Status::from(unanswered(&error, rpc, limit, &oversized)))
    };
    let response = match deadline {
        Some(at) => tokio::time::timeout_at(at, answer).await.map_err(|_| Error::DeadlineExceeded)??,
        None => answer.await?,
    };
    Ok((response, ends))
}

/// Why no answer came; the transport's own words stay in the log.
fn unanswered(error: &tonic::transport::Error, rpc: &Rpc, limit: usize, oversized: &AtomicBool) -> Error {
    if oversized.load(std::sync::atomic::Ordering::Acquire) {
        return Error::MessageTooLarge(limit);
    }
    Error::of_transport(error, rpc.upstream.name())
}

/// The client's deadline, or the default one of a unary call. Streams without a deadline last.
fn deadline(headers: &HeaderMap, rpc: &Rpc, default: Duration) -> Result<Option<Instant>, Error> {
    let asked = match headers.get(GRPC_TIMEOUT) {
        Some(value) => Some(value.to_str().ok().and_then(parse_timeout).ok_or(Error::TimeoutInvalid)?),
        None => rpc.is_unary().then_some(default),
    };
    Ok(asked.and_then(|timeout| Instant::now().checked_add(timeout)))
}

fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// In the finest unit that fits.
fn timeout_value(left: Duration) -> HeaderValue {
    let scales = [(left.as_micros(), 'u'), (left.as_millis(), 'm'), (u128::from(left.as_secs()), 'S')];
    let fitting = scales.into_iter().find(|(count, _)| *count <= MOST_TIMEOUT_UNITS);
    let (count, unit) = fitting.unwrap_or((u128::from(left.as_secs() / 3600).min(MOST_TIMEOUT_UNITS), 'H'));
    HeaderValue::try_from(format!("{count}{unit}")).expect("digits and a letter")
}

fn refuse(status: Status) -> Response<Body> {
    status.into_http()
}

fn refuse_observed(status: Status, observation: &mut Observation) -> Response<Body> {
    observation.ended(status.code());
    refuse(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn timeouts_of_the_wire_format() {
        assert_eq!(parse_timeout("15S"), Some(Duration::from_secs(15)));
        assert_eq!(parse_timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parse_timeout("1m"), Some(Duration::from_millis(1)));
        for text in ["", "S", "15", "1.5S", "-1S", "+1S", "123456789S", "1s", "1é"] {
            assert_eq!(parse_timeout(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_passed_on_timeout_is_never_longer(micros in 0u64..99_999_999_000_000) {
            let left = Duration::from_micros(micros);
            let value = timeout_value(left);
            let back = parse_timeout(value.to_str().unwrap()).unwrap();
            prop_assert!(back <= left);
            prop_assert!(left.saturating_sub(back) <= left / 1000 + Duration::from_micros(1));
        }
    }
}
