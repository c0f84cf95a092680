//! One command in a sandbox as the port sees it: what to run, what comes back, and the handle whose drop ends it.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use secrecy::SecretString;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ProviderFailure;

/// Items in flight between a command and its reader; the command waits on its pipe beyond that.
const ITEMS: usize = 16;

/// A command of the agent's user.
#[derive(Clone, Debug, Default)]
pub struct ExecSpec {
    /// Program and arguments; never a shell line.
    pub argv: Vec<String>,
    /// Added to the sandbox's plain environment.
    pub env: BTreeMap<String, String>,
    /// Handed over by the provider's secret channel, to this one command.
    pub secrets: Vec<(String, SecretString)>,
    /// Absolute folder inside the sandbox; empty: the provider's default.
    pub cwd: String,
    /// The whole standard input.
    pub stdin: Bytes,
    /// The process group is killed after this long even if nobody reads.
    pub wall: Option<Duration>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExitReport {
    /// Exit code; -1 when ended by a signal.
    pub code: i32,
    /// Signal number; 0 when none.
    pub signal: i32,
    /// The sandbox's own clock ended it.
    pub timed_out: bool,
}

/// What a command says. The exit is the last item; a stream that ends without it has an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecItem {
    /// Bytes of standard output.
    Stdout(Bytes),
    /// Bytes of standard error.
    Stderr(Bytes),
    /// The end.
    Exit(ExitReport),
}

/// Why a command could not be run or followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// No sandbox answers; only [`super::Provider::observe`] can say whether it is gone.
    #[error("the sandbox does not answer")]
    NoSandbox,
    /// The program or folder does not exist or may not be used.
    #[error("not started: {0}")]
    NotStarted(String),
    /// The request cannot be carried out as it is.
    #[error("invalid command: {0}")]
    Invalid(String),
    /// The provider failed; whether the command ran is not known.
    #[error(transparent)]
    Provider(#[from] ProviderFailure),
}

/// A running command. Dropping it kills the command's whole process group.
#[derive(Debug)]
pub struct Process {
    items: mpsc::Receiver<Result<ExecItem, ExecError>>,
    _alive: DropGuard,
}

/// The adapter's end of a [`Process`].
#[derive(Debug)]
pub struct ProcessSink {
    items: mpsc::Sender<Result<ExecItem, ExecError>>,
    dropped: CancellationToken,
}

/// A process and the sink its adapter feeds.
pub fn process() -> (Process, ProcessSink) {
    let (sender, items) = mpsc::channel(ITEMS);
    let dropped = CancellationToken::new();
    (Process { items, _alive: dropped.clone().drop_guard() }, ProcessSink { items: sender, dropped })
}

impl Process {
    /// The next item; None after the exit, or when the outcome is unknown.
    pub async fn next(&mut self) -> Option<Result<ExecItem, ExecError>> {
        self.items.recv().await
    }
}

impl ProcessSink {
    /// False when nobody reads any more.
    pub async fn send(&self, item: Result<ExecItem, ExecError>) -> bool {
        tokio::select! {
            () = self.dropped.cancelled() => false,
            sent = self.items.send(item) => sent.is_ok(),
        }
    }

    /// Resolves when the process handle was dropped: kill the command.
    pub async fn dropped(&self) {
        self.dropped.cancelled().await;
    }
}
