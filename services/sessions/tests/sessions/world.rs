//! One run's world: the fakes on loopback sockets, the model emulator, and workers that can be killed like a process.

use std::time::Duration;

use berth_emulators::Fingerprint;
use berth_emulators::model_api::{Accept, ModelApi, ModelApiConfig, Script};
use berth_events::Bus;
use berth_rpc::broker::sandbox_service_server::SandboxServiceServer;
use berth_rpc::lifecycle::{
    Event, event::Payload, log_service_server::LogServiceServer, run, secret_service_server::SecretServiceServer,
    work_service_server::WorkServiceServer,
};
use berth_rpc::sessions::session_service_client::SessionServiceClient;
use berth_serve::peer::{ServiceChannel, connect, connect_in_process};
use berth_sessions::{Config, Started, start};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::broker::Broker;
use crate::ledger::{Ledger, State};
use crate::lifecycle::{DEADLINE, Lifecycle};

pub(crate) const KEY: &str = "sk-canary-key";

pub(crate) struct World {
    pub(crate) lifecycle: Lifecycle,
    pub(crate) broker: Broker,
    pub(crate) bus: Bus,
    pub(crate) config: Config,
    model: String,
    lifecycle_url: String,
    broker_url: String,
}

/// A worker process.
pub(crate) struct Worker {
    runtime: Option<tokio::runtime::Runtime>,
    shutdown: CancellationToken,
}

impl Worker {
    /// As kill -9 does it: nothing is handed back. Returns when its connections are gone.
    pub(crate) async fn kill(mut self, world: &World) {
        self.runtime.take().unwrap().shutdown_background();
        let mut waiting = world.lifecycle.waiting.subscribe();
        timeout(DEADLINE, waiting.wait_for(|waiting| *waiting == 0)).await.expect("its claim call ends").unwrap();
    }

    /// Asks it to leave; it hands back what it holds.
    pub(crate) fn leave(&self) {
        self.shutdown.cancel();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl World {
    /// A world whose model plays `script`.
    pub(crate) async fn new(script: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = ModelApiConfig { accept: Accept::Only(Fingerprint::of(KEY)), check_history: true };
        let router = ModelApi::router(Script::parse(script).unwrap(), config);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });

        let bus = Bus::in_process();
        let lifecycle = Lifecycle::new(Ledger::new(bus.clone()));
        *lifecycle.secret.lock().unwrap() = Some((KEY.into(), vec![host.clone()]));
        tokio::spawn(lifecycle.clone().expire_due());
        let broker = Broker::new(lifecycle.clone());
        let ledger_routes = Routes::new(WorkServiceServer::new(lifecycle.clone()))
            .add_service(LogServiceServer::new(lifecycle.clone()))
            .add_service(SecretServiceServer::new(lifecycle.clone()));
        let lifecycle_url = serve(ledger_routes).await;
        let broker_url = serve(Routes::new(SandboxServiceServer::new(broker.clone()))).await;
        let model = format!("http://{host}");
        let mut config = Config::new(model.parse().unwrap());
        config.retry.first = Duration::from_millis(10);
        Self { lifecycle, broker, bus, config, model, lifecycle_url, broker_url }
    }

    /// A world with the prompt queued and one worker at it.
    pub(crate) async fn running(script: &str) -> (Self, Worker) {
        let world = Self::new(script).await;
        world.prompt();
        let worker = world.worker();
        (world, worker)
    }

    pub(crate) fn prompt(&self) {
        self.lifecycle.change(|ledger| ledger.queue("msg-1", "Fix the test."));
    }

    /// Starts a worker in a runtime of its own.
    pub(crate) fn worker(&self) -> Worker {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let shutdown = CancellationToken::new();
        let (config, bus, stop) = (self.config.clone(), self.bus.clone(), shutdown.clone());
        let (lifecycle, broker) = (self.lifecycle_url.clone(), self.broker_url.clone());
        runtime.spawn(async move {
            let channel = |url: &str| ServiceChannel::anonymous(connect(url).unwrap());
            let started = start(config, channel(&lifecycle), channel(&broker), bus, stop).unwrap();
            started.worker.await.unwrap();
        });
        Worker { runtime: Some(runtime), shutdown }
    }

    /// A client of the three RPCs, with its service's shutdown.
    pub(crate) fn client(&self) -> (SessionServiceClient<ServiceChannel>, CancellationToken) {
        let shutdown = CancellationToken::new();
        // Only the RPCs are of interest: no worker.
        let config = Config { slots: 0, ..self.config.clone() };
        let channel = |url: &str| ServiceChannel::anonymous(connect(url).unwrap());
        let channels = (channel(&self.lifecycle_url), channel(&self.broker_url));
        let Started { routes, .. } = start(config, channels.0, channels.1, self.bus.clone(), shutdown.clone()).unwrap();
        let client = SessionServiceClient::new(ServiceChannel::anonymous(connect_in_process(routes, shutdown.clone())));
        (client, shutdown)
    }

    /// Waits for the end of the run's work: settled, and nothing claimed.
    pub(crate) async fn settled(&self, state: run::State) {
        let rests = |state| matches!(state, State::Idle | State::Closed);
        self.lifecycle
            .until(&format!("run {}", state.as_str_name()), |ledger| ledger.run == state && rests(ledger.state))
            .await;
    }

    /// The reason the run failed.
    pub(crate) async fn failed(&self) -> (String, String) {
        self.settled(run::State::Failed).await;
        self.lifecycle.see(|ledger| ledger.error.clone().map(|error| (error.reason, error.message)).unwrap())
    }

    /// Waits for an event in the log.
    pub(crate) async fn event(&self, what: &str, wanted: impl Fn(&Payload) -> bool) {
        let has = |event: &Event| event.payload.as_ref().is_some_and(&wanted);
        self.lifecycle.until(what, |ledger| ledger.events.iter().any(has)).await;
    }

    pub(crate) fn payloads(&self) -> Vec<Payload> {
        self.lifecycle.see(|ledger| ledger.events.iter().filter_map(|event| event.payload.clone()).collect())
    }

    /// Requests the model received.
    pub(crate) async fn calls(&self) -> Vec<Value> {
        let text = reqwest::get(format!("{}/__emulator/calls", self.model)).await.unwrap().text().await.unwrap();
        let listing: Value = serde_json::from_str(&text).unwrap();
        listing["calls"].as_array().unwrap().clone()
    }
}

/// The result the model was told of the n-th tool call of the log.
pub(crate) fn results(payloads: &[Payload]) -> Vec<berth_rpc::lifecycle::ToolResult> {
    payloads
        .iter()
        .filter_map(|payload| match payload {
            Payload::ToolResult(result) => Some(result.clone()),
            _ => None,
        })
        .collect()
}

async fn serve(routes: Routes) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(async move { Server::builder().add_routes(routes).serve_with_incoming(incoming).await.unwrap() });
    url
}
