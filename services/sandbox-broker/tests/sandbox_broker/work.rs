//! The worker: claims, hand-overs, expiry, changed desires, and crashes between the steps.

use std::time::Duration;

use berth_rpc::{
    duration_to_proto,
    lifecycle::{self as pb, extend_response::answer::Status as Extended, report_request::Outcome, work::Action},
};

use super::{
    fake::Fake,
    repository::GitServer,
    world::{KEY, World, eventually, lease},
};

#[tokio::test]
async fn the_next_action_handed_over_is_done_at_once() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    let allocate = world.work(Action::Allocate, lease(&server.url()));
    // What lifecycle would hand over: the same lease, with what was just reported.
    let scope = {
        let sandboxes = world.folder.path().join("sandboxes/.root-id");
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        format!("{}/{}", host.trim(), std::fs::read_to_string(sandboxes).unwrap())
    };
    let mut ready = lease(&server.url());
    ready.identity = Some(pb::SandboxIdentity {
        sandbox_id: KEY.to_owned(),
        sandbox_url: String::new(),
        account_scope: scope,
        provider: "local".to_owned(),
        provider_deadline: None,
    });
    let bootstrap = world.work(Action::Bootstrap, ready);
    world.fake.state().next.insert(allocate.fence, bootstrap.clone());
    world.fake.queue(allocate.clone());
    eventually("both reports", || async { world.fake.report_of(bootstrap.fence).is_some() }).await;
    assert!(matches!(world.fake.report_of(allocate.fence).unwrap().outcome, Some(Outcome::Created(_))));
    assert!(matches!(world.fake.report_of(bootstrap.fence).unwrap().outcome, Some(Outcome::Bootstrapped(_))));
    let claims = world.fake.state().claims.clone();
    assert!(claims.iter().all(|claim| claim.localities.len() == 1 && claim.provider_slots["local"] > 0));
    world.finish().await;
}

#[tokio::test]
async fn case_l06_claimed_twice_with_one_key_there_is_one_sandbox() {
    let mut world = World::new().await;
    let first = lease("");
    let made = world.allocate(&first).await;
    // The first worker died before its report: the row is claimed again, in doubt, by another process.
    let (folder, fake) = world.stop().await;
    let mut world = World::with(folder, fake, |_| {}).await;
    let again = pb::LeaseWork { attempt: 2, in_doubt: true, ..lease("") };
    match world.done(Action::Allocate, again).await {
        Outcome::Adopted(adopted) => assert_eq!(adopted.identity.unwrap().sandbox_id, made.sandbox_id),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.sandboxes().await.list().await.unwrap().len(), 1);
    world.finish().await;
}

#[tokio::test]
async fn case_l06_a_sandbox_left_by_a_cut_create_gets_its_way_out() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    world.allocate(&lease(&server.url())).await;
    let (folder, fake) = world.stop().await;
    // The first broker died after the sandbox was made and before the rules were kept.
    std::fs::remove_file(folder.path().join("sandboxes/.egress").join(format!("{KEY}.json"))).unwrap();
    let mut world = World::with(folder, fake, |config| config.allow_private_repos = true).await;
    let again = pb::LeaseWork { attempt: 2, in_doubt: true, ..lease(&server.url()) };
    let Outcome::Adopted(adopted) = world.done(Action::Allocate, again).await else { panic!("not adopted") };
    let bootstrap = pb::LeaseWork { identity: adopted.identity, ..lease(&server.url()) };
    let outcome = world.done(Action::Bootstrap, bootstrap).await;
    assert!(matches!(outcome, Outcome::Bootstrapped(_)), "{outcome:?}");
    world.finish().await;
}

#[tokio::test]
async fn case_l06_an_attempt_that_made_nothing_is_made_good() {
    let mut world = World::new().await;
    let again = pb::LeaseWork { attempt: 2, in_doubt: true, ..lease("") };
    assert!(matches!(world.done(Action::Allocate, again).await, Outcome::Created(_)));
    world.finish().await;
}

#[tokio::test]
async fn case_l06_a_half_made_sandbox_is_replaced() {
    let mut world = World::new().await;
    std::fs::create_dir_all(world.folder.path().join("sandboxes").join(KEY).join("workspace")).unwrap();
    let again = pb::LeaseWork { attempt: 2, in_doubt: true, ..lease("") };
    let outcome = world.done(Action::Allocate, again).await;
    assert!(matches!(outcome, Outcome::Created(_)), "{outcome:?}");
    world.finish().await;
}

