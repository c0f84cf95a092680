//! The way out of a sandbox: an HTTP proxy in the broker, one listener per sandbox on a unix socket that only its init can
//! reach. It lets through what the rules name, host and port exactly, and nothing else.
//!
//! Names are resolved here, once, and the connection goes to the very address that was judged, so that a name cannot
//! point elsewhere a moment later. Redirects are the client's business and judged like any other request.

mod address;
mod idle;
mod proxy;
mod rules;

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tracing::{Instrument, debug, info_span};

use crate::descriptors;
use crate::error::{During, Result};
use crate::state::EGRESS_SOCKET;

pub use rules::EgressRule;
pub(crate) use rules::Rules;

/// Connections of one sandbox at a time; more wait.
const MAX_CONNECTIONS: usize = 64;
/// Refusals remembered for whoever wants to show them.
const REMEMBERED: usize = 32;

/// How often the proxy let through and refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EgressCounts {
    /// Requests and tunnels let through.
    pub allowed: u64,
    /// Requests and tunnels refused.
    pub denied: u64,
}

/// One refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// What was asked for, `host:port` where it could be read.
    pub target: String,
    /// Why it was refused.
    pub reason: &'static str,
}

/// Shared between the guard and the connections.
#[derive(Debug)]
pub(crate) struct Gate {
    rules: Rules,
    allowed: AtomicU64,
    denied: AtomicU64,
    last_denied: Mutex<VecDeque<Denied>>,
    /// Ends when the guard is dropped: tunnels are tasks of their own.
    open: watch::Receiver<()>,
}

impl Gate {
    fn count_allowed(&self) {
        self.allowed.fetch_add(1, Ordering::Relaxed);
    }

    fn count_denied(&self, target: String, reason: &'static str) {
        debug!(target = %target, reason, "egress refused");
        self.denied.fetch_add(1, Ordering::Relaxed);
        let mut last = self.last_denied.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == REMEMBERED {
            last.pop_front();
        }
        last.push_back(Denied { target, reason });
    }
}

/// An open way out; dropping it closes the way and every connection on it.
#[derive(Debug)]
pub struct EgressGuard {
    gate: Arc<Gate>,
    accepting: JoinHandle<()>,
    /// Held for its end, which closes the tunnels.
    _open: watch::Sender<()>,
    run: PathBuf,
    /// Inode of our socket: another guard may have replaced it.
    inode: u64,
}

impl EgressGuard {
    pub(crate) fn open(run: &Path, key: &str, rules: Vec<EgressRule>) -> Result<Self> {
        let listener = descriptors::listen(run, EGRESS_SOCKET).during("listen for egress")?;
        let directory = descriptors::open_directory(run).during("open the run directory")?;
        let path = descriptors::short_path(&directory, EGRESS_SOCKET);
        // The directory is private to the init of the sandbox, who is not us.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).during("open the egress socket to the init")?;
        let inode = inode(&path).during("look at the egress socket")?;
        listener.set_nonblocking(true).during("listen for egress")?;
        let listener = UnixListener::from_std(listener).during("listen for egress")?;
        let (open, still_open) = watch::channel(());
        let gate = Arc::new(Gate {
            rules: Rules::new(rules),
            allowed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            last_denied: Mutex::default(),
            open: still_open,
        });
        let span = info_span!("egress", sandbox = key);
        let accepting = tokio::spawn(accept(listener, gate.clone()).instrument(span));
        Ok(Self { gate, accepting, _open: open, run: run.to_owned(), inode })
    }

    /// What was let through and refused so far.
    pub fn counts(&self) -> EgressCounts {
        EgressCounts {
            allowed: self.gate.allowed.load(Ordering::Relaxed),
            denied: self.gate.denied.load(Ordering::Relaxed),
        }
    }

    /// The latest refusals, oldest first.
    pub fn last_denied(&self) -> Vec<Denied> {
        self.gate.last_denied.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Drop for EgressGuard {
    fn drop(&mut self) {
        self.accepting.abort();
        let Ok(directory) = descriptors::open_directory(&self.run) else { return };
        let path = descriptors::short_path(&directory, EGRESS_SOCKET);
        if inode(&path).is_ok_and(|current| current == self.inode) {
            let _ = fs::remove_file(path);
        }
    }
}

fn inode(path: &Path) -> std::io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::symlink_metadata(path)?.ino())
}

async fn accept(listener: UnixListener, gate: Arc<Gate>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // Ends all connections together with this task.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((connection, _)) => {
                let gate = gate.clone();
                connections.spawn(proxy::serve(connection, gate, Arc::new(place)).in_current_span());
            }
            // Out of descriptors: some will be closed.
            Err(failure) => {
                debug!(error = %failure, "egress connection not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
