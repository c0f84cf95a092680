//! The request of a model call, rendered from the conversation by the API's rules for a history: user first, every result of
//! a reply in the one message after it and before any text, neighbouring user content merged, newest user message marked for caching.

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use super::history::{Conversation, Entry};
use super::tools::Tool;

/// The API's limit on a request.
pub(crate) const MAX_REQUEST_BYTES: usize = 32_000_000;
/// What a reply cut by `max_tokens` is answered with.
const GO_ON: &str =
    "Your reply was cut off by the output limit. Go on exactly where it stopped; keep single replies shorter.";
/// The result of a call that has none in the log.
const NO_RESULT: &str = "No result is known for this call. Check before repeating it.";
/// A result must not be empty.
const NO_OUTPUT: &str = "(no output)";

/// What stays the same over the calls of a launch.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) model: String,
    pub(crate) max_tokens: u32,
    /// System texts, in order.
    pub(crate) system: Vec<String>,
    pub(crate) tools: Vec<Tool>,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    stream: bool,
    system: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    messages: Vec<Message<'a>>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: Role,
    content: Vec<Block<'a>>,
}

#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
    Assistant,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Block<'a> {
    Kept(&'a Value),
    Made(Value),
}

/// The JSON body of the next call.
pub(crate) fn render(frame: &Frame, conversation: &Conversation) -> Bytes {
    let mut system: Vec<Value> = frame.system.iter().map(|text| json!({"type": "text", "text": text})).collect();
    if let Some(last) = system.last_mut() {
        last["cache_control"] = ephemeral();
    }
    let body = Body {
        model: &frame.model,
        max_tokens: frame.max_tokens,
        stream: true,
        system,
        tools: frame.tools.iter().map(|tool| tool.definition()).collect(),
        messages: messages(&conversation.entries),
    };
    Bytes::from(serde_json::to_vec(&body).expect("JSON values always serialise"))
}

fn messages(entries: &[Entry]) -> Vec<Message<'_>> {
    let mut messages: Vec<Message<'_>> = Vec::new();
    let mut rest = entries;
    while let Some((entry, after)) = rest.split_first() {
        rest = after;
        match entry {
            Entry::User(text) => say(&mut messages, Role::User, [text_block(text)]),
            // Its reply came before it and took it along.
            Entry::Result { .. } => {}
            Entry::Assistant { content, stop_reason } => {
                say(&mut messages, Role::Assistant, content.iter().map(Block::Kept));
                say(&mut messages, Role::User, results(content, after));
                let followed = matches!(after.first(), None | Some(Entry::Assistant { .. }));
                if stop_reason == "max_tokens" && followed {
                    say(&mut messages, Role::User, [text_block(GO_ON)]);
                }
            }
        }
    }
    mark_newest(&mut messages);
    messages
}

/// One result per call of a reply, from what follows it up to the next reply.
fn results<'a>(content: &'a [Value], after: &'a [Entry]) -> Vec<Block<'a>> {
    let until_next = || after.iter().take_while(|entry| !matches!(entry, Entry::Assistant { .. }));
    let ids = content.iter().filter(|block| block["type"] == "tool_use").filter_map(|block| block["id"].as_str());
    ids.map(|id| {
        let found = until_next().find_map(|entry| match entry {
            Entry::Result { call_id, text, is_error } if call_id == id => Some((text.as_str(), *is_error)),
            Entry::Result { .. } | Entry::User(_) | Entry::Assistant { .. } => None,
        });
        let (text, is_error) = found.unwrap_or((NO_RESULT, true));
        let text = if text.trim().is_empty() { NO_OUTPUT } else { text };
        Block::Made(json!({"type": "tool_result", "tool_use_id": id, "content": text, "is_error": is_error}))
    })
    .collect()
}

/// Adds content; neighbouring content of the user is one message, each reply stays its own.
fn say<'a>(messages: &mut Vec<Message<'a>>, role: Role, content: impl IntoIterator<Item = Block<'a>>) {
    let content: Vec<Block<'a>> = content.into_iter().collect();
    if content.is_empty() {
        return;
    }
    match messages.last_mut() {
        Some(last) if last.role == role && role == Role::User => last.content.extend(content),
        Some(_) | None => messages.push(Message { role, content }),
    }
}

fn mark_newest(messages: &mut [Message<'_>]) {
    let newest = messages.iter_mut().rev().find(|message| message.role == Role::User);
    if let Some(Block::Made(block)) = newest.and_then(|message| message.content.last_mut()) {
        block["cache_control"] = ephemeral();
    }
}

fn text_block(text: &str) -> Block<'static> {
    Block::Made(json!({"type": "text", "text": text}))
}

fn ephemeral() -> Value {
    json!({"type": "ephemeral"})
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
