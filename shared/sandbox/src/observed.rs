//! What can be said about a sandbox from outside without touching it.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::config::{Capabilities, Spec};

/// A sandbox that was just created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its key.
    pub key: String,
    /// What was recorded about it.
    pub record: Record,
}

/// A sandbox that is there, running or not, perhaps only half made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its key.
    pub key: String,
    /// What was recorded; `None` when creation was cut before the record.
    pub record: Option<Record>,
    /// What it is now; never `Absent`.
    pub observed: Observed,
}

/// What a look at a sandbox says. Looking never changes anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// Its init is alive.
    Running {
        /// When it was created.
        since: SystemTime,
    },
    /// Something of it is there (directory, cgroup or a process of an interrupted creation), but no init of a finished
    /// creation is alive.
    Stopped,
    /// No directory, no process, no cgroup.
    Absent,
}

/// The durable record of a sandbox, written before its init is told to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Process id of the init as the host sees it.
    pub pid: u32,
    /// Start time of that process in clock ticks since boot: guards against reuse of the id.
    pub start_time: u64,
    /// The boot during which both are valid.
    pub boot_id: String,
    /// Inode of its process namespace.
    pub pid_namespace: u64,
    /// When it was created.
    pub created_at: SystemTime,
    /// What was asked for; `deadline` is kept current.
    pub spec: Spec,
    /// What is in force.
    pub capabilities: Capabilities,
    /// cgroup directories made for it.
    pub cgroups: Vec<std::path::PathBuf>,
}
