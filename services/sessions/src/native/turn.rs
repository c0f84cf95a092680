//! The loop of one launch: read the log, accept messages, ask the model, run its tools, end the turn; again while messages wait.
//!
//! Every step is an event in the log before it has an effect: the acceptance before the call, the reply before its tools, each
//! tool call before it runs, its result before the next. The worker drops the loop when the claim ends or the run is cancelled;
//! that ends the model call and kills the command in flight.

use std::sync::Arc;
use std::time::Duration;

use berth_domain::failure::FailureReason;
use berth_rpc::lifecycle::{
    AssistantMessage, AttemptVoided, Error as ErrorText, Event, MessageAccepted, SessionWork, ToolCall, TurnEnded,
    event::Payload, queued_message, turn_ended::Outcome,
};
use secrecy::SecretString;
use tokio::time::Instant;

use super::ask::{Asking, notice};
use super::budget::Budget;
use super::history::{Conversation, End, OpenCall, Step};
use super::log::{Hold, Pen};
use super::request::{Frame, MAX_REQUEST_BYTES, render};
use super::tools::{self, Answer, Sandbox, Tool};
use super::{Failed, ModelApi, Stop, key, prompt};
use crate::claims::Claim;
use crate::config::Config;
use crate::upstream::Upstream;

/// Said of a call that a dead launch had announced.
const UNKNOWN: &str = "Interrupted; the outcome is unknown. Check before repeating this call.";
/// Said of a call that a dead launch had not begun.
const NOT_RUN: &str = "Interrupted before this call began; it was not run.";

/// One launch of the native loop.
pub(crate) struct Drive {
    config: Arc<Config>,
    api: ModelApi,
    upstream: Upstream,
    hold: Hold,
    claim: Claim,
    work: SessionWork,
    wall_clock: Option<Instant>,
    frame: Frame,
    sandbox: Sandbox,
    pen: Pen,
    conversation: Conversation,
    /// Queued messages not yet accepted, in order.
    waiting: Vec<String>,
    budget: Budget,
    attempt: i32,
}

impl Drive {
    /// `wall_clock`: when the run's time is over, by our own clock.
    pub(crate) fn new(
        config: Arc<Config>,
        api: ModelApi,
        upstream: Upstream,
        (hold, claim): (Hold, Claim),
        work: SessionWork,
        wall_clock: Option<Instant>,
    ) -> Self {
        let tools = Tool::granted(&work.tools);
        let model = Some(work.model.clone()).filter(|model| !model.is_empty()).or_else(|| config.default_model.clone());
        Self {
            frame: Frame {
                model: model.unwrap_or_default(),
                max_tokens: config.max_output_tokens,
                system: prompt::system(&work, &tools),
                tools,
            },
            sandbox: Sandbox::new(upstream.sandbox.clone(), hold.clone()),
            pen: Pen::new(upstream.log.clone(), hold.clone()),
            budget: Budget::of(&work),
            conversation: Conversation::default(),
            waiting: Vec::new(),
            attempt: 0,
            config,
            api,
            upstream,
            hold,
            claim,
            work,
            wall_clock,
        }
    }

