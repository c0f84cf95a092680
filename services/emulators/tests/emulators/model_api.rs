//! The model API without faults: selection, both answer forms, counting, leniency, refusals, the log.

use std::time::Instant;

use berth_emulators::Fingerprint;
use berth_emulators::model_api::{Accept, ModelApiConfig};
use serde_json::{Value, json};

use crate::world::{LIMIT, Model, assemble, conversation, events, prompt, request, stoppable, streamed};

fn two_tools() -> Value {
    conversation(json!([
        {"thinking": "Let me think about this, at some length, so that there are several deltas.",
         "text": "Looking at the näive code — it is long enough for more than one delta.",
         "tools": [{"name": "bash", "input": {"command": "ls -la && echo 'hello wörld' | wc"}}, {"name": "read", "input": {}}]},
        {"text": "Done."}
    ]))
}

/// The request that answers every tool call of `reply`.
fn follow_up(first: &Value, reply: &Value) -> Value {
    let results: Vec<Value> = reply["content"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|block| block["type"] == "tool_use")
        .map(|block| json!({"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}))
        .collect();
    let mut messages = first["messages"].as_array().unwrap().clone();
    messages.push(json!({"role": "assistant", "content": reply["content"]}));
    messages.push(json!({"role": "user", "content": results}));
    request(Value::Array(messages))
}

#[tokio::test]
async fn a_stream_adds_up_to_the_plain_answer() {
    let model = Model::start(two_tools()).await;
    let plain: Value = model.ask(&prompt("hi")).await.json().await.unwrap();
    let response = model.ask(&streamed(prompt("hi"))).await;
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    assert!(response.headers().contains_key("request-id"));
    let events = events(&response.text().await.unwrap());
    assert_eq!(events[0]["message"]["content"], json!([]));
    assert!(events[0]["message"]["usage"]["input_tokens"].as_u64().unwrap() > 0);
    assert!(events.iter().any(|event| event["type"] == "ping"));
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    let deltas = |kind: &str| events.iter().filter(|event| event["delta"]["type"] == kind).count();
    assert!(deltas("text_delta") > 1 && deltas("thinking_delta") > 1 && deltas("input_json_delta") > 2);

    let assembled = assemble(&events);
    for field in ["content", "stop_reason", "model", "role", "type"] {
        assert_eq!(assembled[field], plain[field], "{field}");
    }
    assert_eq!(assembled["usage"]["output_tokens"], plain["usage"]["output_tokens"]);
    assert_eq!(plain["stop_reason"], "tool_use");
    assert_eq!(plain["content"].as_array().unwrap().len(), 4);
    assert_ne!(assembled["id"], plain["id"]);
}

#[tokio::test]
async fn turns_follow_the_history_and_then_end() {
    let model = Model::start(two_tools()).await;
    let first: Value = model.ask(&prompt("hi")).await.json().await.unwrap();
    let second_request = follow_up(&prompt("hi"), &first);
    let second: Value = model.ask(&second_request).await.json().await.unwrap();
    assert_eq!((&second["content"][0]["text"], &second["stop_reason"]), (&json!("Done."), &json!("end_turn")));
    let mut messages = second_request["messages"].as_array().unwrap().clone();
    messages.push(json!({"role": "assistant", "content": second["content"]}));
    messages.push(json!({"role": "user", "content": "and now?"}));
    let third: Value = model.ask(&request(Value::Array(messages))).await.json().await.unwrap();
    assert_eq!(third["stop_reason"], "end_turn");
    assert_eq!(third["content"][0]["type"], "text");
}

#[tokio::test]
async fn retries_and_other_emulators_get_the_same_tool_calls() {
    let (one, other) = (Model::start(two_tools()).await, Model::start(two_tools()).await);
    let first: Value = one.ask(&prompt("hi")).await.json().await.unwrap();
    let again: Value = one.ask(&prompt("hi")).await.json().await.unwrap();
    let elsewhere: Value = other.ask(&prompt("hi")).await.json().await.unwrap();
    assert_eq!(first["content"], again["content"]);
    assert_eq!(first["content"], elsewhere["content"]);
    assert_eq!(first["usage"], elsewhere["usage"]);
}

#[tokio::test]
async fn one_conversation_twice_in_a_history_has_no_id_twice() {
    let script =
        json!({"conversations": [{"when": {"prompt_contains": "go"}, "turns": [{"tools": [{"name": "bash"}]}]}]});
    let model = Model::start(script).await;
    let first: Value = model.ask(&prompt("go")).await.json().await.unwrap();
    let mut body = follow_up(&prompt("go"), &first);
    body["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": "go on"}));
    let second: Value = model.ask(&body).await.json().await.unwrap();
    assert_eq!(second["content"][0]["type"], "tool_use");
    assert_ne!(first["content"][0]["id"], second["content"][0]["id"]);
}

#[tokio::test]
async fn usage_is_derived_from_sizes_or_stated() {
    let model = Model::start(conversation(
        json!([{"text": "12345678"}, {"text": "x", "usage": {"output_tokens": 7, "cache_read_input_tokens": 9}}]),
    ))
    .await;
    let body = prompt("hi");
    let size = serde_json::to_vec(&body).unwrap().len() as u64;
    let reply: Value = model.ask(&body).await.json().await.unwrap();
    assert_eq!(reply["usage"]["input_tokens"], size.div_ceil(4));
    assert_eq!(reply["usage"]["output_tokens"], 2);
    let body = request(json!([
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "12345678"}, {"role": "user", "content": "go on"}]));
    let reply: Value = model.ask(&body).await.json().await.unwrap();
    assert_eq!(reply["usage"]["output_tokens"], 7);
    assert_eq!(reply["usage"]["cache_read_input_tokens"], 9);
    assert_eq!(reply["usage"]["cache_creation_input_tokens"], 0);

    let mut body = prompt("hi");
    body.as_object_mut().unwrap().remove("max_tokens");
    let size = serde_json::to_vec(&body).unwrap().len() as u64;
    let counted: Value = model.post("/v1/messages/count_tokens?beta=true", &body).await.json().await.unwrap();
    assert_eq!(counted, json!({"input_tokens": size.div_ceil(4)}));
}

