//! CreateRun: what is refused makes nothing, what is repeated makes nothing more.

use std::time::Duration;

use berth_rpc::lifecycle as proto;
use tonic::{Code, Status};

use crate::{
    callers::{CANARY, Runs, get, refusal, state, with},
    fixture::{Deployment, Engine, on_both_engines, request},
    worker::Worker,
};

async fn create(runs: &mut Runs, request: proto::CreateRunRequest) -> Result<proto::Run, Status> {
    runs.create_run(request).await.map(tonic::Response::into_inner)
}

fn keyed(key: &str) -> proto::CreateRunRequest {
    proto::CreateRunRequest { request_id: key.into(), ..request() }
}

async fn count(runs: &mut Runs) -> usize {
    let request = proto::ListRunsRequest { page_size: 200, ..Default::default() };
    runs.list_runs(request).await.expect("listed").into_inner().runs.len()
}

async fn case_l18_s09_a_refused_request_makes_nothing_and_an_accepted_one_everything(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let bad = [
        proto::CreateRunRequest { prompt: String::new(), ..request() },
        proto::CreateRunRequest { prompt: "x".repeat((1 << 20) + 1), ..request() },
        proto::CreateRunRequest { sandbox_provider: "nope".into(), ..request() },
        proto::CreateRunRequest { repo_url: "http://127.0.0.1:3000/a/b".into(), ..request() },
        proto::CreateRunRequest { tools: vec!["rm".into()], ..request() },
        proto::CreateRunRequest { max_turns: 501, ..request() },
    ];
    for request in bad {
        let status = create(&mut runs, request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        let failure = berth_rpc::status::Failure::from_status(&status);
        assert!(failure.field.is_some(), "the field is named: {failure:?}");
    }
    assert_eq!(count(&mut runs).await, 0);
    assert!(Worker::broker(deployment, "broker-1").look(1).await.is_empty());

    let run = create(&mut runs, request()).await.unwrap();
    assert_eq!(state(&run), "PROVISIONING");
    assert_eq!((run.model.as_str(), run.max_turns, run.last_sequence), ("claude-test", 50, 2));
    assert_eq!(run.tools, ["read", "write", "edit", "bash"]);
    assert_eq!(run.trace_id.len(), 32);
    assert_eq!(get(&mut runs, &run.run_id).await.unwrap(), run);
    let lines = deployment.timeline(&run.run_id).await;
    assert_eq!(lines, ["run >PROVISIONING", "lease >REQUESTED", "session >PENDING"]);
}

async fn case_t4_the_same_key_gives_the_same_run(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let first = create(&mut runs, keyed("key-1")).await.unwrap();
    assert_eq!(create(&mut runs, keyed("key-1")).await.unwrap().run_id, first.run_id);
    let header = runs.create_run(with(request(), &[("idempotency-key", "key-1")])).await.unwrap().into_inner();
    assert_eq!(header.run_id, first.run_id, "the header is the same key");
    let both = runs.create_run(with(keyed("key-1"), &[("idempotency-key", "key-2")])).await;
    assert_eq!(refusal(both).1, "IDEMPOTENCY_KEY_INVALID");

    let other = proto::CreateRunRequest { prompt: "something else".into(), ..keyed("key-1") };
    assert_eq!(refusal(create(&mut runs, other).await), (Code::AlreadyExists, "IDEMPOTENCY_KEY_REUSED".to_owned()));
    let theirs = deployment.key("theirs", "member").await;
    let mut their_runs = deployment.runs_as(&theirs);
    assert_ne!(
        create(&mut their_runs, keyed("key-1")).await.unwrap().run_id,
        first.run_id,
        "keys are the tenant's own"
    );
    assert_eq!(count(&mut runs).await, 1);

    deployment.clock.advance(Duration::from_secs(24 * 3600 + 1));
    assert_ne!(create(&mut runs, keyed("key-1")).await.unwrap().run_id, first.run_id, "a key is kept for a day");
}

async fn the_key_of_a_deleted_run_never_makes_a_new_one(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let run = create(&mut runs, keyed("key-1")).await.unwrap();
    deployment.cancel(&run.run_id).await.unwrap();
    assert_eq!(state(&deployment.delete(&run.run_id).await.unwrap()), "DELETED");
    assert_eq!(refusal(create(&mut runs, keyed("key-1")).await).0, Code::NotFound);
    assert_eq!(count(&mut runs).await, 0);
}

async fn twenty_creates_at_once_with_one_key_make_one_run(deployment: &Deployment) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let mut runs = deployment.runs();
        tasks.spawn(async move { create(&mut runs, keyed("key-1")).await.expect("made or found").run_id });
    }
    let mut ids = tasks.join_all().await;
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 1);
    assert_eq!(count(&mut deployment.runs()).await, 1);
}

