//! What the store keeps of a run beside the domain's rows: the request as it was made, progress counters, the result.

use berth_domain::{aggregate::Aggregate, time::Time};
use berth_rpc::lifecycle as proto;
use serde::{Deserialize, Serialize};

use super::decision::Spent;

/// The request, as validated by CreateRun. The prompt is kept apart ([`Record::prompt`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunSpec {
    /// Provider asked for.
    pub provider: String,
    /// Repository to clone; empty: none.
    pub repo_url: String,
    /// Branch, tag or commit; empty: the default branch.
    pub repo_ref: String,
    /// Granted tools.
    pub tools: Vec<String>,
    /// Turn budget.
    pub max_turns: u32,
    /// Model name.
    pub model: String,
    /// Erased when the run is DELETED.
    pub system_prompt: String,
    /// Sandbox image; empty: the provider's default.
    pub image: String,
    /// Requested folder; empty: the repository's name.
    pub workdir: String,
    /// Token budget; 0: none.
    pub max_tokens: u64,
    /// Wall-clock budget in seconds.
    pub wall_clock_seconds: u64,
    /// Branch to push the result to; empty: none.
    pub push_branch: String,
    /// Runner kind, `native`.
    pub harness: String,
}

/// Token counts as the model API reported them, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Uncached input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Tokens written to the cache.
    pub cache_creation_input_tokens: u64,
    /// Tokens read from the cache.
    pub cache_read_input_tokens: u64,
    /// Completed model calls.
    pub model_calls: u64,
}

/// What grows while the run works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Model replies so far.
    pub turns: u32,
    /// Tokens so far.
    pub usage: Usage,
    /// The commit that was cloned.
    pub base_commit: String,
}

/// A run's row without the domain's part.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Who created it.
    pub principal: String,
    /// W3C traceparent of the CreateRun call; may be empty.
    pub traceparent: String,
    /// First message. Erased when DELETED.
    pub prompt: String,
    /// The request.
    pub spec: RunSpec,
    /// Counters.
    pub progress: Progress,
    /// What outlives the sandbox; shown once COMPLETED. Erased when DELETED.
    pub result: Option<proto::Result>,
    /// Number of the newest event.
    pub last_seq: u64,
    /// Number of the newest transition.
    pub transition_seq: u64,
    /// Watch cursor.
    pub change_seq: u64,
    /// When it was created.
    pub created_at: Time,
    /// When it last changed.
    pub updated_at: Time,
}

/// A run with everything that hangs on it, as one transaction sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// Run, leases and session. Message texts are not loaded (empty): the machine never looks at them.
    pub aggregate: Aggregate,
    /// Bytes of the texts of the messages that are not done, together. Zero in lists.
    pub open_bytes: u64,
    /// The store's part.
    pub record: Record,
    /// The last spent fence of every row that has one.
    pub spent: Vec<Spent>,
    /// The moment of this transaction: the database's clock on Postgres, the host's on SQLite.
    pub now: Time,
}
