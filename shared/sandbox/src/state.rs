//! The directory of one sandbox on the host and the durable record in it. Only files outside the agent's reach are ever
//! opened here; `workspace`, `home` and `tmp` belong to the agent and are never looked into from the host.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{During, Result, SandboxError};
use crate::observed::Record;

/// The agent's directories.
pub(crate) const AGENT_DIRECTORIES: [&str; 3] = ["workspace", "home", "tmp"];
/// Holds the egress socket; the init keeps it open, the agent never sees it.
pub(crate) const RUN: &str = "run";
/// Holds the socket on which the init takes execs; for the host only.
pub(crate) const CONTROL: &str = "control";
/// Name of the exec socket in [`CONTROL`].
pub(crate) const CONTROL_SOCKET: &str = "exec.sock";
/// Name of the egress socket in [`RUN`].
pub(crate) const EGRESS_SOCKET: &str = "egress.sock";

const RECORD: &str = "state.json";
/// A record is about 1 KiB.
const MAX_RECORD: u64 = 64 << 10;

/// Directory of one sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    path: PathBuf,
}

impl Home {
    pub(crate) fn new(root: &Path, key: &str) -> Self {
        Self { path: root.join(key) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn run(&self) -> PathBuf {
        self.path.join(RUN)
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.path.join(CONTROL)
    }

    /// Whether anything is there (not following a symlink).
    pub(crate) fn exists(&self) -> Result<bool> {
        match fs::symlink_metadata(&self.path) {
            Ok(_) => Ok(true),
            Err(failure) if failure.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(failure) => Err(SandboxError::io("look at the sandbox directory", failure)),
        }
    }

    /// Makes the directories; the first of them decides who owns the key.
    pub(crate) fn make(&self, key: &str) -> Result<()> {
        let private = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
        private(&self.path).map_err(|failure| match failure.kind() {
            io::ErrorKind::AlreadyExists => SandboxError::Exists(key.to_owned()),
            _ => SandboxError::io("make the sandbox directory", failure),
        })?;
        for name in AGENT_DIRECTORIES.into_iter().chain([RUN, CONTROL]) {
            private(&self.path.join(name)).during("make a directory of the sandbox")?;
        }
        Ok(())
    }

    /// Writes the record so that it survives a crash of the machine: new file, synced, renamed, directory synced.
    pub(crate) fn write_record(&self, record: &Record) -> Result<()> {
        let new = self.path.join("state.json.new");
        let bytes = serde_json::to_vec_pretty(record)
            .map_err(|failure| SandboxError::io("encode the sandbox record", failure))?;
        let write = || -> io::Result<()> {
            let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&new, self.path.join(RECORD))?;
            File::open(&self.path)?.sync_all()?;
            // The entry of the sandbox directory itself.
            self.path.parent().map_or(Ok(()), |root| File::open(root)?.sync_all())
        };
        write().during("write the sandbox record")
    }

    /// `None` when no complete record was ever written.
    pub(crate) fn read_record(&self) -> Result<Option<Record>> {
        let file = match File::open(self.path.join(RECORD)) {
            Ok(file) => file,
            Err(failure) if failure.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(failure) => return Err(SandboxError::io("open the sandbox record", failure)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_RECORD).read_to_end(&mut bytes).during("read the sandbox record")?;
        // A record that cannot be read is treated like one that was never written: the sandbox is found by its command
        // line and can be destroyed.
        Ok(serde_json::from_slice(&bytes).ok())
    }
}
