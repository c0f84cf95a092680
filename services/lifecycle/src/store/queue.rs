//! The rows as a queue: which are due, which claims have ended, which runs want a tick. Candidates are found without a lock;
//! each is then judged again in a transaction of its own, which skips runs that another transaction holds.

use std::collections::HashMap;

use berth_domain::{
    aggregate::Aggregate,
    id::{RunId, WorkerId},
    time::Time,
};

use super::{
    Decision, Loaded, Store, StoreError, Worker,
    engine::{Row, args},
    load::Lock,
    workers,
};
use crate::error::Error;

/// A row that seems due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Lease or session id.
    pub row_id: String,
    /// Its run.
    pub run_id: RunId,
}

/// What a broker can take of the lease queue for one provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseDemand<'a> {
    /// The provider.
    pub provider: &'a str,
    /// Only leases of which no sandbox can exist yet, or asked for or made under one of these scopes; None: any.
    pub localities: Option<&'a [String]>,
    /// How many.
    pub limit: u32,
}

impl Store {
    /// Due rows of the lease queue, the longest due first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn due_leases(&self, demand: &LeaseDemand<'_>) -> Result<Vec<Due>, StoreError> {
        let mut tx = self.begin_read().await?;
        let now = self.now(&mut tx).await?;
        // Rows of other hosts are few; they are passed over here rather than in SQL.
        let rows = tx
            .rows(
                "SELECT lease_id AS row_id, run_id, scope FROM leases
                 WHERE provider = $1 AND next_action_at <= $2 AND claimed_by IS NULL
                 ORDER BY next_action_at LIMIT 1000",
                args![demand.provider, now],
            )
            .await?;
        let mut due = Vec::new();
        for row in rows {
            let reachable = match (demand.localities, row.opt_text("scope")?) {
                (Some(localities), Some(scope)) => localities.contains(&scope),
                (None, _) | (_, None) => true,
            };
            if reachable && due.len() < demand.limit as usize {
                due.extend(readable(&row));
            }
        }
        Ok(due)
    }

    /// Due rows of the session queue, the longest due first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn due_sessions(&self, limit: u32) -> Result<Vec<Due>, StoreError> {
        let mut tx = self.begin_read().await?;
        let now = self.now(&mut tx).await?;
        let rows = tx
            .rows(
                "SELECT session_id AS row_id, run_id FROM sessions
                 WHERE next_action_at <= $1 AND claimed_by IS NULL ORDER BY next_action_at LIMIT $2",
                args![now, limit],
            )
            .await?;
        Ok(rows.iter().filter_map(readable).collect())
    }

    /// Rows whose claim seems over: the action's deadline passed, or its worker is dead.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn lapsed_claims(&self, limit: u32) -> Result<Vec<Due>, StoreError> {
        let mut tx = self.begin_read().await?;
        let now = self.now(&mut tx).await?;
        let mut lapsed = Vec::new();
        for sql in [
            "SELECT lease_id AS row_id, run_id FROM leases
             WHERE claimed_by IS NOT NULL
               AND (claim_deadline <= $1
                    OR NOT EXISTS (SELECT 1 FROM workers WHERE worker_id = claimed_by AND alive_until > $1))
             LIMIT $2",
            "SELECT session_id AS row_id, run_id FROM sessions
             WHERE claimed_by IS NOT NULL
               AND (claim_deadline <= $1
                    OR NOT EXISTS (SELECT 1 FROM workers WHERE worker_id = claimed_by AND alive_until > $1))
             LIMIT $2",
        ] {
            for row in tx.rows(sql, args![now, limit]).await? {
                lapsed.extend(readable(&row));
            }
        }
        Ok(lapsed)
    }

    /// Runs with a deadline that has passed, the longest passed first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn overdue_runs(&self, limit: u32) -> Result<Vec<RunId>, StoreError> {
        let mut tx = self.begin_read().await?;
        let now = self.now(&mut tx).await?;
        tx.rows("SELECT run_id FROM runs WHERE tick_at <= $1 ORDER BY tick_at LIMIT $2", args![now, limit])
            .await?
            .iter()
            .map(|row| parse_run_id(&row.text("run_id")?))
            .collect()
    }

    /// Runs `decide` over a run to mark one of its rows for `worker`, whose life is renewed in the same transaction. None
    /// when another transaction holds the run, or `decide` found nothing to claim any more.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn claim<R, D>(
        &self,
        run_id: &RunId,
        (worker, alive): (&Worker, std::time::Duration),
        mut decide: D,
    ) -> Result<Option<R>, Error>
    where
        D: FnMut(&Loaded) -> Result<Decision<Option<R>>, Error> + Send,
        R: Send,
    {
        let mut work = self.begin_work().await?;
        let Some(loaded) = work.load(run_id, Lock::Skip).await? else { return Ok(None) };
        let Decision { reply, changes } = decide(&loaded)?;
        work.write(&loaded, changes).await?;
        if reply.is_some() {
            workers::register(&mut work.tx, worker, loaded.now.plus(alive)).await?;
        }
        work.commit().await?;
        Ok(reply)
    }

    /// Runs `decide` over a run together with the life of every worker that holds one of its rows. Those workers cannot
    /// renew themselves meanwhile. False when another transaction holds the run.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn expire<D>(&self, run_id: &RunId, mut decide: D) -> Result<bool, Error>
    where
        D: FnMut(&Loaded, &Lives) -> Result<Decision<()>, Error> + Send,
    {
        let mut work = self.begin_work().await?;
        let Some(loaded) = work.load(run_id, Lock::Skip).await? else { return Ok(false) };
        let mut holders = holders(&loaded.aggregate);
        // Always in the same order, so that two replicas never wait for one another.
        holders.sort();
        holders.dedup();
        let mut lives = Lives::default();
        for worker in holders {
            let alive_until = workers::lock_life(&mut work.tx, worker.as_str()).await?;
            lives.0.insert(worker, alive_until);
        }
        let decision = decide(&loaded, &lives)?;
        work.write(&loaded, decision.changes).await?;
        work.commit().await?;
        Ok(true)
    }
}

/// Until when the holders of a run's rows live.
#[derive(Clone, Debug, Default)]
pub struct Lives(HashMap<WorkerId, Time>);

impl Lives {
    /// Until when; long past for a worker nobody knows.
    pub fn alive_until(&self, worker: &WorkerId) -> Time {
        self.0.get(worker).copied().unwrap_or(Time(0))
    }
}

fn holders(aggregate: &Aggregate) -> Vec<WorkerId> {
    let leases = aggregate.leases.iter().filter_map(|lease| lease.claim.as_ref()).map(|claim| claim.worker.clone());
    let session = aggregate.session.claim.as_ref().map(|claim| claim.worker.clone());
    leases.chain(session).collect()
}

/// A row that cannot be read is logged and passed over: it must not keep the others waiting.
fn readable(row: &Row) -> Option<Due> {
    read_due(row)
        .inspect_err(|error| tracing::error!(error = error as &dyn std::error::Error, "a queue row cannot be read"))
        .ok()
}

fn read_due(row: &Row) -> Result<Due, StoreError> {
    Ok(Due { row_id: row.text("row_id")?, run_id: parse_run_id(&row.text("run_id")?)? })
}

fn parse_run_id(text: &str) -> Result<RunId, StoreError> {
    RunId::parse(text).map_err(|error| StoreError::Unknown(error.to_string()))
}
