//! A reply as server-sent events: one `Bytes` per event, deltas cut small so that clients really assemble them.

use bytes::Bytes;
use serde_json::{Value, json};

use super::reply::{Reply, ReplyBlock};
use super::script::StopReason;

/// Characters in one delta.
const DELTA_CHARS: usize = 24;
/// A ping follows every so many deltas of a block.
const DELTAS_PER_PING: usize = 16;

/// All events of a reply, `message_start` to `message_stop`.
pub(super) fn events(reply: &Reply) -> Vec<Bytes> {
    let mut start = reply.message();
    start["content"] = json!([]);
    start["stop_reason"] = Value::Null;
    start["usage"] = reply.usage.json(1);
    let mut events = vec![event(json!({"type": "message_start", "message": start})), ping()];
    for (index, block) in reply.blocks.iter().enumerate() {
        let is_last = index + 1 == reply.blocks.len();
        let cut = is_last && reply.stop_reason == StopReason::MaxTokens;
        block_events(index, block, cut, &mut events);
    }
    events.push(event(json!({
        "type": "message_delta", "delta": {"stop_reason": reply.stop_reason, "stop_sequence": null},
        "usage": {"output_tokens": reply.usage.output_tokens},
    })));
    events.push(event(json!({"type": "message_stop"})));
    events
}

/// An error after the 200; the stream ends with it.
pub(super) fn error_event(kind: &str, message: &str) -> Bytes {
    event(json!({"type": "error", "error": {"type": kind, "message": message}}))
}

/// A reply cut by `max_tokens` ends in the middle of its last tool input, as at the vendor.
fn block_events(index: usize, block: &ReplyBlock, cut: bool, events: &mut Vec<Bytes>) {
    let (empty, deltas) = match block {
        ReplyBlock::Thinking { thinking, signature } => {
            let mut deltas: Vec<Value> =
                pieces(thinking).map(|piece| json!({"type": "thinking_delta", "thinking": piece})).collect();
            deltas.push(json!({"type": "signature_delta", "signature": signature}));
            (json!({"type": "thinking", "thinking": "", "signature": ""}), deltas)
        }
        ReplyBlock::Text(text) => (
            json!({"type": "text", "text": ""}),
            pieces(text).map(|piece| json!({"type": "text_delta", "text": piece})).collect(),
        ),
        ReplyBlock::ToolUse { id, name, input } => {
            let text = input.to_string();
            let kept = if cut { half(&text) } else { text.as_str() };
            let deltas = std::iter::once(String::new())
                .chain(pieces(kept))
                .map(|piece| json!({"type": "input_json_delta", "partial_json": piece}))
                .collect();
            (json!({"type": "tool_use", "id": id, "name": name, "input": {}}), deltas)
        }
    };
    events.push(event(json!({"type": "content_block_start", "index": index, "content_block": empty})));
    for (number, delta) in deltas.into_iter().enumerate() {
        if number > 0 && number % DELTAS_PER_PING == 0 {
            events.push(ping());
        }
        events.push(event(json!({"type": "content_block_delta", "index": index, "delta": delta})));
    }
    events.push(event(json!({"type": "content_block_stop", "index": index})));
}

fn ping() -> Bytes {
    event(json!({"type": "ping"}))
}

fn event(data: Value) -> Bytes {
    let name = data["type"].as_str().unwrap_or_default();
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

fn pieces(text: &str) -> impl Iterator<Item = String> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(DELTA_CHARS).map(|piece| piece.iter().collect()).collect::<Vec<String>>().into_iter()
}

fn half(text: &str) -> &str {
    &text[..text.floor_char_boundary(text.len() / 2)]
}
