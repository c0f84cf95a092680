//! What the kernel, and our rights on it, offer. Tried for real in a short-lived process rather than guessed from version
//! numbers: containers and hardening settings refuse what the version promises.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cgroup::Hierarchies;
use crate::config::{InitCommand, LimitsBy, Missing};
use crate::error::{During, Result, SandboxError};
use crate::protocol::PROBE;

/// The probe process takes a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);
const MAX_ANSWER: u64 = 64 << 10;

/// What one attempt of the probe process said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempts {
    /// Without a user namespace: mount, pid, ipc and uts namespaces. `None` = worked.
    pub(crate) plain: Option<String>,
    /// The same inside a new user namespace.
    pub(crate) user: Option<String>,
    /// A network namespace, inside a user namespace where that works.
    pub(crate) network: Option<String>,
    /// A recursive change of mount attributes (Linux 5.12).
    pub(crate) mount_attributes: Option<String>,
    /// A seccomp filter.
    pub(crate) seccomp: Option<String>,
}

/// What the kernel offers to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelReport {
    /// We run as root of our own namespace.
    pub root: bool,
    /// Features that are absent (or switched off by configuration).
    pub missing: BTreeSet<Missing>,
    /// What would enforce memory and process limits.
    pub limits_by: LimitsBy,
    /// One line per absent feature: what was tried and the answer.
    pub details: Vec<String>,
    /// Set when no sandbox is possible, whatever is allowed to be missing.
    pub impossible: Option<String>,
}

impl KernelReport {
    /// Missing features that `allow` does not cover.
    pub fn refused(&self, allow: &BTreeSet<Missing>) -> Vec<Missing> {
        self.missing.difference(allow).copied().collect()
    }
}

/// Starts the probe process and looks at the cgroups. Blocking.
pub(crate) fn probe(
    init: &InitCommand,
    unavailable: &BTreeSet<Missing>,
    cgroups: Option<&Hierarchies>,
) -> Result<KernelReport> {
    let attempts = run_probe(init)?;
    let root = rustix::process::geteuid().is_root();
    Ok(judge(root, &attempts, unavailable, cgroups.map(Hierarchies::kind)))
}

fn judge(root: bool, attempts: &Attempts, unavailable: &BTreeSet<Missing>, cgroup: Option<LimitsBy>) -> KernelReport {
    let mut missing = BTreeSet::new();
    let mut details = Vec::new();
    let mut lacks = |feature: Missing, answer: Option<String>| {
        let switched_off = unavailable.contains(&feature);
        if let Some(answer) = answer.or_else(|| switched_off.then(|| "switched off by configuration".to_owned())) {
            missing.insert(feature);
            details.push(format!("{feature}: {answer}"));
        }
    };
    lacks(Missing::NoUserns, attempts.user.clone());
    lacks(Missing::NoNetns, attempts.network.clone());
    lacks(Missing::NoSeccomp, attempts.seccomp.clone());
    let no_cgroup = "no writable memory and pids control groups, version 1 or 2".to_owned();
    lacks(Missing::NoCgroup, cgroup.is_none().then_some(no_cgroup));

    let usable = |feature: Missing| !missing.contains(&feature);
    let impossible = if let Some(answer) = &attempts.mount_attributes {
        Some(format!("read-only system directories cannot be set up: {answer}"))
    } else if usable(Missing::NoUserns) {
        None
    } else if !root {
        Some("without user namespaces a sandbox needs a broker that runs as root".to_owned())
    } else {
        attempts.plain.as_ref().map(|answer| format!("mount and process namespaces are refused: {answer}"))
    };
    let limits_by = match cgroup {
        Some(kind) if usable(Missing::NoCgroup) => kind,
        _ => LimitsBy::Rlimits,
    };
    KernelReport { root, missing, limits_by, details, impossible }
}

fn run_probe(init: &InitCommand) -> Result<Attempts> {
    let mut child = Command::new(&init.exe)
        .args(&init.args)
        .arg(PROBE)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .during("start the init program to look at the kernel")?;
    let until = Instant::now() + PATIENCE;
    // The answer is far smaller than a pipe holds: waiting first cannot block the child.
    while child.try_wait().during("wait for the kernel probe")?.is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            return Err(SandboxError::Timeout("looking at the kernel"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut answer = String::new();
    if let Some(output) = child.stdout.take() {
        output.take(MAX_ANSWER).read_to_string(&mut answer).during("read the kernel probe")?;
    }
    serde_json::from_str(&answer).map_err(|_| {
        SandboxError::Impossible(format!("{} is not a sandbox init: it did not answer the probe", init.exe.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_complete_kernel_misses_nothing() {
        let report = judge(true, &Attempts::default(), &BTreeSet::new(), Some(LimitsBy::CgroupV2));
        assert!(report.missing.is_empty() && report.impossible.is_none());
        assert_eq!(report.limits_by, LimitsBy::CgroupV2);
    }

    #[test]
    fn each_gap_is_named_and_can_be_allowed() {
        let attempts = Attempts { network: refused("EPERM"), seccomp: refused("EINVAL"), ..Attempts::default() };
        let report = judge(true, &attempts, &BTreeSet::new(), None);
        let all = [Missing::NoCgroup, Missing::NoNetns, Missing::NoSeccomp];
        assert_eq!(report.missing, BTreeSet::from(all));
        assert_eq!(report.refused(&BTreeSet::from([Missing::NoCgroup])), [Missing::NoNetns, Missing::NoSeccomp]);
        assert!(report.details.iter().any(|line| line == "no-netns: EPERM"));
        assert_eq!(report.limits_by, LimitsBy::Rlimits);
    }

    #[test]
    fn an_ordinary_user_needs_user_namespaces() {
        let attempts = Attempts { user: refused("EPERM"), plain: refused("EPERM"), ..Attempts::default() };
        assert!(judge(false, &attempts, &BTreeSet::new(), None).impossible.is_some());
        let as_root = Attempts { user: refused("EPERM"), ..Attempts::default() };
        assert!(judge(true, &as_root, &BTreeSet::new(), None).impossible.is_none());
    }

    #[test]
    fn configuration_can_switch_features_off() {
        let off = BTreeSet::from([Missing::NoCgroup]);
        let report = judge(true, &Attempts::default(), &off, Some(LimitsBy::CgroupV1));
        assert_eq!(report.missing, off);
        assert_eq!(report.limits_by, LimitsBy::Rlimits);
    }
}
