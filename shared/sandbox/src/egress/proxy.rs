//! One connection of the proxy: CONNECT tunnels and plain HTTP requests with an absolute address.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;
use tracing::debug;

use super::Gate;
use super::address::is_public;
use super::idle::Idle;
use super::rules::plain;

const HEADER_PATIENCE: Duration = Duration::from_secs(30);
const RESOLVE_PATIENCE: Duration = Duration::from_secs(10);
const CONNECT_PATIENCE: Duration = Duration::from_secs(15);
/// Nothing moving for this long ends a connection; long-polling clients stay below it.
const IDLE_PATIENCE: Duration = Duration::from_secs(15 * 60);

/// Headers that concern one connection only, and those meant for the proxy.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

type Body = BoxBody<Bytes, hyper::Error>;

/// An answer of the proxy itself.
struct Refusal {
    status: StatusCode,
    reason: &'static str,
    text: String,
}

/// A place among the connections of a sandbox; a tunnel keeps it until it ends.
type Place = Arc<OwnedSemaphorePermit>;

/// Serves requests until the client is done.
pub(super) async fn serve(connection: UnixStream, gate: Arc<Gate>, place: Place) {
    let stream = TokioIo::new(Idle::new(connection, IDLE_PATIENCE));
    let service = service_fn(move |request| answer(request, gate.clone(), place.clone()));
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_PATIENCE)
        .serve_connection(stream, service)
        .with_upgrades()
        .await;
    if let Err(failure) = served {
        debug!(error = %failure, "egress connection ended");
    }
}

async fn answer(request: Request<Incoming>, gate: Arc<Gate>, place: Place) -> Result<Response<Body>, Infallible> {
    let target = target(&request);
    let outcome = match &target {
        Ok((host, port)) => pass(request, &gate, place, host, *port).await,
        Err(refusal) => Err(Refusal { text: refusal.text.clone(), ..*refusal }),
    };
    Ok(outcome.unwrap_or_else(|refusal| {
        // What was let through but failed on the way is no denial.
        if refusal.status == StatusCode::FORBIDDEN || refusal.status == StatusCode::BAD_REQUEST {
            let target = target.map_or_else(|_| String::from("?"), |(host, port)| format!("{host}:{port}"));
            gate.count_denied(target, refusal.reason);
        }
        say(&refusal)
    }))
}

/// Host and port asked for: of a tunnel, or of an absolute `http` address.
fn target(request: &Request<Incoming>) -> Result<(String, u16), Refusal> {
    let bad =
        |text: &str| Refusal { status: StatusCode::BAD_REQUEST, reason: "not_a_proxy_request", text: text.to_owned() };
    let uri = request.uri();
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| bad("the request names no host"))?;
    let port = if request.method() == Method::CONNECT {
        uri.port_u16().ok_or_else(|| bad("a tunnel needs a port"))?
    } else if uri.scheme_str() == Some("http") {
        uri.port_u16().unwrap_or(80)
    } else {
        return Err(bad("only tunnels and absolute http addresses are served"));
    };
    Ok((plain(host), port))
}

async fn pass(
    request: Request<Incoming>,
    gate: &Gate,
    place: Place,
    host: &str,
    port: u16,
) -> Result<Response<Body>, Refusal> {
    let Some(allow_private) = gate.rules.find(host, port) else {
        return Err(forbidden("not_on_the_allow_list", format!("{host}:{port} is not on the allow-list")));
    };
    let addresses = resolve(host, port).await?;
    let usable: Vec<SocketAddr> =
        addresses.into_iter().filter(|address| allow_private || is_public(address.ip())).collect();
    if usable.is_empty() {
        return Err(forbidden("address_not_public", format!("{host}:{port} is not at a public address")));
    }
    gate.count_allowed();
    let upstream = connect(&usable, host, port).await?;
    if request.method() == Method::CONNECT {
        return Ok(tunnel(request, upstream, gate.open.clone(), place));
    }
    forward(request, upstream).await
}

