//! Making a sandbox: directories, control group, init process, record, and only then the word that lets the init live
//! without us. Whatever step a crash of the broker hits, either nothing is left running or the record names it.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest, Sha256};

use crate::cgroup::{self, Hierarchies};
use crate::config::{Capabilities, LimitsBy, Missing, SandboxConfig, Spec};
use crate::descriptors;
use crate::error::{During, Result, SandboxError};
use crate::kernel::KernelReport;
use crate::observed::Record;
use crate::process;
use crate::protocol::{FromInit, Ids, Plan, SERVE, ToInit, receive, send};
use crate::state::{AGENT_DIRECTORIES, CONTROL_SOCKET, Home};

/// Each step of the handshake takes milliseconds; a machine under load gets this long.
const STEP_PATIENCE: Duration = Duration::from_secs(20);
/// First host uid for sandboxes: above all ordinary users and the usual ranges of subordinate ids.
const FIRST_UID: u32 = 1 << 30;
/// The agent's uid and gid inside.
const INNER_AGENT: u32 = 1000;

/// What creation needs to know of the machine.
pub(crate) struct Ground<'a> {
    pub(crate) config: &'a SandboxConfig,
    pub(crate) root_tag: &'a str,
    pub(crate) report: &'a KernelReport,
    pub(crate) cgroups: Option<&'a Hierarchies>,
}

/// Host ids of a sandbox; the gids are the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostIds {
    /// Host uid of the inner root; `None` where the broker is an ordinary user and maps only the agent, to itself.
    pub(crate) root: Option<u32>,
    pub(crate) agent: u32,
}

impl HostIds {
    /// A pair of ids per sandbox, so that two sandboxes share neither files nor per-user limits.
    pub(crate) fn of(key: &str, root_tag: &str, as_root: bool) -> Self {
        if !as_root {
            return Self { root: None, agent: rustix::process::geteuid().as_raw() };
        }
        let digest = Sha256::digest(format!("{root_tag}/{key}").as_bytes());
        let number = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]) & 0x1fff_ffff;
        let root = FIRST_UID + number * 2;
        Self { root: Some(root), agent: root + 1 }
    }
}

/// Creates the sandbox; on failure the caller removes what is left of it. Blocking.
pub(crate) fn create(ground: &Ground<'_>, home: &Home, key: &str, spec: &Spec) -> Result<Record> {
    let ids = HostIds::of(key, ground.root_tag, ground.report.root);
    own_directories(home, ids)?;
    let capabilities = capabilities(ground);
    let group_name = group_name(ground.root_tag, key);
    let cgroups = match ground.cgroups {
        Some(hierarchies) => hierarchies.create(&group_name, &spec.limits)?,
        None => Vec::new(),
    };

    let (mut init, mut line) = start(ground, home, key)?;
    let outcome = introduce(&mut line, home, key, spec, ids, &capabilities, &cgroups, ground, &init);
    // The process we started ends as soon as it has forked the real init, or with the connection.
    if outcome.is_err() {
        drop(line);
        let _ = init.kill();
    }
    let _ = init.wait();
    outcome
}

/// Name of the control group of a sandbox: keys are unique below one root only.
pub(crate) fn group_name(root_tag: &str, key: &str) -> String {
    format!("{root_tag}-{key}")
}

fn capabilities(ground: &Ground<'_>) -> Capabilities {
    let has = |feature: Missing| !ground.report.missing.contains(&feature);
    Capabilities {
        user_namespace: has(Missing::NoUserns),
        network_namespace: has(Missing::NoNetns),
        seccomp: has(Missing::NoSeccomp),
        limits_by: ground.report.limits_by,
        cpu_limit: ground.cgroups.is_some_and(Hierarchies::limits_cpu),
        inner_root: ground.report.root,
    }
}

fn own_directories(home: &Home, ids: HostIds) -> Result<()> {
    let Some(root) = ids.root else { return Ok(()) };
    for name in AGENT_DIRECTORIES {
        std::os::unix::fs::lchown(home.path().join(name), Some(ids.agent), Some(ids.agent))
            .during("give a directory to the agent")?;
    }
    std::os::unix::fs::lchown(home.run(), Some(root), Some(root)).during("give the run directory to the init")
}

fn start(ground: &Ground<'_>, home: &Home, key: &str) -> Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair().during("make the handshake socket")?;
    ours.set_read_timeout(Some(STEP_PATIENCE)).during("set the handshake timeout")?;
    ours.set_write_timeout(Some(STEP_PATIENCE)).during("set the handshake timeout")?;
    let listener = descriptors::listen(&home.control(), CONTROL_SOCKET).during("listen on the exec socket")?;
    let log = File::create(home.path().join("init.log")).during("make the init log")?;
    let init = Command::new(&ground.config.init.exe)
        .args(&ground.config.init.args)
        .args([SERVE, key, ground.root_tag])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(OwnedFd::from(listener)))
        .stderr(Stdio::from(log))
        .spawn()
        .during("start the sandbox init")?;
    Ok((init, ours))
}

