//! The event log of a run: numbered 1..N without gap, appended and read in order.

use berth_domain::{id::RunId, run::State, time::Time};
use berth_rpc::lifecycle as proto;
use prost::Message as _;
use sqlx::AssertSqlSafe;

use super::{
    NewEvent, Store, StoreError,
    engine::{Arg, Row, Tx, args},
};

/// Rows per INSERT; bounds the number of distinct statements.
const ROWS_PER_INSERT: usize = 32;
/// Rows fetched at a time while a page is filled up to its size.
const ROWS_PER_FETCH: u64 = 64;
/// Most events in one page.
pub const PAGE_EVENTS: u32 = 1000;
/// Payload bytes after which a page ends. Below 4 MiB, the usual gRPC message limit, by what columns and framing add.
const PAGE_BYTES: usize = (4 << 20) - (128 << 10);

/// A piece of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// In order, without gap.
    pub events: Vec<proto::Event>,
    /// The log's newest number at the moment of reading.
    pub last_sequence: u64,
    /// The run's state at that moment.
    pub state: State,
}

/// Appends after `last_seq`. The run's row is locked, so the numbers are free.
pub(super) async fn insert(
    tx: &mut Tx,
    run_id: &RunId,
    last_seq: u64,
    new: Vec<NewEvent>,
) -> Result<Vec<proto::Event>, StoreError> {
    let mut appended = Vec::with_capacity(new.len());
    let mut rows: Vec<Vec<Arg>> = Vec::with_capacity(new.len());
    for (event, sequence) in new.into_iter().zip(last_seq + 1..) {
        let bare = proto::Event { payload: Some(event.payload), ..proto::Event::default() };
        rows.push(args![
            run_id.as_str(),
            sequence,
            event.launch,
            event.launch_sequence,
            event.at,
            bare.encode_to_vec()
        ]);
        let launch = i64::from(event.launch);
        let launch_sequence = i64::try_from(event.launch_sequence).unwrap_or(i64::MAX);
        appended.push(whole(bare, run_id, sequence, launch, launch_sequence, event.at));
    }
    while !rows.is_empty() {
        let chunk: Vec<Vec<Arg>> = rows.drain(..rows.len().min(ROWS_PER_INSERT)).collect();
        let sql = insert_statement(chunk.len());
        tx.execute(AssertSqlSafe(sql), chunk.into_iter().flatten().collect()).await?;
    }
    Ok(appended)
}

fn insert_statement(rows: usize) -> String {
    let tuples: Vec<String> = (0..rows)
        .map(|row| {
            let at = row * 6;
            format!("(${}, ${}, ${}, ${}, ${}, ${})", at + 1, at + 2, at + 3, at + 4, at + 5, at + 6)
        })
        .collect();
    format!("INSERT INTO events (run_id, sequence, launch, launch_sequence, at, payload) VALUES {}", tuples.join(", "))
}

/// The newest number a launch has logged; 0 before its first event.
pub(super) async fn launch_head(tx: &mut Tx, run_id: &RunId, launch: u32) -> Result<u64, StoreError> {
    let row = tx
        .row(
            "SELECT COALESCE(MAX(launch_sequence), 0) AS head FROM events WHERE run_id = $1 AND launch = $2 AND launch > 0",
            args![run_id.as_str(), launch],
        )
        .await?;
    Ok(row.map(|row| row.int("head")).transpose()?.unwrap_or_default().unsigned_abs())
}

/// The log's number of an event of a launch.
pub(super) async fn logged_as(
    tx: &mut Tx,
    run_id: &RunId,
    launch: u32,
    launch_sequence: u64,
) -> Result<Option<u64>, StoreError> {
    let row = tx
        .row(
            "SELECT sequence FROM events WHERE run_id = $1 AND launch = $2 AND launch > 0 AND launch_sequence = $3",
            args![run_id.as_str(), launch, launch_sequence],
        )
        .await?;
    row.map(|row| row.int("sequence").map(i64::unsigned_abs)).transpose()
}

impl Store {
    /// The log after a cursor: at most `limit` events and about 4 MiB, but always one when there is one. None for an unknown run.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn events_after(&self, run_id: &RunId, after: u64, limit: u32) -> Result<Option<Page>, StoreError> {
        let mut tx = self.begin_read().await?;
        let run = tx.row("SELECT state, last_seq FROM runs WHERE run_id = $1", args![run_id.as_str()]).await?;
        let Some(run) = run else { return Ok(None) };
        let state = run.text("state")?;
        let state = State::parse(&state).ok_or(StoreError::Unknown(state))?;
        let last_sequence = run.int("last_seq")?.unsigned_abs();
        let limit = u64::from(limit.min(PAGE_EVENTS));
        let mut page = Page { events: Vec::new(), last_sequence, state };
        let (mut cursor, mut bytes) = (after, 0);
        while (page.events.len() as u64) < limit && cursor < last_sequence {
            let wanted = (limit - page.events.len() as u64).min(ROWS_PER_FETCH);
            let rows = tx
                .rows(
                    "SELECT sequence, launch, launch_sequence, at, payload FROM events
                     WHERE run_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3",
                    args![run_id.as_str(), cursor, wanted],
                )
                .await?;
            if rows.is_empty() {
                break;
            }
            for row in rows {
                let payload = row.bytes("payload")?;
                bytes += payload.len();
                if bytes > PAGE_BYTES && !page.events.is_empty() {
                    return Ok(Some(page));
                }
                let event = read(&row, run_id, &payload)?;
                cursor = event.sequence.unsigned_abs();
                page.events.push(event);
            }
        }
        Ok(Some(page))
    }
}

fn read(row: &Row, run_id: &RunId, payload: &[u8]) -> Result<proto::Event, StoreError> {
    let bare =
        proto::Event::decode(payload).map_err(|_| StoreError::Unknown("an event that cannot be decoded".to_owned()))?;
    let sequence = row.int("sequence")?.unsigned_abs();
    Ok(whole(bare, run_id, sequence, row.int("launch")?, row.int("launch_sequence")?, row.time("at")?))
}

fn whole(
    bare: proto::Event,
    run_id: &RunId,
    sequence: u64,
    launch: i64,
    launch_sequence: i64,
    at: Time,
) -> proto::Event {
    proto::Event {
        run_id: run_id.to_string(),
        sequence: i64::try_from(sequence).unwrap_or(i64::MAX),
        launch,
        launch_sequence,
        time: Some(berth_rpc::time_to_proto(at)),
        ..bare
    }
}
