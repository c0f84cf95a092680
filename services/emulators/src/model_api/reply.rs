//! A scripted turn made into a reply: blocks, stop reason, token counts, as one JSON message.
//!
//! Everything is derived from script and request, so a retry gets the same tool ids and the same counts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::choose::Choice;
use super::request::MessagesRequest;
use super::script::{StopReason, Turn};

/// Said when the script has no further turn; an empty reply could not be sent back in a history.
const END_OF_SCRIPT: &str = "(end of script)";

/// A complete assistant reply.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) blocks: Vec<ReplyBlock>,
    pub(super) stop_reason: StopReason,
    pub(super) usage: Usage,
}

#[derive(Debug)]
pub(super) enum ReplyBlock {
    Thinking { thinking: String, signature: String },
    Text(String),
    ToolUse { id: String, name: String, input: Value },
}

/// Token counts of one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) cache_creation_input_tokens: u64,
    pub(super) cache_read_input_tokens: u64,
}

/// Four bytes a token, rounded up: crude, but real enough to be summed and asserted.
pub(super) fn tokens(bytes: usize) -> u64 {
    bytes.div_ceil(4) as u64
}

impl Reply {
    /// The reply to a request of `body_bytes`; `serial` makes the message id unlike any other.
    pub(super) fn of(choice: &Choice<'_>, request: &MessagesRequest, body_bytes: usize, serial: u64) -> Self {
        let ended = Turn { text: Some(END_OF_SCRIPT.to_owned()), ..Turn::default() };
        let turn = choice.reply.unwrap_or(&ended);
        // The number of messages keeps ids apart when one conversation is played twice in a history.
        let place = format!("{}/{}/{}", choice.conversation, choice.turn, request.messages.len());
        let blocks = blocks(turn, &place);
        let has_tools = blocks.iter().any(|block| matches!(block, ReplyBlock::ToolUse { .. }));
        let derived = if has_tools { StopReason::ToolUse } else { StopReason::EndTurn };
        Self {
            id: format!("msg_{}", digest(&format!("{place}/{serial}"))),
            model: request.model.clone(),
            stop_reason: turn.stop_reason.unwrap_or(derived),
            usage: usage(turn, &blocks, body_bytes),
            blocks,
        }
    }

    /// The answer without streaming.
    pub(super) fn message(&self) -> Value {
        let content: Vec<Value> = self.blocks.iter().map(ReplyBlock::json).collect();
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": self.stop_reason, "stop_sequence": null, "usage": self.usage.json(self.usage.output_tokens),
        })
    }
}

impl ReplyBlock {
    fn json(&self) -> Value {
        match self {
            Self::Thinking { thinking, signature } => {
                json!({"type": "thinking", "thinking": thinking, "signature": signature})
            }
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::ToolUse { id, name, input } => json!({"type": "tool_use", "id": id, "name": name, "input": input}),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Thinking { thinking, .. } => thinking.len(),
            Self::Text(text) => text.len(),
            Self::ToolUse { name, input, .. } => name.len() + input.to_string().len(),
        }
    }
}

impl Usage {
    /// The vendor's shape, with `output_tokens` as counted so far.
    pub(super) fn json(&self, output_tokens: u64) -> Value {
        json!({
            "input_tokens": self.input_tokens, "output_tokens": output_tokens,
            "cache_creation_input_tokens": self.cache_creation_input_tokens,
            "cache_read_input_tokens": self.cache_read_input_tokens,
        })
    }
}

fn blocks(turn: &Turn, place: &str) -> Vec<ReplyBlock> {
    let thinking = turn.thinking.iter().filter(|thinking| !thinking.is_empty()).map(|thinking| ReplyBlock::Thinking {
        thinking: thinking.clone(),
        signature: STANDARD.encode(Sha256::digest(thinking.as_bytes())),
    });
    let text = turn.text.iter().filter(|text| !text.is_empty()).map(|text| ReplyBlock::Text(text.clone()));
    let tools = turn.tools.iter().enumerate().map(|(index, tool)| ReplyBlock::ToolUse {
        id: format!("toolu_{}", digest(&format!("{place}/tool/{index}"))),
        name: tool.name.clone(),
        input: Value::Object(tool.input.clone()),
    });
    thinking.chain(text).chain(tools).collect()
}

fn usage(turn: &Turn, blocks: &[ReplyBlock], body_bytes: usize) -> Usage {
    let stated = turn.usage.clone().unwrap_or_default();
    let derived_output = tokens(blocks.iter().map(ReplyBlock::bytes).sum()).max(1);
    Usage {
        input_tokens: stated.input_tokens.unwrap_or_else(|| tokens(body_bytes)),
        output_tokens: stated.output_tokens.unwrap_or(derived_output),
        cache_creation_input_tokens: stated.cache_creation_input_tokens.unwrap_or(0),
        cache_read_input_tokens: stated.cache_read_input_tokens.unwrap_or(0),
    }
}

fn digest(text: &str) -> String {
    hex::encode(&Sha256::digest(text.as_bytes())[..12])
}
