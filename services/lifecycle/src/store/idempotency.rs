//! Creating a run: run, lease, session, first message, first events and the idempotency record in one transaction
//! (a crash leaves all of it or nothing).

use std::time::Duration;

use berth_domain::{
    aggregate::{self, Aggregate},
    id::RunId,
    run::State,
    time::Time,
};
use berth_rpc::lifecycle as proto;

use super::{
    Loaded, NewEvent, Progress, RunSpec, Store, StoreError,
    audit::{self, AuditEntry},
    engine::{Tx, args},
    load,
    transact::backoff,
    write,
};
use crate::error::Error;

/// How long a key answers with the run it made.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// Expired records removed with each create that brings a key.
const SWEPT_PER_CREATE: i64 = 20;

/// A run about to be made.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// What the machines need to know.
    pub domain: aggregate::CreateSpec,
    /// Who asks.
    pub principal: String,
    /// W3C traceparent of the call; may be empty.
    pub traceparent: String,
    /// The request.
    pub spec: RunSpec,
    /// Lines for the audit trail.
    pub audit: Vec<AuditEntry>,
}

/// The key under which a create may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Keys of different tenants never meet.
    pub tenant: String,
    /// RPC name.
    pub method: &'static str,
    /// Chosen by the client.
    pub key: String,
    /// Hash of the canonical request.
    pub request_hash: Vec<u8>,
}

/// What a create came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Created {
    /// The run was made now.
    New(Box<Loaded>),
    /// The run an earlier request with this key made.
    Replayed(Box<Loaded>),
}

impl Store {
    /// Makes a run, or finds the one an earlier request with the same key made.
    ///
    /// # Errors
    /// ALREADY_EXISTS (IDEMPOTENCY_KEY_REUSED) for the same key with another request; NOT_FOUND for a key whose run is DELETED.
    pub async fn create(&self, new: &NewRun, key: Option<&IdempotencyKey>) -> Result<Created, Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.create_once(new, key).await {
                Err(Error::Store(error)) if (error.is_retriable() || error.is_constraint()) && tries < 4 => {
                    backoff(tries).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// The run an earlier request with this key made, if the key is known and still kept.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub async fn replay(&self, key: &IdempotencyKey) -> Result<Option<Box<Loaded>>, Error> {
        let mut tx = self.begin_read().await?;
        let now = self.now(&mut tx).await?;
        find(&mut tx, key, now).await
    }

    async fn create_once(&self, new: &NewRun, key: Option<&IdempotencyKey>) -> Result<Created, Error> {
        let mut work = self.begin_work().await?;
        let now = self.now(&mut work.tx).await?;
        if let Some(key) = key {
            sweep(&mut work.tx, now).await?;
            if let Some(known) = find(&mut work.tx, key, now).await? {
                return Ok(Created::Replayed(known));
            }
        }
        let (aggregate, transitions, _notes) = aggregate::create(new.domain.clone(), now, &mut uuid::Uuid::now_v7);
        let run_id = aggregate.run.id.clone();
        insert_run(&mut work.tx, new, &aggregate, now).await?;
        let mut events = prompt_events(new, &aggregate, now);
        events.extend(write::state_events(&transitions, &aggregate));
        work.write_created(&aggregate, &transitions, events, &new.principal).await?;
        for entry in &new.audit {
            audit::insert(&mut work.tx, entry, now).await?;
        }
        if let Some(key) = key {
            insert_key(&mut work.tx, key, &run_id, now).await?;
        }
        let loaded = load::run(&mut work.tx, &run_id, now).await?;
        let mut loaded = loaded.ok_or_else(|| Error::Internal("a created run is missing".to_owned()))?;
        loaded.record.change_seq = work.commit().await?.unwrap_or_default();
        Ok(Created::New(Box::new(loaded)))
    }
}

async fn insert_run(tx: &mut Tx, new: &NewRun, aggregate: &Aggregate, now: Time) -> Result<(), StoreError> {
    let run = &aggregate.run;
    tx.execute(
        "INSERT INTO runs (run_id, tenant, state, principal, traceparent, prompt, spec, doc, progress, result, last_seq,
                           transition_seq, change_seq, tick_at, created_at, updated_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, NULL, 0, 0, 0, $10, $11, $11)",
        args![
            run.id.as_str(),
            run.tenant.as_str(),
            run.state.as_str(),
            new.principal.as_str(),
            new.traceparent.as_str(),
            new.domain.prompt.as_str(),
            write::document(&new.spec)?,
            write::document(run)?,
            write::document(&Progress::default())?,
            aggregate::due(aggregate, now),
            now
        ],
    )
    .await?;
    Ok(())
}

