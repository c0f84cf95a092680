//! One sandbox as actions and operations use it: commands run to their end with bounded output and bounded time.

use std::{sync::Arc, time::Duration};

use crate::provider::{ExecError, ExecItem, ExecSpec, ExitReport, Identity, Process, Provider, ProviderFailure};

/// Error output kept of one command.
const STDERR_BYTES: usize = 16 << 10;
/// How much longer than the command's own limit we wait for the provider to say so.
const GRACE: Duration = Duration::from_secs(5);

/// A sandbox and the provider it is reached through.
#[derive(Clone)]
pub(crate) struct Sandbox {
    /// Its provider.
    pub(crate) provider: Arc<dyn Provider>,
    /// Its identity there.
    pub(crate) identity: Identity,
}

/// A command that ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Finished {
    /// How.
    pub(crate) exit: ExitReport,
    /// The first bytes of standard output.
    pub(crate) stdout: Vec<u8>,
    /// There was more.
    pub(crate) truncated: bool,
    /// The first bytes of standard error, not redacted.
    pub(crate) stderr: String,
}

impl Finished {
    /// Ended with code 0.
    pub(crate) fn success(&self) -> bool {
        self.exit.code == 0 && self.exit.signal == 0
    }

    /// Standard output as one trimmed line.
    pub(crate) fn line(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }
}

impl Sandbox {
    /// Starts a command. Dropping the process kills it.
    ///
    /// # Errors
    /// See [`ExecError`]; a provider that runs no commands is a permanent failure.
    pub(crate) async fn start(&self, spec: ExecSpec) -> Result<Process, ExecError> {
        let exec = self.provider.exec().ok_or_else(unsupported)?;
        exec.start(&self.identity, spec).await
    }

    /// Runs a command for at most `limit` and keeps at most `max_stdout` bytes of its output; all of it is read.
    ///
    /// # Errors
    /// See [`ExecError`]. A command that ran, however it ended, is no error.
    pub(crate) async fn run(
        &self,
        mut spec: ExecSpec,
        limit: Duration,
        max_stdout: usize,
    ) -> Result<Finished, ExecError> {
        spec.wall = Some(limit);
        let run = async { finish(self.start(spec).await?, max_stdout).await };
        match tokio::time::timeout(limit + GRACE, run).await {
            Ok(finished) => finished,
            Err(_) => Err(ProviderFailure::timeout("the command").into()),
        }
    }

    /// Ends every process of the sandbox, but not the sandbox.
    ///
    /// # Errors
    /// See [`ExecError`].
    pub(crate) async fn kill_all(&self, limit: Duration) -> Result<(), ExecError> {
        let exec = self.provider.exec().ok_or_else(unsupported)?;
        match tokio::time::timeout(limit, exec.kill_all(&self.identity)).await {
            Ok(killed) => killed,
            Err(_) => Err(ProviderFailure::timeout("ending the processes").into()),
        }
    }
}

async fn finish(mut process: Process, max_stdout: usize) -> Result<Finished, ExecError> {
    let mut finished = Finished::default();
    let mut stderr = Vec::new();
    while let Some(item) = process.next().await {
        match item? {
            ExecItem::Stdout(bytes) => {
                let room = max_stdout - finished.stdout.len();
                finished.truncated |= bytes.len() > room;
                finished.stdout.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            ExecItem::Stderr(bytes) => {
                let room = STDERR_BYTES - stderr.len();
                stderr.extend_from_slice(&bytes[..bytes.len().min(room)]);
            }
            ExecItem::Exit(exit) => {
                finished.exit = exit;
                finished.stderr = String::from_utf8_lossy(&stderr).into_owned();
                return Ok(finished);
            }
        }
    }
    Err(ProviderFailure::new(crate::provider::Class::Transient, "CUT", "the command's outcome is not known").into())
}

fn unsupported() -> ExecError {
    ProviderFailure::new(crate::provider::Class::Permanent, "UNSUPPORTED", "this provider runs no commands").into()
}
