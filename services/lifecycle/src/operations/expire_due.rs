//! Time passes (R10): claims whose worker died or whose deadline passed end, deadlines fire. Every replica runs this every
//! second through the same transactions as everything else; a run that another transaction holds is skipped.

use std::time::Duration;

use berth_domain::{aggregate::Trigger, id::RunId, lease, session};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{
    Lifecycle,
    error::Error,
    store::{Changes, Decision, Lives, Loaded},
};

/// Rows looked at in one round, of each kind.
const PER_ROUND: u32 = 200;
/// Rounds between two removals of long gone workers.
const ROUNDS_PER_SWEEP: u64 = 3600;

/// The longest time between two checkpoints of the database, and the shortest.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(600);
const CHECKPOINT_APART: Duration = Duration::from_secs(60);

/// Runs rounds until the shutdown.
pub(crate) async fn run(app: Lifecycle) {
    let mut every = interval(app.config.expire_every);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rounds: u64 = 0;
    let mut checkpoint = Instant::now();
    loop {
        tokio::select! {
            _ = every.tick() => {}
            () = app.shutdown.cancelled() => return,
        }
        let started = Instant::now();
        if let Err(error) = expire_due(&app).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "expiry round failed");
        }
        if rounds.is_multiple_of(ROUNDS_PER_SWEEP)
            && let Err(error) = app.store.forget_workers().await
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "old workers not removed");
        }
        rounds += 1;
        let since = checkpoint.elapsed();
        if since >= CHECKPOINT_EVERY || since >= CHECKPOINT_APART && app.store.owes_checkpoint() {
            checkpoint = Instant::now();
            if let Err(error) = app.store.checkpoint().await {
                tracing::warn!(error = &error as &dyn std::error::Error, "database not checkpointed");
            }
        }
        let took = started.elapsed();
        if took > app.config.expire_every {
            tracing::warn!(took_ms = took.as_millis() as u64, "expiry round is slow");
        }
    }
}

/// One bounded round.
///
/// # Errors
/// A failed look for candidates; a run that fails is logged and does not keep the others.
pub(crate) async fn expire_due(app: &Lifecycle) -> Result<(), Error> {
    let lapsed = app.store.lapsed_claims(PER_ROUND).await?;
    let mut runs: Vec<RunId> = lapsed.into_iter().map(|due| due.run_id).collect();
    runs.extend(app.store.overdue_runs(PER_ROUND).await?);
    runs.sort();
    runs.dedup();
    for run_id in runs {
        if app.shutdown.is_cancelled() {
            break;
        }
        if let Err(error) = app.store.expire(&run_id, decide).await {
            tracing::warn!(%run_id, error = &error as &dyn std::error::Error, "expiry failed");
        }
    }
    Ok(())
}

fn decide(loaded: &Loaded, lives: &Lives) -> Result<Decision<()>, Error> {
    let mut changes = Changes { actor: "lifecycle".to_owned(), ..Changes::default() };
    for lease in &loaded.aggregate.leases {
        let Some(claim) = &lease.claim else { continue };
        let claim_end = claim.deadline.min(lives.alive_until(&claim.worker));
        if claim_end <= loaded.now {
            let expired = lease::Trigger::ClaimExpired { fence: lease.fence, claim_end };
            unless_over(loaded.apply(&mut changes, &Trigger::Lease(lease.id.clone(), expired)))?;
        }
    }
    let session = &loaded.aggregate.session;
    if let Some(claim) = &session.claim {
        let claim_end = claim.deadline.min(lives.alive_until(&claim.worker));
        if claim_end <= loaded.now {
            let expired = session::Trigger::ClaimExpired { fence: session.fence, claim_end };
            unless_over(loaded.apply(&mut changes, &Trigger::Session(expired)))?;
        }
    }
    loaded.apply(&mut changes, &Trigger::Tick)?;
    if changes.next.is_none() {
        // Nothing was due after all: written again so that the moment of the next look is.
        tracing::debug!(run_id = %loaded.run_id(), "a look that changed nothing");
        changes.next = Some(Box::new(loaded.aggregate.clone()));
    }
    Ok(Decision::changed((), changes))
}

/// One of the triggers before may have ended the claim already.
fn unless_over(applied: Result<bool, Error>) -> Result<(), Error> {
    match applied {
        Ok(_) | Err(Error::Stale { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
