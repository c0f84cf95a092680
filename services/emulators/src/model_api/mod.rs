//! The offline Anthropic Messages API: plays a [`Script`] instead of thinking.
//!
//! Answers `POST */v1/messages` (streaming or not), `POST */v1/messages/count_tokens` and `GET /__emulator/calls`;
//! 404 for the rest. The answer depends on script and request alone; the only state is how often each fault has been
//! played, and the log of calls. Words: a *conversation* is one entry of the script, a *turn* one reply in it.

mod answer;
mod calls;
mod choose;
mod delivery;
mod error;
mod reply;
mod request;
mod script;
mod stream;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use tokio::net::TcpListener;

pub use script::{
    Conversation, Fault, FaultKind, Script, ScriptError, StopReason, ToolCall, Turn, UsageOverride, When,
};

use crate::Fingerprint;
use crate::call_log::CallLog;
use calls::Call;
use choose::Choice;

/// How strict the emulator is.
#[derive(Clone, Debug)]
pub struct ModelApiConfig {
    /// Which credentials are accepted.
    pub accept: Accept,
    /// Refuse histories the vendor would refuse (unanswered tool calls, empty texts, …).
    pub check_history: bool,
}

/// Which credentials a request may carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accept {
    /// Any, or none.
    Anyone,
    /// Any non-empty key or bearer token.
    AnyCredential,
    /// Only this one, as key or as bearer token.
    Only(Fingerprint),
}

impl Default for ModelApiConfig {
    /// Any credential, but one there must be; histories are checked.
    fn default() -> Self {
        Self { accept: Accept::AnyCredential, check_history: true }
    }
}

/// The emulator; shared by all its connections.
#[derive(Debug)]
pub struct ModelApi {
    script: Script,
    config: ModelApiConfig,
    calls: CallLog<Call>,
    serial: AtomicU64,
    /// Faults played so far, by conversation and turn; never more entries than the script has turns.
    played: Mutex<HashMap<(usize, usize), u32>>,
}

impl ModelApi {
    /// A router that plays `script` with the default configuration.
    pub fn from_script(script: Script) -> Router {
        Self::router(script, ModelApiConfig::default())
    }

    /// A router that plays `script`.
    pub fn router(script: Script, config: ModelApiConfig) -> Router {
        let api = Arc::new(Self {
            script,
            config,
            calls: CallLog::new(),
            serial: AtomicU64::new(0),
            played: Mutex::new(HashMap::new()),
        });
        Router::new().fallback(answer::answer).with_state(api)
    }

    fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The fault to play now, counted as played.
    fn take_fault(&self, choice: &Choice<'_>) -> Option<FaultKind> {
        let fault = choice.reply?.fault.as_ref()?;
        let mut played = self.played.lock().unwrap_or_else(PoisonError::into_inner);
        let count = played.entry((choice.conversation, choice.turn)).or_insert(0);
        if *count >= fault.times {
            return None;
        }
        *count += 1;
        Some(fault.kind.clone())
    }
}

/// Plays `script` on `listener` until `shutdown` resolves; replies in flight get two seconds to finish.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    script: Script,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    crate::listen::serve_router(listener, ModelApi::from_script(script), shutdown).await
}
