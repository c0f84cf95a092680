//! The init at work: takes requests of the broker, collects dead processes, forwards connections to the egress proxy, and
//! ends when its time is over. One thread: forking is safe, and nothing is shared.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use super::seccomp::Filters;
use super::{Ready, execs};
use crate::create::milliseconds;
use crate::descriptors::{receive_header, short_path};
use crate::protocol::{Plan, Reply, Request, receive_body, send_async};
use crate::state::EGRESS_SOCKET;

/// Requests served at a time.
const MAX_REQUESTS: usize = 256;
/// Connections to the egress proxy at a time.
const MAX_EGRESS: usize = 64;
/// A broker sends its request at once.
const REQUEST_PATIENCE: Duration = Duration::from_secs(30);
const KILL_ALL_PATIENCE: Duration = Duration::from_secs(20);
/// How often it is looked at the wall clock, which may jump without timers noticing, and at the directory.
const LOOK: Duration = Duration::from_secs(5);

/// Shared by all tasks of the one thread.
pub(super) struct State {
    pub(super) plan: Plan,
    pub(super) filters: Filters,
    /// Who waits for the end of which child.
    children: RefCell<HashMap<i32, oneshot::Sender<WaitStatus>>>,
    deadline: watch::Sender<Option<u64>>,
}

impl State {
    /// To be called right after a fork, before anything else is awaited: the end of the child cannot be missed.
    pub(super) fn watch(&self, pid: i32) -> oneshot::Receiver<WaitStatus> {
        let (told, ended) = oneshot::channel();
        self.children.borrow_mut().insert(pid, told);
        ended
    }

    /// Collects every dead process: children of execs, and orphans that were handed to us. Says whether any process is
    /// left.
    fn collect(&self) -> bool {
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => return true,
                Ok(status) => {
                    let waiting = status.pid().and_then(|pid| self.children.borrow_mut().remove(&pid.as_raw()));
                    if let Some(waiting) = waiting {
                        let _ = waiting.send(status);
                    }
                }
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Serves until the process is killed or the deadline passes.
pub(super) fn forever(ready: Ready) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, serve(ready))
}

async fn serve(ready: Ready) -> io::Result<()> {
    let Ready { plan, listener, proxy, run, filters } = ready;
    let (deadline, changed) = watch::channel(plan.deadline_ms);
    let state = Rc::new(State { plan, filters, children: RefCell::default(), deadline });

    let mut dead = signal(SignalKind::child())?;
    let collector = state.clone();
    spawn_local(async move {
        while dead.recv().await.is_some() {
            collector.collect();
        }
    });
    spawn_local(end_when_over(changed, run.try_clone()?));
    if let Some(proxy) = proxy {
        spawn_local(forward(TcpListener::from_std(proxy)?, run));
    }
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(MAX_REQUESTS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((connection, _)) => {
                let state = state.clone();
                spawn_local(async move {
                    // A broken connection concerns nobody but its peer, who sees it.
                    let _ = answer(state, connection).await;
                    drop(place);
                });
            }
            // Out of descriptors: some will be closed.
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn answer(state: Rc<State>, mut connection: UnixStream) -> io::Result<()> {
    // Processes inside our namespace have an id here; the broker, outside, has none.
    if connection.peer_cred()?.pid().is_some_and(|pid| pid != 0) {
        let reason = "not for processes of the sandbox".to_owned();
        return send_async(&mut connection, &Reply::Refused { reason }).await;
    }
    let request = timeout(REQUEST_PATIENCE, receive_request(&mut connection));
    let (request, descriptors) = request.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    match request {
        Request::Exec(request) => execs::run(&state, connection, *request, descriptors).await,
        Request::KillAll => {
            let reply = match timeout(KILL_ALL_PATIENCE, kill_all(&state)).await {
                Ok(()) => Reply::Done,
                Err(_) => Reply::Refused { reason: "processes do not end".to_owned() },
            };
            send_async(&mut connection, &reply).await
        }
        Request::Deadline { deadline_ms } => {
            state.deadline.send_replace(deadline_ms);
            send_async(&mut connection, &Reply::Done).await
        }
    }
}

async fn receive_request(connection: &mut UnixStream) -> io::Result<(Request, Vec<OwnedFd>)> {
    let (header, descriptors) =
        connection.async_io(tokio::io::Interest::READABLE, || receive_header(&*connection)).await?;
    Ok((receive_body(header, connection).await?, descriptors))
}

/// From pid 1, "all" means every process of the namespace but ourselves.
async fn kill_all(state: &State) {
    loop {
        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
        if !state.collect() {
            return;
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// Ends at the deadline, and when somebody removed the sandbox's directory without us: then no broker can ever find us.
async fn end_when_over(mut deadline: watch::Receiver<Option<u64>>, directory: OwnedFd) {
    loop {
        let current = *deadline.borrow_and_update();
        let left = current.map(|at| Duration::from_millis(at.saturating_sub(milliseconds(SystemTime::now()))));
        let removed = rustix::fs::fstat(&directory).is_ok_and(|stat| stat.st_nlink == 0);
        if removed || left == Some(Duration::ZERO) {
            // The kernel kills everything inside together with its pid 1.
            std::process::exit(0);
        }
        tokio::select! {
            () = sleep(left.unwrap_or(LOOK).min(LOOK)) => {}
            changed = deadline.changed() => if changed.is_err() { return },
        }
    }
}

/// Carries bytes between those who connect inside and the proxy of the broker outside.
async fn forward(listener: TcpListener, run: OwnedFd) {
    let places = Arc::new(Semaphore::new(MAX_EGRESS));
    let socket = short_path(&run, EGRESS_SOCKET);
    // The path goes through this descriptor.
    let _run = run;
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((inside, _)) => {
                let socket = socket.clone();
                spawn_local(async move {
                    let _ = carry(inside, &socket).await;
                    drop(place);
                });
            }
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn carry(mut inside: TcpStream, socket: &std::path::Path) -> io::Result<()> {
    match UnixStream::connect(socket).await {
        Ok(mut outside) => tokio::io::copy_bidirectional(&mut inside, &mut outside).await.map(drop),
        Err(_) => {
            let text = "no egress is open for this sandbox\n";
            let head = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: text/plain\r\n";
            inside.write_all(format!("{head}content-length: {}\r\n\r\n{text}", text.len()).as_bytes()).await
        }
    }
}
