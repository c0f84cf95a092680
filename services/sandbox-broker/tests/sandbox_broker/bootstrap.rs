//! ALLOCATE and BOOTSTRAP on public repositories: refs, folders, failures, and what hostile values do not do.

use berth_emulators::git_http::{Behaviour, Private};
use berth_rpc::lifecycle::{self as pb, report_request::Outcome, work::Action};

use super::{
    repository::{GitServer, git},
    world::{Change, World, lease, shell},
};

async fn bootstrap(world: &mut World, lease: &pb::LeaseWork, change: impl FnOnce(&mut pb::LeaseWork)) -> Outcome {
    let mut lease = lease.clone();
    change(&mut lease);
    world.done(Action::Bootstrap, lease).await
}

fn failed(outcome: Outcome) -> String {
    match outcome {
        Outcome::BootstrapFailed(failure) => failure.reason,
        other => panic!("did not fail: {other:?}"),
    }
}

fn done(outcome: Outcome) -> pb::Bootstrapped {
    match outcome {
        Outcome::Bootstrapped(done) => done,
        other => panic!("not bootstrapped: {other:?}"),
    }
}

#[tokio::test]
async fn a_public_repository_is_cloned_without_a_token() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    world.fake.state().token = Some(("unused".to_owned(), vec!["github.com".to_owned()]));
    world.ready_with(&server).await;
    let lease = world.fake.state().lease.clone().unwrap();
    assert_eq!((lease.workdir.as_str(), lease.base_commit.as_str()), ("/workspace/demo", server.head.as_str()));
    assert_eq!(server.credentials(), 0);
    assert_eq!(
        world.ok("git status --porcelain; git rev-parse HEAD; cat README; pwd").await,
        format!("{}\ndemo\n/workspace/demo", server.head)
    );
    assert_eq!(world.ok("git config user.name").await, "Berth Agent");
    assert_eq!(world.ok("ls -A /workspace /tmp").await, "/tmp:\n\n/workspace:\ndemo");
    let asked = world.fake.state().secrets_asked.clone();
    assert_eq!((asked[0].name.as_str(), asked[0].purpose.as_str()), ("github_token", "CLONE"));
    world.finish().await;
}

#[tokio::test]
async fn refs_are_branches_tags_and_commits_and_nothing_else() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    let base = world.ready_with(&server).await;
    let topic = git(&server.bare, &["rev-parse", "topic"]).await;
    let first = git(&server.bare, &["rev-parse", "v1"]).await;
    let pull = git(&server.bare, &["rev-parse", "refs/pull/1/head"]).await;
    for (reference, commit, branch) in [
        ("topic", &topic, "topic"),
        ("refs/heads/topic", &topic, "topic"),
        ("v1", &first, "HEAD"),
        ("refs/tags/v1", &first, "HEAD"),
        (&topic[..], &topic, "HEAD"),
        (&topic[..8], &topic, "HEAD"),
        ("refs/pull/1/head", &pull, "HEAD"),
        ("HEAD", &server.head, "main"),
        ("", &server.head, "main"),
    ] {
        let outcome = bootstrap(&mut world, &base, |lease| lease.repo_ref = reference.to_owned()).await;
        assert_eq!(&done(outcome).base_commit, commit, "{reference}");
        assert_eq!(world.ok("git rev-parse --abbrev-ref HEAD; git status --porcelain").await, branch, "{reference}");
    }
    for reference in ["nowhere", "refs/pull/9/head", "0123456789", &"0".repeat(40), "main~1", "-x", "origin/main"] {
        let outcome = bootstrap(&mut world, &base, |lease| lease.repo_ref = reference.to_owned()).await;
        assert_eq!(failed(outcome), "REF_NOT_FOUND", "{reference}");
    }
    world.finish().await;
}

#[tokio::test]
async fn without_a_repository_there_is_an_empty_one() {
    let mut world = World::new().await;
    let base = world.ready("").await;
    assert_eq!(world.fake.state().lease.clone().unwrap().workdir, "/workspace/work");
    assert_eq!(
        world.ok("git status --porcelain=v2 --branch | head -2").await,
        "# branch.oid (initial)\n# branch.head main"
    );
    let named = bootstrap(&mut world, &base, |lease| lease.workdir = "deep/er".to_owned()).await;
    assert_eq!(done(named).workdir, "/workspace/deep/er");
    world.finish().await;
}

#[tokio::test]
async fn case_l05_every_failed_step_leaves_the_sandbox_to_its_lease() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    let mut base = lease(&server.url());
    base.identity = Some(world.allocate(&base).await);
    let address = |path: &str| format!("http://127.0.0.1:{}/{path}", server.port);
    let cases: [(&str, Change<pb::LeaseWork>); 4] = [
        ("REPO_NOT_FOUND", &|lease| lease.repo_url = address("team/none.git")),
        ("REF_NOT_FOUND", &|lease| lease.repo_ref = "nowhere".to_owned()),
        ("REPO_ADDRESS_REFUSED", &|lease| lease.repo_url = "ext::sh -c id".to_owned()),
        ("WORKDIR_REFUSED", &|lease| lease.workdir = "../../etc".to_owned()),
    ];
    for (expected, change) in cases {
        assert_eq!(failed(bootstrap(&mut world, &base, change).await), expected);
        // Nobody tore it down here: the identity is recorded, and its lease's RELEASE does it.
        assert!(world.sandboxes().await.find(&base.key).await.unwrap().is_some());
    }
    let released = world.done(Action::Release, base.clone()).await;
    assert!(matches!(released, Outcome::Absent(_)), "{released:?}");
    world.finish().await;
}

