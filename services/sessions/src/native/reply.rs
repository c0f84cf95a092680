//! A model's reply, put together from its stream. Pure: text in, reply out. Content blocks are kept as received, known or not,
//! because the next request must carry them unchanged.

use std::collections::BTreeMap;

use berth_rpc::lifecycle::Usage;
use serde_json::{Map, Value, json};

/// Bytes of content blocks in one reply; an event of the log holds a reply twice and at most 4 MiB.
const MAX_CONTENT_BYTES: usize = 3 << 19;
/// Content blocks in one reply.
const MAX_BLOCKS: usize = 512;

/// A complete reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) content: Vec<Value>,
    pub(crate) stop_reason: String,
    pub(crate) usage: Usage,
    pub(crate) model: String,
    /// A tool call at the end had lost part of its input and was dropped.
    pub(crate) dropped_call: bool,
}

impl Reply {
    /// What the reply says, without its tool calls.
    pub(crate) fn text(&self) -> String {
        text_of(&self.content)
    }

    /// The blocks as the log keeps them.
    pub(crate) fn content_json(&self) -> String {
        Value::from(self.content.clone()).to_string()
    }
}

/// The text blocks of a content list, joined.
pub(crate) fn text_of(content: &[Value]) -> String {
    content.iter().filter(|block| block["type"] == "text").filter_map(|block| block["text"].as_str()).collect()
}

/// What one event of the stream brought.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing to show.
    Quiet,
    /// Text to show.
    Text(String),
    /// The reply is complete.
    Stop,
}

/// Why a stream will not become a reply.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    /// An error event came in the stream.
    #[error("{kind}: {message}")]
    Error { kind: String, message: String },
    /// Not the documented form.
    #[error("the stream is not in the documented form")]
    Malformed,
    /// More content than a reply may have.
    #[error("the reply is too large")]
    TooLarge,
}

/// A reply in the making.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    blocks: BTreeMap<u64, Block>,
    usage: Usage,
    model: String,
    stop_reason: Option<String>,
    bytes: usize,
}

#[derive(Debug)]
struct Block {
    value: Value,
    /// Concatenated `partial_json`.
    input: Option<String>,
    closed: bool,
}

impl Assembly {
    /// Takes the `data` of one event. Unknown events, blocks and deltas are let pass.
    pub(crate) fn take(&mut self, data: &str) -> Result<Step, Broken> {
        let event: Value = serde_json::from_str(data).map_err(|_| Broken::Malformed)?;
        match event["type"].as_str().ok_or(Broken::Malformed)? {
            "message_start" => {
                self.model = text(&event["message"]["model"]);
                self.count(&event["message"]["usage"]);
                Ok(Step::Quiet)
            }
            "content_block_start" => self.start(&event),
            "content_block_delta" => self.delta(&event),
            "content_block_stop" => {
                if let Some(block) = event["index"].as_u64().and_then(|index| self.blocks.get_mut(&index)) {
                    block.closed = true;
                }
                Ok(Step::Quiet)
            }
            "message_delta" => {
                if let Some(reason) = event["delta"]["stop_reason"].as_str() {
                    self.stop_reason = Some(reason.to_owned());
                }
                self.count(&event["usage"]);
                Ok(Step::Quiet)
            }
            "message_stop" => Ok(Step::Stop),
            "error" => {
                Err(Broken::Error { kind: text(&event["error"]["type"]), message: text(&event["error"]["message"]) })
            }
            _ => Ok(Step::Quiet),
        }
    }

    /// The reply, after `message_stop`.
    pub(crate) fn finish(self) -> Reply {
        let stop_reason = self.stop_reason.unwrap_or_else(|| "end_turn".to_owned());
        let mut dropped_call = false;
        let mut content = Vec::new();
        let last = self.blocks.keys().next_back().copied();
        for (index, block) in self.blocks {
            let is_call = block.value["type"] == "tool_use";
            match block.complete() {
                Ok(value) if is_blank(&value) => {}
                Ok(value) => content.push(value),
                Err(_) if is_call && stop_reason == "max_tokens" && Some(index) == last => dropped_call = true,
                Err(value) => content.push(value),
            }
        }
        Reply { content, stop_reason, usage: self.usage, model: self.model, dropped_call }
    }

