//! Reads beside the transactions: lists of runs, the timeline, receipts, texts of messages.

use std::collections::HashMap;

use berth_domain::{
    id::RunId,
    lease::{Receipt, ReceiptKind},
    run::State,
    time::Time,
};

use super::{
    Loaded, Store, StoreError,
    engine::{Engine, Row, args},
    load, write,
};

/// Which runs a list shows. DELETED ones never.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFilter {
    /// Whose.
    pub tenant: String,
    /// Only in this state.
    pub state: Option<State>,
}

/// One line of the timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTransition {
    /// 1, 2, … within the run.
    pub sequence: u64,
    /// `run`, `lease` or `session`.
    pub entity: String,
    /// Its id.
    pub entity_id: String,
    /// State left; empty for a new row.
    pub from: String,
    /// State entered.
    pub to: String,
    /// The trigger.
    pub cause: String,
    /// Principal, worker or `lifecycle`.
    pub actor: String,
    /// When.
    pub at: Time,
}

/// The proof that one sandbox is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredReceipt {
    /// Its id.
    pub receipt_id: String,
    /// The lease it closes.
    pub lease_id: String,
    /// The provider really used.
    pub provider: String,
    /// Empty when none was ever reported.
    pub sandbox_id: String,
    /// The kind of proof.
    pub kind: ReceiptKind,
    /// The proof.
    pub receipt: Receipt,
}

const LIST: &str = "SELECT run_id, tenant, principal, traceparent, prompt, spec, doc, progress, result, last_seq,
                           transition_seq, change_seq, created_at, updated_at
                    FROM runs
                    WHERE tenant = $1 AND run_id < $2 AND state <> 'DELETED' AND ($3 = '' OR state = $3)
                    ORDER BY run_id DESC LIMIT $4";
/// The ids come as one JSON array, so that the statement does not depend on their number.
fn rows_of_runs(engine: Engine) -> (&'static str, &'static str) {
    match engine {
        Engine::Sqlite => (
            "SELECT run_id, lease_id AS row_id, doc, spent_fence, spent_request_hash, spent_reply FROM leases
             WHERE run_id IN (SELECT value FROM json_each($1)) ORDER BY run_id, generation",
            "SELECT run_id, session_id AS row_id, doc, spent_fence, spent_request_hash, spent_reply FROM sessions
             WHERE run_id IN (SELECT value FROM json_each($1))",
        ),
        Engine::Postgres => (
            "SELECT run_id, lease_id AS row_id, doc, spent_fence, spent_request_hash, spent_reply FROM leases
             WHERE run_id IN (SELECT json_array_elements_text($1::json)) ORDER BY run_id, generation",
            "SELECT run_id, session_id AS row_id, doc, spent_fence, spent_request_hash, spent_reply FROM sessions
             WHERE run_id IN (SELECT json_array_elements_text($1::json))",
        ),
    }
}