#[allow(clippy::too_many_arguments)] // one call, split off so that every early return above cleans up alike
fn introduce(
    line: &mut UnixStream,
    home: &Home,
    key: &str,
    spec: &Spec,
    ids: HostIds,
    capabilities: &Capabilities,
    cgroups: &[std::path::PathBuf],
    ground: &Ground<'_>,
    starter: &Child,
) -> Result<Record> {
    let plan = plan(ground, home, spec, ids, capabilities);
    tell(line, &ToInit::Plan(Box::new(plan)))?;
    expect(line, |answer| matches!(answer, FromInit::Unshared).then_some(()))?;
    if capabilities.user_namespace {
        write_mappings(starter.id(), ids)?;
    }
    tell(line, &ToInit::Mapped)?;
    let pid = expect(line, |answer| match answer {
        FromInit::Forked { pid } => Some(*pid),
        _ => None,
    })?;
    let stat =
        process::Stat::read(pid).ok_or_else(|| SandboxError::Connection(format!("init of {key} ended early")))?;
    cgroup::enter(cgroups, pid)?;
    let record = Record {
        pid,
        start_time: stat.start_time,
        boot_id: process::boot_id()?,
        pid_namespace: process::pid_namespace(pid)?,
        created_at: SystemTime::now(),
        spec: spec.clone(),
        capabilities: capabilities.clone(),
        cgroups: cgroups.to_vec(),
    };
    home.write_record(&record)?;
    tell(line, &ToInit::Go)?;
    expect(line, |answer| matches!(answer, FromInit::Ready).then_some(()))?;
    Ok(record)
}

fn plan(ground: &Ground<'_>, home: &Home, spec: &Spec, ids: HostIds, capabilities: &Capabilities) -> Plan {
    let inner = if capabilities.user_namespace {
        Ids { root: ids.root.map(|_| 0), agent: INNER_AGENT }
    } else {
        Ids { root: ids.root, agent: ids.agent }
    };
    let by_rlimit = capabilities.limits_by == LimitsBy::Rlimits;
    Plan {
        directory: home.path().to_owned(),
        ids: inner,
        user_namespace: capabilities.user_namespace,
        network_namespace: capabilities.network_namespace,
        seccomp: capabilities.seccomp,
        binds: ground.config.read_only_binds.clone(),
        shm_bytes: spec.limits.shm_bytes,
        deadline_ms: spec.deadline.map(milliseconds),
        data_bytes: spec.limits.memory_bytes.filter(|_| by_rlimit),
        nproc: spec.limits.processes.filter(|_| by_rlimit),
    }
}

/// Milliseconds since the epoch; a moment before it counts as the epoch.
pub(crate) fn milliseconds(moment: SystemTime) -> u64 {
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn write_mappings(pid: u32, ids: HostIds) -> Result<()> {
    let map = match ids.root {
        Some(root) => format!("0 {root} 1\n{INNER_AGENT} {} 1\n", ids.agent),
        None => format!("{INNER_AGENT} {} 1\n", ids.agent),
    };
    let group_map = match ids.root {
        Some(_) => map.clone(),
        None => {
            // Without privilege a group mapping is only accepted once group changes are ruled out.
            fs::write(format!("/proc/{pid}/setgroups"), "deny").during("rule out group changes")?;
            format!("{INNER_AGENT} {} 1\n", rustix::process::getegid().as_raw())
        }
    };
    fs::write(format!("/proc/{pid}/uid_map"), map).during("write the uid mapping")?;
    fs::write(format!("/proc/{pid}/gid_map"), group_map).during("write the gid mapping")
}

fn tell(line: &mut UnixStream, message: &ToInit) -> Result<()> {
    send(line, message).map_err(|failure| SandboxError::Connection(format!("init went away: {failure}")))
}

/// Waits for the one answer that fits; a failure told by the init becomes ours.
fn expect<T>(line: &mut UnixStream, fits: impl Fn(&FromInit) -> Option<T>) -> Result<T> {
    let asked = Instant::now();
    let answer: FromInit = receive(line).map_err(|failure| {
        if asked.elapsed() >= STEP_PATIENCE {
            SandboxError::Timeout("start of the sandbox init")
        } else {
            SandboxError::Connection(format!("init went away: {failure}"))
        }
    })?;
    if let FromInit::Failed { step, message } = answer {
        return Err(SandboxError::Init { step, message });
    }
    fits(&answer).ok_or_else(|| SandboxError::Connection(format!("unexpected answer {answer:?}")))
}

/// Makes the root directory private to us. Blocking.
pub(crate) fn make_root(root: &Path) -> Result<std::path::PathBuf> {
    fs::create_dir_all(root).during("make the sandbox root")?;
    let root = root.canonicalize().during("find the sandbox root")?;
    fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).during("close the sandbox root to others")?;
    Ok(root)
}

/// Distinguishes roots in command lines and control group names without showing the path.
pub(crate) fn root_tag(root: &Path) -> String {
    hex::encode(&Sha256::digest(root.as_os_str().as_encoded_bytes())[..4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_ids_differ_by_key_and_stay_above_users() {
        let one = HostIds::of("a", "tag", true);
        let other = HostIds::of("b", "tag", true);
        assert_ne!(one, other);
        for ids in [one, other] {
            let root = ids.root.unwrap();
            assert!(root >= FIRST_UID && ids.agent == root + 1 && ids.agent < 1 << 31);
        }
    }
}
