//! The init of a sandbox: starts single-threaded, makes the namespaces, becomes pid 1 inside, sets up files and network,
//! and then runs commands until it is killed. It never loads configuration and trusts nobody but the broker at the
//! other end of its sockets.
//!
//! Words: the *starter* is the process the broker spawned; it forks the *init* proper, pid 1 of the new process
//! namespace, and ends.

mod credentials;
mod etc;
mod execs;
mod filesystem;
mod network;
mod probe;
mod seccomp;
mod serve;
mod spawn;
mod unshare;

use std::ffi::OsString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use nix::unistd::{ForkResult, fork, setsid};

use crate::protocol::{FromInit, PROBE, Plan, SERVE, ToInit, receive, send};

/// Entry of the init process; `args` are those after the program (and after the word by which the program chose to be an
/// init). Must be called before any thread is started.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ! {
    let first = args.into_iter().next();
    let code = match first.as_ref().and_then(|word| word.to_str()) {
        Some(PROBE) => probe::run(),
        Some(SERVE) => start(),
        _ => {
            eprintln!("this is the init process of a sandbox; it is started by the sandbox library only");
            2
        }
    };
    std::process::exit(code)
}

/// A step that failed, with the system's answer.
#[derive(Debug)]
pub(crate) struct Failure {
    step: String,
    source: io::Error,
}

/// Names the step that failed.
pub(crate) trait Step<T> {
    fn step(self, step: &str) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &str) -> Result<T, Failure> {
        self.map_err(|source| Failure { step: step.to_owned(), source: source.into() })
    }
}

/// What the init holds once it is set up.
pub(crate) struct Ready {
    plan: Plan,
    /// Takes requests of the broker.
    listener: UnixListener,
    /// Listens inside for those who want out; `None` without a network of our own.
    proxy: Option<std::net::TcpListener>,
    /// Directory with the egress socket.
    run: OwnedFd,
    filters: seccomp::Filters,
}

fn start() -> i32 {
    let Ok((mut line, listener)) = take_descriptors() else { return 2 };
    match starter(&mut line, listener) {
        Ok(()) => 0,
        Err(failure) => {
            let message = failure.source.to_string();
            let _ = send(&mut line, &FromInit::Failed { step: failure.step, message });
            1
        }
    }
}

/// The broker hands over its end of the handshake as standard input and the exec socket as standard output.
fn take_descriptors() -> io::Result<(UnixStream, UnixListener)> {
    // SAFETY: plain system calls on descriptors that exist; nothing else of this process holds any.
    unsafe {
        libc::close_range(3, libc::c_uint::MAX, 0);
        let line = libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3);
        let listener = libc::fcntl(1, libc::F_DUPFD_CLOEXEC, 3);
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if line < 0 || listener < 0 || null < 0 {
            return Err(io::Error::last_os_error());
        }
        libc::dup2(null, 0);
        libc::dup2(null, 1);
        libc::close(null);
        Ok((UnixStream::from_raw_fd(line), UnixListener::from_raw_fd(listener)))
    }
}

fn starter(line: &mut UnixStream, listener: UnixListener) -> Result<(), Failure> {
    let ToInit::Plan(plan) = receive(line).step("read the plan")? else { return unexpected() };
    let _ = setsid();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    unshare::all(plan.user_namespace, plan.network_namespace)?;
    send(line, &FromInit::Unshared).step("tell about the namespaces")?;
    let ToInit::Mapped = receive(line).step("wait for the mappings")? else { return unexpected() };

    // SAFETY: single-threaded, so the child may do anything.
    match unsafe { fork() }.step("fork the init")? {
        ForkResult::Parent { child } => {
            let pid = u32::try_from(child.as_raw()).unwrap_or_default();
            send(line, &FromInit::Forked { pid }).step("tell about the init")
        }
        ForkResult::Child => init(line, listener, *plan),
    }
}

/// Pid 1. Until `Go` it ends with the broker; afterwards it lives on its own.
fn init(line: &mut UnixStream, listener: UnixListener, plan: Plan) -> Result<(), Failure> {
    let _ = setsid();
    match receive(line) {
        Ok(ToInit::Go) => {}
        // The broker is gone, or gave up: nobody knows of us, so we must not be.
        _ => return Ok(()),
    }
    let ready = set_up(listener, plan)?;
    // Not being heard is no failure: a broker that crashed after `Go` finds us by the record.
    let _ = send(line, &FromInit::Ready);
    let _ = line.shutdown(std::net::Shutdown::Both);
    serve::forever(ready).step("serve")
}

fn set_up(listener: UnixListener, plan: Plan) -> Result<Ready, Failure> {
    unshare::cgroups();
    let parts = filesystem::Parts::collect(&plan)?;
    credentials::become_inner_root(&plan)?;
    let run = filesystem::assemble(&plan, parts)?;
    rustix::system::sethostname(b"sandbox").step("set the host name")?;
    let proxy = if plan.network_namespace { Some(network::set_up()?) } else { None };
    let filters = seccomp::Filters::compile(plan.seccomp)?;
    credentials::keep_only_needed(&plan)?;
    Ok(Ready { plan, listener, proxy, run, filters })
}

fn unexpected<T>() -> Result<T, Failure> {
    Err(io::Error::from(io::ErrorKind::InvalidData)).step("understand the broker")
}