    fn start(&mut self, event: &Value) -> Result<Step, Broken> {
        let index = event["index"].as_u64().ok_or(Broken::Malformed)?;
        let value = event["content_block"].clone();
        if !value.is_object() {
            return Err(Broken::Malformed);
        }
        if self.blocks.len() >= MAX_BLOCKS {
            return Err(Broken::TooLarge);
        }
        let shown = value["text"].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        self.weigh(value.to_string().len())?;
        self.blocks.insert(index, Block { value, input: None, closed: false });
        Ok(shown.map_or(Step::Quiet, Step::Text))
    }

    fn delta(&mut self, event: &Value) -> Result<Step, Broken> {
        let index = event["index"].as_u64().ok_or(Broken::Malformed)?;
        let delta = &event["delta"];
        let (field, added) = match delta["type"].as_str().unwrap_or_default() {
            "text_delta" => ("text", text(&delta["text"])),
            "thinking_delta" => ("thinking", text(&delta["thinking"])),
            "signature_delta" => ("signature", text(&delta["signature"])),
            "input_json_delta" => ("input", text(&delta["partial_json"])),
            _ => return Ok(Step::Quiet),
        };
        self.weigh(added.len())?;
        let block = self.blocks.get_mut(&index).ok_or(Broken::Malformed)?;
        if field == "input" {
            block.input.get_or_insert_default().push_str(&added);
            return Ok(Step::Quiet);
        }
        match &mut block.value[field] {
            Value::String(so_far) => so_far.push_str(&added),
            other => *other = Value::String(added.clone()),
        }
        Ok(if field == "text" && !added.is_empty() { Step::Text(added) } else { Step::Quiet })
    }

    fn weigh(&mut self, bytes: usize) -> Result<(), Broken> {
        self.bytes += bytes;
        if self.bytes > MAX_CONTENT_BYTES { Err(Broken::TooLarge) } else { Ok(()) }
    }

    /// Counts are cumulative: the last one named stands.
    fn count(&mut self, usage: &Value) {
        let set = |field: &str, slot: &mut i64| {
            if let Some(count) = usage[field].as_i64() {
                *slot = count.max(0);
            }
        };
        set("input_tokens", &mut self.usage.input_tokens);
        set("output_tokens", &mut self.usage.output_tokens);
        set("cache_creation_input_tokens", &mut self.usage.cache_creation_input_tokens);
        set("cache_read_input_tokens", &mut self.usage.cache_read_input_tokens);
        self.usage.model_calls = 1;
    }
}

impl Block {
    /// The finished block; `Err` when its input is not a whole JSON object (then the input says so).
    fn complete(mut self) -> Result<Value, Value> {
        let Some(input) = self.input else {
            return if self.closed || self.value["type"] != "tool_use" { Ok(self.value) } else { Err(self.value) };
        };
        let parsed = if input.trim().is_empty() { Ok(Map::new()) } else { serde_json::from_str(&input) };
        match parsed {
            Ok(object) => {
                self.value["input"] = Value::Object(object);
                if self.closed { Ok(self.value) } else { Err(self.value) }
            }
            Err(_) => {
                self.value["input"] = json!({ "invalid_json": input });
                Err(self.value)
            }
        }
    }
}

