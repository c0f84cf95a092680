//! A broker over a sandbox root of its own, with the fake lifecycle above it and a client beside it.

use std::time::Duration;

use berth_rpc::{
    broker::{
        self as api, exec_response::Item, provider_service_client::ProviderServiceClient,
        sandbox_service_client::SandboxServiceClient,
    },
    duration_to_proto,
    lifecycle::{self as pb, report_request::Outcome},
};
use berth_sandbox::{SandboxConfig, Sandboxes};
use berth_sandbox_broker::{Broker, Config, LocalConfig};
use berth_serve::peer::{ServiceChannel, connect_in_process};
use secrecy::SecretString;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use super::{become_init::init, fake::Fake, repository::GitServer};

/// No wait of a test is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const KEY: &str = "berth-0123456789-00000000000000000000000000000001";

/// What one case of a table does to an otherwise good value.
pub(crate) type Change<'a, T> = &'a dyn Fn(&mut T);

pub(crate) struct World {
    pub(crate) fake: Fake,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) client: SandboxServiceClient<Channel>,
    pub(crate) providers: ProviderServiceClient<Channel>,
    pub(crate) shutdown: CancellationToken,
    worker: JoinHandle<()>,
    fence: i64,
}

/// What a command said.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit: Option<api::Exit>,
    pub(crate) alive: usize,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(tempfile::tempdir().unwrap(), Fake::default(), |_| {}).await
    }

    /// Over an existing folder and fake: another broker process, as it were.
    pub(crate) async fn with(folder: tempfile::TempDir, fake: Fake, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(LocalConfig::new(folder.path().join("sandboxes"), init()));
        config.allow_private_repos = true;
        config.package_registries.clear();
        config.timeouts.transfer_delay = Duration::from_millis(50);
        config.timeouts.claim_wait = Duration::from_secs(5);
        change(&mut config);
        let shutdown = CancellationToken::new();
        let lifecycle = connect_in_process(fake.routes(), shutdown.child_token());
        let lifecycle = ServiceChannel::with_key(lifecycle, &SecretString::from("service-key"));
        let Broker { routes, worker } =
            berth_sandbox_broker::start(config, lifecycle, shutdown.child_token()).await.unwrap();
        let channel = connect_in_process(routes, shutdown.child_token());
        let client = SandboxServiceClient::new(channel.clone())
            .max_decoding_message_size(berth_serve::peer::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(berth_serve::peer::MAX_MESSAGE_BYTES);
        let fence = fake.state().reports.len() as i64 * 10 + 10;
        Self { fake, folder, client, providers: ProviderServiceClient::new(channel), shutdown, worker, fence }
    }

    /// The same sandboxes seen directly, past the broker.
    pub(crate) async fn sandboxes(&self) -> Sandboxes {
        Sandboxes::new(SandboxConfig::new(self.folder.path().join("sandboxes"), init())).await.unwrap()
    }

    /// Work on the test's one lease.
    pub(crate) fn work(&mut self, action: pb::work::Action, lease: pb::LeaseWork) -> pb::Work {
        self.fence += 1;
        pb::Work {
            row_id: "lease-00000000000000000000000000000001".to_owned(),
            run_id: "run-00000000000000000000000000000001".to_owned(),
            tenant: "default".to_owned(),
            fence: self.fence,
            action: action.into(),
            time_left: Some(duration_to_proto(Duration::from_secs(120))),
            traceparent: String::new(),
            detail: Some(pb::work::Detail::Lease(lease)),
        }
    }

    /// Hands the work out and waits for its report.
    pub(crate) async fn done(&mut self, action: pb::work::Action, lease: pb::LeaseWork) -> Outcome {
        let work = self.work(action, lease);
        self.report_on(work).await
    }

    pub(crate) async fn report_on(&self, work: pb::Work) -> Outcome {
        let fence = work.fence;
        self.fake.queue(work);
        eventually("the report", || async { self.fake.report_of(fence).is_some() }).await;
        self.fake.report_of(fence).unwrap().outcome.unwrap()
    }

    pub(crate) async fn allocate(&mut self, lease: &pb::LeaseWork) -> pb::SandboxIdentity {
        match self.done(pb::work::Action::Allocate, lease.clone()).await {
            Outcome::Created(created) => created.identity.unwrap(),
            other => panic!("not created: {other:?}"),
        }
    }

    /// A sandbox with the server's repository in it, behind session fence 1.
    pub(crate) async fn ready(&mut self, repo_url: &str) -> pb::LeaseWork {
        let mut lease = lease(repo_url);
        lease.identity = Some(self.allocate(&lease).await);
        let done = match self.done(pb::work::Action::Bootstrap, lease.clone()).await {
            Outcome::Bootstrapped(done) => done,
            other => panic!("not bootstrapped: {other:?}"),
        };
        self.fake.state().lease = Some(pb::ResolveLeaseResponse {
            lease_id: "lease-00000000000000000000000000000001".to_owned(),
            tenant: "default".to_owned(),
            identity: lease.identity.clone(),
            key: lease.key.clone(),
            workdir: done.workdir,
            repo_url: repo_url.to_owned(),
            base_commit: done.base_commit,
            endpoint: String::new(),
        });
        lease
    }

    pub(crate) async fn ready_with(&mut self, server: &GitServer) -> pb::LeaseWork {
        self.ready(&server.url()).await
    }

    /// A shell line in the work folder.
    pub(crate) async fn sh(&mut self, line: &str) -> Said {
        self.exec(shell(line)).await.unwrap()
    }

    /// A shell line that must succeed; what it printed.
    pub(crate) async fn ok(&mut self, line: &str) -> String {
        let said = self.sh(line).await;
        assert_eq!(said.exit.as_ref().map(|exit| exit.code), Some(0), "{line}: {said:?}");
        said.stdout.trim().to_owned()
    }

    pub(crate) async fn exec(&mut self, request: api::ExecRequest) -> Result<Said, tonic::Status> {
        let mut stream = self.client.exec(request).await?.into_inner();
        let mut said = Said::default();
        while let Some(response) = stream.message().await? {
            match response.item.unwrap() {
                Item::Started(_) => {}
                Item::Alive(_) => said.alive += 1,
                Item::Stdout(bytes) => said.stdout.push_str(&String::from_utf8_lossy(&bytes)),
                Item::Stderr(bytes) => said.stderr.push_str(&String::from_utf8_lossy(&bytes)),
                Item::Exit(exit) => said.exit = Some(exit),
            }
        }
        Ok(said)
    }

    /// Stops the broker but leaves its sandboxes; the folder is given back.
    pub(crate) async fn stop(self) -> (tempfile::TempDir, Fake) {
        self.shutdown.cancel();
        self.worker.await.unwrap();
        (self.folder, self.fake)
    }

    /// Destroys whatever the test left.
    pub(crate) async fn finish(self) {
        let sandboxes = self.sandboxes().await;
        let (_folder, _) = self.stop().await;
        for found in sandboxes.list().await.unwrap() {
            sandboxes.destroy(&found.key).await.unwrap();
        }
    }
}

pub(crate) fn lease(repo_url: &str) -> pb::LeaseWork {
    pb::LeaseWork {
        provider: "local".to_owned(),
        key: KEY.to_owned(),
        attempt: 1,
        repo_url: repo_url.to_owned(),
        max_lifetime: Some(duration_to_proto(Duration::from_secs(3600))),
        ..pb::LeaseWork::default()
    }
}

pub(crate) fn hold() -> Option<api::Hold> {
    Some(api::Hold { run_id: "run-1".to_owned(), session_id: "ses-1".to_owned(), session_fence: 1, launch: 1 })
}

pub(crate) fn shell(line: &str) -> api::ExecRequest {
    api::ExecRequest {
        hold: hold(),
        exec_id: uuid::Uuid::new_v4().to_string(),
        argv: ["/bin/sh", "-c", line].map(str::to_owned).into(),
        ..api::ExecRequest::default()
    }
}

/// Waits until the condition holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while !condition().await {
        assert!(tokio::time::Instant::now() < until, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Reason of a status of ours.
pub(crate) fn reason(status: &tonic::Status) -> String {
    berth_rpc::status::reason(status).unwrap_or_else(|| format!("{status:?}"))
}
