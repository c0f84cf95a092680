//! The real git against the server: clone, push, private, hostile, redirecting, and its bounds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_emulators::Fingerprint;
use berth_emulators::demo::{SeedError, Seeded, seed_demo_repository};
use berth_emulators::git_http::{Behaviour, GitHttpConfig, Private};
use serde_json::Value;
use tempfile::TempDir;

use crate::world::{GitClient, GitServer, client, eventually, text};

const TOKEN: &str = "canary-token-4711";

/// A served root with the demo repository, and a place for clones.
struct World {
    root: TempDir,
    place: TempDir,
    seeded: Seeded,
}

impl World {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let seeded = seed_demo_repository(root.path()).await.unwrap();
        Self { root, place: tempfile::tempdir().unwrap(), seeded }
    }

    fn config(&self, private: Private, behaviour: Behaviour) -> GitHttpConfig {
        let mut config = GitHttpConfig::new(self.root.path());
        config.token = Some(Fingerprint::of(TOKEN));
        config.private = private;
        config.behaviour = behaviour;
        config
    }

    async fn serve(&self, private: Private, behaviour: Behaviour) -> GitServer {
        GitServer::start(self.config(private, behaviour)).await
    }

    /// A client that gives the token to this server only.
    fn bound_to(&self, server: &GitServer) -> GitClient {
        GitClient::with_token(self.place.path(), TOKEN, &server.address.to_string())
    }

    fn clone(&self) -> PathBuf {
        self.place.path().join("clone")
    }

    async fn bare_head(&self, git: &GitClient) -> String {
        git.succeed(&self.seeded.path, &["-c", "safe.directory=*", "rev-parse", "main"]).await
    }
}

#[tokio::test]
async fn a_public_repository_is_cloned_without_a_token() {
    let world = World::new().await;
    let server = world.serve(Private::None, Behaviour::Honest).await;
    let git = GitClient::new(world.place.path());
    let url = server.url("demo.git");
    git.succeed(world.place.path(), &["clone", "--quiet", &url, "clone"]).await;
    assert_eq!(git.succeed(&world.clone(), &["rev-parse", "HEAD"]).await, world.seeded.head);
    let shallow = ["clone", "--quiet", "--depth=1", "--branch=main", &server.url("demo"), "shallow"];
    git.succeed(world.place.path(), &shallow).await;
    assert!(server.credentials().is_empty());
    assert!(server.server.calls().iter().all(|call| call.status == 200));

    let missing = git.run(&["clone", "--quiet", &server.url("other.git"), "other"]).await;
    assert!(text(&missing.stderr).contains("not found"), "{}", text(&missing.stderr));
    let push = git.run_in(&world.clone(), "git", &["push", "--quiet", "origin", "HEAD:refs/heads/fix"]).await;
    assert!(!push.status.success());
    assert_eq!(server.server.calls().last().unwrap().status, 401);
}

#[tokio::test]
async fn a_private_repository_needs_the_token() {
    let world = World::new().await;
    let only_demo = Private::Only(BTreeSet::from(["demo.git".to_owned()]));
    let server = world.serve(only_demo, Behaviour::Honest).await;
    let url = server.url("demo.git");
    let refused = GitClient::new(world.place.path()).run(&["clone", "--quiet", &url, "clone"]).await;
    assert!(!refused.status.success());
    let wrong = GitClient::with_token(world.place.path(), "wrong", "127.0.0.1");
    let refused = wrong.run(&["clone", "--quiet", &url, "clone"]).await;
    assert!(text(&refused.stderr).contains("Authentication failed"), "{}", text(&refused.stderr));

    let git = world.bound_to(&server);
    git.succeed(world.place.path(), &["clone", "--quiet", &url, "clone"]).await;
    assert_eq!(git.succeed(&world.clone(), &["rev-parse", "HEAD"]).await, world.seeded.head);
    assert!(server.credentials().contains(&Fingerprint::of(TOKEN).as_str().to_owned()));
    let listed = client().get(server.url("__emulator/calls")).send().await.unwrap().text().await.unwrap();
    assert!(!listed.contains(TOKEN) && !format!("{:?}", server.server).contains(TOKEN));
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["calls"][0]["status"], 401);
}

#[tokio::test]
async fn a_push_with_the_token_arrives_whatever_its_size() {
    let world = World::new().await;
    let server = world.serve(Private::None, Behaviour::Honest).await;
    let git = world.bound_to(&server);
    git.succeed(world.place.path(), &["clone", "--quiet", &server.url("demo.git"), "clone"]).await;
    // Above git's post buffer the request is sent in chunks without a length; the bytes must not compress.
    let noise: Vec<u8> =
        (0..150_000_u64).flat_map(|n| Fingerprint::of(&n.to_string()).as_str().as_bytes()[..20].to_vec()).collect();
    for (name, content) in [("small.txt", &noise[..10]), ("large.bin", &noise[..])] {
        std::fs::write(world.clone().join(name), content).unwrap();
        git.succeed(&world.clone(), &["add", name]).await;
        git.succeed(&world.clone(), &["commit", "--quiet", "--message", name]).await;
        git.succeed(&world.clone(), &["push", "--quiet", "origin", "HEAD:main"]).await;
        let pushed = git.succeed(&world.clone(), &["rev-parse", "HEAD"]).await;
        assert_eq!(world.bare_head(&git).await, pushed);
    }
    git.succeed(world.place.path(), &["clone", "--quiet", &server.url("demo.git"), "again"]).await;
    assert_eq!(std::fs::read(world.place.path().join("again/large.bin")).unwrap(), noise);
}

