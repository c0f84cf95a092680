//! One `git http-backend` process per request: fed, read, bounded in time, never left behind.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream;
use http::HeaderMap;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::GitHttpConfig;
use super::cgi::read_head;
use super::endpoint::Endpoint;
use super::git::git;

/// Bytes read from git at a time.
const CHUNK_BYTES: usize = 32 * 1024;
/// How much of git's complaints is logged.
const MAX_COMPLAINT_BYTES: u64 = 4 * 1024;

/// A request as the backend needs it.
pub(super) struct BackendRequest {
    pub(super) endpoint: Endpoint,
    pub(super) query: String,
    pub(super) headers: HeaderMap,
    /// Who the client proved to be; without it git refuses to receive.
    pub(super) user: Option<&'static str>,
    pub(super) body: Body,
}

/// Why git gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum BackendError {
    #[error("git could not be started")]
    Start(#[source] io::Error),
    #[error("git gave no usable answer")]
    Head(#[source] io::Error),
    #[error("git took too long")]
    Timeout,
}

/// The process while its answer is sent; dropping it ends the whole process group.
struct Running {
    child: Child,
    helpers: [JoinHandle<()>; 2],
    _permit: OwnedSemaphorePermit,
}

impl Drop for Running {
    fn drop(&mut self) {
        for helper in &self.helpers {
            helper.abort();
        }
        // The child is not reaped yet while it has an id, so the group id cannot have been given to others.
        let group = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Starts git and answers with what it says; the body is streamed as git writes it.
pub(super) async fn run(
    config: &GitHttpConfig,
    request: BackendRequest,
    permit: OwnedSemaphorePermit,
    deadline: Instant,
) -> Result<Response, BackendError> {
    let mut child = command(config, &request).spawn().map_err(BackendError::Start)?;
    let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(BackendError::Start(io::Error::other("a pipe is missing")));
    };
    let feeder = tokio::spawn(feed(stdin, request.body, config.max_request_bytes));
    let listener = tokio::spawn(log_complaints(stderr));
    let running = Running { child, helpers: [feeder, listener], _permit: permit };
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, stdout);
    let head = tokio::time::timeout_at(deadline, read_head(&mut reader)).await;
    let head = head.map_err(|_| BackendError::Timeout)?.map_err(BackendError::Head)?;
    Ok((head.status, head.headers, answer_body(running, reader, deadline)).into_response())
}

fn command(config: &GitHttpConfig, request: &BackendRequest) -> tokio::process::Command {
    let header = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    let is_post = request.endpoint.action != "info/refs";
    let mut command = git(&config.root);
    command
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", &config.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_INFO", format!("/{}/{}", request.endpoint.repository, request.endpoint.action))
        .env("QUERY_STRING", &request.query)
        .env("REQUEST_METHOD", if is_post { "POST" } else { "GET" })
        .env("REMOTE_ADDR", "127.0.0.1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let passed = [
        ("content-type", "CONTENT_TYPE"),
        ("content-length", "CONTENT_LENGTH"),
        ("content-encoding", "HTTP_CONTENT_ENCODING"),
        ("git-protocol", "GIT_PROTOCOL"),
    ];
    for (name, variable) in passed {
        if let Some(value) = header(name) {
            command.env(variable, value);
        }
    }
    if let Some(user) = request.user {
        command.env("REMOTE_USER", user);
    }
    command
}

/// Copies the request to git; a request that breaks or is too long ends early, and git refuses the rest itself.
async fn feed(mut stdin: ChildStdin, body: Body, limit: u64) {
    let mut chunks = body.into_data_stream();
    let mut sent = 0_u64;
    while let Some(Ok(chunk)) = chunks.next().await {
        sent += chunk.len() as u64;
        if sent > limit || stdin.write_all(&chunk).await.is_err() {
            return;
        }
    }
}

async fn log_complaints(mut stderr: ChildStderr) {
    let mut text = Vec::new();
    let _ = (&mut stderr).take(MAX_COMPLAINT_BYTES).read_to_end(&mut text).await;
    if !text.is_empty() {
        tracing::debug!(stderr = %String::from_utf8_lossy(&text), "git http-backend complained");
    }
    let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
}

/// Git's output until it ends or the deadline passes; a failed read breaks the connection instead of faking an end.
fn answer_body(running: Running, reader: BufReader<ChildStdout>, deadline: Instant) -> Body {
    let state = Some((running, reader));
    Body::from_stream(stream::unfold(state, move |state| async move {
        let (mut running, mut reader) = state?;
        match tokio::time::timeout_at(deadline, next_chunk(&mut reader)).await {
            Ok(Ok(Some(chunk))) => Some((Ok(chunk), Some((running, reader)))),
            Ok(Ok(None)) => match tokio::time::timeout(Duration::from_secs(5), running.child.wait()).await {
                Ok(Ok(_)) => None,
                _ => Some((Err(io::Error::other("git did not end")), None)),
            },
            Ok(Err(error)) => Some((Err(error), None)),
            Err(_) => Some((Err(io::Error::from(io::ErrorKind::TimedOut)), None)),
        }
    }))
}

async fn next_chunk(reader: &mut BufReader<ChildStdout>) -> io::Result<Option<Bytes>> {
    let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
    let read = reader.read_buf(&mut chunk).await?;
    Ok((read > 0).then(|| chunk.freeze()))
}
