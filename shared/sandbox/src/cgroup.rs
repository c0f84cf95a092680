//! Control groups of sandboxes, version 1 and 2: found from what is mounted, one group per sandbox, removed with it.
//!
//! Groups live at a fixed place below the mount point and not below our own group, so that a restarted broker (in
//! another group of its service manager) finds them again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tracing::warn;

use crate::config::{LimitsBy, SandboxLimits};
use crate::error::{During, Result, SandboxError};

const PARENT: &str = "berth-sandbox";
/// Microseconds over which cpu time is counted.
const CPU_PERIOD: u64 = 100_000;
/// The kernel removes the last traces of a dead process from its group a moment after its end.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(5);

/// The control group hierarchies we can write to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hierarchies {
    V1 { memory: PathBuf, pids: PathBuf, cpu: Option<PathBuf> },
    V2 { root: PathBuf, cpu: bool },
}

impl Hierarchies {
    /// What is mounted and writable for us; `None` when memory and pids cannot both be controlled.
    pub(crate) fn detect() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let found = [Self::from_v1(&mounts), Self::from_v2(&mounts)];
        found.into_iter().flatten().find_map(|all| [all.clone(), all.without_cpu()].into_iter().find(Self::is_writable))
    }

    /// The same for kernels or rights without cpu bandwidth control.
    fn without_cpu(self) -> Self {
        match self {
            Self::V1 { memory, pids, .. } => Self::V1 { memory, pids, cpu: None },
            Self::V2 { root, .. } => Self::V2 { root, cpu: false },
        }
    }

    fn from_v1(mounts: &str) -> Option<Self> {
        let of = |controller: &str| {
            let is_it =
                |mount: &&Mount<'_>| mount.kind == "cgroup" && mount.options.split(',').any(|o| o == controller);
            mount_lines(mounts).iter().find(is_it).map(|mount| PathBuf::from(mount.target))
        };
        Some(Self::V1 { memory: of("memory")?, pids: of("pids")?, cpu: of("cpu") })
    }

    fn from_v2(mounts: &str) -> Option<Self> {
        let lines = mount_lines(mounts);
        let root = PathBuf::from(lines.iter().find(|mount| mount.kind == "cgroup2")?.target);
        let offered = fs::read_to_string(root.join("cgroup.controllers")).ok()?;
        let offers = |name: &str| offered.split_ascii_whitespace().any(|offer| offer == name);
        (offers("memory") && offers("pids")).then(|| Self::V2 { cpu: offers("cpu"), root })
    }

    /// Tries to make a group with everything we need, and removes it again.
    fn is_writable(&self) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let name = format!("probe-{}-{now}", std::process::id());
        let made = self.create(&name, &SandboxLimits { cpu_millis: Some(1000), ..SandboxLimits::default() });
        let removed = self.remove(&name);
        made.is_ok() && removed.is_ok()
    }

    pub(crate) fn kind(&self) -> LimitsBy {
        match self {
            Self::V1 { .. } => LimitsBy::CgroupV1,
            Self::V2 { .. } => LimitsBy::CgroupV2,
        }
    }

    /// Whether cpu limits are enforced.
    pub(crate) fn limits_cpu(&self) -> bool {
        match self {
            Self::V1 { cpu, .. } => cpu.is_some(),
            Self::V2 { cpu, .. } => *cpu,
        }
    }

    /// Directories of the group `name`, made or not.
    pub(crate) fn directories(&self, name: &str) -> Vec<PathBuf> {
        let below = |root: &PathBuf| root.join(PARENT).join(name);
        match self {
            Self::V1 { memory, pids, cpu } => {
                let mut all: Vec<PathBuf> =
                    [Some(memory), Some(pids), cpu.as_ref()].into_iter().flatten().map(below).collect();
                // Controllers may share one hierarchy.
                all.dedup();
                all
            }
            Self::V2 { root, .. } => vec![below(root)],
        }
    }

    /// Makes the group and sets its limits.
    pub(crate) fn create(&self, name: &str, limits: &SandboxLimits) -> Result<Vec<PathBuf>> {
        let directories = self.directories(name);
        if let Self::V2 { root, cpu } = self {
            enable_v2(root, *cpu)?;
        }
        for directory in &directories {
            make(directory).during("make the control group")?;
        }
        if let Self::V2 { root, cpu } = self {
            // The parent had to exist before its children can be given controllers.
            enable_v2(&root.join(PARENT), *cpu)?;
        }
        self.set_limits(name, limits)?;
        Ok(directories)
    }

    fn set_limits(&self, name: &str, limits: &SandboxLimits) -> Result<()> {
        let cpu_quota = limits.cpu_millis.map(|millis| (millis * CPU_PERIOD / 1000).max(1000));
        match self {
            Self::V1 { memory, pids, cpu } => {
                let memory = memory.join(PARENT).join(name);
                if let Some(bytes) = limits.memory_bytes {
                    set(&memory, "memory.limit_in_bytes", bytes)?;
                    // Absent where swap is not accounted; then there is usually none.
                    if memory.join("memory.memsw.limit_in_bytes").exists() {
                        set(&memory, "memory.memsw.limit_in_bytes", bytes)?;
                    }
                }
                if let Some(count) = limits.processes {
                    set(&pids.join(PARENT).join(name), "pids.max", count)?;
                }
                if let (Some(quota), Some(cpu)) = (cpu_quota, cpu) {
                    let cpu = cpu.join(PARENT).join(name);
                    set(&cpu, "cpu.cfs_period_us", CPU_PERIOD)?;
                    set(&cpu, "cpu.cfs_quota_us", quota)?;
                }
            }
            Self::V2 { root, cpu } => {
                let group = root.join(PARENT).join(name);
                if let Some(bytes) = limits.memory_bytes {
                    set(&group, "memory.max", bytes)?;
                    if group.join("memory.swap.max").exists() {
                        set(&group, "memory.swap.max", 0)?;
                    }
                }
                if let Some(count) = limits.processes {
                    set(&group, "pids.max", count)?;
                }
                if let (Some(quota), true) = (cpu_quota, *cpu) {
                    set(&group, "cpu.max", format!("{quota} {CPU_PERIOD}"))?;
                }
            }
        }
        Ok(())
    }

    /// Removes the group `name`; fine when it is not there.
    pub(crate) fn remove(&self, name: &str) -> Result<()> {
        remove(&self.directories(name))
    }
}