#[tokio::test]
async fn case_l15_a_released_lease_gets_its_late_result_reported_by_the_holder() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    let work = world.work(Action::Allocate, lease(&server.url()));
    // Released while the create is under way: the holder is told and still reports what it knows.
    world.fake.state().extended.insert(work.fence, Extended::DesireChanged);
    let outcome = world.report_on(work).await;
    assert!(matches!(outcome, Outcome::Created(_) | Outcome::Refused(_) | Outcome::Unknown(_)), "{outcome:?}");
    let released = world.done(Action::Release, lease(&server.url())).await;
    assert!(matches!(released, Outcome::Absent(_)), "{released:?}");
    assert!(world.sandboxes().await.list().await.unwrap().is_empty());
    world.finish().await;
}

/// A repository server that accepts and never answers.
async fn silent_server() -> (tokio::net::TcpListener, String) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://127.0.0.1:{}/team/demo.git", listener.local_addr().unwrap().port());
    (listener, url)
}

#[tokio::test]
async fn a_changed_desire_ends_a_hanging_clone() {
    let (_listener, url) = silent_server().await;
    let mut world = World::new().await;
    let mut base = lease(&url);
    base.identity = Some(world.allocate(&base).await);
    let work = world.work(Action::Bootstrap, base);
    world.fake.queue(work.clone());
    world.fake.state().extended.insert(work.fence, Extended::DesireChanged);
    eventually("the report", || async { world.fake.report_of(work.fence).is_some() }).await;
    match world.fake.report_of(work.fence).unwrap().outcome {
        Some(Outcome::BootstrapFailed(failure)) => assert_eq!(failure.reason, "DESIRE_CHANGED"),
        other => panic!("{other:?}"),
    }
    let sandboxes = world.sandboxes().await;
    eventually("git is killed", || async {
        let spec = berth_sandbox::ExecSpec::new(["pgrep", "-x", "git"]);
        sandboxes.exec(KEY, spec).await.unwrap().output(100).await.unwrap().stdout.is_empty()
    })
    .await;
    world.finish().await;
}

#[tokio::test]
async fn a_claim_that_is_gone_is_dropped_without_a_word() {
    let (_listener, url) = silent_server().await;
    let mut world = World::new().await;
    let mut base = lease(&url);
    base.identity = Some(world.allocate(&base).await);
    let work = world.work(Action::Bootstrap, base.clone());
    world.fake.state().extended.insert(work.fence, Extended::Gone);
    world.fake.queue(work.clone());
    // The slot is free again and other work is done, but of this one nothing is heard.
    let released = world.done(Action::Release, base).await;
    assert!(matches!(released, Outcome::Absent(_)), "{released:?}");
    assert!(world.fake.report_of(work.fence).is_none());
    world.finish().await;
}

#[tokio::test]
async fn an_action_ends_before_its_deadline_so_that_it_can_be_reported() {
    let (_listener, url) = silent_server().await;
    let mut world = World::new().await;
    let mut base = lease(&url);
    base.identity = Some(world.allocate(&base).await);
    let mut work = world.work(Action::Bootstrap, base);
    work.time_left = Some(duration_to_proto(Duration::from_secs(3)));
    match world.report_on(work).await {
        Outcome::BootstrapFailed(failure) => assert_eq!(failure.reason, "BOOTSTRAP_TIMEOUT"),
        other => panic!("{other:?}"),
    }
    world.finish().await;
}

#[tokio::test]
async fn a_report_is_sent_until_it_is_answered() {
    let mut world = World::new().await;
    let work = world.work(Action::Allocate, lease(""));
    world.fake.state().report_failures.insert(work.fence, 2);
    assert!(matches!(world.report_on(work).await, Outcome::Created(_)));
    world.finish().await;
}

#[tokio::test]
async fn survivors_keep_running_and_get_their_way_out_back() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    world.ready_with(&server).await;
    world.ok("echo kept > kept; (sleep 1000 >/dev/null 2>&1 &)").await;
    let (folder, fake) = world.stop().await;
    let mut world = World::with(folder, fake, |_| {}).await;
    assert_eq!(world.ok("cat kept; pgrep -c -x sleep").await, "kept\n1");
    assert_eq!(
        world.ok(&format!("no_proxy= NO_PROXY= git ls-remote {} HEAD | cut -c1-40", server.url())).await,
        server.head
    );
    world.finish().await;
}

#[tokio::test]
async fn wrong_egress_entries_are_named_all_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = berth_sandbox_broker::Config::new(berth_sandbox_broker::LocalConfig::new(
        folder.path(),
        super::become_init::init(),
    ));
    config.egress_allow = vec!["host".to_owned(), "good:1".to_owned(), "*:443".to_owned()];
    let channel = berth_serve::peer::connect_in_process(Fake::default().routes(), Default::default());
    let channel = berth_serve::peer::ServiceChannel::anonymous(channel);
    let error = berth_sandbox_broker::start(config, channel, Default::default()).await.err().unwrap();
    assert_eq!(error.to_string(), "not host:port: host, *:443");
}
