//! A git smart-HTTP server around `git http-backend`, for clones and pushes that must be real.
//!
//! Serves the bare repositories below one directory, public or behind a token, and can misbehave on purpose. Knows
//! nothing of Berth. `GET /__emulator/calls` and [`GitHttp::calls`] list what was asked, credentials reduced.

mod access;
mod backend;
mod cgi;
mod endpoint;
pub(crate) mod git;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http::{HeaderValue, Method, StatusCode};
use serde::Serialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub use access::{Behaviour, GitCredential, Private, TOKEN_USER};

use crate::Fingerprint;
use crate::call_log::CallLog;
use access::{Decision, decide};
use backend::BackendRequest;
use endpoint::Endpoint;

const CALLS_PATH: &str = "/__emulator/calls";
/// Logged as the status when the client left before there was an answer.
const STATUS_CLIENT_GONE: u16 = 499;
/// Longest path or query kept in the log, in bytes.
const MAX_LOGGED: usize = 1024;

/// What is served and how.
#[derive(Clone, Debug)]
pub struct GitHttpConfig {
    /// The directory that holds the bare repositories.
    pub root: PathBuf,
    /// The token that opens private repositories and allows pushing; `None`: nobody may.
    pub token: Option<Fingerprint>,
    /// Which repositories need the token.
    pub private: Private,
    /// Honest or not.
    pub behaviour: Behaviour,
    /// Longest request body, in bytes.
    pub max_request_bytes: u64,
    /// Git processes at a time; further requests wait.
    pub max_processes: usize,
    /// The total time of one request, waiting included.
    pub timeout: Duration,
}

impl GitHttpConfig {
    /// An honest server of public repositories that nobody may push to.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            token: None,
            private: Private::None,
            behaviour: Behaviour::Honest,
            max_request_bytes: 256 * 1024 * 1024,
            max_processes: 8,
            timeout: Duration::from_secs(120),
        }
    }
}

/// One request received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GitCall {
    /// 1 for the first request since the start.
    pub serial: u64,
    /// The HTTP method.
    pub method: String,
    /// The path, at most 1 KiB.
    pub path: String,
    /// The query string, at most 1 KiB.
    pub query: Option<String>,
    /// What came as `authorization`.
    pub credential: Option<GitCredential>,
    /// The status answered; 499 when the client left before.
    pub status: u16,
}

/// The server; clones share state.
#[derive(Clone, Debug)]
pub struct GitHttp {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: GitHttpConfig,
    calls: CallLog<GitCall>,
    serial: AtomicU64,
    processes: Arc<Semaphore>,
}

impl GitHttp {
    /// A server that is not listening yet.
    pub fn new(config: GitHttpConfig) -> Self {
        let processes = Arc::new(Semaphore::new(config.max_processes));
        Self { shared: Arc::new(Shared { config, calls: CallLog::new(), serial: AtomicU64::new(0), processes }) }
    }

    /// The routes.
    pub fn router(&self) -> Router {
        Router::new().fallback(answer).with_state(self.shared.clone())
    }

    /// The requests answered so far, oldest first; the oldest are dropped beyond 2000.
    pub fn calls(&self) -> Vec<GitCall> {
        self.shared.calls.snapshot().calls.iter().map(|call| GitCall::clone(call)).collect()
    }
}

/// Serves on `listener` until `shutdown` resolves; requests in flight get two seconds to finish.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    server: &GitHttp,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    crate::listen::serve_router(listener, server.router(), shutdown).await
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    if request.method() == Method::GET && request.uri().path() == CALLS_PATH {
        return list_calls(&shared);
    }
    let credential = GitCredential::of(request.headers());
    let call = GitCall {
        serial: shared.serial.fetch_add(1, Ordering::Relaxed) + 1,
        method: request.method().to_string(),
        path: clipped(request.uri().path()),
        query: request.uri().query().map(clipped),
        credential: credential.clone(),
        status: STATUS_CLIENT_GONE,
    };
    let mut logged = Logged { shared: &shared, call };
    let response = respond(&shared, request, credential.as_ref()).await;
    logged.call.status = response.status().as_u16();
    response
}

/// Logs its call when dropped, so that a credential shows even if its sender left before the answer.
struct Logged<'a> {
    shared: &'a Shared,
    call: GitCall,
}

impl Drop for Logged<'_> {
    fn drop(&mut self) {
        let call = &self.call;
        tracing::debug!(method = call.method, path = call.path, status = call.status, "git request answered");
        self.shared.calls.push(call.clone(), 0);
    }
}

fn list_calls(shared: &Shared) -> Response {
    let snapshot = shared.calls.snapshot();
    let calls: Vec<&GitCall> = snapshot.calls.iter().map(AsRef::as_ref).collect();
    Json(json!({"calls": calls, "dropped": snapshot.dropped})).into_response()
}

async fn respond(shared: &Shared, request: Request, credential: Option<&GitCredential>) -> Response {
    let Some(endpoint) = Endpoint::parse(request.method(), request.uri()) else {
        return plain(StatusCode::NOT_FOUND, "not found");
    };
    match decide(&shared.config, &endpoint, request.uri(), credential) {
        Decision::Challenge => challenge(),
        Decision::Forbid => plain(StatusCode::FORBIDDEN, "pushing is not allowed here"),
        Decision::Redirect(target) => redirect(&target),
        Decision::Serve { user } => run_git(shared, endpoint, user, request).await,
    }
}

async fn run_git(shared: &Shared, endpoint: Endpoint, user: Option<&'static str>, request: Request) -> Response {
    if !shared.config.root.join(&endpoint.repository).join("HEAD").is_file() {
        return plain(StatusCode::NOT_FOUND, "repository not found");
    }
    let deadline = Instant::now() + shared.config.timeout;
    let waited = tokio::time::timeout_at(deadline, shared.processes.clone().acquire_owned()).await;
    let Ok(Ok(permit)) = waited else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "too many requests at once");
    };
    let query = request.uri().query().unwrap_or_default().to_owned();
    let (parts, body) = request.into_parts();
    let request = BackendRequest { endpoint, query, headers: parts.headers, user, body };
    match backend::run(&shared.config, request, permit, deadline).await {
        Ok(response) => response,
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(%error, cause, "git http-backend failed");
            plain(StatusCode::BAD_GATEWAY, "git failed")
        }
    }
}

fn challenge() -> Response {
    let mut response = plain(StatusCode::UNAUTHORIZED, "authentication required");
    response
        .headers_mut()
        .insert("www-authenticate", HeaderValue::from_static("Basic realm=\"git\", charset=\"UTF-8\""));
    response
}

fn redirect(target: &str) -> Response {
    let Ok(location) = HeaderValue::from_str(target) else {
        return plain(StatusCode::BAD_GATEWAY, "the configured redirect is no URL");
    };
    (StatusCode::FOUND, [("location", location)]).into_response()
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    (status, [("content-type", "text/plain; charset=utf-8")], format!("{text}\n")).into_response()
}

fn clipped(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_LOGGED)].to_owned()
}
