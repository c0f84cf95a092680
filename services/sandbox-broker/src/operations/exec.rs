//! Exec: one command, its output streamed. The stream ends with `exit`; without it the outcome is unknown. Dropping the
//! stream (the caller left, or its connection broke) drops the process, which kills its whole group; so does the end of the
//! caller's claim, which is checked again and again while the command runs.

use std::{
    collections::HashSet,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_rpc::{broker as api, duration_from_proto, duration_to_proto};
use bytes::Bytes;
use futures::Stream;
use tokio::time::Instant;
use tonic::Status;

use crate::{
    actions::Context,
    error::Error,
    held::{self, HeldSandbox},
    paths,
    provider::{ExecError, ExecItem, ExecSpec, ExitReport, Process},
};

const DEFAULT_OUTPUT: i64 = 1 << 20;
const MAX_OUTPUT: i64 = 64 << 20;
const MAX_STDIN: usize = 10 << 20;
/// Arguments and environment together; the kernel's own bound is about twice that.
const MAX_WORDS: usize = 1 << 20;
/// How long after a command's limit its end is waited for.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The answer's stream.
pub(crate) type ExecStream = Pin<Box<dyn Stream<Item = Result<api::ExecResponse, Status>> + Send>>;

/// Execs in flight, by session, launch and exec id: the same one never runs twice at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Running {
    ids: Arc<Mutex<HashSet<(String, i32, String)>>>,
}

/// Removes its exec from the set of running ones when dropped.
struct Entry {
    running: Running,
    id: (String, i32, String),
}

