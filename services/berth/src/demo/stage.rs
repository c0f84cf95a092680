//! What the demo runs on, all in one temporary folder: a git server with the seeded repository, the model, and Berth.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use berth_emulators::{
    demo,
    git_http::{self, GitHttp, GitHttpConfig},
    model_api,
};
use berth_serve::shutdown::{self, Shutdown};
use secrecy::SecretString;
use tempfile::TempDir;
use tokio::net::TcpListener;

use super::Options;
use crate::{
    keys_file,
    serve::{self, Running},
    settings::Settings,
};

pub(super) struct Stage {
    berth: Running,
    outside: Shutdown,
    repo_url: String,
    model_key: SecretString,
    folder: TempDir,
}

impl Stage {
    /// Starts everything on free ports of 127.0.0.1.
    pub(super) async fn build(options: &Options, real: Option<&(String, SecretString)>) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("berth-demo-").tempdir().context("no temporary folder")?;
        let outside = Shutdown::new();

        let repositories = folder.path().join("repositories");
        std::fs::create_dir(&repositories)?;
        demo::seed_demo_repository(&repositories)
            .await
            .context("cannot make the demo repository (is git installed?)")?;
        let git = GitHttp::new(GitHttpConfig::new(&repositories));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let repo_url = format!("http://{}/demo.git", listener.local_addr()?);
        let stop = outside.token();
        outside.spawn(async move { git_http::serve(listener, &git, stop.cancelled_owned()).await });

        let (model_url, model_key) = match real {
            Some((_, key)) => (options.anthropic_base_url.clone(), key.clone()),
            None => {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                let url = format!("http://{}", listener.local_addr()?);
                let stop = outside.token();
                outside.spawn(model_api::serve(listener, demo::demo_script(), stop.cancelled_owned()));
                (url, keys_file::random_key("sk-demo-"))
            }
        };
        let settings =
            Settings::for_demo(folder.path().join("data"), model_url, options.local_allow.clone(), options.log.clone());
        let berth = serve::start(settings.resolve()?).await?;
        Ok(Self { berth, outside, repo_url, model_key, folder })
    }

    pub(super) fn api(&self) -> SocketAddr {
        self.berth.address()
    }

    pub(super) fn repo_url(&self) -> &str {
        &self.repo_url
    }

    pub(super) fn model_key(&self) -> &SecretString {
        &self.model_key
    }

    pub(super) fn admin_key(&self) -> &SecretString {
        self.berth.admin_key()
    }

    pub(super) fn sandbox_root(&self) -> PathBuf {
        self.berth.sandbox_root()
    }

    /// Stops everything, removes the folder and says how many sandboxes were left in it.
    pub(super) async fn strike(self) -> anyhow::Result<usize> {
        let left = sandboxes_in(&self.berth.sandbox_root())?;
        self.berth.stop().await;
        self.outside.finish(shutdown::DEADLINE).await;
        self.folder.close().context("the temporary folder was not removed")?;
        Ok(left)
    }
}

fn sandboxes_in(root: &Path) -> std::io::Result<usize> {
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    Ok(entries.filter_map(Result::ok).filter(|e| e.file_name().to_string_lossy().starts_with("berth-")).count())
}
