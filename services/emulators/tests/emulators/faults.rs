//! Each kind of fault as a client sees it, and that the retry gets the turn it would have got.

use std::time::{Duration, Instant};

use reqwest::Response;
use serde_json::{Value, json};

use crate::world::{Model, assemble, conversation, events, prompt, request, streamed};

fn faulty(fault: Value) -> Value {
    conversation(json!([{"text": "The answer, long enough to be cut in two.", "fault": fault}, {"text": "next"}]))
}

/// Everything that arrived before the connection broke.
async fn until_broken(mut response: Response) -> Vec<u8> {
    let mut received = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => received.extend_from_slice(&chunk),
            Ok(None) => panic!("the body ended properly after {} bytes", received.len()),
            Err(_) => return received,
        }
    }
}

async fn answers_now(model: &Model) {
    let response = model.ask(&streamed(prompt("hi"))).await;
    assert_eq!(response.status(), 200);
    let message = assemble(&events(&response.text().await.unwrap()));
    assert_eq!(message["content"][0]["text"], "The answer, long enough to be cut in two.");
}

#[tokio::test]
async fn status_answers_with_the_error_as_often_as_asked() {
    let kinds =
        [(400, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error"), (529, "overloaded_error")];
    for (status, kind) in kinds {
        let fault = json!({"kind": "status", "status": status, "retry_after_s": 3, "times": 2});
        let model = Model::start(faulty(fault)).await;
        for stream in [true, false] {
            let mut body = prompt("hi");
            body["stream"] = json!(stream);
            let response = model.ask(&body).await;
            assert_eq!(response.status(), status);
            assert_eq!(response.headers()["retry-after"], "3");
            assert!(response.headers().contains_key("request-id"));
            let is_limited = response.headers().contains_key("anthropic-ratelimit-requests-remaining");
            assert_eq!(is_limited, status == 429);
            assert_eq!(response.json::<Value>().await.unwrap()["error"]["type"], kind);
        }
        answers_now(&model).await;
        let log = model.calls().await;
        let faults: Vec<&Value> = log["calls"].as_array().unwrap().iter().map(|call| &call["fault"]).collect();
        assert_eq!(faults, [&json!("status"), &json!("status"), &Value::Null]);
    }
}

#[tokio::test]
async fn status_after_some_bytes_is_an_error_in_the_stream() {
    let model = Model::start(faulty(json!({"kind": "status", "status": 529, "after_bytes": 400}))).await;
    let response = model.ask(&streamed(prompt("hi"))).await;
    assert_eq!(response.status(), 200);
    let events = events(&response.text().await.unwrap());
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events.last().unwrap()["error"]["type"], "overloaded_error");
    assert!(!events.iter().any(|event| event["type"] == "message_stop"));
    answers_now(&model).await;
}

#[tokio::test]
async fn cut_breaks_the_connection_at_the_byte() {
    for bytes in [0, 1, 300, 500] {
        let model = Model::start(faulty(json!({"kind": "cut", "after_bytes": bytes}))).await;
        let received = until_broken(model.ask(&streamed(prompt("hi"))).await).await;
        assert_eq!(received.len(), bytes);
        answers_now(&model).await;
    }
    let model = Model::start(faulty(json!({"kind": "cut", "times": 2}))).await;
    let in_stream = until_broken(model.ask(&streamed(prompt("hi"))).await).await;
    assert!(in_stream.starts_with(b"event: message_start"));
    let plain = until_broken(model.ask(&prompt("hi")).await).await;
    assert!(plain.starts_with(b"{") && serde_json::from_slice::<Value>(&plain).is_err());
    answers_now(&model).await;
}

#[tokio::test]
async fn slow_delays_the_answer_or_stalls_inside_it() {
    let delay = Duration::from_millis(300);
    let model = Model::start(faulty(json!({"kind": "slow", "delay_ms": 300}))).await;
    let began = Instant::now();
    let response = model.ask(&streamed(prompt("hi"))).await;
    assert!(began.elapsed() >= delay);
    assert!(assemble(&events(&response.text().await.unwrap()))["content"][0]["text"].is_string());

    let model = Model::start(faulty(json!({"kind": "slow", "delay_ms": 300, "after_bytes": 30}))).await;
    let mut response = model.ask(&streamed(prompt("hi"))).await;
    let mut received = Vec::new();
    while received.len() < 30 {
        received.extend_from_slice(&response.chunk().await.unwrap().unwrap());
    }
    assert_eq!(received.len(), 30);
    let began = Instant::now();
    received.extend_from_slice(&response.bytes().await.unwrap());
    assert!(began.elapsed() >= delay / 2);
    assert!(assemble(&events(std::str::from_utf8(&received).unwrap()))["content"][0]["text"].is_string());
    answers_now(&model).await;
}

#[tokio::test]
async fn faults_are_counted_by_conversation_and_turn() {
    let fault = json!({"kind": "status", "status": 500});
    let script = json!({"conversations": [
        {"when": {"prompt_contains": "red"}, "turns": [{"text": "r0", "fault": fault}, {"text": "r1", "fault": fault}]},
        {"when": {"prompt_contains": "blue"}, "turns": [{"text": "b0", "fault": fault}]}]});
    let model = Model::start(script).await;
    let second = request(json!([
        {"role": "user", "content": "red"}, {"role": "assistant", "content": "r0"}, {"role": "user", "content": "go on"}]));
    for body in [prompt("red"), prompt("blue"), second] {
        let counted = model.post("/v1/messages/count_tokens", &body).await;
        assert_eq!(counted.status(), 200, "counting tokens plays no fault");
        let statuses = [model.ask(&body).await.status(), model.ask(&body).await.status()];
        assert_eq!(statuses.map(|status| status.as_u16()), [500, 200], "{body}");
    }
}
