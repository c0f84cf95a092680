//! The claims a worker holds and how long each is good for, by the worker's own monotonic clock (R5): until the worker's
//! last answered Claim or Extend plus `alive_for`, counted from the moment that request was sent, and never past the
//! action's own deadline. A claim that is over is told to its task at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::task::Task;

/// A claim as its task sees it.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// Row and fence, for reports and secrets.
    pub(crate) run_id: String,
    /// The lease.
    pub(crate) lease_id: String,
    /// Spent by the report.
    pub(crate) fence: i64,
    /// The action's own deadline.
    pub(crate) deadline: Instant,
    alive_until: watch::Receiver<Instant>,
    gone: CancellationToken,
    desire_changed: CancellationToken,
}

impl Claim {
    /// Whether a provider call may be started.
    pub(crate) fn is_live(&self) -> bool {
        !self.gone.is_cancelled() && Instant::now() < self.end()
    }

    fn end(&self) -> Instant {
        (*self.alive_until.borrow()).min(self.deadline)
    }

    /// Resolves when the claim is over: lifecycle said so, or it lapsed. Nothing is reported then.
    pub(crate) async fn over(&self) {
        let mut alive_until = self.alive_until.clone();
        loop {
            let end = self.end();
            tokio::select! {
                () = self.gone.cancelled() => return,
                () = tokio::time::sleep_until(end) => {
                    if Instant::now() >= self.end() {
                        return;
                    }
                }
                changed = alive_until.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Resolves when what is wanted of the lease changed: abort and report what is known.
    pub(crate) async fn desire_changed(&self) {
        self.desire_changed.cancelled().await;
    }

    /// See [`Claim::desire_changed`].
    pub(crate) fn is_unwanted(&self) -> bool {
        self.desire_changed.is_cancelled()
    }
}

/// What lifecycle says about one held fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Go on.
    Held,
    /// Abort and report.
    DesireChanged,
    /// Do nothing at all.
    Gone,
}

/// One row of an Extend request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldRow {
    /// The lease.
    pub(crate) lease_id: String,
    /// Its run.
    pub(crate) run_id: String,
    /// The fence held.
    pub(crate) fence: i64,
}

/// All claims of one worker. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    held: Mutex<HashMap<(String, i64), Claim>>,
    alive_until: watch::Sender<Instant>,
}

impl Default for Claims {
    fn default() -> Self {
        let (alive_until, _) = watch::channel(Instant::now());
        Self { inner: Arc::new(Inner { held: Mutex::default(), alive_until }) }
    }
}

impl Claims {
    /// The worker is alive for `alive_for` from `sent`, when the answered request was sent.
    pub(crate) fn alive(&self, sent: Instant, alive_for: Duration) {
        self.inner.alive_until.send_if_modified(|until| {
            let later = sent + alive_for;
            let moved = later > *until;
            *until = (*until).max(later);
            moved
        });
    }

    /// Takes up a task handed out in answer to a request sent at `sent`.
    pub(crate) fn take(&self, task: &Task, sent: Instant) -> Claim {
        let claim = Claim {
            run_id: task.run_id.clone(),
            lease_id: task.lease_id.clone(),
            fence: task.fence,
            deadline: sent + task.time_left,
            alive_until: self.inner.alive_until.subscribe(),
            gone: CancellationToken::new(),
            desire_changed: CancellationToken::new(),
        };
        self.lock().insert((task.lease_id.clone(), task.fence), claim.clone());
        claim
    }

    /// The task has ended, whatever came of it.
    pub(crate) fn drop_claim(&self, claim: &Claim) {
        self.lock().remove(&(claim.lease_id.clone(), claim.fence));
    }

    /// What the next Extend asks about.
    pub(crate) fn rows(&self) -> Vec<HeldRow> {
        self.lock()
            .values()
            .map(|claim| HeldRow { lease_id: claim.lease_id.clone(), run_id: claim.run_id.clone(), fence: claim.fence })
            .collect()
    }

    /// Applies one answer. About a fence no longer held it says nothing.
    pub(crate) fn answered(&self, lease_id: &str, fence: i64, answer: Answer) {
        let held = self.lock();
        let Some(claim) = held.get(&(lease_id.to_owned(), fence)) else { return };
        match answer {
            Answer::Held => {}
            Answer::DesireChanged => claim.desire_changed.cancel(),
            Answer::Gone => claim.gone.cancel(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, i64), Claim>> {
        self.inner.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::task::Action;

    const SECOND: Duration = Duration::from_secs(1);
    const TICK: Duration = Duration::from_millis(60);

    fn task(fence: i64, time_left: Duration) -> Task {
        Task {
            lease_id: "lease-1".to_owned(),
            run_id: "run-1".to_owned(),
            fence,
            action: Action::Allocate,
            time_left,
            traceparent: String::new(),
            provider: "local".to_owned(),
            key: "berth-k".to_owned(),
            attempt: 1,
            in_doubt: false,
            identity: None,
            image: String::new(),
            repo_url: String::new(),
            repo_ref: String::new(),
            workdir: String::new(),
            hard_deadline: SystemTime::UNIX_EPOCH,
        }
    }

    #[tokio::test]
    async fn a_claim_lapses_with_its_worker_unless_extended() {
        let claims = Claims::default();
        let sent = Instant::now();
        claims.alive(sent, TICK);
        let claim = claims.take(&task(1, SECOND * 60), sent);
        let waiting = tokio::spawn({
            let claim = claim.clone();
            async move { claim.over().await }
        });
        claims.alive(sent, TICK * 5);
        // An earlier request answered late shortens nothing.
        claims.alive(sent, TICK * 2);
        waiting.await.unwrap();
        assert!(sent.elapsed() >= TICK * 5 && !claim.is_live());
    }

    #[tokio::test]
    async fn extending_never_passes_the_deadline() {
        let claims = Claims::default();
        let sent = Instant::now();
        let claim = claims.take(&task(1, TICK), sent);
        claims.alive(sent, SECOND * 60);
        claim.over().await;
        assert!(sent.elapsed() < SECOND * 30 && !claim.is_live());
    }

    #[tokio::test]
    async fn answers_reach_the_claim_they_are_about() {
        let claims = Claims::default();
        let now = Instant::now();
        claims.alive(now, SECOND * 60);
        let (one, two) = (claims.take(&task(1, SECOND * 60), now), claims.take(&task(2, SECOND * 60), now));
        claims.answered("lease-1", 1, Answer::Gone);
        claims.answered("lease-1", 2, Answer::DesireChanged);
        claims.answered("lease-1", 3, Answer::Gone);
        assert!(!one.is_live() && !one.is_unwanted());
        assert!(two.is_live() && two.is_unwanted());
        claims.drop_claim(&one);
        assert_eq!(claims.rows().len(), 1);
    }
}
