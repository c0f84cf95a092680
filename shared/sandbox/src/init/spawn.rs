//! Starting one command: everything is prepared before the fork, the child only makes system calls, and says through a
//! pipe which of them failed.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{ForkResult, fork};

use super::{credentials, seccomp};
use crate::config::ExecLimits;
use crate::protocol::{ExecRequest, Plan};

/// Where programs are looked for when the environment names no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Commands are killed for lack of memory before the init is.
const OOM_SCORE: &str = "300";

/// Standard streams of a command; no input means `/dev/null`.
pub(super) struct Streams {
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// A forked child that may or may not become the command.
pub(super) struct Spawned {
    pub(super) pid: i32,
    /// Ends empty when the command runs; else holds step and errno, see [`failure_of`].
    pub(super) outcome: OwnedFd,
}

/// Steps of the child that can fail, in order; the index travels through the pipe.
const STEPS: [&str; 7] =
    ["standard streams", "limits", "user", "working directory", "system call filter", "execute", "session"];

/// Decodes what the outcome pipe held.
pub(super) fn failure_of(bytes: &[u8]) -> Option<(String, i32)> {
    let (step, errno) = bytes.split_first()?;
    let errno = errno.try_into().map(i32::from_le_bytes).unwrap_or(libc::EIO);
    Some((STEPS.get(usize::from(*step)).copied().unwrap_or("start").to_owned(), errno))
}

/// Forks the child. Must be called on a single-threaded process.
pub(super) fn spawn(
    plan: &Plan,
    filters: &seccomp::Filters,
    request: &ExecRequest,
    streams: Streams,
) -> io::Result<Spawned> {
    let argv = c_strings(request.argv.iter().cloned())?;
    let env = c_strings(request.env.iter().map(|(name, value)| format!("{name}={value}")))?;
    let programs = programs(request)?;
    let cwd = CString::new(request.cwd.as_str())?;
    let argv_pointers = pointers(&argv);
    let env_pointers = pointers(&env);
    let limits = limits(plan, &request.limits);
    let (outcome, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;

    // SAFETY: single-threaded; the child ends in `execve` or `_exit` and never returns into our runtime.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Spawned { pid: child.as_raw(), outcome }),
        ForkResult::Child => {
            let become_command = || -> Result<(), (u8, io::Error)> {
                at(6, nix::unistd::setsid().map(drop))?;
                at(0, connect(&streams))?;
                at(1, apply(&limits))?;
                // The score may be raised but not lowered; a kernel that refuses is no reason to refuse the command.
                let _ = raise_oom_score();
                at(2, credentials::become_user(plan, request.user))?;
                at(3, change_directory(&cwd))?;
                at(4, filters.apply())?;
                at(5, execute(&programs, &argv_pointers, &env_pointers))
            };
            if let Err((step, failure)) = become_command() {
                let mut message = [step, 0, 0, 0, 0];
                message[1..].copy_from_slice(&failure.raw_os_error().unwrap_or(libc::EIO).to_le_bytes());
                let _ = rustix::io::write(&tell, &message);
            }
            // SAFETY: ends this process without running the init's exit code.
            unsafe { libc::_exit(127) }
        }
    }
}

fn at<T, E: Into<io::Error>>(step: u8, outcome: Result<T, E>) -> Result<T, (u8, io::Error)> {
    outcome.map_err(|failure| (step, failure.into()))
}

fn c_strings(texts: impl Iterator<Item = String>) -> io::Result<Vec<CString>> {
    texts.map(|text| Ok(CString::new(text)?)).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

/// The files that may be the program, in the order in which they are tried.
fn programs(request: &ExecRequest) -> io::Result<Vec<CString>> {
    let name = request.argv.first().filter(|name| !name.is_empty()).ok_or(io::ErrorKind::InvalidInput)?;
    if name.contains('/') {
        return Ok(vec![CString::new(name.as_str())?]);
    }
    let path = request.env.iter().find(|(variable, _)| variable == "PATH").map(|(_, value)| value.as_str());
    let places = path.unwrap_or(DEFAULT_PATH).split(':').filter(|place| !place.is_empty());
    places.map(|place| Ok(CString::new(PathBuf::from(place).join(name).into_os_string().into_vec())?)).collect()
}

fn limits(plan: &Plan, wanted: &ExecLimits) -> Vec<(Resource, u64)> {
    let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
    [
        (Resource::RLIMIT_CORE, Some(0)),
        (Resource::RLIMIT_CPU, wanted.cpu_s),
        (Resource::RLIMIT_AS, wanted.address_space),
        (Resource::RLIMIT_DATA, plan.data_bytes),
        (Resource::RLIMIT_NOFILE, wanted.nofile),
        (Resource::RLIMIT_NPROC, least(wanted.nproc, plan.nproc)),
        (Resource::RLIMIT_FSIZE, wanted.file_size),
    ]
    .into_iter()
    .filter_map(|(resource, limit)| Some((resource, limit?)))
    .collect()
}

fn apply(limits: &[(Resource, u64)]) -> io::Result<()> {
    for (resource, limit) in limits {
        let (_, hard) = nix::sys::resource::getrlimit(*resource)?;
        let limit = (*limit).min(hard);
        setrlimit(*resource, limit, limit)?;
    }
    Ok(())
}

/// Puts the streams to 0, 1 and 2, over a detour in case they are among these numbers already.
fn connect(streams: &Streams) -> io::Result<()> {
    let null;
    let stdin: RawFd = match &streams.stdin {
        Some(stdin) => stdin.as_raw_fd(),
        None => {
            null = fs::File::open("/dev/null")?;
            null.as_raw_fd()
        }
    };
    for (from, to) in [(stdin, 0), (streams.stdout.as_raw_fd(), 1), (streams.stderr.as_raw_fd(), 2)] {
        // SAFETY: plain descriptor calls; the duplicate is owned here and closed again.
        unsafe {
            let high = libc::fcntl(from, libc::F_DUPFD_CLOEXEC, 10);
            if high < 0 {
                return Err(io::Error::last_os_error());
            }
            let high = OwnedFd::from_raw_fd(high);
            if libc::dup2(high.as_raw_fd(), to) < 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    // Belt and braces: everything of ours is marked already.
    // SAFETY: marks descriptors, closes none.
    unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC.cast_signed()) };
    Ok(())
}

fn raise_oom_score() -> io::Result<()> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    // The file belongs to us only while we may be looked into.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let written = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    written
}

fn change_directory(cwd: &CString) -> io::Result<()> {
    Ok(rustix::process::chdir(cwd)?)
}

/// Tries each candidate; returns only with a failure, the most telling one.
fn execute(programs: &[CString], argv: &[*const libc::c_char], env: &[*const libc::c_char]) -> io::Result<()> {
    reset_signals()?;
    let mut failure = io::Error::from_raw_os_error(libc::ENOENT);
    for program in programs {
        // SAFETY: program is a C string, both arrays end in null and point to living C strings.
        unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
        let refused = io::Error::last_os_error();
        match refused.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => {}
            Some(libc::EACCES) => failure = refused,
            _ => return Err(refused),
        }
    }
    Err(failure)
}

/// The runtime ignores SIGPIPE and handles others; commands start with the defaults.
fn reset_signals() -> io::Result<()> {
    // SAFETY: a full signal set is a valid value, and default dispositions run no code of ours.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        if libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
