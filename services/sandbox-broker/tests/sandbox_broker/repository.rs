//! Real git: repositories made by the git binary, served by the real smart-HTTP emulator on loopback.

use std::path::{Path, PathBuf};

use berth_emulators::{
    Fingerprint,
    git_http::{self, Behaviour, GitHttp, GitHttpConfig, Private},
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The token of every private repository here; searched for everywhere it must not be.
pub(crate) const CANARY: &str = "ghp_CANARYcanary0123456789abcdefXYZ";

/// A served repository `team/demo.git`.
pub(crate) struct GitServer {
    pub(crate) server: GitHttp,
    pub(crate) port: u16,
    pub(crate) bare: PathBuf,
    pub(crate) head: String,
    _folder: tempfile::TempDir,
    _running: DropGuard,
}

impl GitServer {
    pub(crate) async fn public() -> Self {
        Self::new(Private::None, Behaviour::Honest).await
    }

    pub(crate) async fn private() -> Self {
        Self::new(Private::All, Behaviour::Honest).await
    }

    pub(crate) async fn new(private: Private, behaviour: Behaviour) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bare = folder.path().join("served/team/demo.git");
        let head = seed(folder.path(), &bare).await;
        let mut config = GitHttpConfig::new(folder.path().join("served"));
        config.token = Some(Fingerprint::of(CANARY));
        config.private = private;
        config.behaviour = behaviour;
        let server = GitHttp::new(config);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shutdown = CancellationToken::new();
        let (serving, until) = (server.clone(), shutdown.clone());
        tokio::spawn(async move { git_http::serve(listener, &serving, async move { until.cancelled().await }).await });
        Self { server, port, bare, head, _folder: folder, _running: shutdown.drop_guard() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/team/demo.git", self.port)
    }

    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Passwords (reduced) that reached the server.
    pub(crate) fn credentials(&self) -> usize {
        self.server.calls().iter().filter(|call| call.credential.is_some()).count()
    }
}

/// Branches main and topic, tag v1, and one commit only a pull request's ref leads to.
async fn seed(folder: &Path, bare: &Path) -> String {
    let work = folder.join("work");
    std::fs::create_dir_all(&work).unwrap();
    std::fs::create_dir_all(bare.parent().unwrap()).unwrap();
    git(&work, &["init", "--quiet", "--initial-branch=main"]).await;
    for (file, text) in [("README", "demo\n"), (".gitignore", "ignored/\n"), ("calc.sh", "echo $(($1 * $2))\n")] {
        std::fs::write(work.join(file), text).unwrap();
    }
    git(&work, &["add", "."]).await;
    git(&work, &["commit", "--quiet", "-m", "first"]).await;
    git(&work, &["tag", "v1"]).await;
    git(&work, &["checkout", "--quiet", "-b", "topic"]).await;
    std::fs::write(work.join("topic"), "topic\n").unwrap();
    git(&work, &["add", "."]).await;
    git(&work, &["commit", "--quiet", "-m", "topic"]).await;
    git(&work, &["checkout", "--quiet", "main"]).await;
    std::fs::write(work.join("main"), "main\n").unwrap();
    git(&work, &["add", "."]).await;
    git(&work, &["commit", "--quiet", "-m", "second"]).await;
    git(folder, &["clone", "--quiet", "--bare", "work", bare.to_str().unwrap()]).await;
    git(&work, &["commit", "--quiet", "--allow-empty", "-m", "pull request"]).await;
    git(&work, &["push", "--quiet", bare.to_str().unwrap(), "HEAD:refs/pull/1/head"]).await;
    git(bare, &["rev-parse", "main"]).await
}

/// Runs git on the host, with nothing of the host's configuration.
pub(crate) async fn git(folder: &Path, args: &[&str]) -> String {
    let output = tokio::process::Command::new("git")
        .args(args)
        .current_dir(folder)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs([("GIT_AUTHOR_NAME", "T"), ("GIT_AUTHOR_EMAIL", "t@t"), ("GIT_COMMITTER_NAME", "T")])
        .env("GIT_COMMITTER_EMAIL", "t@t")
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
