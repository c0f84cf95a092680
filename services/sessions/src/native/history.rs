//! The conversation, folded from the event log. The running loop and the worker that continues after a crash fold the same
//! events, so they hold the same conversation. Pure: no calls, no clock.

use std::collections::{BTreeMap, BTreeSet};

use berth_rpc::lifecycle::event::Payload;
use serde_json::{Map, Value};

use super::reply::text_of;

/// One part of the conversation, in the order of the log.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Entry {
    /// A message of the user, accepted.
    User(String),
    /// A reply of the model: its content blocks and why it ended.
    Assistant { content: Vec<Value>, stop_reason: String },
    /// What a tool call brought.
    Result { call_id: String, text: String, is_error: bool },
}

/// A tool call of the newest reply that has no result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) input: Map<String, Value>,
    /// Its `tool_call` event is in the log: it may have run.
    pub(crate) begun: bool,
}

/// What the loop does next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Call the model.
    Ask,
    /// Run these, in order.
    Run(Vec<OpenCall>),
    /// The turn is over.
    End(End),
}

/// How the model ended a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Finished,
    Refused,
    ContextWindowExceeded,
    /// Cut by `max_tokens` once too often.
    CutTooOften,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) entries: Vec<Entry>,
    texts: BTreeMap<String, String>,
    accepted: BTreeSet<String>,
    answering: Vec<String>,
    begun: BTreeSet<String>,
    /// Whether deltas were shown since the last whole reply.
    shown: bool,
}

/// The text of a message that the log does not hold.
const CONTINUE: &str = "Continue.";

impl Conversation {
    #[cfg(test)]
    pub(crate) fn of(entries: Vec<Entry>) -> Self {
        Self { entries, ..Self::default() }
    }

    /// Takes the next event of the log.
    pub(crate) fn apply(&mut self, payload: &Payload) {
        match payload {
            Payload::UserMessage(message) => self.know(&message.message_id, &message.text),
            Payload::MessageAccepted(accepted) => self.accept(&accepted.message_id),
            Payload::AssistantMessage(reply) => {
                let content = serde_json::from_str(&reply.content_json).unwrap_or_default();
                self.entries.push(Entry::Assistant { content, stop_reason: reply.stop_reason.clone() });
                self.begun.clear();
                self.shown = false;
            }
            Payload::ToolCall(call) => {
                self.begun.insert(call.call_id.clone());
            }
            Payload::ToolResult(result) => self.entries.push(Entry::Result {
                call_id: result.call_id.clone(),
                text: result.text.clone(),
                is_error: result.is_error,
            }),
            Payload::TurnEnded(_) => self.answering.clear(),
            Payload::AssistantDelta(_) => self.shown = true,
            Payload::AttemptVoided(_) => self.shown = false,
            Payload::ToolOutput(_) | Payload::Notice(_) | Payload::RunStateChanged(_) => {}
        }
    }

    /// The text of a queued message, before it is accepted.
    pub(crate) fn know(&mut self, message_id: &str, text: &str) {
        if !text.is_empty() {
            self.texts.entry(message_id.to_owned()).or_insert_with(|| text.to_owned());
        }
    }

    /// A message accepted twice (its launch died) is said once.
    fn accept(&mut self, message_id: &str) {
        if !self.answering.iter().any(|id| id == message_id) {
            self.answering.push(message_id.to_owned());
        }
        if self.accepted.insert(message_id.to_owned()) {
            let text = self.texts.remove(message_id).unwrap_or_else(|| CONTINUE.to_owned());
            self.entries.push(Entry::User(text));
        }
    }

    pub(crate) fn is_accepted(&self, message_id: &str) -> bool {
        self.accepted.contains(message_id)
    }

    /// The messages of the turn in flight; empty between turns.
    pub(crate) fn answering(&self) -> &[String] {
        &self.answering
    }

    /// Text was shown that no whole reply holds.
    pub(crate) fn has_void_deltas(&self) -> bool {
        self.shown
    }

    /// What the newest reply left to do.
    pub(crate) fn step(&self, max_continuations: usize) -> Step {
        let calls = self.open_calls();
        if !calls.is_empty() {
            return Step::Run(calls);
        }
        let Some(Entry::Assistant { stop_reason, .. }) = self.entries.last() else { return Step::Ask };
        match stop_reason.as_str() {
            "pause_turn" => Step::Ask,
            "max_tokens" if self.cuts_in_a_row() > max_continuations => Step::End(End::CutTooOften),
            "max_tokens" => Step::Ask,
            "refusal" => Step::End(End::Refused),
            "model_context_window_exceeded" => Step::End(End::ContextWindowExceeded),
            _ => Step::End(End::Finished),
        }
    }

    /// Calls of the newest reply without a result, in order.
    pub(crate) fn open_calls(&self) -> Vec<OpenCall> {
        let Some(place) = self.entries.iter().rposition(|entry| matches!(entry, Entry::Assistant { .. })) else {
            return Vec::new();
        };
        let Some(Entry::Assistant { content, .. }) = self.entries.get(place) else { return Vec::new() };
        let answered = |id: &str| {
            self.entries.iter().skip(place).any(|entry| matches!(entry, Entry::Result { call_id, .. } if call_id == id))
        };
        let calls = content.iter().filter(|block| block["type"] == "tool_use");
        calls
            .filter_map(|call| Some((call["id"].as_str()?, call)))
            .filter(|(id, _)| !answered(id))
            .map(|(id, call)| OpenCall {
                id: id.to_owned(),
                name: call["name"].as_str().unwrap_or_default().to_owned(),
                input: call["input"].as_object().cloned().unwrap_or_default(),
                begun: self.begun.contains(id),
            })
            .collect()
    }

    /// The model's last words of the turn in flight.
    pub(crate) fn last_words(&self) -> String {
        let turn = self.entries.iter().rev().take_while(|entry| !matches!(entry, Entry::User(_)));
        let texts = turn.filter_map(|entry| match entry {
            Entry::Assistant { content, .. } => Some(text_of(content)),
            Entry::User(_) | Entry::Result { .. } => None,
        });
        texts.into_iter().find(|text| !text.trim().is_empty()).unwrap_or_default()
    }

    fn cuts_in_a_row(&self) -> usize {
        let cut = |entry: &&Entry| matches!(entry, Entry::Assistant { stop_reason, .. } if stop_reason == "max_tokens");
        self.entries.iter().rev().take_while(cut).count()
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
