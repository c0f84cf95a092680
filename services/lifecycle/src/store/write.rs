//! Writes what a decision returned: changed rows, timeline, receipts, log, audit, and the erasure of a DELETED run.

use berth_domain::{
    aggregate::{self, Aggregate, Entity, Transition},
    id::RunId,
    lease::Lease,
    run::State,
    session::{Message, MessageState, Session},
};
use berth_events::Queue;
use berth_rpc::lifecycle as proto;
use prost::Message as _;

use super::{
    Changes, Loaded, NewEvent, Spent, StoreError, audit,
    engine::{Tx, args},
    events,
};
use crate::to_proto;

/// What a transaction has written, for the cursors and hints that follow.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) run_id: RunId,
    pub(super) tenant: String,
    /// Something a client can see changed (more than the log's length).
    pub(super) visible: bool,
    /// The run's content was erased.
    pub(super) erased: bool,
    pub(super) queues: Vec<Queue>,
    pub(super) events: Vec<proto::Event>,
    /// The newest event's number.
    pub(super) last_seq: u64,
    /// The newest transition's number.
    pub(super) transition_seq: u64,
}

/// Writes `changes` over what was loaded. The run's row is locked by this transaction.
pub(super) async fn changes(tx: &mut Tx, loaded: &Loaded, mut changes: Changes) -> Result<Written, StoreError> {
    let run_id = loaded.run_id();
    let tenant = loaded.aggregate.run.tenant.to_string();
    for entry in &changes.audit {
        audit::insert(tx, entry, loaded.now).await?;
    }
    if changes.leaves_run_alone() {
        return Ok(Written {
            run_id: run_id.clone(),
            tenant,
            visible: false,
            erased: false,
            queues: vec![],
            events: vec![],
            last_seq: loaded.record.last_seq,
            transition_seq: loaded.record.transition_seq,
        });
    }
    let visible = changes.progress.is_some()
        || changes.result.is_some()
        || changes.next.as_deref().is_some_and(|next| is_visible(&loaded.aggregate, next));
    let mut queues = Vec::new();
    if let Some(next) = changes.next.as_deref() {
        queues = rows(tx, &loaded.aggregate, next).await?;
        receipts(tx, &loaded.aggregate, next).await?;
    }
    let transition_seq = transitions(tx, loaded, &changes).await?;
    let after = changes.next.as_deref().unwrap_or(&loaded.aggregate);
    let mut new_events = std::mem::take(&mut changes.events);
    new_events.extend(state_events(&changes.transitions, after));
    let appended = events::insert(tx, run_id, loaded.record.last_seq, new_events).await?;
    let last_seq = loaded.record.last_seq + appended.len() as u64;

    if visible || changes.next.is_some() {
        let progress = changes.progress.as_ref().unwrap_or(&loaded.record.progress);
        tx.execute(
            "UPDATE runs SET state = $2, doc = $3, progress = $4, last_seq = $5, transition_seq = $6, tick_at = $7,
                    updated_at = $8
             WHERE run_id = $1",
            args![
                run_id.as_str(),
                after.run.state.as_str(),
                document(&after.run)?,
                document(progress)?,
                last_seq,
                transition_seq,
                aggregate::due(after, loaded.now),
                if visible { loaded.now } else { loaded.record.updated_at }
            ],
        )
        .await?;
    } else {
        tx.execute("UPDATE runs SET last_seq = $2 WHERE run_id = $1", args![run_id.as_str(), last_seq]).await?;
    }
    if let Some(result) = &changes.result {
        tx.execute("UPDATE runs SET result = $2 WHERE run_id = $1", args![run_id.as_str(), result.encode_to_vec()])
            .await?;
    }
    if let Some(spent) = &changes.spent {
        write_spent(tx, spent).await?;
    }
    let erased = after.run.state == State::Deleted && loaded.aggregate.run.state != State::Deleted;
    if erased {
        erase(tx, loaded).await?;
    }
    Ok(Written { run_id: run_id.clone(), tenant, visible, erased, queues, events: appended, last_seq, transition_seq })
}

/// Whether a client reading the run would see a difference; signs of life and claims are no news.
fn is_visible(old: &Aggregate, next: &Aggregate) -> bool {
    let shown =
        |lease: &Lease| (lease.id.clone(), lease.state, lease.identity.clone(), lease.workdir.clone(), lease.observed);
    old.run != next.run
        || old.leases.len() != next.leases.len()
        || old.leases.last().map(shown) != next.leases.last().map(shown)
}

/// Writes what hangs on a run being created; the run's own row is there already.
pub(super) async fn created(
    tx: &mut Tx,
    aggregate: &Aggregate,
    transitions: &[Transition],
    new_events: Vec<NewEvent>,
    actor: &str,
) -> Result<Written, StoreError> {
    let run_id = aggregate.run.id.clone();
    for lease in &aggregate.leases {
        write_lease(tx, lease).await?;
    }
    write_session(tx, &aggregate.session).await?;
    write_messages(tx, &[], &aggregate.session).await?;
    let transition_seq = insert_transitions(tx, &run_id, 0, transitions, actor).await?;
    let events = events::insert(tx, &run_id, 0, new_events).await?;
    let last_seq = events.len() as u64;
    tx.execute(
        "UPDATE runs SET last_seq = $2, transition_seq = $3 WHERE run_id = $1",
        args![run_id.as_str(), last_seq, transition_seq],
    )
    .await?;
    let tenant = aggregate.run.tenant.to_string();
    let queues = vec![Queue::Lease];
    Ok(Written { run_id, tenant, visible: true, erased: false, queues, events, last_seq, transition_seq })
}

