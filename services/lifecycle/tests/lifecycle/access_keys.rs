//! Keys: made, listed, revoked at once and for ever; configured ones over restarts.

use berth_lifecycle::new_api_key;
use berth_rpc::lifecycle as proto;
use secrecy::{ExposeSecret as _, SecretString};
use tonic::Code;

use crate::{
    callers::refusal,
    fixture::{Deployment, Engine, on_both_engines},
};

fn asked(tenant: &str, principal: &str, role: &str, service: &str) -> proto::CreateKeyRequest {
    proto::CreateKeyRequest {
        tenant: tenant.to_owned(),
        principal: principal.to_owned(),
        role: role.to_owned(),
        service: service.to_owned(),
    }
}

async fn works(deployment: &Deployment, key: &SecretString) -> bool {
    deployment.runs_as(key).list_runs(proto::ListRunsRequest::default()).await.is_ok()
}

async fn revoke(deployment: &Deployment, by: &SecretString, key_id: &str) -> Result<proto::Key, tonic::Status> {
    let request = proto::RevokeKeyRequest { key_id: key_id.to_owned() };
    deployment.keys_as(by).revoke_key(request).await.map(tonic::Response::into_inner)
}

async fn listed(deployment: &Deployment, by: &SecretString) -> Vec<proto::Key> {
    deployment.keys_as(by).list_keys(proto::ListKeysRequest {}).await.expect("listed").into_inner().keys
}

async fn keys_are_shown_once_and_revoked_at_once(deployment: &Deployment) {
    let made =
        deployment.keys_as(&deployment.admin_key).create_key(asked("", "ada", "", "")).await.unwrap().into_inner();
    let described = made.key.unwrap();
    let shape = (described.tenant.as_str(), described.principal.as_str(), described.role.as_str());
    assert_eq!(shape, ("default", "ada", "member"));
    let key = SecretString::from(made.value);
    assert!(key.expose_secret().starts_with("berth_"));
    assert!(works(deployment, &key).await);
    let keys = listed(deployment, &deployment.admin_key).await;
    assert!(keys.contains(&described));
    assert!(!format!("{keys:?}").contains(key.expose_secret()));

    let revoked = revoke(deployment, &deployment.admin_key, &described.key_id).await.unwrap();
    assert!(revoked.revoke_time.is_some());
    assert!(!works(deployment, &key).await);
    assert_eq!(revoke(deployment, &deployment.admin_key, &described.key_id).await.unwrap(), revoked, "again is OK");
    let unknown = revoke(deployment, &deployment.admin_key, "key-0").await;
    assert_eq!(refusal(unknown), (Code::NotFound, "KEY_NOT_FOUND".to_owned()));
    let trail = deployment.store.audit_trail("default", 100).await.unwrap();
    let written = |action| trail.iter().filter(|line| line.action == action && line.decision == "ALLOWED").count();
    assert_eq!((written("CreateKey"), written("RevokeKey")), (1, 1));
    assert!(!format!("{trail:?}").contains(key.expose_secret()));
}

async fn keys_are_refused_for_what_they_cannot_be(deployment: &Deployment) {
    let mut keys = deployment.keys_as(&deployment.admin_key);
    for (request, reason) in [
        (asked("", "", "member", ""), "PRINCIPAL_INVALID"),
        (asked("", "Ada Lovelace", "member", ""), "PRINCIPAL_INVALID"),
        (asked("", "ada", "root", ""), "ROLE_INVALID"),
        (asked("", "ada", "service", ""), "ROLE_INVALID"),
        (asked("", "", "", "postgres"), "SERVICE_INVALID"),
        (asked("", "ada", "", "gateway"), "SERVICE_INVALID"),
        (asked("No Tenant", "ada", "", ""), "TENANT_NOT_FOUND"),
    ] {
        assert_eq!(refusal(keys.create_key(request).await).1, reason);
    }
}

async fn only_administrators_of_default_make_keys_beyond_their_tenant(deployment: &Deployment) {
    let theirs = deployment.key("theirs", "admin").await;
    let mut keys = deployment.keys_as(&theirs);
    keys.create_key(asked("", "bob", "viewer", "")).await.expect("in its own tenant");
    let elsewhere = keys.create_key(asked("default", "eve", "admin", "")).await;
    assert_eq!(refusal(elsewhere), (Code::NotFound, "TENANT_NOT_FOUND".to_owned()));
    assert_eq!(refusal(keys.create_key(asked("", "", "", "gateway")).await).0, Code::PermissionDenied);
    let their_keys = listed(deployment, &theirs).await;
    assert!(their_keys.iter().all(|key| key.tenant == "theirs" && key.service.is_empty()));
    assert_eq!(their_keys.len(), 2);

    let made =
        deployment.keys_as(&deployment.admin_key).create_key(asked("", "", "", "sessions")).await.unwrap().into_inner();
    let service = SecretString::from(made.value);
    let key_id = made.key.unwrap().key_id;
    assert!(
        listed(deployment, &deployment.admin_key)
            .await
            .iter()
            .any(|key| key.key_id == key_id && key.service == "sessions")
    );
    assert_eq!(refusal(revoke(deployment, &theirs, &key_id).await).1, "KEY_NOT_FOUND");
    let replay = || proto::ReplayRequest { run_id: "run-1".into(), ..Default::default() };
    let passed = deployment.log_as(&service).replay(replay()).await.unwrap_err();
    assert!(!matches!(passed.code(), Code::Unauthenticated | Code::PermissionDenied), "{passed:?}");
    revoke(deployment, &deployment.admin_key, &key_id).await.unwrap();
    assert_eq!(refusal(deployment.log_as(&service).replay(replay()).await).0, Code::Unauthenticated);
}

/// Configured keys: the same one stays, another takes its place, a revoked one stays revoked.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn configured_keys_over_restarts() {
    let deployment = Deployment::start(Engine::Sqlite).await;
    let first = deployment.admin_key.clone();
    let deployment = deployment.restart().await;
    assert!(works(&deployment, &first).await);

    let mut deployment = deployment;
    let second = new_api_key();
    deployment.config.admin_key = Some(second.clone());
    let deployment = deployment.restart().await;
    assert!(works(&deployment, &second).await);
    assert!(!works(&deployment, &first).await, "the former key is gone");

    revoke(&deployment, &second, "key-bootstrap-admin").await.unwrap();
    assert!(!works(&deployment, &second).await);
    let deployment = deployment.restart().await;
    assert!(!works(&deployment, &second).await, "revoked is for ever");
    deployment.stop().await;
}

on_both_engines!(
    keys_are_shown_once_and_revoked_at_once,
    keys_are_refused_for_what_they_cannot_be,
    only_administrators_of_default_make_keys_beyond_their_tenant,
);
