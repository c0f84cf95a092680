//! Graceful shutdown: stop accepting, end streams, finish operations, flush traces, with one deadline.

use std::{future::Future, time::Duration};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long a service may take to finish what it began.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Background work of a process and the signal that ends it. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    token: CancellationToken,
    tasks: TaskTracker,
}

impl Shutdown {
    /// Nothing running, not shutting down.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when shutdown begins.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Runs a task that is waited for at shutdown; it must watch [`Shutdown::token`].
    pub fn spawn<F>(&self, task: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tasks.spawn(task)
    }

    /// Begins the shutdown and waits for the tasks; true when all ended within `deadline`.
    pub async fn finish(&self, deadline: Duration) -> bool {
        self.token.cancel();
        self.tasks.close();
        tokio::time::timeout(deadline, self.tasks.wait()).await.is_ok()
    }
}

/// Waits for SIGTERM, SIGINT or SIGHUP (a closed terminal).
///
/// # Errors
/// When the signal handlers cannot be installed.
pub async fn signalled() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}
