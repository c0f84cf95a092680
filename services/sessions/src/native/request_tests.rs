//! Rendering a conversation as the API wants it.

use serde_json::{Value, json};

use super::*;

fn frame() -> Frame {
    Frame { model: "m".into(), max_tokens: 100, system: vec!["one".into(), "two".into()], tools: vec![Tool::Bash] }
}

fn rendered(entries: Vec<Entry>) -> Value {
    let conversation = Conversation::of(entries);
    serde_json::from_slice(&render(&frame(), &conversation)).unwrap()
}

fn user(text: &str) -> Entry {
    Entry::User(text.into())
}

fn assistant(content: Value, stop_reason: &str) -> Entry {
    Entry::Assistant { content: content.as_array().unwrap().clone(), stop_reason: stop_reason.into() }
}

fn result(id: &str, text: &str) -> Entry {
    Entry::Result { call_id: id.into(), text: text.into(), is_error: false }
}

fn call(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "bash", "input": {}})
}

#[test]
fn the_frame_names_model_system_and_granted_tools() {
    let body = rendered(vec![user("hi")]);
    assert_eq!((&body["model"], &body["max_tokens"], &body["stream"]), (&json!("m"), &json!(100), &json!(true)));
    assert_eq!(body["system"][0], json!({"type": "text", "text": "one"}));
    assert_eq!(body["system"][1]["cache_control"], json!({"type": "ephemeral"}));
    assert_eq!(body["tools"].as_array().unwrap().len(), 1);
    assert_eq!(body["tools"][0]["name"], "bash");
    assert_eq!(body["messages"][0]["content"][0]["cache_control"], json!({"type": "ephemeral"}));
}

#[test]
fn case_n01_results_come_first_and_a_steer_after_them_in_the_same_message() {
    let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "s"});
    let reply = assistant(json!([thinking, call("t1"), call("t2")]), "tool_use");
    let body = rendered(vec![user("go"), reply, result("t1", ""), user("steer"), result("t2", "two"), user("steer 2")]);
    let messages = body["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 3);
    assert_eq!(messages[1], json!({"role": "assistant", "content": [thinking, call("t1"), call("t2")]}));
    let content = &messages[2]["content"];
    assert_eq!((&content[0]["tool_use_id"], &content[0]["content"]), (&json!("t1"), &json!("(no output)")));
    assert_eq!((&content[1]["tool_use_id"], &content[1]["content"]), (&json!("t2"), &json!("two")));
    assert_eq!((&content[2]["text"], &content[3]["text"]), (&json!("steer"), &json!("steer 2")));
    assert_eq!(content[3]["cache_control"], json!({"type": "ephemeral"}));
    assert!(content[2].get("cache_control").is_none());
}

#[test]
fn a_call_without_a_result_still_gets_exactly_one() {
    let body = rendered(vec![user("go"), assistant(json!([call("t1")]), "tool_use"), user("next")]);
    let content = &body["messages"][2]["content"];
    assert_eq!((&content[0]["type"], &content[0]["is_error"]), (&json!("tool_result"), &json!(true)));
    assert_eq!(content[1]["text"], "next");
}

#[test]
fn case_n03_a_cut_reply_is_asked_to_go_on_and_a_pause_is_just_sent_again() {
    let said = |text: &str, reason: &str| assistant(json!([{"type": "text", "text": text}]), reason);
    let body = rendered(vec![user("go"), said("a", "max_tokens"), said("b", "max_tokens")]);
    let roles: Vec<&Value> = body["messages"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant", "user"]);
    assert_eq!(body["messages"][4]["content"][0]["text"], GO_ON);
    let paused = rendered(vec![user("go"), said("a", "pause_turn")]);
    assert_eq!(paused["messages"].as_array().unwrap().len(), 2);
    assert!(paused["messages"][0]["content"][0].get("cache_control").is_some());
}

#[test]
fn an_empty_reply_leaves_no_empty_message() {
    let body = rendered(vec![user("go"), assistant(json!([]), "end_turn"), user("again")]);
    assert_eq!(
        body["messages"],
        json!([{"role": "user", "content": [
            {"type": "text", "text": "go"},
            {"type": "text", "text": "again", "cache_control": {"type": "ephemeral"}},
        ]}])
    );
}