#[tokio::test]
async fn stop_reasons_can_be_scripted_and_max_tokens_cuts_the_input() {
    let tool = json!({"name": "write", "input": {"path": "a-long-enough-name.txt", "content": "and some content"}});
    let model = Model::start(conversation(json!([{"text": "No.", "stop_reason": "refusal"}]))).await;
    let reply: Value = model.ask(&prompt("hi")).await.json().await.unwrap();
    assert_eq!(reply["stop_reason"], "refusal");
    let model = Model::start(conversation(json!([{"tools": [tool, tool], "stop_reason": "max_tokens"}]))).await;
    let message = assemble(&events(&model.ask(&streamed(prompt("hi"))).await.text().await.unwrap()));
    assert_eq!(message["stop_reason"], "max_tokens");
    assert_eq!(message["content"][0]["input"], tool["input"]);
    let cut = message["content"][1]["input"]["cut"].as_str().unwrap();
    assert!(!cut.is_empty() && tool["input"].to_string().starts_with(cut));
}

#[tokio::test]
async fn clients_may_send_more_than_is_read() {
    let model = Model::start(two_tools()).await;
    let mut body = streamed(prompt("x"));
    body["messages"] = json!([
        {"role": "system", "content": []}, {"role": "system", "content": "notes"},
        {"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>", "cache_control": {"type": "ephemeral"}},
            {"type": "image", "source": {"type": "url", "url": "x"}}, {"type": "text", "text": "do it"}]},
        {"role": "system", "content": [{"type": "text", "text": "more notes"}]}]);
    body["system"] = json!([{"type": "text", "text": "s".repeat(10_000)}]);
    body["tools"] = json!([{"name": "bash", "description": "d".repeat(3_000_000), "input_schema": {}}]);
    for extra in ["context_management", "output_config", "thinking", "metadata", "diagnostics", "anything"] {
        body[extra] = json!({"a": [1]});
    }
    let response = model.post("/some/prefix/v1/messages?beta=true", &body).await;
    assert_eq!(response.status(), 200);
    assert_eq!(assemble(&events(&response.text().await.unwrap()))["content"][1]["type"], "text");
}

#[tokio::test]
async fn refusals_have_the_vendors_shape() {
    let script = json!({"conversations": [{"when": {"prompt_contains": "known"}, "turns": []}]});
    let model = Model::start(script).await;
    let unanswered = request(json!([
        {"role": "user", "content": "known"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "x", "input": {}}]}]));
    let mut no_limit = prompt("known");
    no_limit.as_object_mut().unwrap().remove("max_tokens");
    let cases = [
        ("/v1/messages", prompt("strange"), 400, "invalid_request_error"),
        ("/v1/messages", unanswered, 400, "invalid_request_error"),
        ("/v1/messages", no_limit, 400, "invalid_request_error"),
        ("/v1/messages", json!({"model": "m"}), 400, "invalid_request_error"),
        ("/v1/messages", json!([]), 400, "invalid_request_error"),
        ("/v1/complete", prompt("known"), 404, "not_found_error"),
        ("/", json!({}), 404, "not_found_error"),
    ];
    for (path, body, status, kind) in cases {
        let response = model.post(path, &body).await;
        assert_eq!(response.status(), status, "{path} {body}");
        let request_id = response.headers()["request-id"].to_str().unwrap().to_owned();
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["type"], "error");
        assert_eq!(error["error"]["type"], kind, "{path} {body}");
        assert_eq!(error["request_id"], request_id);
    }
    let get = model.client.get(format!("{}/v1/messages", model.base)).send().await.unwrap();
    assert_eq!(get.status(), 404);
    let malformed = model.client.post(format!("{}/v1/messages", model.base)).header("x-api-key", "k").body("{");
    assert_eq!(malformed.send().await.unwrap().status(), 400);
    let past_the_end = model.ask(&prompt("known")).await;
    assert_eq!(past_the_end.status(), 200);
}