impl Running {
    fn enter(&self, session_id: &str, launch: i32, exec_id: &str) -> Result<Entry, Error> {
        let id = (session_id.to_owned(), launch, exec_id.to_owned());
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.insert(id.clone()) { Ok(Entry { running: self.clone(), id }) } else { Err(Error::ExecRunning) }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.running.ids.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

struct Limits {
    timeout: Duration,
    output: i64,
}

pub(crate) async fn exec(context: &Context, running: &Running, request: api::ExecRequest) -> Result<ExecStream, Error> {
    let limits = check(context, &request)?;
    let launch = request.hold.as_ref().map_or(0, |hold| hold.launch);
    let held = held::resolve(context, request.hold).await?;
    let cwd = paths::resolve("cwd", &held.workdir, &request.cwd)?;
    let entry = running.enter(&held.session_id, launch, &request.exec_id)?;
    let spec = ExecSpec {
        argv: request.argv,
        env: request.env.into_iter().collect(),
        secrets: Vec::new(),
        cwd,
        stdin: request.stdin.into(),
        // The sandbox's own clock, a little later than ours, for the case that we are gone.
        wall: Some(limits.timeout + END_PATIENCE),
    };
    let process = match held.sandbox.start(spec).await {
        Ok(process) => process,
        Err(error) => return Err(held.explain(context, error).await),
    };
    Ok(Box::pin(follow(context.clone(), held, process, limits, entry)))
}

fn check(context: &Context, request: &api::ExecRequest) -> Result<Limits, Error> {
    let invalid = |field, reason, message: &str| Err(Error::Invalid { field, reason, message: message.to_owned() });
    if request.exec_id.is_empty() || request.exec_id.len() > 128 {
        return invalid("exec_id", "EXEC_ID_INVALID", "1 to 128 bytes");
    }
    if request.argv.first().is_none_or(String::is_empty) {
        return invalid("argv", "ARGV_EMPTY", "no program is named");
    }
    let words = request.argv.iter().map(String::len).sum::<usize>()
        + request.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>();
    if words > MAX_WORDS {
        return invalid("argv", "ARGV_TOO_LARGE", "arguments and environment are larger than 1 MiB");
    }
    if request.env.keys().any(|name| name.is_empty() || name.contains('=')) {
        return invalid("env", "ENV_INVALID", "a variable's name is empty or holds '='");
    }
    if request.stdin.len() > MAX_STDIN {
        return invalid("stdin", "STDIN_TOO_LARGE", "at most 10 MiB");
    }
    let timeout = request.timeout.as_ref().map_or(Duration::ZERO, duration_from_proto);
    let timeout = if timeout.is_zero() { context.timeouts.exec_default } else { timeout };
    if timeout > context.timeouts.exec_max {
        return invalid("timeout", "TIMEOUT_TOO_LONG", "longer than this broker allows");
    }
    match request.max_output_bytes {
        0 => Ok(Limits { timeout, output: DEFAULT_OUTPUT }),
        output @ 1..=MAX_OUTPUT => Ok(Limits { timeout, output }),
        _ => invalid("max_output_bytes", "MAX_OUTPUT_INVALID", "at most 64 MiB"),
    }
}

/// Everything the command says, at most `limits.output` bytes of it, and a sign of life while it is quiet, as long as the
/// claim it runs under holds.
fn follow(
    context: Context,
    held: HeldSandbox,
    mut process: Process,
    limits: Limits,
    entry: Entry,
) -> impl Stream<Item = Result<api::ExecResponse, Status>> + Send {
    async_stream::stream! {
        let _entry = entry;
        let began = Instant::now();
        let keepalive = context.timeouts.keepalive;
        let (mut left, mut dropped) = (limits.output, 0i64);
        yield Ok(response(api::exec_response::Item::Started(api::Started {})));
        let deadline = began + limits.timeout;
        let mut fenced_off = std::pin::pin!(held.fenced_off(&context));
        loop {
            let next = tokio::select! {
                biased;
                // First, so that a command that never pauses does not outrun it.
                refusal = &mut fenced_off => {
                    drop(process);
                    tracing::info!(lease_id = held.lease_id, "the claim of a running command is over, killing it");
                    yield Err(refusal);
                    return;
                }
                next = tokio::time::timeout_at(deadline, process.next()) => next,
                () = tokio::time::sleep(keepalive) => {
                    yield Ok(response(api::exec_response::Item::Alive(api::Alive {})));
                    continue;
                }
            };
            match next {
                Ok(Some(Ok(ExecItem::Stdout(bytes)))) => {
                    if let Some(bytes) = admit(bytes, &mut left, &mut dropped) {
                        yield Ok(response(api::exec_response::Item::Stdout(bytes.into())));
                    }
                }
                Ok(Some(Ok(ExecItem::Stderr(bytes)))) => {
                    if let Some(bytes) = admit(bytes, &mut left, &mut dropped) {
                        yield Ok(response(api::exec_response::Item::Stderr(bytes.into())));
                    }
                }
                Ok(Some(Ok(ExecItem::Exit(exit)))) => {
                    yield Ok(response(ended(exit, dropped, began.elapsed())));
                    return;
                }
                Ok(Some(Err(error))) => {
                    yield Err(held.explain(&context, error).await.into());
                    return;
                }
                Ok(None) => {
                    yield Err(held.explain(&context, ExecError::NoSandbox).await.into());
                    return;
                }
                Err(_) => {
                    // Dropping the process is what kills the group.
                    drop(process);
                    let exit = ExitReport { code: -1, signal: 9, timed_out: true };
                    yield Ok(response(ended(exit, dropped, began.elapsed())));
                    return;
                }
            }
        }
    }
}

/// As much of `bytes` as may still be passed on.
fn admit(bytes: Bytes, left: &mut i64, dropped: &mut i64) -> Option<Bytes> {
    let room = usize::try_from(*left).unwrap_or(0).min(bytes.len());
    *left -= room as i64;
    *dropped += (bytes.len() - room) as i64;
    (room > 0).then(|| bytes.slice(..room))
}

fn ended(exit: ExitReport, dropped_bytes: i64, took: Duration) -> api::exec_response::Item {
    api::exec_response::Item::Exit(api::Exit {
        code: exit.code,
        signal: exit.signal,
        timed_out: exit.timed_out,
        dropped_bytes,
        duration: Some(duration_to_proto(took)),
    })
}

fn response(item: api::exec_response::Item) -> api::ExecResponse {
    api::ExecResponse { item: Some(item) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_over_the_cap_is_counted() {
        let (mut left, mut dropped) = (5, 0);
        assert_eq!(admit(Bytes::from_static(b"abc"), &mut left, &mut dropped).as_deref(), Some(&b"abc"[..]));
        assert_eq!(admit(Bytes::from_static(b"defg"), &mut left, &mut dropped).as_deref(), Some(&b"de"[..]));
        assert_eq!(admit(Bytes::from_static(b"h"), &mut left, &mut dropped), None);
        assert_eq!((left, dropped), (0, 3));
    }

    #[test]
    fn one_exec_id_runs_once_at_a_time() {
        let running = Running::default();
        let first = running.enter("ses-1", 1, "call").ok();
        assert!(
            first.is_some() && running.enter("ses-1", 1, "call").is_err() && running.enter("ses-1", 2, "call").is_ok()
        );
        drop(first);
        assert!(running.enter("ses-1", 1, "call").is_ok());
    }
}
