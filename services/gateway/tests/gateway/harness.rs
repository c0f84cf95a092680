//! A gateway on a free port with faked upstreams, and the clients that drive it.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use berth_gateway::{Config, Limits, Upstreams};
use berth_serve::{
    peer::{ServiceChannel, connect_in_process},
    telemetry::MetricsText,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::fakes::{Fake, KEY, Recorder, SERVICE_KEY, TENANT};

pub(crate) struct Gateway {
    pub(crate) addr: SocketAddr,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: tokio::task::JoinHandle<()>,
    pub(crate) http: reqwest::Client,
    /// Ends the upstreams.
    pub(crate) upstreams: CancellationToken,
}

pub(crate) async fn gateway() -> Gateway {
    gateway_with(|_| {}).await
}

pub(crate) async fn gateway_with(adapt: impl FnOnce(&mut Config)) -> Gateway {
    gateway_with_metrics(MetricsText::empty(), adapt).await
}

pub(crate) async fn gateway_with_metrics(metrics: MetricsText, adapt: impl FnOnce(&mut Config)) -> Gateway {
    let fake = Fake { recorder: Recorder::new() };
    let upstreams = CancellationToken::new();
    let in_process = |routes| connect_in_process(routes, upstreams.clone());
    let channels = Upstreams {
        lifecycle: ServiceChannel::with_key(in_process(fake.lifecycle()), &SERVICE_KEY.to_owned().into()),
        sessions: ServiceChannel::anonymous(in_process(fake.sessions())),
        broker: ServiceChannel::anonymous(in_process(fake.broker())),
    };
    let gateway = start_with_metrics(channels, fake.recorder, upstreams, metrics, adapt).await;
    eventually("ready", async || gateway.get("/readyz").await.0 == 200).await;
    gateway
}

pub(crate) async fn start(
    channels: Upstreams,
    recorder: Arc<Recorder>,
    upstreams: CancellationToken,
    adapt: impl FnOnce(&mut Config),
) -> Gateway {
    start_with_metrics(channels, recorder, upstreams, MetricsText::empty(), adapt).await
}

pub(crate) async fn start_with_metrics(
    channels: Upstreams,
    recorder: Arc<Recorder>,
    upstreams: CancellationToken,
    metrics: MetricsText,
    adapt: impl FnOnce(&mut Config),
) -> Gateway {
    // Fails only when another test of this process did it first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let limits = Limits {
        probe_interval: Duration::from_millis(50),
        unary_timeout: Duration::from_secs(5),
        drain: Duration::from_secs(5),
        ..Limits::default()
    };
    let mut config = Config { limits, ..Config::new(([127, 0, 0, 1], 0).into()) };
    adapt(&mut config);
    let shutdown = CancellationToken::new();
    let running = berth_gateway::start(config, channels, metrics, shutdown.clone()).await.expect("gateway starts");
    let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().unwrap();
    Gateway { addr: running.addr, recorder, shutdown, task: running.task, http, upstreams }
}

impl Gateway {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// A request with the caller's credential and tenant.
    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = method.parse().unwrap();
        self.http.request(method, self.url(path)).bearer_auth(KEY).header("x-tenant-id", TENANT)
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.request("GET", path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> (u16, Value) {
        answer(self.request("POST", path).body(body.to_owned())).await
    }

    pub(crate) async fn channel(&self) -> Channel {
        Channel::from_shared(self.url("")).unwrap().connect().await.unwrap()
    }
}

/// Status and body; the body is null when it is not JSON.
pub(crate) async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let response = request.send().await.expect("an answer");
    let code = response.status().as_u16();
    (code, serde_json::from_slice(&response.bytes().await.expect("a whole body")).unwrap_or(Value::Null))
}

/// Adds the caller's credential to a gRPC request.
pub(crate) fn signed<M>(message: M) -> tonic::Request<M> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {KEY}").parse().unwrap());
    request.metadata_mut().insert("x-tenant-id", TENANT.parse().unwrap());
    request
}

/// Waits for a condition, at most ten seconds.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
