//! A client of the REST API, as a user's script would be.

use std::time::Duration;

use futures::StreamExt as _;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::eventually;

/// REST client of one server with one key.
#[derive(Clone, Debug)]
pub struct Api {
    http: reqwest::Client,
    base: String,
    key: String,
    tenant: String,
}

/// Status and JSON body.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// Body; null when it is not JSON.
    pub body: Value,
    /// Body as it came.
    pub text: String,
}

impl Answer {
    /// `error.reason`, or empty.
    pub fn reason(&self) -> &str {
        self.body["error"]["reason"].as_str().unwrap_or_default()
    }

    /// The body of a 2xx answer.
    ///
    /// # Panics
    /// On any other answer.
    pub fn ok(self) -> Value {
        assert!(self.status.is_success(), "{}: {}", self.status, self.text);
        self.body
    }
}

impl Api {
    /// A client of 127.0.0.1:`port`.
    pub fn new(port: u16, key: String) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build().expect("client");
        Self { http, base: format!("http://127.0.0.1:{port}"), key, tenant: "default".into() }
    }

    /// The same with another key and tenant.
    pub fn with(&self, key: &str, tenant: &str) -> Self {
        Self { key: key.to_owned(), tenant: tenant.to_owned(), ..self.clone() }
    }

    /// One request; connection errors are `None` (the server may be dead by intent).
    pub async fn try_call(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        extra: &[(&str, &str)],
    ) -> Option<Answer> {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .header("authorization", format!("Bearer {}", self.key))
            .header("x-tenant-id", &self.tenant);
        for (name, value) in extra {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.ok()?;
        let status = answer.status();
        let text = answer.text().await.ok()?;
        Some(Answer { status, body: serde_json::from_str(&text).unwrap_or(Value::Null), text })
    }

    /// One request to a server that must answer.
    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        self.try_call(method, path, body, &[]).await.expect("the server answers")
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, None).await
    }

    /// POST with a JSON body.
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Stores a secret of tenant `default`.
    pub async fn put_secret(&self, name: &str, value: &str, hosts: &[&str]) -> Answer {
        let path = format!("/api/tenants/default/secrets/{name}");
        self.call(Method::PUT, &path, Some(json!({"value": value, "hosts": hosts}))).await
    }

    /// Creates a run and returns its id.
    pub async fn create(&self, body: Value) -> String {
        let run = self.post("/v1/agent-runs", body).await.ok();
        run["run_id"].as_str().expect("run_id").to_owned()
    }

    /// The run as GET shows it.
    pub async fn run(&self, run_id: &str) -> Answer {
        self.get(&format!("/v1/agent-runs/{run_id}")).await
    }

    /// Waits until the run is in one of `states`; survives a server that is down for a while.
    pub async fn wait_for(&self, run_id: &str, states: &[&str]) -> Value {
        let path = format!("/v1/agent-runs/{run_id}");
        let last = std::sync::Mutex::new(String::new());
        let found = eventually(Duration::from_secs(90), || async {
            let answer = self.try_call(Method::GET, &path, None, &[]).await?;
            *last.lock().expect("lock") = answer.text.clone();
            let state = answer.body["state"].as_str()?.to_owned();
            states.contains(&state.as_str()).then_some(answer.body)
        })
        .await;
        found.unwrap_or_else(|| panic!("{run_id} is not in {states:?}; last: {}", last.into_inner().expect("lock")))
    }

    /// DELETE.
    pub async fn delete(&self, run_id: &str) -> Answer {
        self.call(Method::DELETE, &format!("/v1/agent-runs/{run_id}"), None).await
    }

    /// Waits until GET of the run is 404.
    pub async fn wait_deleted(&self, run_id: &str) {
        let path = format!("/v1/agent-runs/{run_id}");
        eventually(Duration::from_secs(90), || async {
            let answer = self.try_call(Method::GET, &path, None, &[]).await?;
            (answer.status == StatusCode::NOT_FOUND).then_some(())
        })
        .await
        .unwrap_or_else(|| panic!("{run_id} is not deleted"));
    }

    /// All events, page by page.
    pub async fn events(&self, run_id: &str, page_size: u32) -> Vec<Value> {
        let mut events = Vec::new();
        let mut token = String::new();
        loop {
            let path = format!("/v1/agent-runs/{run_id}/events?page_size={page_size}&page_token={token}");
            let page = self.get(&path).await.ok();
            events.extend(page["events"].as_array().cloned().unwrap_or_default());
            token = page["next_page_token"].as_str().unwrap_or_default().to_owned();
            if token.is_empty() {
                return events;
            }
        }
    }

    /// Transitions of the run.
    pub async fn transitions(&self, run_id: &str) -> Vec<Value> {
        let answer = self.get(&format!("/v1/agent-runs/{run_id}/transitions?page_size=500")).await.ok();
        answer["transitions"].as_array().cloned().unwrap_or_default()
    }

    /// Opens the event stream after `last_event_id`; `None` when the server is down.
    pub async fn stream(&self, run_id: &str, last_event_id: Option<u64>) -> Option<Sse> {
        let mut request = self
            .http
            .get(format!("{}/v1/agent-runs/{run_id}/events", self.base))
            .header("authorization", format!("Bearer {}", self.key))
            .header("x-tenant-id", &self.tenant)
            .header("accept", "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id.to_string());
        }
        let answer = request.send().await.ok()?;
        assert_eq!(answer.status(), StatusCode::OK);
        Some(Sse { body: answer.bytes_stream().boxed(), buffer: Vec::new() })
    }
}

/// A server-sent event stream.
pub struct Sse {
    body: futures::stream::BoxStream<'static, reqwest::Result<tonic::codegen::Bytes>>,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Sse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sse")
    }
}

impl Sse {
    /// The next event as (id, name, data); `None` at the end or when the connection broke.
    pub async fn next(&mut self) -> Option<(u64, String, Value)> {
        loop {
            while let Some(end) = self.buffer.windows(2).position(|w| w == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                if let Some(event) = parse(&String::from_utf8_lossy(&block)) {
                    return Some(event);
                }
            }
            let chunk = self.body.next().await?.ok()?;
            self.buffer.extend_from_slice(&chunk);
        }
    }
}

fn parse(block: &str) -> Option<(u64, String, Value)> {
    let (mut id, mut name, mut data) = (None, String::new(), String::new());
    for line in block.lines() {
        match line.split_once(':') {
            Some(("id", value)) => id = value.trim().parse().ok(),
            Some(("event", value)) => value.trim().clone_into(&mut name),
            Some(("data", value)) => data.push_str(value.trim_start()),
            _ => {}
        }
    }
    Some((id?, name, serde_json::from_str(&data).ok()?))
}
