//! Appends of launches to their logs, grouped: while one transaction commits, the appends that arrive meanwhile gather and
//! go into the next one together. Each is judged by itself and fails alone. A lone append never waits for company.

use std::sync::{Arc, Mutex, PoisonError};

use berth_domain::id::{RunId, SessionId};
use tokio::sync::oneshot;

use super::{
    Decision, Loaded, NewEvent, Store, StoreError, events,
    load::Lock,
    transact::{UnitOfWork, backoff},
};
use crate::error::Error;

/// Appends in one transaction.
const GROUP: usize = 64;
/// Appends that may wait; more are told to come back.
const BACKLOG: usize = 1024;
/// Tries of an append that keeps losing races.
const TRIES: u32 = 8;

/// A batch of events of one launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Append {
    /// The run.
    pub run_id: RunId,
    /// Its session.
    pub session_id: SessionId,
    /// The claim it is appended under.
    pub fence: u64,
    /// The launch that numbered the events.
    pub launch: u32,
    /// In ascending `launch_sequence`.
    pub events: Vec<NewEvent>,
}

/// What an append came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The log's number of the last event of the batch.
    pub last_sequence: u64,
    /// Messages waiting for the session.
    pub queued_messages: u32,
}

/// The run as an append finds it.
#[derive(Debug)]
pub struct LogHead<'a> {
    /// The run, locked.
    pub loaded: &'a Loaded,
    /// The newest `launch_sequence` the launch has logged.
    pub launch_sequence: u64,
    /// The log's number of the batch's last event, when that is logged already.
    pub logged_as: Option<u64>,
}

/// Judges one append; pure.
pub type Judge = fn(&LogHead<'_>, &Append) -> Result<Decision<Appended>, Error>;

/// Appends that wait for the next transaction.
#[derive(Debug, Default)]
pub(super) struct Grouping {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Waiting>,
    /// A task is committing or about to.
    running: bool,
}

#[derive(Debug)]
struct Waiting {
    append: Append,
    judge: Judge,
    answer: oneshot::Sender<Result<Appended, Error>>,
}

impl Store {
    /// Appends a batch; `judge` decides in the append's own part of a shared transaction.
    ///
    /// # Errors
    /// Whatever `judge` refuses with; RESOURCE_EXHAUSTED (APPEND_BACKLOG) when too many are waiting already.
    pub async fn append(&self, append: Append, judge: Judge) -> Result<Appended, Error> {
        let (answer, answered) = oneshot::channel();
        let start = {
            let mut state = self.inner.appends.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.waiting.len() >= BACKLOG {
                return Err(Error::Exhausted {
                    reason: "APPEND_BACKLOG",
                    message: "too many appends are waiting; try again".to_owned(),
                });
            }
            state.waiting.push(Waiting { append, judge, answer });
            !std::mem::replace(&mut state.running, true)
        };
        if start {
            // In a task of its own: a caller that goes away must not take the others' appends with it.
            let store = Store { inner: Arc::clone(&self.inner) };
            tokio::spawn(async move { store.work_off_appends().await });
        }
        answered.await.unwrap_or_else(|_| Err(Error::Internal("the append task ended".to_owned())))
    }

    async fn work_off_appends(&self) {
        loop {
            // Those that were woken together join the same group.
            tokio::task::yield_now().await;
            let group: Vec<Waiting> = {
                let mut state = self.inner.appends.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.waiting.is_empty() {
                    state.running = false;
                    return;
                }
                let size = state.waiting.len().min(GROUP);
                state.waiting.drain(..size).collect()
            };
            self.append_group(group).await;
        }
    }

    /// One transaction for all; whoever cannot be served in it is served alone.
    async fn append_group(&self, group: Vec<Waiting>) {
        let (settled, alone) = match self.try_group(&group).await {
            Ok(outcomes) => {
                let mut settled = Vec::with_capacity(group.len());
                let mut alone = Vec::new();
                for (waiting, outcome) in group.into_iter().zip(outcomes) {
                    match outcome {
                        Some(outcome) => settled.push((waiting, outcome)),
                        None => alone.push(waiting),
                    }
                }
                (settled, alone)
            }
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "append group failed; each goes alone");
                (Vec::new(), group)
            }
        };
        for (waiting, outcome) in settled {
            let _ = waiting.answer.send(outcome);
        }
        // A caller that has gone away is not waited for; its append is done all the same.
        let alone = alone.into_iter().map(|waiting| async move {
            let outcome = self.append_alone(&waiting.append, waiting.judge).await;
            let _ = waiting.answer.send(outcome);
        });
        futures::future::join_all(alone).await;
    }

    /// The outcome per append; None for one whose run is held by another transaction.
    async fn try_group(&self, group: &[Waiting]) -> Result<Vec<Option<Result<Appended, Error>>>, StoreError> {
        let mut work = self.begin_work().await?;
        let mut outcomes = Vec::with_capacity(group.len());
        for waiting in group {
            work.tx.execute("SAVEPOINT one_append", vec![]).await?;
            let outcome = append_in(&mut work, &waiting.append, waiting.judge, Lock::Skip).await;
            match &outcome {
                Ok(_) => work.tx.execute("RELEASE SAVEPOINT one_append", vec![]).await?,
                Err(_) => work.tx.execute("ROLLBACK TO SAVEPOINT one_append", vec![]).await?,
            };
            outcomes.push(match outcome {
                Ok(Some(appended)) => Some(Ok(appended)),
                Ok(None) => None,
                Err(Error::Store(error)) if error.is_retriable() => None,
                Err(error) => Some(Err(error)),
            });
        }
        work.commit().await?;
        Ok(outcomes)
    }

    async fn append_alone(&self, append: &Append, judge: Judge) -> Result<Appended, Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.append_once(append, judge).await {
                Err(Error::Store(error)) if error.is_retriable() && tries < TRIES => backoff(tries).await,
                outcome => return outcome,
            }
        }
    }

    async fn append_once(&self, append: &Append, judge: Judge) -> Result<Appended, Error> {
        let mut work = self.begin_work().await?;
        let appended = append_in(&mut work, append, judge, Lock::Wait).await?.ok_or(Error::run_not_found())?;
        work.commit().await?;
        Ok(appended)
    }
}

async fn append_in(
    work: &mut UnitOfWork<'_>,
    append: &Append,
    judge: Judge,
    lock: Lock,
) -> Result<Option<Appended>, Error> {
    let Some(loaded) = work.load(&append.run_id, lock).await? else { return Ok(None) };
    let launch_sequence = events::launch_head(&mut work.tx, &append.run_id, append.launch).await?;
    let logged_as = match append.events.last() {
        Some(last) if last.launch_sequence <= launch_sequence => {
            events::logged_as(&mut work.tx, &append.run_id, append.launch, last.launch_sequence).await?
        }
        Some(_) | None => None,
    };
    let decision = judge(&LogHead { loaded: &loaded, launch_sequence, logged_as }, append)?;
    work.write(&loaded, decision.changes).await?;
    Ok(Some(decision.reply))
}
