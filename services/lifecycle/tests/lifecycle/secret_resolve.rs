//! ResolveSecret: a value for the work that is held, for its purpose and its host, and for nothing else.

use std::time::Duration;

use berth_rpc::lifecycle as proto;
use tonic::{Code, Status};

use crate::{
    callers::{CANARY, refusal},
    fixture::{Deployment, on_both_engines, request},
    worker::{Worker, bootstrapped, created, launch},
};

const BROKER: &str = "sandbox-broker";
const SESSIONS: &str = "sessions";

async fn resolve(
    deployment: &Deployment,
    service: &str,
    work: &proto::Work,
    (name, purpose): (&str, &str),
) -> Result<proto::ResolveSecretResponse, Status> {
    let request = proto::ResolveSecretRequest {
        name: name.to_owned(),
        purpose: purpose.to_owned(),
        run_id: work.run_id.clone(),
        row_id: work.row_id.clone(),
        fence: work.fence,
    };
    deployment
        .secrets_as(&deployment.service_keys[service])
        .resolve_secret(request)
        .await
        .map(tonic::Response::into_inner)
}

const CLONE: (&str, &str) = ("github_token", "CLONE");
const MODEL: (&str, &str) = ("anthropic_api_key", "MODEL");

fn stale() -> (Code, String) {
    (Code::Aborted, "STALE_FENCE".to_owned())
}

fn not_found() -> (Code, String) {
    (Code::NotFound, "SECRET_NOT_FOUND".to_owned())
}

fn not_allowed() -> (Code, String) {
    (Code::PermissionDenied, "PURPOSE_NOT_ALLOWED".to_owned())
}

async fn bootstrapping(broker: &Worker<'_>, repo_url: &str) -> proto::Work {
    let request = proto::CreateRunRequest { repo_url: repo_url.to_owned(), ..request() };
    broker.deployment.create_from(request).await;
    let allocate = broker.claim().await;
    broker.report(&allocate, created(&allocate)).await.expect("reported").expect("BOOTSTRAP follows")
}

async fn a_value_is_given_for_the_claim_that_is_held(deployment: &Deployment) {
    deployment.put("github_token", CANARY, &[]).await.unwrap();
    let broker = Worker::broker(deployment, "broker-1");
    let work = bootstrapping(&broker, "https://github.com/owner/name").await;
    let answer = resolve(deployment, BROKER, &work, CLONE).await.unwrap();
    assert_eq!((answer.value.as_str(), answer.version), (CANARY, 1));
    assert_eq!(answer.hosts, ["github.com"]);
    assert!(!format!("{answer:?}").contains(CANARY), "no value in Debug");
    let trail = deployment.store.audit_trail("default", 100).await.unwrap();
    let line = trail.iter().find(|line| line.action == "ResolveSecret").expect("audited");
    assert_eq!((line.actor.as_str(), line.detail.as_str()), (BROKER, "github_token version 1 for CLONE"));
    assert_eq!(line.resource, format!("Run/{}", work.run_id));

    let other = |change: fn(&mut proto::Work)| {
        let mut other = work.clone();
        change(&mut other);
        other
    };
    for wrong in [
        other(|work| work.fence += 1),
        other(|work| work.fence -= 1),
        other(|work| work.fence = -1),
        other(|work| work.row_id = "lease-0".into()),
        other(|work| work.run_id = "run-0".into()),
        other(|work| work.run_id = "nonsense".into()),
    ] {
        assert_eq!(refusal(resolve(deployment, BROKER, &wrong, CLONE).await), stale());
    }
    broker.report(&work, bootstrapped()).await.unwrap();
    assert_eq!(refusal(resolve(deployment, BROKER, &work, CLONE).await), stale(), "the claim is over");
}