/// Writes the rows that changed.
async fn rows(tx: &mut Tx, old: &Aggregate, next: &Aggregate) -> Result<Vec<Queue>, StoreError> {
    let mut queues = Vec::new();
    for lease in &next.leases {
        if old.leases.iter().any(|before| before == lease) {
            continue;
        }
        write_lease(tx, lease).await?;
        if lease.next_action.is_some() && !queues.contains(&Queue::Lease) {
            queues.push(Queue::Lease);
        }
    }
    if old.session != next.session {
        write_session(tx, &next.session).await?;
        write_messages(tx, &old.session.messages, &next.session).await?;
        if next.session.next_action.is_some() {
            queues.push(Queue::Session);
        }
    }
    Ok(queues)
}

async fn write_lease(tx: &mut Tx, lease: &Lease) -> Result<(), StoreError> {
    let provider = lease.identity.as_ref().map_or(&lease.provider, |identity| &identity.provider);
    tx.execute(
        "INSERT INTO leases (lease_id, run_id, generation, provider, scope, state, next_action, next_action_at,
                             claimed_by, claim_deadline, fence, doc)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
         ON CONFLICT (lease_id) DO UPDATE SET
           provider = excluded.provider, scope = excluded.scope, state = excluded.state,
           next_action = excluded.next_action, next_action_at = excluded.next_action_at,
           claimed_by = excluded.claimed_by, claim_deadline = excluded.claim_deadline,
           fence = excluded.fence, doc = excluded.doc",
        args![
            lease.id.as_str(),
            lease.run.as_str(),
            lease.generation,
            provider.as_str(),
            lease.bound_to(),
            lease.state.as_str(),
            lease.next_action.map(|(action, _)| action.as_str()),
            lease.next_action.map(|(_, at)| at),
            lease.claim.as_ref().map(|claim| claim.worker.as_str()),
            lease.claim.as_ref().map(|claim| claim.deadline),
            lease.fence,
            document(lease)?
        ],
    )
    .await?;
    Ok(())
}

async fn write_session(tx: &mut Tx, session: &Session) -> Result<(), StoreError> {
    let mut stored = session.clone();
    stored.messages = Vec::new();
    tx.execute(
        "INSERT INTO sessions (session_id, run_id, state, next_action, next_action_at, claimed_by, claim_deadline, fence, doc)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (session_id) DO UPDATE SET
           state = excluded.state, next_action = excluded.next_action, next_action_at = excluded.next_action_at,
           claimed_by = excluded.claimed_by, claim_deadline = excluded.claim_deadline,
           fence = excluded.fence, doc = excluded.doc",
        args![
            session.id.as_str(),
            session.run.as_str(),
            session.state.as_str(),
            session.next_action.map(|(action, _)| action.as_str()),
            session.next_action.map(|(_, at)| at),
            session.claim.as_ref().map(|claim| claim.worker.as_str()),
            session.claim.as_ref().map(|claim| claim.deadline),
            session.fence,
            document(&stored)?
        ],
    )
    .await?;
    Ok(())
}

/// A message's text is written with its row and never again; the document beside it never holds it.
async fn write_messages(tx: &mut Tx, old: &[Message], next: &Session) -> Result<(), StoreError> {
    for message in &next.messages {
        match old.iter().find(|before| before.id == message.id) {
            Some(before) if before == message => {}
            Some(_) => {
                let mut stored = message.clone();
                stored.text = String::new();
                tx.execute(
                    "UPDATE messages SET ordinal = $3, state = $4, doc = $5 WHERE run_id = $1 AND message_id = $2",
                    args![
                        next.run.as_str(),
                        message.id.as_str(),
                        message.ordinal,
                        message_state(message.state),
                        document(&stored)?
                    ],
                )
                .await?;
            }
            None => {
                let mut stored = message.clone();
                let text = std::mem::take(&mut stored.text);
                tx.execute(
                    "INSERT INTO messages (message_id, run_id, ordinal, state, doc, text) VALUES ($1, $2, $3, $4, $5, $6)",
                    args![
                        message.id.as_str(),
                        next.run.as_str(),
                        message.ordinal,
                        message_state(message.state),
                        document(&stored)?,
                        text
                    ],
                )
                .await?;
            }
        }
    }
    Ok(())
}

/// The stored name of a message's state.
fn message_state(state: MessageState) -> &'static str {
    match state {
        MessageState::Queued => "QUEUED",
        MessageState::Delivered => "DELIVERED",
        MessageState::Accepted => "ACCEPTED",
        MessageState::Done => "DONE",
        MessageState::Failed(_) => "FAILED",
    }
}

