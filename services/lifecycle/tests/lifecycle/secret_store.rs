//! Tenant secrets: written, listed, replaced, deleted, and never found in the clear.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_lifecycle::MasterKey;
use berth_rpc::lifecycle as proto;
use tonic::Code;

use crate::{
    callers::{CANARY, refusal, secret},
    fixture::{Deployment, Engine, on_both_engines},
};

async fn listed(deployment: &Deployment) -> Vec<proto::Secret> {
    let request = proto::ListSecretsRequest { tenant: "default".into() };
    deployment.secrets_as(&deployment.admin_key).list_secrets(request).await.expect("listed").into_inner().secrets
}

fn delete(tenant: &str, name: &str) -> proto::DeleteSecretRequest {
    proto::DeleteSecretRequest { tenant: tenant.to_owned(), name: name.to_owned() }
}

async fn secrets_are_put_replaced_listed_and_deleted(deployment: &Deployment) {
    let first = deployment.put("github_token", CANARY, &[]).await.unwrap();
    assert_eq!((first.hosts.as_slice(), first.version), (["github.com".to_owned()].as_slice(), 1));
    let second = deployment.put("github_token", "another", &["Git.example.org:8443"]).await.unwrap();
    assert_eq!((second.hosts.as_slice(), second.version), (["git.example.org:8443".to_owned()].as_slice(), 2));
    assert_eq!(second.create_time, first.create_time);
    deployment.put("anthropic_api_key", CANARY, &[]).await.unwrap();
    deployment.put("zz", CANARY, &[]).await.unwrap();
    let names: Vec<_> = listed(deployment).await.into_iter().map(|secret| (secret.name, secret.hosts)).collect();
    assert_eq!(
        names,
        [
            ("anthropic_api_key".to_owned(), vec!["api.anthropic.com".to_owned()]),
            ("github_token".to_owned(), vec!["git.example.org:8443".to_owned()]),
            ("zz".to_owned(), vec![]),
        ]
    );
    let mut secrets = deployment.secrets_as(&deployment.admin_key);
    secrets.delete_secret(delete("default", "zz")).await.unwrap();
    let again = secrets.delete_secret(delete("default", "zz")).await;
    assert_eq!(refusal(again), (Code::NotFound, "SECRET_NOT_FOUND".to_owned()));
    assert_eq!(listed(deployment).await.len(), 2);
    assert_eq!(deployment.put("zz", "x", &[]).await.unwrap().version, 1);
}

async fn wrong_names_values_and_hosts_are_refused(deployment: &Deployment) {
    let long = format!("{CANARY}{}", "x".repeat(64 << 10));
    for (name, value, hosts, reason) in [
        ("GITHUB", CANARY, &[][..], "SECRET_NAME_INVALID"),
        ("", CANARY, &[], "SECRET_NAME_INVALID"),
        ("a", "", &[], "SECRET_VALUE_INVALID"),
        ("a", long.as_str(), &[], "SECRET_VALUE_INVALID"),
        ("a", CANARY, &["*"], "SECRET_HOST_INVALID"),
        ("a", CANARY, &["https://github.com"], "SECRET_HOST_INVALID"),
    ] {
        let status = deployment.put(name, value, hosts).await.unwrap_err();
        assert_eq!(berth_rpc::status::reason(&status).as_deref(), Some(reason), "{name} {hosts:?}");
        assert!(!format!("{status:?}").contains(CANARY), "an error never repeats the value");
    }
    assert!(listed(deployment).await.is_empty());
}

async fn secrets_belong_to_a_tenant_and_to_those_who_keep_them(deployment: &Deployment) {
    deployment.put("github_token", CANARY, &[]).await.unwrap();
    let theirs = deployment.key("theirs", "admin").await;
    let mut secrets = deployment.secrets_as(&theirs);
    let foreign = (Code::NotFound, "TENANT_NOT_FOUND".to_owned());
    let put = proto::PutSecretRequest { tenant: "default".into(), ..secret("github_token", "x", &[]) };
    assert_eq!(refusal(secrets.put_secret(put).await), foreign);
    assert_eq!(refusal(secrets.list_secrets(proto::ListSecretsRequest { tenant: "default".into() }).await), foreign);
    assert_eq!(refusal(secrets.delete_secret(delete("default", "github_token")).await), foreign);
    assert_eq!(refusal(secrets.delete_secret(delete("", "github_token")).await).1, "SECRET_NOT_FOUND");
    for role in ["member", "viewer"] {
        let key = deployment.key("default", role).await;
        let denied = deployment.secrets_as(&key).put_secret(secret("github_token", "x", &[])).await;
        assert_eq!(refusal(denied), (Code::PermissionDenied, "PERMISSION_DENIED".to_owned()), "{role}");
    }
    let operator = deployment.key("default", "operator").await;
    deployment
        .secrets_as(&operator)
        .put_secret(secret("github_token", "y", &[]))
        .await
        .expect("operators keep secrets");
    assert_eq!(listed(deployment).await[0].version, 2);
    let trail = deployment.store.audit_trail("default", 100).await.unwrap();
    let lines = |decision: &str| trail.iter().filter(|l| l.action == "PutSecret" && l.decision == decision).count();
    assert_eq!((lines("ALLOWED"), lines("DENIED")), (2, 2));
    assert!(!format!("{trail:?}").contains(CANARY));
}

/// Raw, in base64 and in hexadecimal: nowhere in any file of the database, while it is open and after.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn case_a08_no_secret_and_no_key_is_found_in_the_database() {
    let deployment = Deployment::start(Engine::Sqlite).await;
    deployment.put("github_token", CANARY, &[]).await.unwrap();
    let member = deployment.key("default", "member").await;
    let shown = format!("{:?} {:?} {:?}", deployment.config, deployment.store, listed(&deployment).await);
    for text in [CANARY, secrecy::ExposeSecret::expose_secret(&member)] {
        for needle in [text.to_owned(), STANDARD.encode(text), hex::encode(text)] {
            for file in deployment.files() {
                let bytes = std::fs::read(&file).unwrap();
                let found = bytes.windows(needle.len()).any(|part| part == needle.as_bytes());
                assert!(!found, "{} holds a secret", file.display());
            }
            assert!(!shown.contains(&needle));
        }
    }
    assert!(deployment.files().len() > 1, "the write-ahead log was looked at too");
    deployment.stop().await;
}

/// Another master key seals from now on; what the former one sealed still opens while it is configured.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_master_key_rotates() {
    let mut deployment = Deployment::start(Engine::Sqlite).await;
    deployment.put("old", CANARY, &[]).await.unwrap();
    deployment.config.master_keys = vec![MasterKey::new([9; 32]), MasterKey::new([7; 32])];
    let deployment = deployment.restart().await;
    deployment.put("new", CANARY, &[]).await.unwrap();
    let needed = deployment.store.master_keys_in_use().await.unwrap();
    assert_eq!(needed.len(), 2);
    deployment.put("old", CANARY, &[]).await.unwrap();
    let needed = deployment.store.master_keys_in_use().await.unwrap();
    assert_eq!(needed, [MasterKey::new([9; 32]).id()], "the former key is not needed any more");
    deployment.stop().await;
}

on_both_engines!(
    secrets_are_put_replaced_listed_and_deleted,
    wrong_names_values_and_hosts_are_refused,
    secrets_belong_to_a_tenant_and_to_those_who_keep_them,
);
