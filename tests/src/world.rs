//! The world outside Berth that a test needs: a git server with the demo repository, a scripted model, a folder.

use std::{
    future::Future,
    path::PathBuf,
    time::{Duration, Instant},
};

use berth_emulators::{
    Fingerprint, demo,
    git_http::{self, GitHttp, GitHttpConfig},
    model_api::{self, Script},
};
use tempfile::TempDir;
use tokio::{net::TcpListener, sync::oneshot};

use crate::{Server, ServerOptions};

/// Runs `probe` until it gives something or the deadline has passed. The pause between two probes is short and grows.
pub async fn eventually<T, F, Fut>(deadline: Duration, mut probe: F) -> Option<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let began = Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        if let Some(found) = probe().await {
            return Some(found);
        }
        if began.elapsed() > deadline {
            return None;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Git server, model and folder; everything ends with it.
#[derive(Debug)]
pub struct World {
    folder: TempDir,
    git: GitHttp,
    git_url: String,
    model_url: String,
    _stops: Vec<oneshot::Sender<()>>,
}

impl World {
    /// The demo's repository and script.
    pub async fn demo() -> Self {
        Self::new(demo::demo_script(), None).await
    }

    /// The demo's repository, another script and, if given, a token that the git server demands.
    pub async fn new(script: Script, token: Option<&str>) -> Self {
        rustls::crypto::ring::default_provider().install_default().ok();
        let folder = tempfile::Builder::new().prefix("berth-e2e-").tempdir().expect("folder");
        let repositories = folder.path().join("repositories");
        std::fs::create_dir(&repositories).expect("folder");
        demo::seed_demo_repository(&repositories).await.expect("seeded repository");
        let mut config = GitHttpConfig::new(&repositories);
        if let Some(token) = token {
            config.token = Some(Fingerprint::of(token));
            config.private = git_http::Private::All;
        }
        let git = GitHttp::new(config);
        let mut stops = Vec::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let git_url = format!("http://{}", listener.local_addr().expect("address"));
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        let served = git.clone();
        tokio::spawn(async move {
            git_http::serve(listener, &served, async {
                let _ = stopped.await;
            })
            .await
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listener");
        let model_url = format!("http://{}", listener.local_addr().expect("address"));
        let (stop, stopped) = oneshot::channel::<()>();
        stops.push(stop);
        tokio::spawn(model_api::serve(listener, script, async {
            let _ = stopped.await;
        }));
        Self { folder, git, git_url, model_url, _stops: stops }
    }

    /// URL of the demo repository.
    pub fn repo_url(&self) -> String {
        format!("{}/demo.git", self.git_url)
    }

    /// What a ref of the demo repository points at, read from the server's own files.
    pub fn pushed(&self, reference: &str) -> Option<String> {
        let output = std::process::Command::new("git")
            .arg("-C")
            .arg(self.folder.path().join("repositories/demo.git"))
            .args(["-c", "safe.directory=*", "show", "--format=%H", &format!("{reference}:calc.sh")])
            .output()
            .expect("git runs");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The git server, to see what it was asked.
    pub fn git(&self) -> &GitHttp {
        &self.git
    }

    /// host:port of the git server.
    pub fn git_host(&self) -> String {
        self.git_url.trim_start_matches("http://").to_owned()
    }

    /// Base URL of the model.
    pub fn model_url(&self) -> &str {
        &self.model_url
    }

    /// A data folder for a server.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A server that uses this world and holds a model key.
    pub async fn server(&self) -> Server {
        self.server_with(ServerOptions::default()).await
    }

    /// The same with further options; model URL and private repositories are set here.
    pub async fn server_with(&self, options: ServerOptions) -> Server {
        let options = ServerOptions { model_url: self.model_url.clone(), allow_private_repos: true, ..options };
        let server = Server::start(&self.data(), options).await;
        let answer = server.api().put_secret("anthropic_api_key", "sk-ant-e2e-model-key-canary", &[]).await;
        assert!(answer.status.is_success(), "{}", answer.text);
        server
    }
}
