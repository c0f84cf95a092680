//! One command inside a sandbox, seen from the broker: its output as a bounded stream of events, its input, signals, and
//! the rule that dropping the handle kills it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::config::ExecSpec;
use crate::control;
use crate::error::{During, Result, SandboxError};
use crate::protocol::{Control, ExecRequest, Reply, Request, receive_async, send_async};

/// Starting a program takes milliseconds; a machine under load gets this long.
const START_PATIENCE: Duration = Duration::from_secs(30);
/// How long output is waited for that background processes may still hold open after the command's end.
const OUTPUT_GRACE: Duration = Duration::from_millis(300);
const CHUNK: usize = 32 << 10;
/// Events (of at most one chunk each) that wait for a slow reader; then the command itself is slowed down.
const WAITING_EVENTS: usize = 16;
/// Output still read at the end of the grace time: what a pipe can hold, twice over.
const LAST_OUTPUT: usize = 128 << 10;

/// What happens to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// Bytes it wrote to its standard output.
    Stdout(Bytes),
    /// Bytes it wrote to its standard error.
    Stderr(Bytes),
    /// It ended; always the last event.
    Exit(Exit),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Its wall-clock limit was reached.
    pub timed_out: bool,
}

impl Exit {
    /// Ended by itself with code 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }
}

/// A running command. Dropping it kills the command's process group and session; background processes that made a
/// session of their own live on.
#[derive(Debug)]
pub struct ExecHandle {
    /// Process id inside the sandbox.
    pub pid: i32,
    /// The command's standard input, when asked for; dropping it is end of file.
    pub stdin: Option<pipe::Sender>,
    events: mpsc::Receiver<Result<ExecEvent>>,
    control: mpsc::Sender<Control>,
}

/// Everything a finished command wrote, cut at a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub exit: Exit,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// More was written than was kept.
    pub cut: bool,
}

impl ExecHandle {
    /// The next event; `None` after `Exit` or after an error.
    pub async fn next(&mut self) -> Option<Result<ExecEvent>> {
        self.events.recv().await
    }

    /// Sends a signal to the command's process group. Its end arrives as an event.
    pub async fn signal(&self, signal: i32) -> Result<()> {
        // After the end there is nobody to signal, which is fine.
        let _ = self.control.send(Control::Signal(signal)).await;
        Ok(())
    }

    /// Kills the command's process group at once. Its end arrives as an event.
    pub async fn kill(&self) -> Result<()> {
        self.signal(libc::SIGKILL).await
    }

    /// Runs to the end, keeping at most `limit` bytes of each output stream. Closes the input first.
    pub async fn output(mut self, limit: usize) -> Result<Output> {
        drop(self.stdin.take());
        let (mut stdout, mut stderr, mut cut) = (Vec::new(), Vec::new(), false);
        let mut keep = |into: &mut Vec<u8>, bytes: &[u8]| {
            let room = limit.saturating_sub(into.len()).min(bytes.len());
            into.extend_from_slice(&bytes[..room]);
            cut |= room < bytes.len();
        };
        while let Some(event) = self.next().await {
            match event? {
                ExecEvent::Stdout(bytes) => keep(&mut stdout, &bytes),
                ExecEvent::Stderr(bytes) => keep(&mut stderr, &bytes),
                ExecEvent::Exit(exit) => return Ok(Output { exit, stdout, stderr, cut }),
            }
        }
        Err(SandboxError::Connection("the exec ended without an exit".to_owned()))
    }
}

/// Starts the command over a fresh connection. `owner`: host uid that is to own the pipes, so that programs can open
/// `/dev/stdout` by name.
pub(crate) async fn start(line: StdStream, spec: ExecSpec, owner: Option<u32>) -> Result<ExecHandle> {
    let stdout = make_pipe(owner)?;
    let stderr = make_pipe(owner)?;
    let stdin = spec.stdin.then(|| make_pipe(owner)).transpose()?;
    let request = Request::Exec(Box::new(ExecRequest {
        argv: spec.argv,
        env: spec.env.into_iter().collect(),
        cwd: spec.cwd,
        user: spec.user,
        stdin: spec.stdin,
        limits: spec.limits,
    }));
    // The init also gets the reading ends: once we have stopped reading it keeps background processes from dying of a
    // closed pipe.
    let mut passed: Vec<BorrowedFd<'_>> =
        vec![stdout.write.as_fd(), stderr.write.as_fd(), stdout.read.as_fd(), stderr.read.as_fd()];
    passed.extend(stdin.as_ref().map(|pipe| pipe.read.as_fd()));
    let mut line = control::open(line, &request, &passed).await?;

    let answer = timeout(START_PATIENCE, receive_async::<Reply>(&mut line)).await;
    let pid = match answer.map_err(|_| SandboxError::Timeout("start of the command"))? {
        Ok(Some(Reply::Started { pid })) => pid,
        Ok(Some(Reply::NotStarted { step, errno })) => {
            return Err(SandboxError::NotStarted { step, source: io::Error::from_raw_os_error(errno) });
        }
        Ok(Some(Reply::Refused { reason })) => {
            return Err(SandboxError::NotStarted { step: "request".to_owned(), source: io::Error::other(reason) });
        }
        Ok(answer) => return Err(SandboxError::Connection(format!("unexpected answer {answer:?}"))),
        Err(failure) => return Err(SandboxError::Connection(failure.to_string())),
    };

    let reader = |fd: OwnedFd| pipe::Receiver::from_owned_fd(fd).during("read the command's output");
    let (out, err) = (reader(stdout.read)?, reader(stderr.read)?);
    drop((stdout.write, stderr.write));
    let stdin = match stdin {
        Some(pipe) => Some(pipe::Sender::from_owned_fd(pipe.write).during("write the command's input")?),
        None => None,
    };
    let (events, received) = mpsc::channel(WAITING_EVENTS);
    let (control, commands) = mpsc::channel(WAITING_EVENTS);
    tokio::spawn(follow(line, out, err, events, commands));
    Ok(ExecHandle { pid, stdin, events: received, control })
}

struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

fn make_pipe(owner: Option<u32>) -> Result<Pipe> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).during("make a pipe")?;
    if let Some(owner) = owner {
        std::os::unix::fs::fchown(&write, Some(owner), Some(owner)).during("give a pipe to the command's user")?;
    }
    Ok(Pipe { read, write })
}

/// One output stream: read until its end.
struct Stream {
    pipe: pipe::Receiver,
    buffer: BytesMut,
    open: bool,
    wrap: fn(Bytes) -> ExecEvent,
}

impl Stream {
    fn new(pipe: pipe::Receiver, wrap: fn(Bytes) -> ExecEvent) -> Self {
        Self { pipe, buffer: BytesMut::new(), open: true, wrap }
    }

    /// The next piece; `None` at the end. Cancel-safe.
    async fn read(&mut self) -> Option<ExecEvent> {
        self.buffer.reserve(CHUNK);
        match self.pipe.read_buf(&mut self.buffer).await {
            Ok(read) if read > 0 => Some((self.wrap)(self.buffer.split().freeze())),
            _ => {
                self.open = false;
                None
            }
        }
    }

    /// What is there right now, without waiting.
    fn read_now(&mut self) -> Option<ExecEvent> {
        self.buffer.resize(CHUNK, 0);
        let read = self.pipe.try_read(&mut self.buffer).unwrap_or(0);
        let bytes = self.buffer.split_to(read).freeze();
        self.buffer.clear();
        (read > 0).then(|| (self.wrap)(bytes))
    }
}

/// Carries everything between the connection and the handle until the command ended or the handle was dropped. The
/// connection closes when this returns, upon which the init kills what still runs.
async fn follow(
    line: UnixStream,
    out: pipe::Receiver,
    err: pipe::Receiver,
    events: mpsc::Sender<Result<ExecEvent>>,
    mut commands: mpsc::Receiver<Control>,
) {
    let (mut from_init, mut to_init) = line.into_split();
    let mut out = Stream::new(out, ExecEvent::Stdout);
    let mut err = Stream::new(err, ExecEvent::Stderr);
    let mut reply = std::pin::pin!(receive_async::<Reply>(&mut from_init));
    let mut exit: Option<(Exit, Instant)> = None;
    while exit.is_none() || out.open || err.open {
        let grace = exit.map_or_else(|| Instant::now() + Duration::from_secs(3600), |(_, until)| until);
        let event = tokio::select! {
            () = events.closed() => return,
            Some(command) = commands.recv() => {
                // A cut connection shows in the reply.
                let _ = send_async(&mut to_init, &command).await;
                continue;
            }
            answer = &mut reply, if exit.is_none() => match answer {
                Ok(Some(Reply::Exit { code, signal, timed_out })) => {
                    exit = Some((Exit { code, signal, timed_out }, Instant::now() + OUTPUT_GRACE));
                    continue;
                }
                answer => {
                    let what = format!("the sandbox ended during the command: {answer:?}");
                    let _ = events.send(Err(SandboxError::Connection(what))).await;
                    return;
                }
            },
            piece = out.read(), if out.open => piece,
            piece = err.read(), if err.open => piece,
            () = tokio::time::sleep_until(grace), if exit.is_some() => break,
        };
        if let Some(event) = event
            && events.send(Ok(event)).await.is_err()
        {
            return;
        }
    }
    let mut left = LAST_OUTPUT / CHUNK;
    while let Some(event) = out.read_now().or_else(|| err.read_now()) {
        if events.send(Ok(event)).await.is_err() {
            return;
        }
        left -= 1;
        if left == 0 {
            break;
        }
    }
    if let Some((exit, _)) = exit {
        let _ = events.send(Ok(ExecEvent::Exit(exit))).await;
    }
}
