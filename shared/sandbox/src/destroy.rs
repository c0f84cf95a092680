//! Taking a sandbox apart, from any state, any number of times; and the proof that nothing of it is left.

use std::path::Path;
use std::time::Duration;

use tracing::debug;

use crate::cgroup::{self, Hierarchies};
use crate::create::group_name;
use crate::error::{During, Result};
use crate::observed::Record;
use crate::process;
use crate::state::Home;
use crate::tree;

/// Killing a process namespace takes milliseconds unless processes hang in the kernel.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// Kills, removes and deletes everything of the sandbox. Its mounts live in its own mount namespace and go with its last
/// process: the host has none to undo. Blocking.
pub(crate) fn destroy(root: &Path, root_tag: &str, key: &str, cgroups: Option<&Hierarchies>) -> Result<()> {
    let home = Home::new(root, key);
    let record = if home.exists()? { home.read_record()? } else { None };
    if let Some(record) = record.as_ref().filter(|record| is_running(record)) {
        process::kill_and_wait(record.pid, Some(record.start_time), KILL_PATIENCE)?;
    }
    // What has no record: a creation cut short, ours or another broker's.
    for pid in process::of_sandbox(key, root_tag)? {
        debug!(key, pid, "killing an init without a record");
        process::kill_and_wait(pid, None, KILL_PATIENCE)?;
    }
    cgroup::remove(&groups(root_tag, key, cgroups, record.as_ref()))?;
    tree::delete(root, key).during("delete the sandbox directory")
}

/// Whether nothing of the sandbox is left: no directory, no process, no control group. Blocking.
pub(crate) fn is_absent(root: &Path, root_tag: &str, key: &str, cgroups: Option<&Hierarchies>) -> Result<bool> {
    if Home::new(root, key).exists()? || !process::of_sandbox(key, root_tag)?.is_empty() {
        return Ok(false);
    }
    Ok(groups(root_tag, key, cgroups, None).iter().all(|group| !group.exists()))
}

/// Whether the recorded init is alive.
pub(crate) fn is_running(record: &Record) -> bool {
    process::is_alive(record.pid, record.start_time, &record.boot_id)
}

fn groups(
    root_tag: &str,
    key: &str,
    cgroups: Option<&Hierarchies>,
    record: Option<&Record>,
) -> Vec<std::path::PathBuf> {
    let mut all = record.map(|record| record.cgroups.clone()).unwrap_or_default();
    all.extend(cgroups.map(|hierarchies| hierarchies.directories(&group_name(root_tag, key))).unwrap_or_default());
    all.sort();
    all.dedup();
    all
}