#[tokio::test]
async fn a_hostile_host_gets_the_token_only_from_a_careless_client() {
    let world = World::new().await;
    let server = world.serve(Private::None, Behaviour::AsksForToken).await;
    let url = server.url("demo.git");
    let careful = GitClient::with_token(world.place.path(), TOKEN, "github.com");
    let refused = careful.run(&["clone", "--quiet", &url, "clone"]).await;
    assert!(!refused.status.success());
    assert!(!server.server.calls().is_empty());
    assert!(server.server.calls().iter().all(|call| call.status == 401));
    assert!(server.credentials().is_empty());

    let careless = GitClient::with_token(world.place.path(), TOKEN, "127.0.0.1");
    careless.succeed(world.place.path(), &["clone", "--quiet", &url, "clone"]).await;
    assert!(server.credentials().contains(&Fingerprint::of(TOKEN).as_str().to_owned()));
}

#[tokio::test]
async fn a_redirect_leads_to_another_origin() {
    let world = World::new().await;
    let target = world.serve(Private::None, Behaviour::Honest).await;
    let origin = Behaviour::RedirectsTo(format!("http://{}", target.address));
    let server = world.serve(Private::None, origin).await;
    let git = world.bound_to(&server);
    let url = server.url("demo.git");
    git.succeed(world.place.path(), &["clone", "--quiet", &url, "clone"]).await;
    assert_eq!(server.server.calls().iter().map(|call| call.status).collect::<Vec<_>>(), [302]);
    let arrived = target.server.calls().len();
    assert!(arrived > 0);

    let refused = git.run(&["-c", "http.followRedirects=false", "clone", "--quiet", &url, "other"]).await;
    assert!(!refused.status.success());
    assert_eq!(target.server.calls().len(), arrived);
}

#[tokio::test]
async fn a_redirect_after_the_token_was_given_does_not_carry_it_along() {
    let world = World::new().await;
    let target = world.serve(Private::None, Behaviour::AsksForToken).await;
    let origin = Behaviour::RedirectsTo(format!("http://{}", target.address));
    let server = world.serve(Private::All, origin).await;
    let git = world.bound_to(&server);
    let refused = git.run(&["clone", "--quiet", &server.url("demo.git"), "clone"]).await;
    assert!(!refused.status.success());
    assert_eq!(server.credentials(), [Fingerprint::of(TOKEN).as_str()]);
    assert!(!target.server.calls().is_empty());
    assert!(target.credentials().is_empty());
}

#[tokio::test]
async fn git_is_bounded_in_number_and_time() {
    let world = World::new().await;
    let mut config = world.config(Private::None, Behaviour::Honest);
    config.timeout = Duration::from_millis(500);
    let server = GitServer::start(config.clone()).await;
    // A request that never ends: git answers with headers, waits for more, and is ended.
    let endless = reqwest::Body::wrap_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let request = client().post(server.url("demo.git/git-upload-pack")).body(endless);
    let request = request.header("content-type", "application/x-git-upload-pack-request");
    let response = request.send().await.unwrap();
    assert!(!processes_in(world.root.path()).is_empty());
    assert!(response.bytes().await.is_err(), "the answer must not look complete");
    eventually("git and its children are gone", || processes_in(world.root.path()).is_empty()).await;

    config.max_processes = 0;
    let server = GitServer::start(config).await;
    let refs = client().get(server.url("demo.git/info/refs?service=git-upload-pack")).send().await.unwrap();
    assert_eq!(refs.status(), 503);
}

#[tokio::test]
async fn a_client_that_leaves_early_is_logged_all_the_same() {
    let world = World::new().await;
    let mut config = world.config(Private::None, Behaviour::AsksForToken);
    config.max_processes = 0;
    let server = GitServer::start(config).await;
    let refs = server.url("demo.git/info/refs?service=git-upload-pack");
    let leaving = client().get(refs).basic_auth("x-access-token", Some(TOKEN)).timeout(Duration::from_millis(200));
    assert!(leaving.send().await.is_err());
    eventually("the call is logged", || server.credentials() == [Fingerprint::of(TOKEN).as_str()]).await;
    assert_eq!(server.server.calls()[0].status, 499);
}

/// Processes whose working directory is at or below `root`.
fn processes_in(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let directories = entries.filter_map(|entry| std::fs::read_link(entry.path().join("cwd")).ok());
    directories.filter(|directory| directory.starts_with(root)).collect()
}

#[tokio::test]
async fn the_demo_repository_is_the_same_everywhere_and_made_once() {
    let world = World::new().await;
    let other = World::new().await;
    assert_eq!(world.seeded.head, other.seeded.head);
    let again = seed_demo_repository(world.root.path()).await;
    assert!(matches!(again, Err(SeedError::Exists(_))));
}
