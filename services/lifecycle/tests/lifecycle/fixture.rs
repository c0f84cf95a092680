//! A running lifecycle and clients to it, on either engine, with a clock that can be set forward.

use std::{collections::BTreeMap, time::Duration};

use berth_domain::lease::ProviderTraits;
use berth_events::Bus;
use berth_lifecycle::{
    Config, MasterKey, Started, new_api_key,
    store::{Clock, Database, Store},
};
use berth_rpc::lifecycle::{
    self as proto, log_service_client::LogServiceClient, run_service_client::RunServiceClient,
    work_service_client::WorkServiceClient,
};
use berth_serve::peer::{ServiceChannel, connect_in_process};
use secrecy::SecretString;
use sqlx::{ConnectOptions as _, Executor as _, sqlite::SqliteConnectOptions};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, transport::Channel};

use crate::postgres;

/// How long a condition may take to come true, on a busy machine.
pub(crate) const EVENTUALLY: Duration = Duration::from_secs(30);

/// The engine of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

/// Runs each case on both engines, as `case::sqlite` and `case::postgres`.
macro_rules! on_both_engines {
    ($($case:ident),* $(,)?) => {$(
        mod $case {
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn sqlite() {
                let deployment = crate::fixture::Deployment::start(crate::fixture::Engine::Sqlite).await;
                super::$case(&deployment).await;
                deployment.stop().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn postgres() {
                let deployment = crate::fixture::Deployment::start(crate::fixture::Engine::Postgres).await;
                super::$case(&deployment).await;
                deployment.stop().await;
            }
        }
    )*};
}
pub(crate) use on_both_engines;

/// A running lifecycle with its keys.
pub(crate) struct Deployment {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) store: Store,
    pub(crate) channel: Channel,
    pub(crate) admin_key: SecretString,
    pub(crate) service_keys: BTreeMap<String, SecretString>,
    shutdown: CancellationToken,
    background: tokio::task::JoinHandle<()>,
    postgres: Option<String>,
    folder: tempfile::TempDir,
}

impl Deployment {
    /// Offers provider `local`, needs no model key, and lets workers live long enough for a slow machine.
    pub(crate) async fn start(engine: Engine) -> Self {
        Self::start_with(engine, |_| {}).await
    }

    /// As [`Deployment::start`], with other settings.
    pub(crate) async fn start_with(engine: Engine, settings: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (database, postgres) = match engine {
            Engine::Sqlite => (Database::Sqlite(folder.path().join("berth.db")), None),
            Engine::Postgres => {
                let url = postgres::database().await;
                (Database::Postgres(SecretString::from(url.clone())), Some(url))
            }
        };
        let mut config = Config::new(database, MasterKey::new([7; 32]));
        config.admin_key = Some(new_api_key());
        for service in ["gateway", "sandbox-broker", "sessions"] {
            config.service_keys.insert(service.to_owned(), new_api_key());
        }
        config.providers = vec![ProviderTraits {
            provider: "local".to_owned(),
            can_lookup_key: true,
            create_horizon: Duration::from_secs(30),
        }];
        config.default_model = Some("claude-test".to_owned());
        config.model_key_required = false;
        config.limits.alive = Duration::from_secs(60);
        config.expire_every = Duration::from_millis(50);
        config.poll_every = Duration::from_millis(100);
        settings(&mut config);
        Self::run(config, postgres, folder).await
    }

    async fn run(config: Config, postgres: Option<String>, folder: tempfile::TempDir) -> Self {
        let shutdown = CancellationToken::new();
        let Started { routes, store, background } =
            berth_lifecycle::start(config.clone(), Bus::in_process(), shutdown.clone())
                .await
                .expect("lifecycle starts");
        Self {
            clock: config.clock.clone(),
            store,
            channel: connect_in_process(routes, shutdown.clone()),
            admin_key: config.admin_key.clone().expect("set above"),
            service_keys: config.service_keys.clone(),
            config,
            shutdown,
            background,
            postgres,
            folder,
        }
    }

    /// Ends it and starts it again over the same database.
    pub(crate) async fn restart(self) -> Self {
        self.shutdown.cancel();
        self.background.await.expect("the background task ends");
        self.store.close().await;
        Self::run(self.config, self.postgres, self.folder).await
    }

