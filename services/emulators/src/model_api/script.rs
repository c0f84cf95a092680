//! The script file: which conversation is played, turn by turn, and which faults come first.
//!
//! Only the format and its checks live here; choosing a turn for a request is `choose.rs`.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The longest pause a script may ask for.
const MAX_DELAY: Duration = Duration::from_secs(3600);

/// A whole script: `{"conversations":[…]}`. Unknown fields are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Searched in order; the first that matches a text is played.
    pub conversations: Vec<Conversation>,
}

/// One conversation of a script.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conversation {
    /// Which user text starts it; absent: any request that nothing else matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
    /// The assistant's replies in order.
    pub turns: Vec<Turn>,
}

/// The condition on a user text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// The text contains this, letter case included.
    pub prompt_contains: String,
}

/// One assistant reply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Turn {
    /// The text block; absent or empty: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The thinking block before the text; absent or empty: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// The tool calls after the text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolCall>,
    /// Absent: `tool_use` with tools, else `end_turn`. With `max_tokens` a last tool call's input is cut in a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// Counts to report instead of the derived ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageOverride>,
    /// What goes wrong before this reply is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

/// One tool call of a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// The tool's name; need not be one the request offers.
    pub name: String,
    /// The tool's input; absent: `{}`.
    #[serde(default)]
    pub input: Map<String, Value>,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the vendor's")]
pub enum StopReason {
    EndTurn,
    StopSequence,
    ToolUse,
    MaxTokens,
    PauseTurn,
    Refusal,
    ModelContextWindowExceeded,
}

/// Token counts that replace the derived ones, each on its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "the names are the vendor's")]
pub struct UsageOverride {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_creation_input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read_input_tokens: Option<u64>,
}

/// Something that goes wrong with a turn, the first `times` times it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "FaultFields", into = "FaultFields")]
pub struct Fault {
    /// What happens.
    pub kind: FaultKind,
    /// How many requests for this conversation and turn it happens to; the next one succeeds.
    pub times: u32,
}

/// The kinds of fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An HTTP error answer.
    Status {
        /// 400 to 599.
        status: u16,
        /// The `retry-after` header, in seconds.
        retry_after_s: Option<u64>,
        /// In a stream only: answer 200, send whole events up to at least this many bytes, then an SSE `error` event.
        after_bytes: Option<usize>,
    },
    /// The connection breaks inside the body.
    Cut {
        /// Body bytes sent before; `None`: half of the body.
        after_bytes: Option<usize>,
    },
    /// One pause, then the reply as usual.
    Slow {
        /// How long, at most an hour.
        delay: Duration,
        /// Body bytes sent before the pause; 0: the pause comes before the status line.
        after_bytes: usize,
    },
}

/// The fault as the file spells it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultFields {
    kind: FaultName,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after_bytes: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(default = "once")]
    times: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FaultName {
    Status,
    Cut,
    Slow,
}

fn once() -> u32 {
    1
}

/// Why a script was refused; the text names the field and, for a file, line and column.
#[derive(Debug, thiserror::Error)]
#[error("script refused: {0}")]
pub struct ScriptError(String);

impl Script {
    /// Reads the JSON text of a script.
    ///
    /// # Errors
    /// [`ScriptError`] for malformed JSON, unknown or missing fields and impossible faults.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        serde_json::from_str(text).map_err(|error| ScriptError(error.to_string()))
    }
}

impl TryFrom<FaultFields> for Fault {
    type Error = ScriptError;

    fn try_from(fields: FaultFields) -> Result<Self, ScriptError> {
        let kind = match fields.kind {
            FaultName::Status => {
                let status = fields.status.ok_or_else(|| refused("fault of kind \"status\" needs \"status\""))?;
                if !(400..=599).contains(&status) {
                    return Err(refused("fault \"status\" must be 400 to 599"));
                }
                FaultKind::Status { status, retry_after_s: fields.retry_after_s, after_bytes: fields.after_bytes }
            }
            FaultName::Cut => FaultKind::Cut { after_bytes: fields.after_bytes },
            FaultName::Slow => {
                let delay = fields.delay_ms.ok_or_else(|| refused("fault of kind \"slow\" needs \"delay_ms\""))?;
                let delay = Duration::from_millis(delay);
                if delay > MAX_DELAY {
                    return Err(refused("fault \"delay_ms\" must be at most 3600000"));
                }
                FaultKind::Slow { delay, after_bytes: fields.after_bytes.unwrap_or(0) }
            }
        };
        Ok(Self { kind, times: fields.times })
    }
}