async fn receipts(tx: &mut Tx, old: &Aggregate, next: &Aggregate) -> Result<(), StoreError> {
    for lease in &next.leases {
        let Some(receipt) = &lease.receipt else { continue };
        if old.leases.iter().any(|before| before.id == lease.id && before.receipt.is_some()) {
            continue;
        }
        let provider = lease.identity.as_ref().map_or(&lease.provider, |identity| &identity.provider);
        let sandbox_id = lease.identity.as_ref().map_or("", |identity| identity.sandbox_id.as_str());
        tx.execute(
            "INSERT INTO receipts (receipt_id, run_id, lease_id, provider, sandbox_id, kind, at, doc)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            args![
                format!("receipt-{}", uuid::Uuid::now_v7().simple()),
                lease.run.as_str(),
                lease.id.as_str(),
                provider.as_str(),
                sandbox_id,
                receipt.kind.as_str(),
                receipt.at,
                document(receipt)?
            ],
        )
        .await?;
    }
    Ok(())
}

async fn transitions(tx: &mut Tx, loaded: &Loaded, changes: &Changes) -> Result<u64, StoreError> {
    insert_transitions(tx, loaded.run_id(), loaded.record.transition_seq, &changes.transitions, &changes.actor).await
}

/// Appends to the timeline after `last`; the new last number.
async fn insert_transitions(
    tx: &mut Tx,
    run_id: &RunId,
    last: u64,
    transitions: &[Transition],
    actor: &str,
) -> Result<u64, StoreError> {
    let mut sequence = last;
    for transition in transitions {
        sequence += 1;
        tx.execute(
            "INSERT INTO transitions (run_id, sequence, entity, entity_id, from_state, to_state, cause, actor, at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            args![
                run_id.as_str(),
                sequence,
                transition.entity.as_str(),
                transition.id.as_str(),
                transition.from.as_str(),
                transition.to.as_str(),
                transition.cause.as_str(),
                if actor.is_empty() { "lifecycle" } else { actor },
                transition.at
            ],
        )
        .await?;
    }
    Ok(sequence)
}

/// One `run_state_changed` for every change of the run's own state.
pub(super) fn state_events(transitions: &[Transition], after: &Aggregate) -> Vec<NewEvent> {
    transitions
        .iter()
        .filter(|transition| transition.entity == Entity::Run)
        .map(|transition| NewEvent {
            launch: 0,
            launch_sequence: 0,
            at: transition.at,
            payload: proto::event::Payload::RunStateChanged(to_proto::run_state_changed(transition, &after.run)),
        })
        .collect()
}

async fn write_spent(tx: &mut Tx, spent: &Spent) -> Result<(), StoreError> {
    let sql = if spent.row_id.starts_with("lease-") {
        "UPDATE leases SET spent_fence = $2, spent_request_hash = $3, spent_reply = $4 WHERE lease_id = $1"
    } else {
        "UPDATE sessions SET spent_fence = $2, spent_request_hash = $3, spent_reply = $4 WHERE session_id = $1"
    };
    tx.execute(sql, args![spent.row_id.as_str(), spent.fence, spent.request_hash.clone(), spent.reply.clone()]).await?;
    Ok(())
}

/// DELETED: prompt, messages, events and result go in the transaction that proves the deletion. Error texts are gone from the
/// rows already.
async fn erase(tx: &mut Tx, loaded: &Loaded) -> Result<(), StoreError> {
    let run_id = loaded.run_id().as_str();
    let mut spec = loaded.record.spec.clone();
    spec.system_prompt = String::new();
    tx.execute(
        "UPDATE runs SET prompt = '', result = NULL, spec = $2 WHERE run_id = $1",
        args![run_id, document(&spec)?],
    )
    .await?;
    tx.execute("DELETE FROM messages WHERE run_id = $1", args![run_id]).await?;
    tx.execute("DELETE FROM events WHERE run_id = $1", args![run_id]).await?;
    // A stored reply may quote work handed out.
    tx.execute("UPDATE leases SET spent_reply = NULL, spent_request_hash = NULL WHERE run_id = $1", args![run_id])
        .await?;
    tx.execute("UPDATE sessions SET spent_reply = NULL, spent_request_hash = NULL WHERE run_id = $1", args![run_id])
        .await?;
    Ok(())
}

/// The next cursor of the run's tenant, stored with the run.
pub(super) async fn take_change_seq(tx: &mut Tx, written: &Written) -> Result<i64, StoreError> {
    let row = tx
        .row(
            "INSERT INTO tenant_seq (tenant, change_seq) VALUES ($1, 1)
             ON CONFLICT (tenant) DO UPDATE SET change_seq = tenant_seq.change_seq + 1
             RETURNING change_seq",
            args![written.tenant.as_str()],
        )
        .await?;
    let change_seq = row.ok_or_else(|| StoreError::Unknown("no cursor".to_owned()))?.int("change_seq")?;
    tx.execute("UPDATE runs SET change_seq = $2 WHERE run_id = $1", args![written.run_id.as_str(), change_seq]).await?;
    Ok(change_seq)
}

pub(super) fn document<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|source| StoreError::Corrupt { column: "doc".to_owned(), source })
}
