//! Folding the log into a conversation.

use berth_rpc::lifecycle::{
    AssistantDelta, AssistantMessage, MessageAccepted, ToolCall, ToolResult, TurnEnded, UserMessage, event::Payload,
};
use serde_json::{Value, json};

use super::*;

fn asked(id: &str, text: &str) -> Payload {
    Payload::UserMessage(UserMessage { message_id: id.into(), text: text.into(), principal: "ada".into() })
}

fn accepted(id: &str) -> Payload {
    Payload::MessageAccepted(MessageAccepted { message_id: id.into() })
}

fn replied(content: Value, stop_reason: &str) -> Payload {
    let content_json = content.to_string();
    Payload::AssistantMessage(AssistantMessage { content_json, stop_reason: stop_reason.into(), ..Default::default() })
}

fn call(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "bash", "input": {"command": "ls"}})
}

fn begun(id: &str) -> Payload {
    Payload::ToolCall(ToolCall { call_id: id.into(), name: "bash".into(), input_json: "{}".into() })
}

fn result(id: &str) -> Payload {
    Payload::ToolResult(ToolResult { call_id: id.into(), text: "out".into(), ..Default::default() })
}

fn folded(payloads: &[Payload]) -> Conversation {
    let mut conversation = Conversation::default();
    payloads.iter().for_each(|payload| conversation.apply(payload));
    conversation
}

#[test]
fn messages_are_said_in_the_order_they_were_accepted_and_once() {
    let conversation = folded(&[asked("a", "one"), asked("b", "two"), accepted("b"), accepted("a"), accepted("b")]);
    assert_eq!(conversation.entries, [Entry::User("two".into()), Entry::User("one".into())]);
    assert_eq!(conversation.answering(), ["b", "a"]);
}

#[test]
fn open_calls_of_a_dead_launch_say_whether_they_had_begun() {
    let reply = replied(json!([call("t1"), call("t2"), call("t3")]), "tool_use");
    let conversation = folded(&[asked("a", "x"), accepted("a"), reply, begun("t1"), result("t1"), begun("t2")]);
    let open: Vec<(String, bool)> = conversation.open_calls().into_iter().map(|open| (open.id, open.begun)).collect();
    assert_eq!(open, [("t2".to_owned(), true), ("t3".to_owned(), false)]);
}

#[test]
fn the_same_call_id_in_a_later_reply_is_a_call_of_its_own() {
    let reply = || replied(json!([call("t1")]), "tool_use");
    let conversation = folded(&[reply(), begun("t1"), result("t1"), reply()]);
    assert_eq!(conversation.open_calls().len(), 1);
    assert!(!conversation.open_calls()[0].begun);
}

#[test]
fn a_finished_reply_without_its_turn_end_is_not_asked_again() {
    let reply = replied(json!([{"type": "text", "text": "Done."}]), "end_turn");
    let mut conversation = folded(&[asked("a", "x"), accepted("a"), reply]);
    assert_eq!(conversation.step(3), Step::End(End::Finished));
    assert_eq!(conversation.last_words(), "Done.");
    conversation.apply(&Payload::TurnEnded(TurnEnded::default()));
    assert_eq!(conversation.answering(), Vec::<String>::new().as_slice());
}

#[test]
fn case_n03_every_stop_reason_continues_or_ends_with_a_reason() {
    let said = json!([{"type": "text", "text": "…"}]);
    for (reason, step) in [
        ("end_turn", Step::End(End::Finished)),
        ("stop_sequence", Step::End(End::Finished)),
        ("from_the_future", Step::End(End::Finished)),
        ("pause_turn", Step::Ask),
        ("max_tokens", Step::Ask),
        ("refusal", Step::End(End::Refused)),
        ("model_context_window_exceeded", Step::End(End::ContextWindowExceeded)),
    ] {
        assert_eq!(folded(&[accepted("a"), replied(said.clone(), reason)]).step(3), step, "{reason}");
    }
    let cut = || replied(said.clone(), "max_tokens");
    assert_eq!(folded(&[accepted("a"), cut(), cut(), cut()]).step(3), Step::Ask);
    assert_eq!(folded(&[accepted("a"), cut(), cut(), cut(), cut()]).step(3), Step::End(End::CutTooOften));
}

#[test]
fn void_deltas_are_noticed() {
    let delta = Payload::AssistantDelta(AssistantDelta { attempt: 1, text: "Lo".into() });
    assert!(folded(std::slice::from_ref(&delta)).has_void_deltas());
    assert!(!folded(&[delta, replied(json!([]), "end_turn")]).has_void_deltas());
}

#[test]
fn a_message_whose_text_is_nowhere_still_goes_on() {
    assert_eq!(folded(&[accepted("c")]).entries, [Entry::User(CONTINUE.into())]);
}
