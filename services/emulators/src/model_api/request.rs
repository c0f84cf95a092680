//! What the emulator reads of a request, and the rules a history must keep.
//!
//! Unknown fields are accepted everywhere (clients send many); what is read must make sense, as at the vendor.

use std::collections::BTreeSet;

use serde::Deserialize;

/// The parts of a Messages request that decide the answer.
#[derive(Debug, Deserialize)]
pub(super) struct MessagesRequest {
    pub(super) model: String,
    #[serde(default)]
    pub(super) max_tokens: Option<u64>,
    #[serde(default)]
    pub(super) stream: Option<bool>,
    pub(super) messages: Vec<Message>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Message {
    pub(super) role: Role,
    #[serde(default)]
    pub(super) content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    User,
    Assistant,
    /// Sent by some clients between the others; never part of the conversation.
    System,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

impl Default for Content {
    fn default() -> Self {
        Self::Blocks(Vec::new())
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Block {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    tool_use_id: Option<String>,
}

impl Message {
    /// The texts of this message, oldest first; tool results are no texts.
    pub(super) fn texts(&self) -> Vec<&str> {
        match &self.content {
            Content::Text(text) => vec![text.as_str()],
            Content::Blocks(blocks) => {
                blocks.iter().filter(|block| block.kind == "text").filter_map(|block| block.text.as_deref()).collect()
            }
        }
    }

    fn blocks(&self) -> &[Block] {
        match &self.content {
            Content::Text(_) => &[],
            Content::Blocks(blocks) => blocks,
        }
    }
}

/// Checks the history as the vendor does; the text says which message is wrong.
///
/// Neighbouring messages of one role count as one, and `system` messages are skipped.
pub(super) fn check_history(messages: &[Message]) -> Result<(), String> {
    let spoken: Vec<(usize, &Message)> =
        messages.iter().enumerate().filter(|(_, message)| message.role != Role::System).collect();
    match spoken.first() {
        None => return Err("messages: at least one message is required".to_owned()),
        Some((index, first)) if first.role != Role::User => {
            return Err(format!("messages.{index}: first message must use the \"user\" role"));
        }
        Some(_) => {}
    }
    let mut open: BTreeSet<&str> = BTreeSet::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for group in spoken.chunk_by(|(_, left), (_, right)| left.role == right.role) {
        check_texts(group)?;
        if group[0].1.role == Role::Assistant {
            open = tool_uses(group, &mut seen)?;
        } else {
            check_results(group, std::mem::take(&mut open))?;
        }
    }
    if open.is_empty() { Ok(()) } else { Err(unanswered(messages.len() - 1, &open)) }
}

fn check_texts(group: &[(usize, &Message)]) -> Result<(), String> {
    for (index, message) in group {
        if message.texts().iter().any(|text| text.is_empty()) {
            return Err(format!("messages.{index}: text content blocks must be non-empty"));
        }
    }
    Ok(())
}

/// The ids of an assistant reply's tool calls; each id may be used once in a history.
fn tool_uses<'m>(group: &[(usize, &'m Message)], seen: &mut BTreeSet<&'m str>) -> Result<BTreeSet<&'m str>, String> {
    let mut open = BTreeSet::new();
    for (index, message) in group {
        for block in message.blocks().iter().filter(|block| block.kind == "tool_use") {
            let Some(id) = block.id.as_deref() else {
                return Err(format!("messages.{index}: tool_use.id: field required"));
            };
            if !seen.insert(id) {
                return Err(format!("messages.{index}: `tool_use` ids must be unique"));
            }
            open.insert(id);
        }
    }
    Ok(open)
}

/// Every open call answered exactly once, before any text.
fn check_results(group: &[(usize, &Message)], mut open: BTreeSet<&str>) -> Result<(), String> {
    let mut text_came = false;
    for (index, message) in group {
        text_came |= matches!(message.content, Content::Text(_));
        for block in message.blocks() {
            if block.kind != "tool_result" {
                text_came = true;
                continue;
            }
            let id = block.tool_use_id.as_deref().unwrap_or_default();
            if !open.remove(id) {
                return Err(format!(
                    "messages.{index}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each \
                     `tool_result` block must have a corresponding `tool_use` block in the previous message."
                ));
            }
            if text_came {
                return Err(format!("messages.{index}: `tool_result` blocks must come before other content"));
            }
        }
    }
    if open.is_empty() { Ok(()) } else { Err(unanswered(group[0].0, &open)) }
}

fn unanswered(index: usize, open: &BTreeSet<&str>) -> String {
    let ids = open.iter().copied().collect::<Vec<_>>().join(", ");
    format!("messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: {ids}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(messages: Value) -> Result<(), String> {
        check_history(&serde_json::from_value::<Vec<Message>>(messages).unwrap())
    }

    fn call(ids: &[&str]) -> Value {
        let blocks: Vec<Value> =
            ids.iter().map(|id| json!({"type":"tool_use","id":id,"name":"x","input":{}})).collect();
        json!({"role":"assistant","content":blocks})
    }

    fn results(ids: &[&str]) -> Value {
        let blocks: Vec<Value> =
            ids.iter().map(|id| json!({"type":"tool_result","tool_use_id":id,"content":"ok"})).collect();
        json!({"role":"user","content":blocks})
    }

    #[test]
    fn accepts_valid_histories() {
        let user = json!({"role":"user","content":"hi"});
        let valid = [
            json!([user]),
            json!([user, call(&["a", "b"]), results(&["b", "a"])]),
            json!([user, call(&["a", "b"]), results(&["a"]), results(&["b"]), user]),
            json!([{"role":"system","content":[]}, user, call(&["a"]), {"role":"system","content":"note"}, results(&["a"])]),
            json!([user, {"role":"assistant","content":"hello"}, {"role":"assistant","content":"more"}]),
        ];
        for messages in valid {
            assert_eq!(check(messages.clone()), Ok(()), "{messages}");
        }
    }

    #[test]
    fn refuses_what_the_vendor_refuses() {
        let user = json!({"role":"user","content":"hi"});
        let text_first = json!({"role":"user","content":[
            {"type":"text","text":"x"},{"type":"tool_result","tool_use_id":"a","content":"ok"}]});
        let cases = [
            (json!([]), "at least one"),
            (json!([{"role":"assistant","content":"x"}]), "first message"),
            (json!([user, call(&["a"])]), "without `tool_result`"),
            (json!([user, call(&["a"]), user]), "without `tool_result`"),
            (json!([user, call(&["a", "b"]), results(&["a"])]), "immediately after: b"),
            (json!([user, call(&["a"]), results(&["a", "a"])]), "unexpected `tool_use_id`"),
            (json!([user, results(&["a"])]), "unexpected `tool_use_id`"),
            (json!([user, call(&["a"]), results(&["a"]), call(&["a"]), results(&["a"])]), "unique"),
            (json!([user, call(&["a"]), text_first]), "before other content"),
            (json!([{"role":"user","content":[{"type":"text","text":""}]}]), "non-empty"),
        ];
        for (messages, expected) in cases {
            let error = check(messages.clone()).unwrap_err();
            assert!(error.contains(expected), "{messages}: {error}");
        }
    }
}