async fn validate_only_makes_nothing(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let asked = proto::CreateRunRequest { validate_only: true, ..keyed("key-1") };
    let shown = create(&mut runs, asked.clone()).await.unwrap();
    assert!(shown.run_id.is_empty() && shown.create_time.is_none());
    assert_eq!((shown.tenant.as_str(), shown.max_turns), ("default", 50));
    let wrong = proto::CreateRunRequest { max_turns: -1, ..asked };
    assert_eq!(refusal(create(&mut runs, wrong).await).1, "MAX_TURNS_OUT_OF_RANGE");
    let viewer = deployment.key("default", "viewer").await;
    let asked = proto::CreateRunRequest { validate_only: true, ..request() };
    assert_eq!(refusal(create(&mut deployment.runs_as(&viewer), asked).await).0, Code::PermissionDenied);
    assert_eq!(count(&mut runs).await, 0);
    create(&mut runs, keyed("key-1")).await.expect("the key was not used up");
}

async fn the_trace_of_the_call_is_the_runs(deployment: &Deployment) {
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let run =
        deployment.runs().create_run(with(request(), &[("traceparent", traceparent)])).await.unwrap().into_inner();
    assert_eq!(run.trace_id, "0af7651916cd43dd8448eb211c80319c");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_missing_model_key_is_told_before_anything_is_made() {
    let deployment = Deployment::start_with(Engine::Sqlite, |config| {
        config.model_key_required = true;
        config.model_host = "127.0.0.1:9000".to_owned();
    })
    .await;
    let mut runs = deployment.runs();
    let missing = (Code::FailedPrecondition, "MODEL_KEY_MISSING".to_owned());
    assert_eq!(refusal(create(&mut runs, request()).await), missing);
    // A key for another place than the model's is none.
    deployment.put("anthropic_api_key", CANARY, &["api.anthropic.com"]).await.unwrap();
    assert_eq!(refusal(create(&mut runs, request()).await), missing);
    assert_eq!(count(&mut runs).await, 0);
    let stored = deployment.put("anthropic_api_key", CANARY, &[]).await.unwrap();
    assert_eq!(stored.hosts, ["127.0.0.1:9000"]);
    create(&mut runs, keyed("key-1")).await.unwrap();
    // A repetition finds its run even when the deployment would refuse it now.
    let gone = proto::DeleteSecretRequest { tenant: String::new(), name: "anthropic_api_key".into() };
    deployment.secrets_as(&deployment.admin_key).delete_secret(gone).await.unwrap();
    create(&mut runs, keyed("key-1")).await.unwrap();
    assert_eq!(refusal(create(&mut runs, keyed("key-2")).await), missing);
    deployment.stop().await;
}

on_both_engines!(
    case_l18_s09_a_refused_request_makes_nothing_and_an_accepted_one_everything,
    case_t4_the_same_key_gives_the_same_run,
    the_key_of_a_deleted_run_never_makes_a_new_one,
    twenty_creates_at_once_with_one_key_make_one_run,
    validate_only_makes_nothing,
    the_trace_of_the_call_is_the_runs,
);
