//! Starting emulators on loopback ports, and talking to them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use berth_emulators::git_http::{self, GitHttp, GitHttpConfig};
use berth_emulators::model_api::{self, ModelApi, ModelApiConfig, Script};
use futures::future::pending;
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Nothing in these tests may take longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().no_proxy().timeout(LIMIT).build().unwrap()
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A model emulator with a client.
pub(crate) struct Model {
    pub(crate) base: String,
    pub(crate) client: Client,
}

impl Model {
    /// Plays `{"conversations": …}` with the default configuration.
    pub(crate) async fn start(script: Value) -> Self {
        Self::play(Script::parse(&script.to_string()).unwrap()).await
    }

    pub(crate) async fn play(script: Script) -> Self {
        let (listener, address) = listener().await;
        tokio::spawn(model_api::serve(listener, script, pending()));
        Self { base: format!("http://{address}"), client: client() }
    }

    pub(crate) async fn configured(script: Value, config: ModelApiConfig) -> Self {
        let (listener, address) = listener().await;
        let router = ModelApi::router(Script::parse(&script.to_string()).unwrap(), config);
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { base: format!("http://{address}"), client: client() }
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Response {
        self.client.post(format!("{}{path}", self.base)).header("x-api-key", "key").json(body).send().await.unwrap()
    }

    pub(crate) async fn ask(&self, body: &Value) -> Response {
        self.post("/v1/messages", body).await
    }

    pub(crate) async fn calls(&self) -> Value {
        self.client.get(format!("{}/__emulator/calls", self.base)).send().await.unwrap().json().await.unwrap()
    }
}

/// Serves a model until the sender is used or dropped; the handle yields what `serve` returned.
pub(crate) async fn stoppable(script: Value) -> (Model, oneshot::Sender<()>, JoinHandle<std::io::Result<()>>) {
    let (listener, address) = listener().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let script = Script::parse(&script.to_string()).unwrap();
    let served = tokio::spawn(model_api::serve(listener, script, async move {
        let _ = stopped.await;
    }));
    (Model { base: format!("http://{address}"), client: client() }, stop, served)
}

/// One conversation without condition.
pub(crate) fn conversation(turns: Value) -> Value {
    json!({"conversations": [{"turns": turns}]})
}

pub(crate) fn request(messages: Value) -> Value {
    json!({"model": "test-model", "max_tokens": 1024, "messages": messages})
}

pub(crate) fn prompt(text: &str) -> Value {
    request(json!([{"role": "user", "content": text}]))
}

pub(crate) fn streamed(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body
}

/// The events of a complete stream, in order.
pub(crate) fn events(text: &str) -> Vec<Value> {
    let event = |frame: &str| {
        let (name, data) = frame.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: ").unwrap(), data["type"]);
        data
    };
    text.strip_suffix("\n\n").unwrap().split("\n\n").map(event).collect()
}

/// The message that a stream adds up to.
pub(crate) fn assemble(events: &[Value]) -> Value {
    let mut message = Value::Null;
    let mut inputs: Vec<String> = Vec::new();
    for event in events {
        let index = event["index"].as_u64().unwrap_or(0) as usize;
        let delta = &event["delta"];
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].clone(),
            "content_block_start" => {
                message["content"].as_array_mut().unwrap().push(event["content_block"].clone());
                inputs.push(String::new());
            }
            "content_block_delta" => {
                let block = &mut message["content"][index];
                match delta["type"].as_str().unwrap() {
                    "text_delta" => append(&mut block["text"], &delta["text"]),
                    "thinking_delta" => append(&mut block["thinking"], &delta["thinking"]),
                    "signature_delta" => block["signature"] = delta["signature"].clone(),
                    "input_json_delta" => inputs[index].push_str(delta["partial_json"].as_str().unwrap()),
                    other => panic!("unknown delta {other}"),
                }
            }
            "content_block_stop" if message["content"][index]["type"] == "tool_use" => {
                message["content"][index]["input"] =
                    serde_json::from_str(&inputs[index]).unwrap_or_else(|_| json!({"cut": inputs[index]}));
            }
            "message_delta" => {
                message["stop_reason"] = delta["stop_reason"].clone();
                message["usage"]["output_tokens"] = event["usage"]["output_tokens"].clone();
            }
            _ => {}
        }
    }
    message
}

fn append(text: &mut Value, more: &Value) {
    *text = json!(format!("{}{}", text.as_str().unwrap(), more.as_str().unwrap()));
}

/// A git server with a handle to its log.
pub(crate) struct GitServer {
    pub(crate) address: SocketAddr,
    pub(crate) server: GitHttp,
}

impl GitServer {
    pub(crate) async fn start(config: GitHttpConfig) -> Self {
        let (listener, address) = listener().await;
        let server = GitHttp::new(config);
        let served = server.clone();
        tokio::spawn(async move { git_http::serve(listener, &served, pending()).await });
        Self { address, server }
    }

    pub(crate) fn url(&self, repository: &str) -> String {
        format!("http://{}/{repository}", self.address)
    }

    /// The fingerprints of all credentials that arrived.
    pub(crate) fn credentials(&self) -> Vec<String> {
        let calls = self.server.calls();
        calls.iter().filter_map(|call| call.credential.as_ref()).map(|found| found.sha256.as_str().to_owned()).collect()
    }
}

/// The git binary as a client: no host configuration, a token only through its askpass.
pub(crate) struct GitClient {
    directory: PathBuf,
    askpass: Option<PathBuf>,
}

impl GitClient {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), askpass: None }
    }

    /// Answers every question for a password whose text contains `host`; refuses all others.
    pub(crate) fn with_token(directory: &Path, token: &str, host: &str) -> Self {
        use std::os::unix::fs::PermissionsExt;
        let askpass = directory.join("askpass.sh");
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in\nUsername*{host}*) echo x-access-token;;\nPassword*{host}*) echo {token};;\n*) exit 1;;\nesac\n"
        );
        std::fs::write(&askpass, script).unwrap();
        std::fs::set_permissions(&askpass, std::fs::Permissions::from_mode(0o700)).unwrap();
        Self { directory: directory.to_owned(), askpass: Some(askpass) }
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> Output {
        self.run_in(&self.directory, "git", arguments).await
    }

    pub(crate) async fn run_in(&self, directory: &Path, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(directory)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", &self.directory)
            .env("LC_ALL", "C")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_AUTHOR_NAME", "T")
            .env("GIT_AUTHOR_EMAIL", "t@example.invalid")
            .env("GIT_COMMITTER_NAME", "T")
            .env("GIT_COMMITTER_EMAIL", "t@example.invalid")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        if let Some(askpass) = &self.askpass {
            command.env("GIT_ASKPASS", askpass);
        }
        tokio::time::timeout(LIMIT, command.output()).await.expect("a command took too long").unwrap()
    }

    /// Runs git, demands success and returns its output.
    pub(crate) async fn succeed(&self, directory: &Path, arguments: &[&str]) -> String {
        let output = self.run_in(directory, "git", arguments).await;
        assert!(output.status.success(), "git {arguments:?}: {}", text(&output.stderr));
        text(&output.stdout).trim().to_owned()
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until `condition` holds; fails with its name when it never does.
pub(crate) async fn eventually(name: &str, condition: impl Fn() -> bool) {
    let mut poll = tokio::time::interval(Duration::from_millis(10));
    let waited = tokio::time::timeout(LIMIT, async {
        while !condition() {
            poll.tick().await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("never happened: {name}"));
}