/// A text block without text is refused by the API.
fn is_blank(block: &Value) -> bool {
    block["type"] == "text" && block["text"].as_str().unwrap_or_default().trim().is_empty()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assemble(events: &[Value]) -> Reply {
        let mut assembly = Assembly::default();
        for event in events {
            assembly.take(&event.to_string()).unwrap();
        }
        assembly.finish()
    }

    fn block(index: u64, start: Value, deltas: &[Value]) -> Vec<Value> {
        let mut events = vec![json!({"type": "content_block_start", "index": index, "content_block": start})];
        events
            .extend(deltas.iter().map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta})));
        events.push(json!({"type": "content_block_stop", "index": index}));
        events
    }

    fn stop(reason: &str) -> Value {
        json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 20}})
    }

    #[test]
    fn keeps_thinking_unknown_blocks_and_real_usage() {
        let mut events = vec![
            json!({"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 100, "output_tokens": 1, "cache_read_input_tokens": 7}}}),
        ];
        let thinking = json!({"type": "thinking", "thinking": "", "signature": ""});
        events.extend(block(
            0,
            thinking,
            &[
                json!({"type": "thinking_delta", "thinking": "hm"}),
                json!({"type": "signature_delta", "signature": "sig"}),
            ],
        ));
        events.extend(block(
            1,
            json!({"type": "novelty", "payload": [1, 2]}),
            &[json!({"type": "novel_delta", "x": 1})],
        ));
        events.extend(block(
            2,
            json!({"type": "text", "text": ""}),
            &[json!({"type": "text_delta", "text": "Look"}), json!({"type": "text_delta", "text": "ing."})],
        ));
        let call = json!({"type": "tool_use", "id": "t1", "name": "bash", "input": {}});
        events.extend(block(
            3,
            call,
            &[
                json!({"type": "input_json_delta", "partial_json": ""}),
                json!({"type": "input_json_delta", "partial_json": "{\"command\":\"ls\"}"}),
            ],
        ));
        events.extend([json!({"type": "ping"}), json!({"type": "from_the_future"}), stop("tool_use")]);
        let reply = assemble(&events);
        assert_eq!(
            reply.content,
            [
                json!({"type": "thinking", "thinking": "hm", "signature": "sig"}),
                json!({"type": "novelty", "payload": [1, 2]}),
                json!({"type": "text", "text": "Looking."}),
                json!({"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}),
            ]
        );
        assert_eq!(
            (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cache_read_input_tokens),
            (100, 20, 7)
        );
        assert_eq!((reply.text().as_str(), reply.model.as_str()), ("Looking.", "m"));
    }

    #[test]
    fn case_n03_a_call_cut_by_max_tokens_is_dropped_and_a_whole_one_kept() {
        let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "bash", "input": {}});
        let mut events = block(0, call("t1"), &[json!({"type": "input_json_delta", "partial_json": "{}"})]);
        events.extend(block(
            1,
            call("t2"),
            &[json!({"type": "input_json_delta", "partial_json": "{\"command\":\"rm -rf"})],
        ));
        events.push(stop("max_tokens"));
        let reply = assemble(&events);
        assert!(reply.dropped_call);
        assert_eq!(reply.content, [call("t1")]);
    }

    #[test]
    fn invalid_input_of_a_whole_reply_stays_answerable() {
        let call = json!({"type": "tool_use", "id": "t1", "name": "bash", "input": {}});
        let mut events = block(0, call, &[json!({"type": "input_json_delta", "partial_json": "{oops"})]);
        events.push(stop("tool_use"));
        assert_eq!(assemble(&events).content[0]["input"], json!({"invalid_json": "{oops"}));
    }

    #[test]
    fn errors_rubbish_and_floods_are_told_apart() {
        let mut assembly = Assembly::default();
        let error =
            json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}).to_string();
        assert!(matches!(assembly.take(&error), Err(Broken::Error { kind, .. }) if kind == "overloaded_error"));
        assert_eq!(assembly.take("{"), Err(Broken::Malformed));
        assert_eq!(
            assembly.take(r#"{"type":"content_block_delta","index":9,"delta":{"type":"text_delta","text":"x"}}"#),
            Err(Broken::Malformed)
        );
        assembly.take(r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#).unwrap();
        let flood = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x".repeat(MAX_CONTENT_BYTES)}});
        assert_eq!(assembly.take(&flood.to_string()), Err(Broken::TooLarge));
    }

    #[test]
    fn blank_text_is_not_kept() {
        let mut events = block(0, json!({"type": "text", "text": ""}), &[json!({"type": "text_delta", "text": " \n"})]);
        events.push(stop("end_turn"));
        assert_eq!(assemble(&events).content, Vec::<Value>::new());
    }
}