    /// Runs turns until no message is left or one fails the run.
    pub(crate) async fn run(mut self) -> Result<(), Stop> {
        self.load().await?;
        loop {
            self.accept().await?;
            if self.conversation.answering().is_empty() {
                return Ok(());
            }
            let ended = match self.wall_clock {
                None => self.turn().await?,
                Some(at) => match tokio::time::timeout_at(at, self.turn()).await {
                    Ok(ended) => ended?,
                    Err(_) => {
                        Err(Failed { reason: FailureReason::BudgetWallClock, text: "the run's time is over".into() })
                    }
                },
            };
            let goes_on = ended.is_ok();
            self.end_turn(ended).await?;
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// Folds the log, takes up the queue, and answers what a dead launch left open.
    async fn load(&mut self) -> Result<(), Stop> {
        let queue = std::mem::take(&mut self.work.messages);
        for message in &queue {
            self.conversation.know(&message.message_id, &message.text);
        }
        let mut late = Vec::new();
        while self.pen.is_behind() {
            for event in self.pen.read_page().await? {
                late.extend(self.fold(&event));
            }
        }
        let open = queue.into_iter().filter(|message| match message.state() {
            queued_message::State::Done | queued_message::State::Failed => false,
            queued_message::State::Accepted => !self.conversation.is_accepted(&message.message_id),
            queued_message::State::Unspecified | queued_message::State::Queued | queued_message::State::Delivered => {
                true
            }
        });
        self.waiting = open.map(|message| message.message_id).collect();
        self.queue(late);
        if self.conversation.has_void_deltas() {
            self.record(vec![notice("LAUNCH_CONTINUED", "unfinished text of an earlier launch is void")]).await?;
        }
        self.close_open_calls().await
    }

    /// Takes one event of the log; the id of a message that came after the claim.
    fn fold(&mut self, event: &Event) -> Option<String> {
        let payload = event.payload.as_ref()?;
        self.conversation.apply(payload);
        if event.launch == i64::from(self.hold.launch) {
            self.pen.resume_after(event.launch_sequence);
            if let Payload::AssistantDelta(delta) = payload {
                self.attempt = self.attempt.max(delta.attempt);
            }
        }
        match payload {
            Payload::UserMessage(message) if event.sequence > self.work.last_sequence => {
                Some(message.message_id.clone())
            }
            _ => None,
        }
    }

    /// Announced calls may have run and are never run again; the others were not run.
    async fn close_open_calls(&mut self) -> Result<(), Stop> {
        let results = self.conversation.open_calls().into_iter().map(|call| {
            let text = if call.begun { UNKNOWN } else { NOT_RUN };
            let answer = Answer { text: text.into(), is_error: true, interrupted: call.begun, ..Answer::default() };
            answer.into_event(call.id, Duration::ZERO)
        });
        let results = results.collect();
        self.record(results).await
    }

    /// Accepts every waiting message, in order.
    async fn accept(&mut self) -> Result<(), Stop> {
        if self.claim.take_message_hint() {
            self.pen.fall_behind();
        }
        while self.pen.is_behind() {
            for event in self.pen.read_page().await? {
                let Some(Payload::UserMessage(message)) = event.payload else { continue };
                self.conversation.know(&message.message_id, &message.text);
                self.queue(vec![message.message_id]);
            }
        }
        let accepted = std::mem::take(&mut self.waiting).into_iter();
        self.record(accepted.map(|message_id| Payload::MessageAccepted(MessageAccepted { message_id })).collect()).await
    }

    fn queue(&mut self, message_ids: Vec<String>) {
        for id in message_ids {
            if !self.conversation.is_accepted(&id) && !self.waiting.contains(&id) {
                self.waiting.push(id);
            }
        }
    }

    /// The model's last words, or why the turn failed.
    async fn turn(&mut self) -> Result<Result<String, Failed>, Stop> {
        if self.frame.model.is_empty() {
            return failed(FailureReason::ModelError, "the run names no model and the deployment has no default");
        }
        let own = self.config.model_api_key.as_ref();
        let key = match key::resolve(&self.upstream.secrets, own, &self.api, &self.hold).await? {
            Ok(key) => key,
            Err(failed) => return Ok(Err(failed)),
        };
        loop {
            match self.conversation.step(self.config.max_continuations) {
                Step::End(end) => return Ok(self.ended(end)),
                Step::Run(calls) => {
                    for call in calls {
                        self.run_tool(call).await?;
                    }
                    self.accept().await?;
                }
                Step::Ask => {
                    if let Some((reason, text)) = self.budget.exhausted() {
                        return Ok(Err(Failed { reason, text }));
                    }
                    if let Err(failed) = self.ask(&key).await? {
                        return Ok(Err(failed));
                    }
                }
            }
        }
    }

    async fn ask(&mut self, key: &SecretString) -> Result<Result<(), Failed>, Stop> {
        let body = render(&self.frame, &self.conversation);
        if body.len() > MAX_REQUEST_BYTES {
            return failed(FailureReason::ContextWindowExceeded, "the conversation is larger than a request may be");
        }
        self.claim.ensure_live()?;
        let asking = Asking {
            api: &self.api,
            limits: &self.config.retry,
            key,
            body,
            attempt: &mut self.attempt,
            pen: &mut self.pen,
        };
        let reply = match asking.reply().await? {
            Ok(reply) => reply,
            Err(failed) => return Ok(Err(failed)),
        };
        self.budget.spend(&reply.usage);
        let mut events = vec![Payload::AssistantMessage(AssistantMessage {
            text: reply.text(),
            content_json: reply.content_json(),
            stop_reason: reply.stop_reason.clone(),
            usage: Some(reply.usage),
            model: if reply.model.is_empty() { self.frame.model.clone() } else { reply.model.clone() },
        })];
        if reply.stop_reason == "max_tokens" {
            let lost = if reply.dropped_call { "; a tool call in it was cut and is dropped" } else { "" };
            events.push(notice("REPLY_CUT", format!("the reply reached the output limit{lost}")));
        }
        self.record(events).await?;
        Ok(Ok(()))
    }

    async fn run_tool(&mut self, call: OpenCall) -> Result<(), Stop> {
        let input_json = serde_json::Value::Object(call.input.clone()).to_string();
        self.record(vec![Payload::ToolCall(ToolCall {
            call_id: call.id.clone(),
            name: call.name.clone(),
            input_json,
        })])
        .await?;
        self.claim.ensure_live()?;
        let (answer, duration) = tools::run(&self.frame.tools, &self.sandbox, &call, &mut self.pen).await?;
        tracing::debug!(tool = %call.name, is_error = answer.is_error, duration_ms = duration.as_millis() as u64, "tool ran");
        self.record(vec![answer.into_event(call.id, duration)]).await
    }

    fn ended(&self, end: End) -> Result<String, Failed> {
        let (reason, text) = match end {
            End::Finished => return Ok(self.conversation.last_words()),
            End::Refused => (FailureReason::ModelRefused, "the model refused the task".to_owned()),
            End::ContextWindowExceeded => {
                (FailureReason::ContextWindowExceeded, "the conversation no longer fits the model".to_owned())
            }
            End::CutTooOften => {
                let cuts = self.config.max_continuations + 1;
                (FailureReason::ModelError, format!("{cuts} replies in a row reached the output limit"))
            }
        };
        Err(Failed { reason, text })
    }

    async fn end_turn(&mut self, ended: Result<String, Failed>) -> Result<(), Stop> {
        // Only a turn that was stopped from outside has half a reply or open calls here.
        if let Some(attempt) = self.pen.showing() {
            let reason = "the turn was stopped".to_owned();
            self.record(vec![Payload::AttemptVoided(AttemptVoided { attempt, reason })]).await?;
        }
        self.close_open_calls().await?;
        let message_ids = self.conversation.answering().to_vec();
        let event = match ended {
            Ok(text) => TurnEnded { outcome: Outcome::Finished.into(), text, error: None, message_ids },
            Err(failed) => {
                tracing::info!(reason = %failed.reason, "turn failed");
                let error = ErrorText { reason: failed.reason.as_str().into(), message: failed.text };
                let text = self.conversation.last_words();
                TurnEnded { outcome: Outcome::Failed.into(), text, error: Some(error), message_ids }
            }
        };
        self.record(vec![Payload::TurnEnded(event)]).await
    }

    /// Folds and appends; what the events announce may happen after this returned.
    async fn record(&mut self, payloads: Vec<Payload>) -> Result<(), Stop> {
        for payload in &payloads {
            self.conversation.apply(payload);
        }
        self.pen.append(payloads).await
    }
}

fn failed<T>(reason: FailureReason, text: &str) -> Result<Result<T, Failed>, Stop> {
    Ok(Err(Failed { reason, text: text.to_owned() }))
}