#[tokio::test]
async fn a_request_beyond_the_vendors_size_is_refused() {
    let model = Model::start(two_tools()).await;
    let body = vec![b' '; 33 * 1024 * 1024];
    let sent =
        model.client.post(format!("{}/v1/messages", model.base)).header("x-api-key", "k").body(body).send().await;
    // The server may close before the client has sent everything.
    if let Ok(response) = sent {
        assert_eq!(response.status(), 413);
    }
    assert_eq!(model.calls().await["calls"][0]["status"], 413);
}

#[tokio::test]
async fn credentials_are_demanded_and_can_be_fixed() {
    let post = async |model: &Model, header: Option<(&'static str, &'static str)>| {
        let mut request = model.client.post(format!("{}/v1/messages", model.base)).json(&prompt("hi"));
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json::<Value>().await.unwrap()["error"]["type"].clone())
    };
    let refused = (401, json!("authentication_error"));
    let model = Model::start(two_tools()).await;
    assert_eq!(post(&model, None).await, refused);
    assert_eq!(post(&model, Some(("x-api-key", ""))).await, refused);
    assert_eq!(post(&model, Some(("authorization", "Basic abc"))).await, refused);
    assert_eq!(post(&model, Some(("x-api-key", "any"))).await.0, 200);
    assert_eq!(post(&model, Some(("authorization", "Bearer any"))).await.0, 200);

    let only = ModelApiConfig { accept: Accept::Only(Fingerprint::of("right")), ..ModelApiConfig::default() };
    let model = Model::configured(two_tools(), only).await;
    assert_eq!(post(&model, Some(("x-api-key", "wrong"))).await, refused);
    assert_eq!(post(&model, Some(("x-api-key", "right"))).await.0, 200);
    assert_eq!(post(&model, Some(("authorization", "Bearer right"))).await.0, 200);

    let anyone = ModelApiConfig { accept: Accept::Anyone, ..ModelApiConfig::default() };
    assert_eq!(post(&Model::configured(two_tools(), anyone).await, None).await.0, 200);
}

#[tokio::test]
async fn the_log_shows_requests_and_no_credential() {
    let model = Model::start(two_tools()).await;
    let secret = "sk-canary-1";
    let request = model.client.post(format!("{}/v1/messages?beta=true", model.base));
    let request = request.header("authorization", format!("Bearer {secret}")).header("anthropic-version", "2023-06-01");
    let request = request.header("x-claude-code-session-id", "s1").header("cookie", secret);
    request.json(&streamed(prompt("hi"))).send().await.unwrap().text().await.unwrap();
    model.post("/elsewhere", &json!({"a": 1})).await;
    let log = model.calls().await;
    assert!(!log.to_string().contains(secret));
    assert_eq!((log["calls"].as_array().unwrap().len(), &log["dropped"]), (2, &json!(0)));
    let call = &log["calls"][0];
    assert_eq!(
        (&call["method"], &call["path"], &call["query"]),
        (&json!("POST"), &json!("/v1/messages"), &json!("beta=true"))
    );
    assert_eq!(call["credential"], json!({"header": "authorization", "sha256": Fingerprint::of(secret).as_str()}));
    assert_eq!(call["headers"]["anthropic-version"], "2023-06-01");
    assert_eq!(call["headers"]["x-claude-code-session-id"], "s1");
    assert_eq!(
        (&call["model"], &call["stream"], &call["message_count"]),
        (&json!("test-model"), &json!(true), &json!(1))
    );
    assert_eq!((&call["conversation"], &call["turn"], &call["status"]), (&json!(0), &json!(0), &json!(200)));
    assert_eq!(call["body"]["messages"][0]["content"], "hi");
    assert_eq!(log["calls"][1]["status"], 404);
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_stalled_reply() {
    let script =
        conversation(json!([{"text": "x", "fault": {"kind": "slow", "delay_ms": 3_000_000, "after_bytes": 1}}]));
    let (model, stop, served) = stoppable(script).await;
    let mut stalled = model.ask(&streamed(prompt("hi"))).await;
    assert_eq!(stalled.chunk().await.unwrap().unwrap().as_ref(), b"e");
    let began = Instant::now();
    stop.send(()).unwrap();
    tokio::time::timeout(LIMIT, served).await.expect("serve ends").unwrap().unwrap();
    assert!(began.elapsed() < LIMIT);
}