    /// Ends it and removes what it left.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.background.await.expect("the background task ends");
        self.store.close().await;
        if let Some(url) = &self.postgres {
            postgres::drop_database(url).await;
        }
    }

    /// Runs a statement beside the store.
    pub(crate) async fn execute(&self, sql: &str) {
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        match &self.postgres {
            Some(url) => {
                postgres::connect(url).await.execute(sql).await.expect("executed");
            }
            None => {
                let options = SqliteConnectOptions::new().filename(self.folder.path().join("berth.db"));
                options.connect().await.expect("connected").execute(sql).await.expect("executed");
            }
        }
    }

    /// Names of the files of this deployment that hold the text; none when the database is a server.
    pub(crate) fn files_with(&self, text: &str) -> Vec<String> {
        let files = std::fs::read_dir(self.folder.path()).expect("the folder is listed");
        let files = files.map(|file| file.expect("a file").path());
        let holds = |path: &std::path::PathBuf| {
            let bytes = std::fs::read(path).expect("the file is read");
            bytes.windows(text.len()).any(|window| window == text.as_bytes())
        };
        files.filter(holds).map(|path| path.display().to_string()).collect()
    }

    /// A channel with the key of a service.
    pub(crate) fn service(&self, name: &str) -> ServiceChannel {
        ServiceChannel::with_key(self.channel.clone(), &self.service_keys[name])
    }

    /// RunService as the administrator.
    pub(crate) fn runs(&self) -> RunServiceClient<ServiceChannel> {
        RunServiceClient::new(ServiceChannel::with_key(self.channel.clone(), &self.admin_key))
    }

    /// LogService as the administrator.
    pub(crate) fn log(&self) -> LogServiceClient<ServiceChannel> {
        let admin = ServiceChannel::with_key(self.channel.clone(), &self.admin_key);
        LogServiceClient::new(admin).max_decoding_message_size(16 << 20)
    }

    /// LogService as the sessions service.
    pub(crate) fn session_log(&self) -> LogServiceClient<ServiceChannel> {
        LogServiceClient::new(self.service("sessions")).max_decoding_message_size(16 << 20)
    }

    /// WorkService as a service.
    pub(crate) fn work(&self, service: &str) -> WorkServiceClient<ServiceChannel> {
        WorkServiceClient::new(self.service(service)).max_decoding_message_size(12 << 20)
    }

    /// Makes a one-shot run on `local`.
    pub(crate) async fn create(&self) -> proto::Run {
        self.create_from(request()).await
    }

    /// Makes a run.
    pub(crate) async fn create_from(&self, request: proto::CreateRunRequest) -> proto::Run {
        self.runs().create_run(request).await.expect("the run is made").into_inner()
    }

    /// The run now.
    pub(crate) async fn get(&self, run_id: &str) -> Result<proto::Run, Status> {
        let request = proto::GetRunRequest { run_id: run_id.to_owned() };
        self.runs().get_run(request).await.map(tonic::Response::into_inner)
    }

    /// Waits for a state.
    pub(crate) async fn until_state(&self, run_id: &str, state: proto::run::State) -> proto::Run {
        eventually(|| async {
            let run = self.get(run_id).await.expect("the run is there");
            (run.state() == state).then_some(run).ok_or_else(|| format!("waiting for {state:?}"))
        })
        .await
    }

    /// Waits until the run is gone.
    pub(crate) async fn until_deleted(&self, run_id: &str) {
        eventually(|| async {
            match self.get(run_id).await {
                Err(status) if status.code() == Code::NotFound => Ok(()),
                other => Err(format!("{:?}", other.map(|run| run.state()))),
            }
        })
        .await;
    }

    /// Cancels the run.
    pub(crate) async fn cancel(&self, run_id: &str) -> Result<proto::Run, Status> {
        let request = proto::CancelRunRequest { run_id: run_id.to_owned(), reason: String::new() };
        self.runs().cancel_run(request).await.map(tonic::Response::into_inner)
    }

    /// Asks for deletion.
    pub(crate) async fn delete(&self, run_id: &str) -> Result<proto::Run, Status> {
        let request = proto::DeleteRunRequest { run_id: run_id.to_owned() };
        self.runs().delete_run(request).await.map(tonic::Response::into_inner)
    }

    /// The receipts of a run.
    pub(crate) async fn receipts(&self, run_id: &str) -> proto::GetReceiptResponse {
        let request = proto::GetReceiptRequest { run_id: run_id.to_owned() };
        self.runs().get_receipt(request).await.expect("receipts").into_inner()
    }

    /// The timeline as `entity from>to`.
    pub(crate) async fn timeline(&self, run_id: &str) -> Vec<String> {
        let request = proto::ListTransitionsRequest { run_id: run_id.to_owned(), page_size: 500, ..Default::default() };
        let transitions = self.runs().list_transitions(request).await.expect("timeline").into_inner().transitions;
        for (transition, number) in transitions.iter().zip(1..) {
            assert_eq!(transition.sequence, number, "the timeline has no gap");
        }
        let line = |t: &proto::Transition| format!("{} {}>{}", t.entity().as_str_name().to_lowercase(), t.from, t.to);
        transitions.iter().map(line).collect()
    }

    /// The whole log of a run, checked to be 1..N.
    pub(crate) async fn events(&self, run_id: &str) -> Vec<proto::Event> {
        let mut events: Vec<proto::Event> = Vec::new();
        loop {
            let after_sequence = events.last().map_or(0, |event| event.sequence);
            let request = proto::ReadRequest { run_id: run_id.to_owned(), after_sequence, limit: 1000 };
            let page = self.log().read(request).await.expect("the log is read").into_inner();
            if page.events.is_empty() {
                assert_eq!(after_sequence, page.last_sequence, "the log ends where its head says");
                break;
            }
            events.extend(page.events);
        }
        let numbers: Vec<i64> = events.iter().map(|event| event.sequence).collect();
        let expected: Vec<i64> = (1..).take(events.len()).collect();
        assert_eq!(numbers, expected, "no gap, no duplicate");
        events
    }
}

/// A request that is accepted.
pub(crate) fn request() -> proto::CreateRunRequest {
    proto::CreateRunRequest {
        prompt: "fix the failing test".to_owned(),
        sandbox_provider: "local".to_owned(),
        ..Default::default()
    }
}

/// Polls until `check` answers, or fails with what it said last.
pub(crate) async fn eventually<T, E, F>(mut check: impl FnMut() -> F) -> T
where
    E: std::fmt::Debug,
    F: Future<Output = Result<T, E>>,
{
    let until = tokio::time::Instant::now() + EVENTUALLY;
    loop {
        match check().await {
            Ok(value) => return value,
            Err(last) if tokio::time::Instant::now() > until => panic!("in vain: {last:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// The stable reason of an error.
pub(crate) fn reason(status: &Status) -> String {
    berth_rpc::status::reason(status).unwrap_or_default()
}

/// Asserts code and reason of an error.
pub(crate) fn assert_refused<T: std::fmt::Debug>(outcome: Result<T, Status>, code: Code, expected: &str) -> Status {
    let status = outcome.expect_err("this is refused");
    assert_eq!((status.code(), reason(&status).as_str()), (code, expected), "{}", status.message());
    status
}