impl From<Fault> for FaultFields {
    fn from(fault: Fault) -> Self {
        let blank = |kind| Self {
            kind,
            status: None,
            retry_after_s: None,
            after_bytes: None,
            delay_ms: None,
            times: fault.times,
        };
        match fault.kind {
            FaultKind::Status { status, retry_after_s, after_bytes } => {
                Self { status: Some(status), retry_after_s, after_bytes, ..blank(FaultName::Status) }
            }
            FaultKind::Cut { after_bytes } => Self { after_bytes, ..blank(FaultName::Cut) },
            FaultKind::Slow { delay, after_bytes } => Self {
                delay_ms: Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
                after_bytes: (after_bytes > 0).then_some(after_bytes),
                ..blank(FaultName::Slow)
            },
        }
    }
}

fn refused(reason: &str) -> ScriptError {
    ScriptError(reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_documented_format_and_writes_it_back() {
        let text = r#"{"conversations":[
            {"when":{"prompt_contains":"fix"},"turns":[
                {"text":"Looking.","tools":[{"name":"bash","input":{"command":"ls"}}],
                 "fault":{"kind":"status","status":529,"retry_after_s":1,"times":2}},
                {"fault":{"kind":"cut","after_bytes":10}},
                {"fault":{"kind":"slow","delay_ms":5}},
                {"stop_reason":"max_tokens","thinking":"hm","usage":{"output_tokens":3}}]},
            {"turns":[]}]}"#;
        let script = Script::parse(text).unwrap();
        let turns = &script.conversations[0].turns;
        assert_eq!(turns[0].fault.as_ref().unwrap().times, 2);
        assert_eq!(turns[1].fault.as_ref().unwrap().times, 1);
        let again = Script::parse(&serde_json::to_string(&script).unwrap()).unwrap();
        assert_eq!(again, script);
    }

    #[test]
    fn refuses_what_it_would_have_to_guess() {
        let turn = |turn: &str| format!(r#"{{"conversations":[{{"turns":[{turn}]}}]}}"#);
        let cases = [
            (r#"{"conversation":[]}"#.to_owned(), "unknown field `conversation`"),
            ("{}".to_owned(), "missing field `conversations`"),
            (r#"{"conversations":[{}]}"#.to_owned(), "missing field `turns`"),
            (r#"{"conversations":[{"when":{},"turns":[]}]}"#.to_owned(), "missing field `prompt_contains`"),
            (r#"{"conversations":[{"when":{"prompt":"x"},"turns":[]}]}"#.to_owned(), "unknown field `prompt`"),
            (turn(r#"{"txt":"x"}"#), "unknown field `txt`"),
            (turn(r#"{"tools":[{"name":"bash","args":{}}]}"#), "unknown field `args`"),
            (turn(r#"{"tools":[{"name":"bash","input":"ls"}]}"#), "expected a map"),
            (turn(r#"{"stop_reason":"later"}"#), "unknown variant `later`"),
            (turn(r#"{"fault":{"kind":"fire"}}"#), "unknown variant `fire`"),
            (turn(r#"{"fault":{"kind":"cut","bytes":1}}"#), "unknown field `bytes`"),
            (turn(r#"{"fault":{"kind":"status"}}"#), "needs \"status\""),
            (turn(r#"{"fault":{"kind":"status","status":200}}"#), "400 to 599"),
            (turn(r#"{"fault":{"kind":"slow"}}"#), "needs \"delay_ms\""),
            (turn(r#"{"fault":{"kind":"slow","delay_ms":3600001}}"#), "at most 3600000"),
            ("{".to_owned(), "line 1"),
        ];
        for (text, expected) in cases {
            let error = Script::parse(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
