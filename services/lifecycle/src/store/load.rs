//! Reads a run with everything that hangs on it.

use berth_domain::{
    aggregate::Aggregate,
    id::RunId,
    lease::Lease,
    run::Run,
    session::{Message, Session},
    time::Time,
};
use prost::Message as _;

use super::{
    Loaded, Record, Spent, StoreError,
    engine::{Engine, Row, Tx, args},
};

/// What to do when another transaction holds the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// Wait for it: a caller asked.
    Wait,
    /// Leave it alone: whoever holds it will do what is due.
    Skip,
}

const SELECT_LEASES: &str = "SELECT lease_id AS row_id, doc, spent_fence, spent_request_hash, spent_reply
                             FROM leases WHERE run_id = $1 ORDER BY generation";

/// Lengths are known without reading the texts.
const SELECT_MESSAGES: &str = "SELECT doc, CASE WHEN state IN ('QUEUED', 'DELIVERED', 'ACCEPTED')
                                           THEN CAST(octet_length(text) AS BIGINT) ELSE CAST(0 AS BIGINT) END AS bytes
                               FROM messages WHERE run_id = $1 ORDER BY ordinal";

/// Locks the run's row; false when it is unknown, or held and to be skipped.
pub(super) async fn lock(tx: &mut Tx, run_id: &RunId, lock: Lock) -> Result<bool, StoreError> {
    let sql = match (tx.engine(), lock) {
        // The writing transaction already is the only one.
        (Engine::Sqlite, _) => "SELECT run_id FROM runs WHERE run_id = $1",
        (Engine::Postgres, Lock::Wait) => "SELECT run_id FROM runs WHERE run_id = $1 FOR UPDATE",
        (Engine::Postgres, Lock::Skip) => "SELECT run_id FROM runs WHERE run_id = $1 FOR UPDATE SKIP LOCKED",
    };
    Ok(tx.row(sql, args![run_id.as_str()]).await?.is_some())
}

/// Run, leases by generation, session with messages by ordinal (without their texts).
pub(super) async fn run(tx: &mut Tx, run_id: &RunId, now: Time) -> Result<Option<Loaded>, StoreError> {
    let row = tx
        .row(
            "SELECT run_id, tenant, principal, traceparent, prompt, spec, doc, progress, result, last_seq, transition_seq,
                    change_seq, created_at, updated_at
             FROM runs WHERE run_id = $1",
            args![run_id.as_str()],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    let leases = tx.rows(SELECT_LEASES, args![run_id.as_str()]).await?;
    let session = tx
        .row(
            "SELECT session_id AS row_id, doc, spent_fence, spent_request_hash, spent_reply FROM sessions WHERE run_id = $1",
            args![run_id.as_str()],
        )
        .await?
        .ok_or_else(|| StoreError::Unknown("a run without a session".to_owned()))?;
    let messages = tx.rows(SELECT_MESSAGES, args![run_id.as_str()]).await?;
    loaded(&row, &leases, &session, &messages, now).map(Some)
}

/// Puts the rows of one run together.
pub(super) fn loaded(
    row: &Row,
    leases: &[Row],
    session: &Row,
    messages: &[Row],
    now: Time,
) -> Result<Loaded, StoreError> {
    let spent = leases.iter().chain([session]).map(spent).filter_map(Result::transpose).collect::<Result<_, _>>()?;
    let mut session: Session = session.document("doc")?;
    session.messages = messages.iter().map(|row| row.document::<Message>("doc")).collect::<Result<_, _>>()?;
    let bytes = messages.iter().map(|row| row.int("bytes")).sum::<Result<i64, _>>()?;
    let aggregate = Aggregate {
        run: row.document::<Run>("doc")?,
        leases: leases.iter().map(|row| row.document::<Lease>("doc")).collect::<Result<_, _>>()?,
        session,
    };
    Ok(Loaded { aggregate, open_bytes: bytes.unsigned_abs(), record: record(row)?, spent, now })
}

fn spent(row: &Row) -> Result<Option<Spent>, StoreError> {
    let (Some(fence), Some(request_hash), Some(reply)) =
        (row.opt_int("spent_fence")?, row.opt_bytes("spent_request_hash")?, row.opt_bytes("spent_reply")?)
    else {
        return Ok(None);
    };
    Ok(Some(Spent { row_id: row.text("row_id")?, fence: fence.unsigned_abs(), request_hash, reply }))
}

fn record(row: &Row) -> Result<Record, StoreError> {
    let result = match row.opt_bytes("result")? {
        Some(bytes) => Some(
            berth_rpc::lifecycle::Result::decode(bytes.as_slice())
                .map_err(|_| StoreError::Unknown("a result that cannot be decoded".to_owned()))?,
        ),
        None => None,
    };
    Ok(Record {
        principal: row.text("principal")?,
        traceparent: row.text("traceparent")?,
        prompt: row.text("prompt")?,
        spec: row.document("spec")?,
        progress: row.document("progress")?,
        result,
        last_seq: row.int("last_seq")?.unsigned_abs(),
        transition_seq: row.int("transition_seq")?.unsigned_abs(),
        change_seq: row.int("change_seq")?.unsigned_abs(),
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}
