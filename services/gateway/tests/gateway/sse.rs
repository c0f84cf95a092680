//! Server-sent events: shape, cursors, endings, and what a leaving reader does to the upstream.

use std::time::Duration;

use berth_rpc::{lifecycle as pb, sessions::StreamEventsRequest};
use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::harness::{Gateway, answer, gateway, gateway_with};

/// One event as a reader sees it.
#[derive(Debug, Default, PartialEq)]
struct Sse {
    id: Option<String>,
    name: String,
    data: Value,
}

/// Comments and events of a finished stream.
fn parse(text: &str) -> (Vec<String>, Vec<Sse>) {
    let (mut comments, mut events) = (Vec::new(), Vec::new());
    for block in text.split_terminator("\n\n") {
        let mut event = Sse::default();
        for line in block.lines() {
            match line.split_once(": ").unwrap() {
                ("", comment) => comments.push(comment.to_owned()),
                ("id", id) => event.id = Some(id.to_owned()),
                ("event", name) => event.name = name.to_owned(),
                ("data", data) => event.data = serde_json::from_str(data).unwrap(),
                other => panic!("unexpected line {other:?}"),
            }
        }
        if !event.name.is_empty() {
            events.push(event);
        }
    }
    (comments, events)
}

fn stream(gateway: &Gateway, path: &str) -> reqwest::RequestBuilder {
    gateway.request("GET", path).header("accept", "text/event-stream")
}

async fn whole(request: reqwest::RequestBuilder) -> (Vec<String>, Vec<Sse>) {
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.headers()["cache-control"], "no-store");
    parse(&response.text().await.unwrap())
}

#[tokio::test]
async fn the_accept_header_chooses_stream_or_page() {
    let gateway = gateway().await;
    let (_, events) = whole(stream(&gateway, "/v1/agent-runs/ends/events")).await;
    let ids: Vec<_> = events.iter().map(|event| event.id.clone().unwrap()).collect();
    assert_eq!(ids, ["1", "2", "3"]);
    assert!(events.iter().all(|event| event.name == "tool_call"));
    assert_eq!(events[0].data["sequence"], "1");
    assert_eq!(events[0].data["tool_call"]["input_json"], "{\"a\":\n1}");

    let (code, page) = gateway.get("/v1/agent-runs/ends/events?page_size=2").await;
    assert_eq!((code, page["events"].as_array().unwrap().len()), (200, 2));
    assert_eq!(page["last_sequence"], "2");
}

#[tokio::test]
async fn last_event_id_is_the_cursor_and_wins_over_the_query() {
    let gateway = gateway().await;
    let path = "/v1/agent-runs/ends/events?after_sequence=1";
    let (_, events) = whole(stream(&gateway, path).header("last-event-id", "41")).await;
    assert_eq!(events[0].id.as_deref(), Some("42"));
    let (_, events) = whole(stream(&gateway, path)).await;
    assert_eq!(events[0].id.as_deref(), Some("2"));
    assert_eq!(gateway.recorder.last("StreamEvents").decode::<StreamEventsRequest>().after_sequence, 1);
    for bad in ["-1", "x", "99999999999999999999"] {
        let (code, body) = answer(stream(&gateway, path).header("last-event-id", bad)).await;
        assert_eq!((code, &body["error"]["reason"]), (400, &json!("LAST_EVENT_ID_INVALID")), "{bad}");
    }
}

#[tokio::test]
async fn a_watch_is_numbered_by_change() {
    let gateway = gateway().await;
    let watched = stream(&gateway, "/v1/agent-runs/r1:watch").header("last-event-id", "7");
    let (comments, events) = whole(watched).await;
    assert_eq!(
        events.iter().map(|e| (e.id.as_deref().unwrap(), e.name.as_str())).collect::<Vec<_>>(),
        [("8", "run"), ("9", "run")]
    );
    assert_eq!(events[0].data["state"], "RUNNING");
    assert_eq!(comments, ["end"]);
    assert_eq!(gateway.recorder.last("WatchRun").decode::<pb::WatchRunRequest>().after_change_seq, 7);
}

#[tokio::test]
async fn a_reader_that_lagged_is_told_and_the_stream_ends() {
    let gateway = gateway().await;
    let (_, events) = whole(stream(&gateway, "/v1/agent-runs/lags/events")).await;
    assert_eq!(events, [Sse { id: None, name: "lagged".into(), data: json!({"after_sequence": "5"}) }]);
}

#[tokio::test]
async fn an_error_before_the_start_is_http_and_after_it_an_event() {
    let gateway = gateway().await;
    let (code, body) = answer(stream(&gateway, "/v1/agent-runs/missing/events")).await;
    assert_eq!((code, &body["error"]["reason"]), (404, &json!("RUN_NOT_FOUND")));
    let (code, body) = answer(stream(&gateway, "/v1/agent-runs/late/events")).await;
    assert_eq!((code, &body["error"]["reason"]), (400, &json!("CURSOR_AHEAD")));
    let (_, events) = whole(stream(&gateway, "/v1/agent-runs/breaks/events")).await;
    assert_eq!(events.len(), 2);
    assert_eq!(events[1].name, "error");
    assert_eq!(events[1].data["error"]["code"], 503);
    assert_eq!(events[1].data["error"]["reason"], "LOG_AWAY");
}

#[tokio::test]
async fn a_reader_that_leaves_cancels_the_upstream() {
    let gateway = gateway().await;
    let response = stream(&gateway, "/v1/agent-runs/keeps/events").send().await.unwrap();
    let mut body = response.bytes_stream();
    let mut text = String::new();
    while !text.contains("id: 1\n") {
        text.push_str(std::str::from_utf8(&body.next().await.unwrap().unwrap()).unwrap());
    }
    assert!(text.starts_with(": keep-alive\n\n"), "{text}");
    drop(body);
    gateway.recorder.cancelled(1).await;
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_the_upstream_back() {
    let gateway = gateway().await;
    let response = stream(&gateway, "/v1/agent-runs/floods/events").send().await.unwrap();
    let mut body = response.bytes_stream();
    assert!(body.next().await.unwrap().is_ok());
    // Everything in between is bounded, so other calls are served meanwhile, and leaving still reaches the upstream.
    assert_eq!(gateway.get("/v1/agent-runs/r1").await.0, 200);
    drop(body);
    gateway.recorder.cancelled(1).await;
}

#[tokio::test]
async fn shutdown_ends_streams_with_a_reason() {
    let gateway = gateway_with(|config| config.limits.drain = Duration::from_secs(20)).await;
    let response = stream(&gateway, "/v1/agent-runs/keeps/events").send().await.unwrap();
    gateway.shutdown.cancel();
    let (_, events) = parse(&response.text().await.unwrap());
    let last = events.last().unwrap();
    assert_eq!((last.name.as_str(), &last.data["error"]["reason"]), ("error", &json!("GATEWAY_STOPPING")));
    tokio::time::timeout(Duration::from_secs(10), gateway.task).await.expect("the gateway ends").unwrap();
}
