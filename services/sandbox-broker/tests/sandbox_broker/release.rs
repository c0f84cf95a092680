//! RELEASE: absence by id and key, as often as asked, and refusals that are never success.

use berth_rpc::lifecycle::{self as pb, provider_failure::Class, report_request::Outcome, work::Action};

use super::{
    repository::GitServer,
    world::{Change, KEY, World, hold, lease, reason, shell},
};

fn absent(outcome: Outcome) -> pb::Absent {
    match outcome {
        Outcome::Absent(absent) => absent,
        other => panic!("not absent: {other:?}"),
    }
}

#[tokio::test]
async fn released_once_and_again() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    let lease = world.ready_with(&server).await;
    world.ok("mkdir -p deep/er && chmod 0 deep; (sleep 1000 >/dev/null 2>&1 &)").await;
    let receipt = absent(world.done(Action::Release, lease.clone()).await);
    assert_eq!(receipt.account_scope, lease.identity.as_ref().unwrap().account_scope);
    assert!(receipt.how.starts_with("destroyed; by id ") && receipt.how.contains("by key"), "{}", receipt.how);
    let again = absent(world.done(Action::Release, lease).await);
    assert!(again.how.starts_with("nothing was there"), "{}", again.how);
    assert!(!world.folder.path().join("sandboxes").join(KEY).exists());
    assert!(!world.folder.path().join("sandboxes/.egress").join(format!("{KEY}.json")).exists());
    world.finish().await;
}

#[tokio::test]
async fn without_a_recorded_identity_the_key_decides() {
    let mut world = World::new().await;
    let mut unknown = lease("");
    world.allocate(&unknown).await;
    unknown.in_doubt = true;
    absent(world.done(Action::Release, unknown).await);
    assert!(world.sandboxes().await.list().await.unwrap().is_empty());
    world.finish().await;
}

#[tokio::test]
async fn case_d12_an_already_absent_sandbox_can_be_released() {
    let mut world = World::new().await;
    let mut base = lease("");
    base.identity = Some(world.allocate(&base).await);
    world.sandboxes().await.destroy(KEY).await.unwrap();
    absent(world.done(Action::Release, base).await);
    world.finish().await;
}

#[tokio::test]
async fn case_d05_a_vanished_sandbox_is_told_and_released() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    let lease = world.ready_with(&server).await;
    world.sandboxes().await.destroy(KEY).await.unwrap();
    let lost = world.exec(shell("true")).await.unwrap_err();
    assert_eq!(reason(&lost), "SANDBOX_LOST");
    let read = berth_rpc::broker::ReadFileRequest { hold: hold(), path: "README".to_owned(), max_bytes: 0 };
    assert_eq!(reason(&world.client.read_file(read).await.unwrap_err()), "SANDBOX_LOST");
    let told = world.fake.state().observations.clone();
    assert_eq!(told[0].observed(), pb::report_observation_request::Observed::Absent);
    assert_eq!((told[0].sandbox_id.as_str(), told[0].run_id.as_str()), (KEY, "run-1"));
    // Bootstrapping it is no use either: by the read of its id.
    assert!(matches!(world.done(Action::Bootstrap, lease.clone()).await, Outcome::Gone(_)));
    absent(world.done(Action::Release, lease).await);
    world.finish().await;
}

#[tokio::test]
async fn case_d10_what_is_not_ours_to_judge_is_refused() {
    let mut world = World::new().await;
    let mut base = lease("");
    base.identity = Some(world.allocate(&base).await);
    let cases: [(&str, Class, Change<pb::SandboxIdentity>); 3] = [
        ("SCOPE_CHANGED", Class::ScopeChanged, &|identity| identity.account_scope = "other-host/1".to_owned()),
        ("IDENTITY_DIFFERS", Class::IdentityDiffers, &|identity| identity.sandbox_id = "berth-other".to_owned()),
        ("PROVIDER_UNKNOWN", Class::Permanent, &|identity| identity.provider = "e2b".to_owned()),
    ];
    for (expected, class, change) in cases {
        let mut foreign = base.clone();
        change(foreign.identity.as_mut().unwrap());
        match world.done(Action::Release, foreign).await {
            Outcome::ReleaseFailed(failure) => {
                assert_eq!((failure.reason.as_str(), failure.class()), (expected, class));
            }
            other => panic!("{expected}: {other:?}"),
        }
        assert_eq!(world.sandboxes().await.list().await.unwrap().len(), 1, "{expected}: untouched");
    }
    absent(world.done(Action::Release, base).await);
    world.finish().await;
}
