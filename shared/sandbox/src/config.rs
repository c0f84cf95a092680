//! What a caller chooses: where sandboxes live, how their init is started, what may be missing, and the limits of one
//! sandbox or one exec. Plain data; nothing here touches the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// Settings of a [`crate::Sandboxes`].
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// Directory that holds one directory per sandbox. Created with mode 0700 when absent.
    pub root: PathBuf,
    /// How the init process of a sandbox is started.
    pub init: InitCommand,
    /// What the kernel may lack without `create` refusing.
    pub allow: BTreeSet<Missing>,
    /// Kernel features not to be used although present: an operator's choice, and the way tests act out a poorer kernel.
    /// They still have to be allowed.
    pub unavailable: BTreeSet<Missing>,
    /// Host directories or files shown read-only inside every sandbox beside the system directories.
    pub read_only_binds: Vec<ReadOnlyBind>,
}

impl SandboxConfig {
    /// Settings with nothing allowed to be missing and no extra binds.
    pub fn new(root: impl Into<PathBuf>, init: InitCommand) -> Self {
        Self {
            root: root.into(),
            init,
            allow: BTreeSet::new(),
            unavailable: BTreeSet::new(),
            read_only_binds: Vec::new(),
        }
    }
}

/// Program that ends up in [`crate::init::run`], with the arguments that come before ours.
///
/// The all-in-one binary is `InitCommand { exe: current_exe, args: vec!["sandbox-init".into()] }`.
#[derive(Debug, Clone)]
pub struct InitCommand {
    /// Absolute path of the program.
    pub exe: PathBuf,
    /// Arguments before those of the library.
    pub args: Vec<String>,
}

/// A host path shown read-only (no devices, no set-uid) inside sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOnlyBind {
    /// Absolute path on the host.
    pub source: PathBuf,
    /// Absolute path inside the sandbox; it must not lie below the agent's own directories.
    pub target: PathBuf,
}

/// Something a kernel (or our rights on it) may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Missing {
    /// No writable cgroup with memory, process and cpu control: rlimits per process are all there is.
    NoCgroup,
    /// No network namespace: the sandbox shares the host's network, its loopback services included.
    NoNetns,
    /// No user namespace: the agent runs under a host uid of its own without a mapping. Only possible as root.
    NoUserns,
    /// No seccomp filters: dangerous system calls are refused by missing rights only.
    NoSeccomp,
}

impl Missing {
    /// Every value, in order.
    pub const ALL: [Missing; 4] = [Missing::NoCgroup, Missing::NoNetns, Missing::NoUserns, Missing::NoSeccomp];

    /// The name used in settings and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Missing::NoCgroup => "no-cgroup",
            Missing::NoNetns => "no-netns",
            Missing::NoUserns => "no-userns",
            Missing::NoSeccomp => "no-seccomp",
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is none of the names of [`Missing`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown name {0:?}: expected one of no-cgroup, no-netns, no-userns, no-seccomp")]
pub struct UnknownMissing(pub String);

impl FromStr for Missing {
    type Err = UnknownMissing;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Missing::ALL.into_iter().find(|missing| missing.as_str() == text).ok_or_else(|| UnknownMissing(text.to_owned()))
    }
}

/// What one sandbox is to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Limits of the sandbox as a whole.
    pub limits: SandboxLimits,
    /// The sandbox ends itself at this moment, whether or not anyone still looks after it.
    pub deadline: Option<SystemTime>,
}

/// Limits of all processes of a sandbox together. `None` sets no limit.
///
/// With cgroups they hold for the sandbox; with rlimits only, `memory_bytes` caps the address space of each process,
/// `processes` the number of processes, and `cpu_millis` is not in force. [`Capabilities`] says which it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLimits {
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Thousandths of one processor.
    pub cpu_millis: Option<u64>,
    /// Bytes of `/dev/shm`.
    pub shm_bytes: u64,
}

impl Default for SandboxLimits {
    fn default() -> Self {
        Self { memory_bytes: Some(4 << 30), processes: Some(1024), cpu_millis: None, shm_bytes: 64 << 20 }
    }
}

/// How the limits of a sandbox are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitsBy {
    /// cgroup version 1 hierarchies.
    CgroupV1,
    /// The unified cgroup version 2 hierarchy.
    CgroupV2,
    /// rlimits of each process only.
    Rlimits,
}

/// What is really in force in one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The sandbox has a user namespace.
    pub user_namespace: bool,
    /// The sandbox has its own network; without it nothing restricts egress and no proxy is set.
    pub network_namespace: bool,
    /// A seccomp filter is applied to every exec.
    pub seccomp: bool,
    /// What enforces memory and process limits.
    pub limits_by: LimitsBy,
    /// The cpu limit is in force (it needs a cgroup with cpu control).
    pub cpu_limit: bool,
    /// Execs may run as the inner root user, mapped to a host uid without rights.
    pub inner_root: bool,
}

/// Who runs an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExecUser {
    /// The agent, uid 1000 inside, without any capability.
    #[default]
    Agent,
    /// The inner root user: owns nothing outside, keeps file and user capabilities inside. For secret readers that
    /// the agent must not be able to look into.
    InnerRoot,
}

/// Limits of one exec. `None` sets no limit beyond the sandbox's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecLimits {
    /// Seconds of wall clock, after which the process group and session are killed.
    pub wall_s: Option<u64>,
    /// Seconds of processor time per process.
    pub cpu_s: Option<u64>,
    /// Bytes of address space per process.
    pub address_space: Option<u64>,
    /// Open files per process.
    pub nofile: Option<u64>,
    /// Processes and threads of the user inside the sandbox.
    pub nproc: Option<u64>,
    /// Bytes of the largest file a process may write.
    pub file_size: Option<u64>,
}

/// One command to run inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecSpec {
    /// Program and arguments; a program without a slash is looked for in the `PATH` of `env`.
    pub argv: Vec<String>,
    /// The complete environment, except that the proxy variables are added where they are not set.
    pub env: BTreeMap<String, String>,
    /// Working directory inside the sandbox.
    pub cwd: String,
    /// Who runs it.
    pub user: ExecUser,
    /// Whether the caller feeds its standard input; otherwise it is `/dev/null`.
    pub stdin: bool,
    /// Limits of this exec.
    pub limits: ExecLimits,
}

impl ExecSpec {
    /// A command of the agent in `/workspace` with a plain environment, no input and no further limits.
    pub fn new<I, S>(argv: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        let env = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("HOME", "/home/agent"),
            ("USER", "agent"),
            ("LOGNAME", "agent"),
            ("SHELL", "/bin/sh"),
            ("LANG", "C.UTF-8"),
            ("TMPDIR", "/tmp"),
        ];
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            cwd: "/workspace".to_owned(),
            user: ExecUser::Agent,
            stdin: false,
            limits: ExecLimits::default(),
        }
    }

    /// A command line for `/bin/sh -c`.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(["/bin/sh".to_owned(), "-c".to_owned(), line.into()])
    }

    /// Sets one variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }
}

/// Where the agent's directories are inside a sandbox.
pub mod inside {
    /// The agent's working tree.
    pub const WORKSPACE: &str = "/workspace";
    /// The agent's home directory.
    pub const HOME: &str = "/home/agent";
    /// The egress proxy as seen from inside.
    pub const PROXY: &str = "http://127.0.0.1:3128";
}
