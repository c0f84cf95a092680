//! Processes as the host sees them: identity that survives reuse of process ids, search by command line, and the
//! certain kill.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};

use crate::error::{During, Result, SandboxError};
use crate::protocol::SERVE;

/// The fields of `/proc/<pid>/stat` that we use.
pub(crate) struct Stat {
    pub(crate) state: u8,
    pub(crate) session: i32,
    /// Clock ticks since boot.
    pub(crate) start_time: u64,
}

impl Stat {
    /// The command name may hold anything, parentheses included: fields are counted from the last one.
    pub(crate) fn parse(text: &[u8]) -> Option<Stat> {
        let after = text.iter().rposition(|byte| *byte == b')')? + 2;
        let fields: Vec<&str> = std::str::from_utf8(text.get(after..)?).ok()?.split_ascii_whitespace().collect();
        Some(Stat {
            state: *fields.first()?.as_bytes().first()?,
            session: fields.get(3)?.parse().ok()?,
            start_time: fields.get(19)?.parse().ok()?,
        })
    }

    /// `None` when there is no such process.
    pub(crate) fn read(pid: u32) -> Option<Stat> {
        Stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// A zombie has no memory, no files and no running code left.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// Identifies the running kernel: process ids and start times mean nothing across a reboot.
pub(crate) fn boot_id() -> Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").during("read the boot id")?;
    Ok(text.trim().to_owned())
}

/// Inode of the process namespace of `pid`.
pub(crate) fn pid_namespace(pid: u32) -> Result<u64> {
    Ok(fs::metadata(format!("/proc/{pid}/ns/pid")).during("look at the process namespace")?.ino())
}

/// Whether the recorded process is still that process, and alive.
pub(crate) fn is_alive(pid: u32, start_time: u64, recorded_boot: &str) -> bool {
    let same_boot = boot_id().is_ok_and(|current| current == recorded_boot);
    same_boot && Stat::read(pid).is_some_and(|stat| stat.start_time == start_time && !stat.is_dead())
}

/// Living processes whose command line names this sandbox: an init, or what an interrupted creation left for a moment.
pub(crate) fn of_sandbox(key: &str, root_tag: &str) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").during("list processes")? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Gone meanwhile, or a kernel thread: not ours.
        let Ok(command_line) = fs::read(entry.path().join("cmdline")) else { continue };
        let words: Vec<&[u8]> = command_line.split(|byte| *byte == 0).collect();
        let ours = [SERVE.as_bytes(), key.as_bytes(), root_tag.as_bytes()];
        // Only our own program has these words in a row at the end of its arguments.
        if words.windows(3).any(|three| three == ours) && is_outermost(pid) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Processes of the agent inside a sandbox could carry any command line, so only a process that is pid 1 of its
/// namespace, or in none of its own, can be an init.
fn is_outermost(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    if status.lines().any(|line| line.starts_with("State:") && (line.contains('Z') || line.contains('X'))) {
        return false;
    }
    let Some(ids) = status.lines().find_map(|line| line.strip_prefix("NSpid:")) else { return true };
    let ids: Vec<&str> = ids.split_ascii_whitespace().collect();
    // Our own namespace may itself be nested: the first id is ours, a second one is the sandbox's.
    ids.len() == 1 || (ids.len() == 2 && ids[1] == "1")
}

/// Kills the init with this identity and waits until its process namespace is empty: the kernel reports the end of a
/// pid 1 only after every process of its namespace is gone. Nothing happens when it is gone already.
pub(crate) fn kill_and_wait(pid: u32, start_time: Option<u64>, patience: Duration) -> Result<()> {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
    let process = match pidfd_open(id, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        Err(failure) => return Err(SandboxError::io("open the init process", failure)),
    };
    // Looked at after opening: from here on the descriptor means this very process.
    match (Stat::read(pid), start_time) {
        (None, _) => return Ok(()),
        (Some(stat), Some(expected)) if stat.start_time != expected => return Ok(()),
        (Some(_), _) => {}
    }
    match pidfd_send_signal(&process, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(failure) => return Err(SandboxError::io("kill the init process", failure)),
    }
    wait_ended(&process, patience)?;
    // Where we are its parent (as pid 1 of a container, say) nobody else would collect it.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let _ = waitid(WaitId::PidFd(std::os::fd::AsFd::as_fd(&process)), options);
    Ok(())
}

fn wait_ended(process: &OwnedFd, patience: Duration) -> Result<()> {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(SandboxError::Timeout("end of the init process"));
        }
        let timeout = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(failure) => return Err(SandboxError::io("wait for the init process", io::Error::from(failure))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_past_hostile_command_names() {
        let line = b"12 (a) R 1 (x) S 1 12 34 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.state, stat.session, stat.start_time), (b'S', 34, 987_654));
        assert!(Stat::parse(b"12 (a").is_none());
        let own = Stat::read(std::process::id()).unwrap();
        assert!(own.start_time > 0 && !own.is_dead());
        assert!(is_alive(std::process::id(), own.start_time, &boot_id().unwrap()));
        assert!(!is_alive(std::process::id(), own.start_time + 1, &boot_id().unwrap()));
        assert!(!is_alive(std::process::id(), own.start_time, "another boot"));
    }
}