#[tokio::test]
async fn an_unreachable_repository_is_definite_after_some_tries() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let mut world = World::new().await;
    let mut base = lease(&format!("http://127.0.0.1:{closed}/team/demo.git"));
    base.identity = Some(world.allocate(&base).await);
    match world.done(Action::Bootstrap, base).await {
        Outcome::BootstrapFailed(failure) => {
            assert_eq!(failure.reason, "REPO_UNREACHABLE", "{failure:?}");
            assert_eq!(failure.class(), pb::provider_failure::Class::Permanent);
        }
        other => panic!("{other:?}"),
    }
    world.finish().await;
}

#[tokio::test]
async fn a_redirect_to_another_host_is_not_followed() {
    let other = GitServer::public().await;
    let origin = format!("http://127.0.0.1:{}", other.port);
    let server = GitServer::new(Private::None, Behaviour::RedirectsTo(origin)).await;
    // Even where the other host may be reached.
    let allowed = other.host();
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::with(folder, Default::default(), |config| config.egress_allow.push(allowed)).await;
    let mut base = lease(&server.url());
    base.identity = Some(world.allocate(&base).await);
    assert_eq!(failed(world.done(Action::Bootstrap, base).await), "REPO_UNREACHABLE");
    assert!(other.server.calls().is_empty(), "{:?}", other.server.calls());
    world.finish().await;
}

#[tokio::test]
async fn case_a06_hostile_values_are_just_arguments() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    let base = world.ready_with(&server).await;
    let workdir = "$(touch /tmp/pwned);`touch /tmp/pwned`' \"&x";
    let outcome = bootstrap(&mut world, &base, |lease| lease.workdir = workdir.to_owned()).await;
    let made = done(outcome).workdir;
    assert_eq!(made, format!("/workspace/{workdir}"));
    for reference in ["$(touch /tmp/pwned)", "--upload-pack=touch /tmp/pwned", ";touch${IFS}/tmp/pwned"] {
        let outcome = bootstrap(&mut world, &base, |lease| lease.repo_ref = reference.to_owned()).await;
        assert_eq!(failed(outcome), "REF_NOT_FOUND", "{reference}");
    }
    let outcome = bootstrap(&mut world, &base, |lease| {
        lease.repo_url = format!("{}/$(touch$IFS/tmp/pwned)", lease.repo_url);
    })
    .await;
    assert_eq!(failed(outcome), "REPO_NOT_FOUND");
    done(bootstrap(&mut world, &base, |_| {}).await);
    // The effective folder may itself hold such characters: files and commands are still found there.
    world.fake.state().lease.as_mut().unwrap().workdir = made.clone();
    done(bootstrap(&mut world, &base, |lease| lease.workdir = workdir.to_owned()).await);
    assert_eq!(world.ok("pwd; ls /tmp").await, made);
    world.finish().await;
}

#[tokio::test]
async fn case_a07_the_broker_itself_talks_to_no_repository_host() {
    // The whole exchange happens inside the sandbox, and only by the proxy: nothing but the one address is reachable.
    let (server, other) = (GitServer::public().await, GitServer::public().await);
    let mut world = World::new().await;
    world.ready_with(&server).await;
    let direct = world.sh(&format!("git -c http.proxy= -c core.askPass= ls-remote {}", server.url())).await;
    assert_ne!(direct.exit.unwrap().code, 0, "no way out but the proxy");
    let mut request = shell(&format!("git ls-remote {}", other.url()));
    request.env.insert("no_proxy".to_owned(), String::new());
    request.env.insert("NO_PROXY".to_owned(), String::new());
    let refused = world.exec(request).await.unwrap();
    assert_ne!(refused.exit.unwrap().code, 0);
    assert!(other.server.calls().is_empty());
    world.finish().await;
}

#[tokio::test]
async fn case_a07_private_addresses_are_reached_only_where_configured() {
    let server = GitServer::public().await;
    let folder = tempfile::tempdir().unwrap();
    let mut world = World::with(folder, Default::default(), |config| config.allow_private_repos = false).await;
    let mut base = lease(&format!("https://{}/team/demo.git", server.host()));
    base.identity = Some(world.allocate(&base).await);
    assert_eq!(failed(world.done(Action::Bootstrap, base.clone()).await), "REPO_ADDRESS_REFUSED");
    base.repo_url = server.url();
    assert_eq!(failed(world.done(Action::Bootstrap, base).await), "REPO_ADDRESS_REFUSED");
    assert!(server.server.calls().is_empty());
    world.finish().await;
}

#[tokio::test]
async fn bootstrapping_again_starts_over() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    let base = world.ready_with(&server).await;
    world.ok("echo dirt > dirt; mkdir /workspace/.berth-clone-old; (sleep 1000 >/dev/null 2>&1 &)").await;
    done(bootstrap(&mut world, &base, |_| {}).await);
    assert_eq!(
        world.ok("ls /workspace; ls -A; pgrep -x sleep; true").await,
        "demo\n.git\n.gitignore\nREADME\ncalc.sh\nmain"
    );
    world.finish().await;
}