async fn case_a11_a_token_is_given_only_for_hosts_it_is_bound_to(deployment: &Deployment) {
    let broker = Worker::broker(deployment, "broker-1");
    let work = bootstrapping(&broker, "https://evil.example.org/owner/name").await;
    assert_eq!(refusal(resolve(deployment, BROKER, &work, CLONE).await), not_found(), "there is none");
    deployment.put("github_token", CANARY, &[]).await.unwrap();
    assert_eq!(refusal(resolve(deployment, BROKER, &work, CLONE).await), not_found(), "bound to github.com");
    for hosts in [&["example.org"][..], &["evil.example.org:8443"], &["evil.example.org.github.com"]] {
        deployment.put("github_token", CANARY, hosts).await.unwrap();
        assert_eq!(refusal(resolve(deployment, BROKER, &work, CLONE).await), not_found(), "{hosts:?}");
    }
    deployment.put("github_token", CANARY, &["evil.example.org"]).await.unwrap();
    assert_eq!(resolve(deployment, BROKER, &work, CLONE).await.unwrap().value, CANARY);
}

async fn a_run_without_repository_gets_no_token(deployment: &Deployment) {
    deployment.put("github_token", CANARY, &[]).await.unwrap();
    let broker = Worker::broker(deployment, "broker-1");
    let work = bootstrapping(&broker, "").await;
    assert_eq!(refusal(resolve(deployment, BROKER, &work, CLONE).await), not_found());
}

async fn each_purpose_is_for_its_own_work(deployment: &Deployment) {
    deployment.put("github_token", CANARY, &[]).await.unwrap();
    deployment.put("anthropic_api_key", CANARY, &[]).await.unwrap();
    let (broker, sessions) = (Worker::broker(deployment, "broker-1"), Worker::sessions(deployment, "sessions-1"));
    let bootstrap = bootstrapping(&broker, "https://github.com/owner/name").await;
    assert_eq!(refusal(resolve(deployment, SESSIONS, &bootstrap, CLONE).await), not_allowed());
    assert_eq!(refusal(resolve(deployment, BROKER, &bootstrap, MODEL).await), not_allowed());
    assert_eq!(refusal(resolve(deployment, BROKER, &bootstrap, ("anthropic_api_key", "CLONE")).await), not_allowed());
    assert_eq!(refusal(resolve(deployment, BROKER, &bootstrap, ("github_token", "PUSH")).await), not_allowed());
    assert_eq!(refusal(resolve(deployment, BROKER, &bootstrap, ("github_token", "LOOK")).await).1, "PURPOSE_UNKNOWN");
    broker.report(&bootstrap, bootstrapped()).await.unwrap();

    let drive = launch(&sessions).await;
    assert_eq!(resolve(deployment, SESSIONS, &drive, MODEL).await.unwrap().value, CANARY);
    assert_eq!(refusal(resolve(deployment, BROKER, &drive, MODEL).await), not_allowed());
    assert_eq!(refusal(resolve(deployment, SESSIONS, &drive, CLONE).await), not_allowed());
    // The model key goes to the configured model host only.
    deployment.put("anthropic_api_key", CANARY, &["elsewhere.example.org"]).await.unwrap();
    assert_eq!(refusal(resolve(deployment, SESSIONS, &drive, MODEL).await), not_found());
}

async fn a_dead_workers_claim_gets_nothing(deployment: &Deployment) {
    deployment.put("github_token", CANARY, &[]).await.unwrap();
    let broker = Worker::broker(deployment, "broker-1");
    let work = bootstrapping(&broker, "https://github.com/owner/name").await;
    resolve(deployment, BROKER, &work, CLONE).await.unwrap();
    deployment.clock.advance(Duration::from_secs(61));
    assert_eq!(refusal(resolve(deployment, BROKER, &work, CLONE).await), stale());
}

on_both_engines!(
    a_value_is_given_for_the_claim_that_is_held,
    case_a11_a_token_is_given_only_for_hosts_it_is_bound_to,
    a_run_without_repository_gets_no_token,
    each_purpose_is_for_its_own_work,
    a_dead_workers_claim_gets_nothing,
);
