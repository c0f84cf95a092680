//! One exec from request to exit: start, signals, wall-clock limit, and the rule that a lost connection kills.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, pipe};
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use super::serve::State;
use super::spawn::{Streams, failure_of, spawn};
use crate::process::Stat;
use crate::protocol::{Control, ExecRequest, Reply, receive_async, send_async};

/// Rounds of looking for members of a session that keep forking; each round kills all that the previous one left.
const KILL_ROUNDS: usize = 50;
/// Stands for "no limit".
const FAR: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The reading ends of a command's output, kept so that background processes never write into a closed pipe.
struct Leftovers {
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// Runs one command; returns when it ended and the broker hung up.
pub(super) async fn run(
    state: &Rc<State>,
    mut connection: UnixStream,
    request: ExecRequest,
    descriptors: Vec<OwnedFd>,
) -> io::Result<()> {
    let Some((streams, leftovers)) = sort(descriptors, request.stdin) else {
        let reason = "descriptors do not fit the request".to_owned();
        return send_async(&mut connection, &Reply::Refused { reason }).await;
    };
    let spawned = match spawn(&state.plan, &state.filters, &request, streams) {
        Ok(spawned) => spawned,
        Err(failure) => {
            let errno = failure.raw_os_error().unwrap_or(libc::EINVAL);
            return send_async(&mut connection, &Reply::NotStarted { step: "fork".to_owned(), errno }).await;
        }
    };
    let pid = spawned.pid;
    let mut ended = state.watch(pid);
    if let Some((step, errno)) = outcome(spawned.outcome).await? {
        let _ = ended.await;
        return send_async(&mut connection, &Reply::NotStarted { step, errno }).await;
    }

    let (from_broker, mut to_broker) = connection.into_split();
    let mut commands = listen(from_broker);
    let started = send_async(&mut to_broker, &Reply::Started { pid }).await;
    let wall = request.limits.wall_s.map_or(FAR, Duration::from_secs);
    let until = Instant::now() + wall;
    let mut timed_out = false;
    let mut hung_up = started.is_err();
    let status = loop {
        if hung_up {
            kill_session(pid).await;
            break (&mut ended).await;
        }
        // The end comes first: afterwards the process id may belong to somebody else.
        tokio::select! {
            biased;
            status = &mut ended => break status,
            () = sleep_until(until), if !timed_out => {
                timed_out = true;
                kill_session(pid).await;
            }
            command = commands.recv() => match command {
                Some(Control::Signal(number)) => send_signal(pid, number),
                None => hung_up = true,
            },
        }
    };
    let reply = match status {
        Ok(WaitStatus::Exited(_, code)) => Reply::Exit { code: Some(code), signal: None, timed_out },
        Ok(WaitStatus::Signaled(_, signal, _)) => Reply::Exit { code: None, signal: Some(signal as i32), timed_out },
        _ => Reply::Exit { code: None, signal: None, timed_out },
    };
    let _ = send_async(&mut to_broker, &reply).await;
    // Until it hangs up, the broker reads the output itself.
    while commands.recv().await.is_some() {}
    swallow(leftovers.stdout);
    swallow(leftovers.stderr);
    Ok(())
}

/// Reads frames in a task of its own, since a half-read frame must not be dropped; the channel ends with the connection.
fn listen(mut from_broker: OwnedReadHalf) -> mpsc::Receiver<Control> {
    let (commands, received) = mpsc::channel(4);
    spawn_local(async move {
        while let Ok(Some(command)) = receive_async::<Control>(&mut from_broker).await {
            if commands.send(command).await.is_err() {
                return;
            }
        }
    });
    received
}

/// In the order in which the protocol names them.
fn sort(descriptors: Vec<OwnedFd>, with_stdin: bool) -> Option<(Streams, Leftovers)> {
    if descriptors.len() != if with_stdin { 5 } else { 4 } {
        return None;
    }
    let mut all = descriptors.into_iter();
    let (stdout, stderr) = (all.next()?, all.next()?);
    let leftovers = Leftovers { stdout: all.next()?, stderr: all.next()? };
    Some((Streams { stdin: all.next(), stdout, stderr }, leftovers))
}

async fn outcome(pipe: OwnedFd) -> io::Result<Option<(String, i32)>> {
    let mut bytes = Vec::new();
    pipe::Receiver::from_owned_fd(pipe)?.take(16).read_to_end(&mut bytes).await?;
    Ok(failure_of(&bytes))
}

fn send_signal(group: i32, number: i32) {
    if let Ok(signal) = Signal::try_from(number) {
        let _ = kill(Pid::from_raw(-group), signal);
    }
}

/// Kills the process group at once and then whoever else belongs to the session, until nobody does.
async fn kill_session(leader: i32) {
    send_signal(leader, libc::SIGKILL);
    for _ in 0..KILL_ROUNDS {
        let members = members(leader);
        if members.is_empty() {
            return;
        }
        for member in members {
            let _ = kill(Pid::from_raw(member), Signal::SIGKILL);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn members(session: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let living = |pid: &u32| Stat::read(*pid).is_some_and(|stat| stat.session == session && !stat.is_dead());
    pids.filter(living).filter_map(|pid| i32::try_from(pid).ok()).collect()
}

/// Reads what background processes still write, for as long as they do, and forgets it.
fn swallow(pipe: OwnedFd) {
    let Ok(mut pipe) = pipe::Receiver::from_owned_fd(pipe) else { return };
    spawn_local(async move { tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await });
}
