//! Private repositories: the token opens them, reaches nobody else, and stays nowhere.

use berth_emulators::git_http::{Behaviour, Private};
use berth_rpc::lifecycle::{report_request::Outcome, work::Action};

use super::{
    fake::Fake,
    repository::{CANARY, GitServer},
    world::{World, lease},
};

fn give_token(fake: &Fake, host: &str) {
    fake.state().token = Some((CANARY.to_owned(), vec!["github.com".to_owned(), host.to_owned()]));
}

async fn refused(world: &mut World, url: &str) -> String {
    let mut base = lease(url);
    base.identity = Some(world.allocate(&base).await);
    match world.done(Action::Bootstrap, base).await {
        Outcome::BootstrapFailed(failure) => {
            assert!(!failure.message.contains(CANARY), "{}", failure.message);
            failure.reason
        }
        other => panic!("{other:?}"),
    }
}

/// Regular files below `folder` that hold the text.
fn files_with(folder: &std::path::Path, text: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().filter_map(Result::ok) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(files_with(&entry.path(), text));
        } else if kind.is_file() {
            let bytes = std::fs::read(entry.path()).unwrap();
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                found.push(entry.path());
            }
        }
    }
    found
}

#[tokio::test]
async fn case_a01_the_token_opens_the_repository_and_is_found_nowhere() {
    let server = GitServer::private().await;
    let mut world = World::new().await;
    give_token(&world.fake, &server.host());
    world.ready_with(&server).await;
    assert!(server.credentials() > 0);
    assert!(
        server
            .server
            .calls()
            .iter()
            .all(|call| call.credential.as_ref().is_none_or(|one| one.user == "x-access-token"))
    );
    assert_eq!(
        world.ok("git rev-parse HEAD; git remote get-url origin").await,
        format!("{}\n{}", server.head, server.url())
    );
    // Every process of the sandbox, every file the agent can read, this command's own environment.
    let search = format!(
        "grep -rlaF {canary} /workspace /tmp /home/agent /run 2>/dev/null; env | grep -F {canary}; \
         cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -vF 'grep ' | grep -F {canary}; echo end",
        canary = "CANARYcan''ary0123"
    );
    assert_eq!(world.ok(&search).await, "end");
    assert_eq!(world.ok("ls -A /tmp; git config --list --show-origin | grep -ci askpass; true").await, "0");
    // On the host: nothing the broker stores or reports holds it.
    assert_eq!(files_with(world.folder.path(), CANARY), Vec::<std::path::PathBuf>::new());
    assert!(!format!("{:?}", world.fake.state().reports).contains(CANARY));
    world.finish().await;
}

#[tokio::test]
async fn case_a01_while_cloning_the_token_is_in_no_argument_list() {
    // The server answers only after the token was sent; the processes are looked at from the host all the while.
    let server = GitServer::private().await;
    let mut world = World::new().await;
    give_token(&world.fake, &server.host());
    let watch = tokio::task::spawn_blocking(|| {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(3);
        let mut seen_git = false;
        while std::time::Instant::now() < until {
            for entry in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
                let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                let text = String::from_utf8_lossy(&words);
                assert!(!text.contains(CANARY), "{text}");
                seen_git |= text.contains("git-remote-http");
            }
        }
        seen_git
    });
    world.ready_with(&server).await;
    assert!(watch.await.unwrap(), "git's transport was seen at work");
    world.finish().await;
}

#[tokio::test]
async fn without_or_with_a_wrong_token_the_refusal_is_named() {
    let server = GitServer::private().await;
    let mut world = World::new().await;
    assert_eq!(refused(&mut world, &server.url()).await, "REPO_AUTH_REFUSED");
    world.finish().await;
    let mut world = World::new().await;
    world.fake.state().token = Some(("wrong-token".to_owned(), vec![server.host()]));
    assert_eq!(refused(&mut world, &server.url()).await, "REPO_AUTH_REFUSED");
    world.finish().await;
}

#[tokio::test]
async fn case_a11_a_host_the_secret_is_not_bound_to_gets_no_token() {
    let hostile = GitServer::new(Private::None, Behaviour::AsksForToken).await;
    let mut world = World::new().await;
    give_token(&world.fake, "github.com");
    assert_eq!(refused(&mut world, &hostile.url()).await, "REPO_AUTH_REFUSED");
    assert!(!hostile.server.calls().is_empty(), "it was asked, and asked for the token");
    assert_eq!(hostile.credentials(), 0);
    world.finish().await;
}

#[tokio::test]
async fn case_a11_a_bound_host_cannot_pass_the_token_on_by_a_redirect() {
    let hostile = GitServer::new(Private::None, Behaviour::AsksForToken).await;
    let origin = format!("http://{}", hostile.host());
    let bound = GitServer::new(Private::None, Behaviour::RedirectsTo(origin)).await;
    let allowed = hostile.host();
    let world = World::with(tempfile::tempdir().unwrap(), Fake::default(), |config| config.egress_allow.push(allowed));
    let mut world = world.await;
    give_token(&world.fake, &bound.host());
    assert_eq!(refused(&mut world, &bound.url()).await, "REPO_UNREACHABLE");
    assert!(hostile.server.calls().is_empty());
    world.finish().await;
}