/// Puts a process into a group made before.
pub(crate) fn enter(directories: &[PathBuf], pid: u32) -> Result<()> {
    directories.iter().try_for_each(|directory| set(directory, "cgroup.procs", pid))
}

/// Removes group directories, waiting for the kernel to let go of dead processes; fine when they are not there.
pub(crate) fn remove(directories: &[PathBuf]) -> Result<()> {
    let until = Instant::now() + REMOVAL_PATIENCE;
    for directory in directories {
        loop {
            match fs::remove_dir(directory) {
                Ok(()) => break,
                Err(failure) if failure.kind() == io::ErrorKind::NotFound => break,
                Err(failure) if Instant::now() > until => {
                    warn!(group = %directory.display(), "control group cannot be removed");
                    return Err(SandboxError::io("remove the control group", failure));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        // The common parent goes with the last sandbox; refused while there are others.
        let _ = directory.parent().map(fs::remove_dir);
    }
    Ok(())
}

struct Mount<'a> {
    target: &'a str,
    kind: &'a str,
    options: &'a str,
}

/// `36 35 98:0 /root /target rw,opts shared:1 - kind source superoptions`
fn mount_lines(text: &str) -> Vec<Mount<'_>> {
    let parse = |line| {
        let (before, after): (&str, &str) = str::split_once(line, " - ")?;
        let mut after = after.split(' ');
        Some(Mount { target: before.split(' ').nth(4)?, kind: after.next()?, options: after.nth(1)? })
    };
    text.lines().filter_map(parse).collect()
}

fn enable_v2(group: &Path, cpu: bool) -> Result<()> {
    if !group.exists() {
        return Ok(());
    }
    set(group, "cgroup.subtree_control", if cpu { "+memory +pids +cpu" } else { "+memory +pids" })
}

/// Another sandbox's end may remove the common parent between our two steps: try again.
fn make(directory: &Path) -> io::Result<()> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for _ in 0..20 {
        match fs::create_dir_all(directory) {
            Ok(()) => return Ok(()),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

fn set(group: &Path, file: &str, value: impl ToString) -> Result<()> {
    fs::write(group.join(file), value.to_string()).during(&format!("set {file} of the control group"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
        36 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n";

    #[test]
    fn version_one_is_found_by_controller() {
        let found = Hierarchies::from_v1(MOUNTS).unwrap();
        let names = found.directories("x");
        assert_eq!(names[0], Path::new("/sys/fs/cgroup/memory/berth-sandbox/x"));
        assert_eq!(names[2], Path::new("/sys/fs/cgroup/cpu,cpuacct/berth-sandbox/x"));
        assert!(Hierarchies::from_v1(MOUNTS.lines().next().unwrap()).is_none());
        assert!(Hierarchies::from_v2(MOUNTS).is_none());
    }

    #[test]
    fn removing_what_is_not_there_is_fine() {
        remove(&[PathBuf::from("/nonexistent/berth-sandbox/x")]).unwrap();
    }
}
