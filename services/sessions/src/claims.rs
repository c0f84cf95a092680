//! The claims this worker holds and the heart that keeps them: one Extend a second for all of them.
//!
//! A claim ends when lifecycle says GONE, when its action's deadline passes, or when no Extend was answered for as long as the
//! worker counts as alive; all by our own monotonic clock, counted from the moment a request was sent (rule R5).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_rpc::lifecycle::{
    ExtendRequest, ExtendResponse, Work, extend_request, extend_response::answer::Status as Answered,
};
use berth_rpc::{duration_from_proto, lifecycle::work_service_client::WorkServiceClient};
use berth_serve::peer::ServiceChannel;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::native::Stop;
use crate::upstream::within;

const EXTEND_EVERY: Duration = Duration::from_secs(1);
/// An Extend not answered by then is asked again.
const EXTEND_TIMEOUT: Duration = Duration::from_secs(2);
/// Deadline of work that names none.
const NO_DEADLINE: Duration = Duration::from_secs(24 * 3600);

/// How a claim ended before its work did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Not ours any more: nothing is done, nothing is reported.
    Gone,
    /// Ours, but something else is wanted now: stop and report what is known.
    DesireChanged,
}

/// All claims of one worker.
#[derive(Debug)]
pub(crate) struct Claims {
    worker_id: String,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    alive_until: Option<Instant>,
    rows: HashMap<String, Row>,
}

#[derive(Debug)]
struct Row {
    run_id: String,
    fence: i64,
    ending: watch::Sender<Option<Ending>>,
    messages: Arc<AtomicBool>,
}

/// One claim. Dropping the last clone lets go of it here; lifecycle learns of it by the report.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    claims: Arc<Claims>,
    row_id: String,
    fence: i64,
    deadline: Instant,
    ending: watch::Receiver<Option<Ending>>,
    messages: Arc<AtomicBool>,
}

impl Claims {
    pub(crate) fn new(worker_id: String) -> Arc<Self> {
        Arc::new(Self { worker_id, held: Mutex::default() })
    }

    pub(crate) fn worker_id(&self) -> &str {
        &self.worker_id
    }

    /// Holds what was just claimed; `sent` is when that request left.
    pub(crate) fn hold(self: &Arc<Self>, work: &Work, sent: Instant) -> Claim {
        let (tell, ending) = watch::channel(None);
        let messages = Arc::new(AtomicBool::new(false));
        let row = Row { run_id: work.run_id.clone(), fence: work.fence, ending: tell, messages: messages.clone() };
        self.lock().rows.insert(work.row_id.clone(), row);
        let left = work.time_left.as_ref().map_or(NO_DEADLINE, duration_from_proto);
        let (claims, row_id, fence) = (self.clone(), work.row_id.clone(), work.fence);
        Claim { shared: Arc::new(Shared { claims, row_id, fence, deadline: sent + left, ending, messages }) }
    }

    /// The worker was told that it counts as alive for `alive_for` from `sent`.
    pub(crate) fn alive(&self, sent: Instant, alive_for: Option<&prost_types::Duration>) {
        let until = sent + alive_for.map_or(Duration::ZERO, duration_from_proto);
        let mut held = self.lock();
        held.alive_until = held.alive_until.max(Some(until));
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.lock().alive_until.is_some_and(|until| Instant::now() < until)
    }

    /// Extends every second until `stop`.
    pub(crate) async fn keep(self: Arc<Self>, work: WorkServiceClient<ServiceChannel>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(EXTEND_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let lapse = self.lapse();
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => self.extend(&work, lapse).await,
                () = tokio::time::sleep_until(lapse.unwrap_or_else(Instant::now)), if lapse.is_some() => {}
            }
            self.let_lapsed_go();
        }
    }

    /// One Extend; an answer later than `lapse` no longer helps.
    pub(crate) async fn extend(&self, work: &WorkServiceClient<ServiceChannel>, lapse: Option<Instant>) {
        let held = {
            let held = self.lock();
            let fences = held.rows.iter().map(|(row_id, row)| extend_request::Held {
                row_id: row_id.clone(),
                run_id: row.run_id.clone(),
                fence: row.fence,
            });
            fences.collect()
        };
        let sent = Instant::now();
        let limit = lapse.map_or(EXTEND_TIMEOUT, |at| at.saturating_duration_since(sent).min(EXTEND_TIMEOUT));
        let request = ExtendRequest { worker_id: self.worker_id.clone(), held };
        match within(limit, work.clone().extend(request)).await {
            Ok(answer) => self.answered(sent, answer),
            Err(status) => tracing::debug!(code = ?status.code(), "extend not answered"),
        }
    }

    fn answered(&self, sent: Instant, response: ExtendResponse) {
        self.alive(sent, response.alive_for.as_ref());
        let held = self.lock();
        for answer in response.answers {
            let Some(row) = held.rows.get(&answer.row_id).filter(|row| row.fence == answer.fence) else { continue };
            match answer.status() {
                Answered::Held | Answered::Unspecified => {}
                Answered::DesireChanged => {
                    row.ending
                        .send_if_modified(|ending| ending.is_none() && ending.replace(Ending::DesireChanged).is_none());
                }
                Answered::Gone => {
                    row.ending.send_replace(Some(Ending::Gone));
                }
            }
            if !answer.messages.is_empty() {
                row.messages.store(true, Ordering::Relaxed);
            }
        }
    }

    /// When the worker stops counting as alive, if it holds anything.
    fn lapse(&self) -> Option<Instant> {
        let held = self.lock();
        held.alive_until.filter(|_| !held.rows.is_empty())
    }

    fn let_lapsed_go(&self) {
        let mut held = self.lock();
        if held.rows.is_empty() || held.alive_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        tracing::warn!(claims = held.rows.len(), "no extend was answered in time, letting go");
        for (_, row) in held.rows.drain() {
            row.ending.send_replace(Some(Ending::Gone));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// Waits until the claim ends; never returns for one that lives as long as its work.
    pub(crate) async fn ended(&self) -> Ending {
        let mut ending = self.shared.ending.clone();
        let told = async move {
            match ending.wait_for(Option::is_some).await {
                Ok(ending) => ending.unwrap_or(Ending::Gone),
                Err(_) => Ending::Gone,
            }
        };
        tokio::select! {
            ending = told => ending,
            () = tokio::time::sleep_until(self.shared.deadline) => Ending::Gone,
        }
    }

    /// When the action's own time is over.
    pub(crate) fn deadline(&self) -> Instant {
        self.shared.deadline
    }

    /// Asked right before an effect.
    pub(crate) fn ensure_live(&self) -> Result<(), Stop> {
        let wanted = self.shared.ending.borrow().is_none();
        if wanted && self.is_held() { Ok(()) } else { Err(Stop::Lost) }
    }

    /// Whether a report may still be made: also of work that is wanted no more.
    pub(crate) fn is_held(&self) -> bool {
        let gone = *self.shared.ending.borrow() == Some(Ending::Gone);
        !gone && Instant::now() < self.shared.deadline && self.shared.claims.is_alive()
    }

    /// Whether an Extend said that messages wait, once.
    pub(crate) fn take_message_hint(&self) -> bool {
        self.shared.messages.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut held = self.claims.lock();
        if held.rows.get(&self.row_id).is_some_and(|row| row.fence == self.fence) {
            held.rows.remove(&self.row_id);
        }
    }
}