/// Event 1 is the prompt.
fn prompt_events(new: &NewRun, aggregate: &Aggregate, now: Time) -> Vec<NewEvent> {
    let first = aggregate.session.messages.first();
    first
        .map(|message| NewEvent {
            launch: 0,
            launch_sequence: 0,
            at: now,
            payload: proto::event::Payload::UserMessage(proto::UserMessage {
                message_id: message.id.to_string(),
                text: new.domain.prompt.clone(),
                principal: new.principal.clone(),
            }),
        })
        .into_iter()
        .collect()
}

async fn find(tx: &mut Tx, key: &IdempotencyKey, now: Time) -> Result<Option<Box<Loaded>>, Error> {
    let row = tx
        .row(
            "SELECT request_hash, run_id, created_at FROM idempotency WHERE tenant = $1 AND method = $2 AND key = $3",
            args![key.tenant.as_str(), key.method, key.key.as_str()],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    if now.since(row.time("created_at")?) >= KEPT {
        return Ok(None);
    }
    if row.bytes("request_hash")? != key.request_hash {
        return Err(Error::Exists {
            reason: "IDEMPOTENCY_KEY_REUSED",
            message: "this idempotency key was used for another request".to_owned(),
        });
    }
    let run_id = RunId::parse(&row.text("run_id")?).map_err(|error| StoreError::Unknown(error.to_string()))?;
    match load::run(tx, &run_id, now).await? {
        // Never a new run, and no trace of the old one.
        Some(loaded) if loaded.aggregate.run.state == State::Deleted => Err(Error::run_not_found()),
        Some(loaded) => Ok(Some(Box::new(loaded))),
        None => Err(Error::run_not_found()),
    }
}

/// Two requests with one key race for this row; the loser's transaction is run again and finds the winner's.
async fn insert_key(tx: &mut Tx, key: &IdempotencyKey, run_id: &RunId, now: Time) -> Result<(), StoreError> {
    // An expired record of the same key may still be there.
    tx.execute(
        "DELETE FROM idempotency WHERE tenant = $1 AND method = $2 AND key = $3 AND created_at <= $4",
        args![key.tenant.as_str(), key.method, key.key.as_str(), kept_since(now)],
    )
    .await?;
    tx.execute(
        "INSERT INTO idempotency (tenant, method, key, request_hash, run_id, created_at) VALUES ($1, $2, $3, $4, $5, $6)",
        args![
            key.tenant.as_str(),
            key.method,
            key.key.as_str(),
            key.request_hash.clone(),
            run_id.as_str(),
            now
        ],
    )
    .await?;
    Ok(())
}

/// Removes a bounded number of expired records.
async fn sweep(tx: &mut Tx, now: Time) -> Result<(), StoreError> {
    tx.execute(
        "DELETE FROM idempotency WHERE (tenant, method, key) IN
           (SELECT tenant, method, key FROM idempotency WHERE created_at <= $1 ORDER BY created_at LIMIT $2)",
        args![kept_since(now), SWEPT_PER_CREATE],
    )
    .await?;
    Ok(())
}

fn kept_since(now: Time) -> i64 {
    now.0.saturating_sub(i64::try_from(KEPT.as_micros()).unwrap_or(i64::MAX))
}