impl Store {
    /// Runs of a tenant, newest first (ids are made of time), before a cursor. Messages are not loaded.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn list_runs(
        &self,
        filter: &RunFilter,
        before: Option<&RunId>,
        limit: u32,
    ) -> Result<Vec<Loaded>, StoreError> {
        let mut tx = self.begin_read().await?;
        let now = self.now(&mut tx).await?;
        let state = filter.state.map_or("", State::as_str);
        let before = before.map_or("run-~", RunId::as_str);
        let runs = tx.rows(LIST, args![filter.tenant.as_str(), before, state, limit]).await?;
        let ids = runs.iter().map(|run| run.text("run_id")).collect::<Result<Vec<_>, _>>()?;
        let ids = write::document(&ids)?;
        let (of_leases, of_sessions) = rows_of_runs(tx.engine());
        let mut leases = by_run(tx.rows(of_leases, args![ids.as_str()]).await?)?;
        let mut sessions = by_run(tx.rows(of_sessions, args![ids.as_str()]).await?)?;
        let mut listed = Vec::with_capacity(runs.len());
        for run in &runs {
            let run_id = run.text("run_id")?;
            let leases = leases.remove(&run_id).unwrap_or_default();
            let sessions = sessions.remove(&run_id).unwrap_or_default();
            let session = sessions.first().ok_or_else(|| StoreError::Unknown("a run without a session".to_owned()))?;
            listed.push(load::loaded(run, &leases, session, &[], now)?);
        }
        Ok(listed)
    }

    /// The timeline after a cursor. Readable after deletion.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn transitions_after(
        &self,
        run_id: &RunId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<StoredTransition>, StoreError> {
        let mut tx = self.begin_read().await?;
        let rows = tx
            .rows(
                "SELECT sequence, entity, entity_id, from_state, to_state, cause, actor, at FROM transitions
                 WHERE run_id = $1 AND sequence > $2 ORDER BY sequence LIMIT $3",
                args![run_id.as_str(), after, limit],
            )
            .await?;
        rows.iter()
            .map(|row| {
                Ok(StoredTransition {
                    sequence: row.int("sequence")?.unsigned_abs(),
                    entity: row.text("entity")?,
                    entity_id: row.text("entity_id")?,
                    from: row.text("from_state")?,
                    to: row.text("to_state")?,
                    cause: row.text("cause")?,
                    actor: row.text("actor")?,
                    at: row.time("at")?,
                })
            })
            .collect()
    }

    /// The receipts of a run, oldest first. Readable after deletion.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn receipts(&self, run_id: &RunId) -> Result<Vec<StoredReceipt>, StoreError> {
        let mut tx = self.begin_read().await?;
        let rows = tx
            .rows(
                "SELECT receipt_id, lease_id, provider, sandbox_id, doc FROM receipts WHERE run_id = $1
                 ORDER BY at, receipt_id LIMIT 1000",
                args![run_id.as_str()],
            )
            .await?;
        rows.iter()
            .map(|row| {
                let receipt: Receipt = row.document("doc")?;
                Ok(StoredReceipt {
                    receipt_id: row.text("receipt_id")?,
                    lease_id: row.text("lease_id")?,
                    provider: row.text("provider")?,
                    sandbox_id: row.text("sandbox_id")?,
                    kind: receipt.kind,
                    receipt,
                })
            })
            .collect()
    }

    /// Texts of the run's messages that are not done, by message id: the first ones in order, as long as they are within
    /// `bytes` together.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open_texts(&self, run_id: &RunId, bytes: usize) -> Result<HashMap<String, String>, StoreError> {
        let mut tx = self.begin_read().await?;
        let rows = tx
            .rows(
                "SELECT message_id, text FROM messages
                 WHERE run_id = $1 AND state IN ('QUEUED', 'DELIVERED', 'ACCEPTED') ORDER BY ordinal",
                args![run_id.as_str()],
            )
            .await?;
        let mut texts = HashMap::with_capacity(rows.len());
        let mut left = bytes;
        for row in rows {
            let text = row.text("text")?;
            let Some(rest) = left.checked_sub(text.len()) else { break };
            left = rest;
            texts.insert(row.text("message_id")?, text);
        }
        Ok(texts)
    }

    /// The text of one message; None when the run has no such message.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn message_text(&self, run_id: &RunId, message_id: &str) -> Result<Option<String>, StoreError> {
        let mut tx = self.begin_read().await?;
        let row = tx
            .row("SELECT text FROM messages WHERE run_id = $1 AND message_id = $2", args![run_id.as_str(), message_id])
            .await?;
        row.map(|row| row.text("text")).transpose()
    }
}

fn by_run(rows: Vec<Row>) -> Result<HashMap<String, Vec<Row>>, StoreError> {
    let mut grouped: HashMap<String, Vec<Row>> = HashMap::new();
    for row in rows {
        grouped.entry(row.text("run_id")?).or_default().push(row);
    }
    Ok(grouped)
}
