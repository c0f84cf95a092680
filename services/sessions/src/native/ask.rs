//! One reply of the model: call, show the text as it comes, call again when the answer broke off. What was shown of an
//! attempt that broke off is voided in the log before the next attempt is shown.

use std::time::Duration;

use berth_domain::failure::FailureReason;
use berth_rpc::lifecycle::{AssistantDelta, AttemptVoided, Notice, event::Payload};
use bytes::Bytes;
use secrecy::SecretString;
use tokio::time::Instant;

use super::api::{CallFailure, Cause, ModelApi, Progress};
use super::log::Pen;
use super::reply::Reply;
use super::retry::{Patience, Verdict};
use super::{Failed, Stop};
use crate::config::RetryLimits;

/// Text is shown at least this often while it comes.
const SHOW_EVERY: Duration = Duration::from_millis(200);
/// Text is shown when this much has come.
const SHOW_BYTES: usize = 16 << 10;

/// What a call needs.
pub(crate) struct Asking<'a> {
    pub(crate) api: &'a ModelApi,
    pub(crate) limits: &'a RetryLimits,
    pub(crate) key: &'a SecretString,
    pub(crate) body: Bytes,
    /// Numbers attempts over the launch.
    pub(crate) attempt: &'a mut i32,
    pub(crate) pen: &'a mut Pen,
}

impl Asking<'_> {
    /// The reply, or why the turn ends without one.
    pub(crate) async fn reply(mut self) -> Result<Result<Reply, Failed>, Stop> {
        let mut patience = Patience::new(self.limits);
        loop {
            *self.attempt += 1;
            let mut shown = Shown { attempt: *self.attempt, ..Shown::default() };
            let failure = match self.attempt(&mut shown).await? {
                Ok(reply) => return Ok(Ok(reply)),
                Err(failure) => failure,
            };
            tracing::info!(cause = ?failure.cause, retry = failure.advice.retry, "model call failed");
            let verdict = patience.judge(failure.advice, rand::random());
            self.pen.append(shown.voided(&failure)).await?;
            match verdict {
                Verdict::GiveUp(after) => return Ok(Err(given_up(&failure, after))),
                Verdict::Wait(wait) => {
                    let text = format!("{failure}; trying again in {:.1} s", wait.as_secs_f64());
                    self.pen.append(vec![notice("MODEL_RETRY", text)]).await?;
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    async fn attempt(&mut self, shown: &mut Shown) -> Result<Result<Reply, CallFailure>, Stop> {
        let mut stream = match self.api.open(self.key, self.body.clone()).await {
            Ok(stream) => stream,
            Err(failure) => return Ok(Err(failure)),
        };
        loop {
            let due = shown.due;
            let progress = tokio::select! {
                progress = stream.next() => progress,
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.pen.append(shown.take()).await?;
                    continue;
                }
            };
            match progress {
                Ok(Progress::Text(text)) => {
                    if shown.add(&text) {
                        self.pen.append(shown.take()).await?;
                    }
                }
                Ok(Progress::Done(reply)) => {
                    self.pen.append(shown.take()).await?;
                    return Ok(Ok(reply));
                }
                Err(failure) => return Ok(Err(failure)),
            }
        }
    }
}

/// Text of one attempt on its way to the log.
#[derive(Debug, Default)]
struct Shown {
    attempt: i32,
    waiting: String,
    due: Option<Instant>,
    any: bool,
}

impl Shown {
    /// True when the text should be shown at once.
    fn add(&mut self, text: &str) -> bool {
        self.waiting.push_str(text);
        self.due.get_or_insert_with(|| Instant::now() + SHOW_EVERY);
        self.waiting.len() >= SHOW_BYTES
    }

    fn take(&mut self) -> Vec<Payload> {
        self.due = None;
        if self.waiting.is_empty() {
            return Vec::new();
        }
        self.any = true;
        let text = std::mem::take(&mut self.waiting);
        vec![Payload::AssistantDelta(AssistantDelta { attempt: self.attempt, text })]
    }

    fn voided(&self, failure: &CallFailure) -> Vec<Payload> {
        if !self.any {
            return Vec::new();
        }
        let reason = failure.to_string();
        vec![Payload::AttemptVoided(AttemptVoided { attempt: self.attempt, reason })]
    }
}

/// Why a turn fails when its model call did.
fn given_up(failure: &CallFailure, after: Option<Duration>) -> Failed {
    let reason = match failure.cause {
        Cause::Status(429) => FailureReason::RateLimited,
        Cause::Status(413) => FailureReason::ContextWindowExceeded,
        Cause::Status(_) | Cause::InStream | Cause::Cut | Cause::Malformed => FailureReason::ModelError,
    };
    let text = match after {
        Some(after) => format!("{failure}; it may be tried again in {} s", after.as_secs()),
        None => failure.to_string(),
    };
    Failed { reason, text }
}

/// Something people should know.
pub(crate) fn notice(code: &str, text: impl Into<String>) -> Payload {
    Payload::Notice(Notice { code: code.into(), text: text.into() })
}
