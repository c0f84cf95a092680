//! The local adapter: the conformance suite, its limits, and ListProviders.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use berth_rpc::broker as api;
use berth_sandbox::Missing;
use berth_sandbox_broker::{
    LocalConfig,
    provider::{CreateOutcome, CreateSpec, Health, Provider, local::Local},
};
use tonic::Request;

use super::{become_init::init, world::World};
use crate::conformance;

fn spec() -> CreateSpec {
    let deadline = SystemTime::now() + Duration::from_secs(600);
    CreateSpec { image: String::new(), deadline, egress: BTreeSet::new() }
}

#[tokio::test]
async fn local_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let local = Local::open(LocalConfig::new(folder.path().join("sandboxes"), init())).await.unwrap();
    conformance::check(&local, "berth-conformance").await;
    assert_eq!(local.live_sandboxes().await.unwrap(), 0);
}

#[tokio::test]
async fn the_scope_is_this_sandbox_root() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = |folder: &tempfile::TempDir| Local::open(LocalConfig::new(folder.path().join("sandboxes"), init()));
    let scope = open(&one).await.unwrap().declaration().account_scope.clone();
    assert_eq!(open(&one).await.unwrap().declaration().account_scope, scope);
    assert_ne!(open(&two).await.unwrap().declaration().account_scope, scope);
}

#[tokio::test]
async fn a_poor_kernel_is_refused_with_a_clear_text() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = LocalConfig::new(folder.path().join("sandboxes"), init());
    config.unavailable = BTreeSet::from([Missing::NoNetns]);
    let local = Local::open(config.clone()).await.unwrap();
    assert!(matches!(local.health().await, Health::Unavailable(why) if why.contains("no-netns")));
    match local.create("berth-poor", &spec()).await {
        CreateOutcome::Refused(failure) => assert_eq!(failure.reason, "KERNEL_LACKS_FEATURES"),
        other => panic!("{other:?}"),
    }
    config.allow = BTreeSet::from([Missing::NoNetns]);
    let allowed = Local::open(config).await.unwrap();
    assert!(matches!(allowed.health().await, Health::Healthy(note) if note.contains("no-netns")));
}

#[tokio::test]
async fn a_full_host_makes_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = LocalConfig::new(folder.path().join("sandboxes"), init());
    config.max_sandboxes = 1;
    let local = Local::open(config).await.unwrap();
    assert!(matches!(local.create("berth-first", &spec()).await, CreateOutcome::Created(_)));
    match local.create("berth-second", &spec()).await {
        CreateOutcome::Refused(failure) => assert_eq!(failure.reason, "PROVIDER_FULL"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(local.create("berth-first", &spec()).await, CreateOutcome::Exists(_)));
    local.destroy(None, "berth-first").await.unwrap();
}

#[tokio::test]
async fn racing_creates_and_destroys_of_one_key_take_turns() {
    let folder = tempfile::tempdir().unwrap();
    let local = Local::open(LocalConfig::new(folder.path().join("sandboxes"), init())).await.unwrap();
    let spec = spec();
    let creates = futures::future::join_all((0..4).map(|_| local.create("berth-race", &spec)));
    let made = creates.await;
    let count = |wanted: fn(&CreateOutcome) -> bool| made.iter().filter(|outcome| wanted(outcome)).count();
    assert_eq!(count(|outcome| matches!(outcome, CreateOutcome::Created(_))), 1, "{made:?}");
    assert_eq!(count(|outcome| matches!(outcome, CreateOutcome::Exists(_))), 3, "{made:?}");
    local.destroy(None, "berth-race").await.unwrap();
    assert_eq!(local.live_sandboxes().await.unwrap(), 0);
}

#[tokio::test]
async fn list_providers_asks_lifecycle_first() {
    let mut world = World::new().await;
    let unauthenticated = world.providers.list_providers(api::ListProvidersRequest {}).await.unwrap_err();
    assert_eq!(unauthenticated.code(), tonic::Code::Unauthenticated);
    let call = |key: &str| {
        let mut request = Request::new(api::ListProvidersRequest {});
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        request
    };
    let denied = world.providers.list_providers(call("nobody")).await.unwrap_err();
    assert_eq!(denied.code(), tonic::Code::PermissionDenied);
    let listed = world.providers.list_providers(call("viewer-key")).await.unwrap().into_inner().providers;
    assert_eq!(listed.len(), 1);
    let local = &listed[0];
    assert_eq!(
        (local.name.as_str(), local.health(), local.host_bound),
        ("local", api::provider::Health::Healthy, true)
    );
    assert!(local.features.iter().any(|feature| feature == "exec"));
    assert_eq!(world.fake.state().callers.last().unwrap(), "bearer viewer-key ListProviders");
    world.finish().await;
}