fn forbidden(reason: &'static str, text: String) -> Refusal {
    Refusal { status: StatusCode::FORBIDDEN, reason, text }
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, Refusal> {
    let failed = |status, text: String| Refusal { status, reason: "name_not_resolved", text };
    match timeout(RESOLVE_PATIENCE, lookup_host((host, port))).await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(failure)) => Err(failed(StatusCode::BAD_GATEWAY, format!("{host} cannot be resolved: {failure}"))),
        Err(_) => Err(failed(StatusCode::GATEWAY_TIMEOUT, format!("{host} cannot be resolved in time"))),
    }
}

async fn connect(addresses: &[SocketAddr], host: &str, port: u16) -> Result<Idle<TcpStream>, Refusal> {
    let failed = |status, text: String| Refusal { status, reason: "not_connected", text };
    match timeout(CONNECT_PATIENCE, TcpStream::connect(addresses)).await {
        Ok(Ok(stream)) => {
            let _ = stream.set_nodelay(true);
            Ok(Idle::new(stream, IDLE_PATIENCE))
        }
        Ok(Err(failure)) => Err(failed(StatusCode::BAD_GATEWAY, format!("{host}:{port}: {failure}"))),
        Err(_) => Err(failed(StatusCode::GATEWAY_TIMEOUT, format!("{host}:{port} does not answer"))),
    }
}

/// Answers 200 and then carries bytes, until either side ends, nothing moves any more, or the guard is dropped.
fn tunnel(
    request: Request<Incoming>,
    mut upstream: Idle<TcpStream>,
    mut open: watch::Receiver<()>,
    place: Place,
) -> Response<Body> {
    tokio::spawn(async move {
        let _place = place;
        match hyper::upgrade::on(request).await {
            Ok(client) => {
                let mut client = TokioIo::new(client);
                tokio::select! {
                    _ = open.changed() => debug!("tunnel closed with its guard"),
                    ended = tokio::io::copy_bidirectional(&mut client, &mut upstream) => debug!(?ended, "tunnel ended"),
                }
            }
            Err(failure) => debug!(error = %failure, "tunnel not opened"),
        }
    });
    Response::new(text(String::new()))
}

async fn forward(mut request: Request<Incoming>, upstream: Idle<TcpStream>) -> Result<Response<Body>, Refusal> {
    let failed = |failure: hyper::Error| Refusal {
        status: StatusCode::BAD_GATEWAY,
        reason: "not_forwarded",
        text: format!("the server did not answer: {failure}"),
    };
    to_origin_form(&mut request).map_err(|failure| Refusal {
        status: StatusCode::BAD_REQUEST,
        reason: "not_a_proxy_request",
        text: failure.to_string(),
    })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(upstream)).await.map_err(failed)?;
    tokio::spawn(async move {
        if let Err(failure) = connection.await {
            debug!(error = %failure, "forwarded connection ended");
        }
    });
    let mut response = sender.send_request(request).await.map_err(failed)?;
    strip(response.headers_mut());
    Ok(response.map(BodyExt::boxed))
}

/// `GET http://host/path` becomes `GET /path` with a matching `host` header, whatever the client put there.
fn to_origin_form(request: &mut Request<Incoming>) -> io::Result<()> {
    let authority = request.uri().authority().cloned().ok_or(io::ErrorKind::InvalidInput)?;
    // Without user and password, which an address may carry.
    let host = authority.as_str().rsplit('@').next().unwrap_or_default().to_owned();
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let path = if path.is_empty() { "/" } else { path };
    *request.uri_mut() = path.parse::<Uri>().map_err(io::Error::other)?;
    *request.version_mut() = Version::HTTP_11;
    strip(request.headers_mut());
    request.headers_mut().insert(HOST, HeaderValue::from_str(&host).map_err(io::Error::other)?);
    Ok(())
}

fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

fn say(refusal: &Refusal) -> Response<Body> {
    let mut response = Response::new(text(format!("egress refused ({}): {}\n", refusal.reason, refusal.text)));
    *response.status_mut() = refusal.status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert("x-berth-egress", HeaderValue::from_static(refusal.reason));
    response
}

fn text(text: String) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed()
}
