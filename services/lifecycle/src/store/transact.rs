//! `transact(load, decide)`: the one way a run changes.

use berth_domain::{
    aggregate::{Aggregate, Transition},
    id::RunId,
};
use berth_events::Hint;
use prost::Message as _;

use super::{
    Decision, Loaded, NewEvent, Store, StoreError,
    engine::Tx,
    load::{self, Lock},
    write::{self, Written},
};
use crate::error::Error;

/// Tries of a transaction that keeps losing races before the caller is told UNAVAILABLE.
const TRIES: u32 = 8;
/// Events up to this size travel on the bus.
const HINTED_BYTES: usize = 64 << 10;

impl Store {
    /// Locks and loads the run, runs `decide` over it, writes what it returns, commits, publishes. `decide` is pure: it may
    /// run again when the transaction lost a race.
    ///
    /// # Errors
    /// NOT_FOUND for an unknown run; whatever `decide` refuses with, in which case nothing was written.
    pub async fn transact<R, D>(&self, run_id: &RunId, mut decide: D) -> Result<R, Error>
    where
        D: FnMut(&Loaded) -> Result<Decision<R>, Error> + Send,
        R: Send,
    {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.transact_once(run_id, &mut decide).await {
                Err(Error::Store(error)) if error.is_retriable() && tries < TRIES => {
                    tracing::debug!(%run_id, tries, "transaction lost a race");
                    backoff(tries).await;
                }
                outcome => return outcome.map(|(reply, _)| reply),
            }
        }
    }

    /// [`Store::transact`], and the run as the transaction left it.
    ///
    /// # Errors
    /// As [`Store::transact`].
    pub async fn transact_run<R, D>(&self, run_id: &RunId, mut decide: D) -> Result<(R, Loaded), Error>
    where
        D: FnMut(&Loaded) -> Result<Decision<R>, Error> + Send,
        R: Send,
    {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.transact_once(run_id, &mut decide).await {
                Err(Error::Store(error)) if error.is_retriable() && tries < TRIES => backoff(tries).await,
                outcome => return outcome,
            }
        }
    }

    async fn transact_once<R, D>(&self, run_id: &RunId, decide: &mut D) -> Result<(R, Loaded), Error>
    where
        D: FnMut(&Loaded) -> Result<Decision<R>, Error> + Send,
        R: Send,
    {
        let mut work = self.begin_work().await?;
        let loaded = work.load(run_id, Lock::Wait).await?.ok_or(Error::run_not_found())?;
        let Decision { reply, changes } = decide(&loaded)?;
        let mut after = loaded.with(&changes);
        let (last_seq, transition_seq) = work.write(&loaded, changes).await?;
        (after.record.last_seq, after.record.transition_seq) = (last_seq, transition_seq);
        if let Some(change_seq) = work.commit().await? {
            after.record.change_seq = change_seq;
        }
        Ok((reply, after))
    }

    /// The run as it is now, without a lock.
    pub async fn read(&self, run_id: &RunId) -> Result<Option<Loaded>, StoreError> {
        let mut tx = self.begin_read().await?;
        let now = self.now(&mut tx).await?;
        load::run(&mut tx, run_id, now).await
    }

    pub(super) async fn begin_work(&self) -> Result<UnitOfWork<'_>, StoreError> {
        Ok(UnitOfWork { store: self, tx: self.begin().await?, written: Vec::new() })
    }
}

/// A writing transaction over one run, or over several for the expiry and append rounds (then in ascending order of run id).
pub(super) struct UnitOfWork<'s> {
    store: &'s Store,
    pub(super) tx: Tx,
    written: Vec<Written>,
}

impl UnitOfWork<'_> {
    /// The run, locked; None when unknown, or held by another transaction and `lock` says to skip it.
    pub(super) async fn load(&mut self, run_id: &RunId, lock: Lock) -> Result<Option<Loaded>, StoreError> {
        if !load::lock(&mut self.tx, run_id, lock).await? {
            return Ok(None);
        }
        // Read after the lock was won, so that no later transaction on this run can see an earlier moment.
        let now = self.store.now(&mut self.tx).await?;
        load::run(&mut self.tx, run_id, now).await
    }

    /// Writes one run's changes; the last numbers of its log and its timeline.
    pub(super) async fn write(&mut self, loaded: &Loaded, changes: super::Changes) -> Result<(u64, u64), StoreError> {
        let written = write::changes(&mut self.tx, loaded, changes).await?;
        let last = (written.last_seq, written.transition_seq);
        self.written.push(written);
        Ok(last)
    }

    /// Writes everything that hangs on a run whose own row was just inserted.
    pub(super) async fn write_created(
        &mut self,
        aggregate: &Aggregate,
        transitions: &[Transition],
        events: Vec<NewEvent>,
        actor: &str,
    ) -> Result<(), StoreError> {
        let written = write::created(&mut self.tx, aggregate, transitions, events, actor).await?;
        self.written.push(written);
        Ok(())
    }

    /// Takes the change cursors, commits, publishes hints; the last cursor taken.
    pub(super) async fn commit(mut self) -> Result<Option<u64>, StoreError> {
        let mut hints = Vec::new();
        let mut last = None;
        let erased = self.written.iter().any(|written| written.erased);
        self.written.sort_by(|a, b| a.tenant.cmp(&b.tenant));
        for written in self.written {
            if written.visible {
                let change_seq = write::take_change_seq(&mut self.tx, &written).await?;
                last = Some(change_seq.unsigned_abs());
                hints.push(Hint::Run { run_id: written.run_id.to_string(), change_seq });
            }
            hints.extend(written.queues.into_iter().map(Hint::Work));
            // A large event is left to the readers' gap or poll: the bus holds thousands of hints.
            let small = written.events.into_iter().filter(|event| event.encoded_len() <= HINTED_BYTES);
            hints.extend(small.map(|event| Hint::Event(Box::new(event))));
        }
        self.tx.commit().await?;
        if erased {
            self.store.note_erased();
        }
        for hint in hints {
            self.store.bus().publish(hint);
        }
        Ok(last)
    }
}

/// A short wait that grows; the lock holder needs a moment.
pub(super) async fn backoff(tries: u32) {
    let jitter = u64::from(rand::random::<u8>()) / 16;
    tokio::time::sleep(std::time::Duration::from_millis(u64::from(tries) * 5 + jitter)).await;
}
