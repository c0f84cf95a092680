//! The native harness: our own loop over the Anthropic Messages API, its tools run through the broker. The conversation is the
//! event log; nothing that matters is only in memory, so any worker goes on where another died.
//!
//! | file | what |
//! |---|---|
//! | `turn` | the loop: accept, ask, run tools, end |
//! | `ask`, `api`, `reply`, `retry`, `key` | one model call |
//! | `history`, `request` | the conversation, and how it is sent |
//! | `log` | appends before every effect |
//! | `tools` | read, write, edit, bash |

mod api;
mod ask;
mod budget;
mod history;
mod key;
mod log;
mod prompt;
mod reply;
mod request;
mod retry;
mod tools;
mod turn;

use berth_domain::failure::FailureReason;

pub(crate) use api::ModelApi;
pub(crate) use log::Hold;
pub(crate) use turn::Drive;

/// Why the loop stops without ending its turn.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stop {
    /// The claim, launch or fence is not ours any more: do nothing at all.
    #[error("the session is held by another, or over")]
    Lost,
    /// The sandbox is not there: hand the session back, lifecycle decides.
    #[error("the sandbox is gone")]
    SandboxGone,
    /// Going on would never work.
    #[error("{0}")]
    Broken(String),
}

/// Why a turn, and with it the run, fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) reason: FailureReason,
    /// For people; redacted.
    pub(crate) text: String,
}
