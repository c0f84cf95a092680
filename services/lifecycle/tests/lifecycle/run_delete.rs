//! Cancel, delete, retry, forget: what clients see, and what proves it.

use berth_rpc::lifecycle::{self as proto, report_request::Outcome};
use tonic::Code;

use crate::{
    callers::{Runs, get, refusal, state},
    fixture::{Deployment, on_both_engines},
    worker::{Worker, absent, bootstrapped, created, failure},
};

async fn cancel(runs: &mut Runs, run_id: &str) -> Result<proto::Run, tonic::Status> {
    let request = proto::CancelRunRequest { run_id: run_id.to_owned(), reason: "changed my mind".into() };
    Ok(runs.cancel_run(request).await?.into_inner())
}

async fn delete(runs: &mut Runs, run_id: &str) -> Result<proto::Run, tonic::Status> {
    Ok(runs.delete_run(proto::DeleteRunRequest { run_id: run_id.to_owned() }).await?.into_inner())
}

async fn retry(runs: &mut Runs, run_id: &str) -> Result<proto::Run, tonic::Status> {
    Ok(runs.retry_deletion(proto::RetryDeletionRequest { run_id: run_id.to_owned() }).await?.into_inner())
}

async fn forget(runs: &mut Runs, run_id: &str, reason: &str) -> Result<proto::Run, tonic::Status> {
    let request = proto::ForgetRunRequest { run_id: run_id.to_owned(), reason: reason.to_owned() };
    Ok(runs.forget_run(request).await?.into_inner())
}

async fn receipt(runs: &mut Runs, run_id: &str) -> Result<proto::GetReceiptResponse, tonic::Status> {
    Ok(runs.get_receipt(proto::GetReceiptRequest { run_id: run_id.to_owned() }).await?.into_inner())
}

async fn timeline(runs: &mut Runs, run_id: &str) -> Vec<proto::Transition> {
    let request = proto::ListTransitionsRequest { run_id: run_id.to_owned(), ..Default::default() };
    runs.list_transitions(request).await.expect("a timeline").into_inner().transitions
}

/// A cancelled run whose sandbox exists; the RELEASE is claimed.
async fn releasing(broker: &Worker<'_>) -> (String, proto::Work) {
    let run_id = broker.deployment.create().await.run_id;
    let allocate = broker.claim().await;
    let bootstrap = report(broker, &allocate, created(&allocate)).await.expect("BOOTSTRAP follows");
    broker.deployment.cancel(&run_id).await.expect("cancelled");
    let release = report(broker, &bootstrap, bootstrapped()).await.expect("RELEASE follows");
    (run_id, release)
}

async fn report(broker: &Worker<'_>, work: &proto::Work, outcome: Outcome) -> Option<proto::Work> {
    broker.report(work, outcome).await.expect("reported")
}

fn release_failed() -> Outcome {
    Outcome::ReleaseFailed(failure(proto::provider_failure::Class::Permanent, "UNAUTHORIZED"))
}

async fn case_s08_an_unknown_run_is_not_found_by_everything_and_nothing_is_made(deployment: &Deployment) {
    let mut runs = deployment.runs();
    for run_id in ["run-0193c0de0000700080000000000000ff", "run-typo", "nonsense", "", "run-../x", "RUN-1"] {
        let expected = (Code::NotFound, "RUN_NOT_FOUND".to_owned());
        assert_eq!(refusal(get(&mut runs, run_id).await), expected, "get {run_id}");
        assert_eq!(refusal(cancel(&mut runs, run_id).await), expected, "cancel {run_id}");
        // case_d02: deleting what never was does not succeed.
        assert_eq!(refusal(delete(&mut runs, run_id).await), expected, "delete {run_id}");
        assert_eq!(refusal(retry(&mut runs, run_id).await), expected, "retry {run_id}");
        assert_eq!(refusal(forget(&mut runs, run_id, "x").await), expected, "forget {run_id}");
        assert_eq!(refusal(receipt(&mut runs, run_id).await), expected, "receipt {run_id}");
    }
    let listed = runs.list_runs(proto::ListRunsRequest::default()).await.unwrap().into_inner();
    assert!(listed.runs.is_empty());
}

async fn case_d07_cancelled_before_create_is_deleted_directly_with_its_receipt(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let run_id = deployment.create().await.run_id;
    assert_eq!(refusal(delete(&mut runs, &run_id).await), (Code::FailedPrecondition, "RUN_ACTIVE".to_owned()));
    assert_eq!(state(&cancel(&mut runs, &run_id).await.unwrap()), "CANCELLED");
    let deleted = delete(&mut runs, &run_id).await.unwrap();
    assert_eq!(state(&deleted), "DELETED");
    assert!(deleted.prompt.is_empty(), "content is erased in the transaction that deletes");
    assert_eq!(refusal(get(&mut runs, &run_id).await).0, Code::NotFound);
    assert_eq!(refusal(cancel(&mut runs, &run_id).await).0, Code::NotFound);

    let proof = receipt(&mut runs, &run_id).await.unwrap();
    assert!(proof.complete);
    assert_eq!(proof.receipts.len(), 1);
    assert_eq!(proof.receipts[0].kind(), proto::receipt::Kind::NeverCreated);
    let broker = Worker::broker(deployment, "broker-1");
    assert!(broker.look(1).await.is_empty(), "no provider call was asked for");
}

async fn case_d02_t9_deleting_a_deleted_run_is_authorized_then_ok_without_change(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let run_id = deployment.create().await.run_id;
    cancel(&mut runs, &run_id).await.unwrap();
    assert_eq!(state(&delete(&mut runs, &run_id).await.unwrap()), "DELETED");
    let before = timeline(&mut runs, &run_id).await;
    assert_eq!(state(&delete(&mut runs, &run_id).await.unwrap()), "DELETED");
    let viewer = deployment.key("default", "viewer").await;
    assert_eq!(refusal(delete(&mut deployment.runs_as(&viewer), &run_id).await).0, Code::PermissionDenied);
    let foreign = deployment.key("theirs", "admin").await;
    assert_eq!(refusal(delete(&mut deployment.runs_as(&foreign), &run_id).await).0, Code::NotFound);
    assert_eq!(timeline(&mut runs, &run_id).await, before);
    assert!(before.iter().any(|line| line.cause == "CancelRun: changed my mind" && line.actor == "admin"));
}

async fn case_s07_cancel_twice_is_ok_and_changes_nothing_more(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let run_id = deployment.create().await.run_id;
    let first = cancel(&mut runs, &run_id).await.unwrap();
    let before = timeline(&mut runs, &run_id).await;
    let second = cancel(&mut runs, &run_id).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(timeline(&mut runs, &run_id).await, before);
}

async fn case_d11_deleting_is_not_deleted_until_absence_was_observed(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let broker = Worker::broker(deployment, "broker-1");
    let (run_id, release) = releasing(&broker).await;
    assert_eq!(state(&delete(&mut runs, &run_id).await.unwrap()), "DELETING");
    assert_eq!(state(&get(&mut runs, &run_id).await.unwrap()), "DELETING");
    let pending = receipt(&mut runs, &run_id).await.unwrap();
    assert!(!pending.complete && pending.receipts.is_empty());
    let accepted = Outcome::StillThere(proto::StillThere { how: "accepted".into() });
    report(&broker, &release, accepted).await;
    assert_eq!(state(&get(&mut runs, &run_id).await.unwrap()), "DELETING");
    // Deleting again tries again at once.
    assert_eq!(state(&delete(&mut runs, &run_id).await.unwrap()), "DELETING");
    let again = broker.claim().await;
    report(&broker, &again, absent()).await;
    assert_eq!(refusal(get(&mut runs, &run_id).await).0, Code::NotFound);
    let proof = receipt(&mut runs, &run_id).await.unwrap();
    assert!(proof.complete);
    assert_eq!(proof.receipts[0].kind(), proto::receipt::Kind::ObservedAbsent);
    assert!(proof.receipts[0].sandbox_id.starts_with("sandbox-"));
}

async fn case_t7_a_failed_teardown_is_shown_retried_and_forgotten_only_with_a_reason(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let broker = Worker::broker(deployment, "broker-1");
    let (run_id, release) = releasing(&broker).await;
    assert_eq!(refusal(retry(&mut runs, &run_id).await).1, "NOT_DELETING");
    assert_eq!(refusal(forget(&mut runs, &run_id, "gone").await).1, "NOT_DELETING");
    delete(&mut runs, &run_id).await.unwrap();
    assert_eq!(refusal(forget(&mut runs, &run_id, "gone").await).1, "TOO_EARLY_TO_FORGET");
    report(&broker, &release, release_failed()).await;
    assert_eq!(state(&get(&mut runs, &run_id).await.unwrap()), "DELETION_FAILED");

    assert_eq!(state(&retry(&mut runs, &run_id).await.unwrap()), "DELETING");
    let again = broker.claim().await;
    report(&broker, &again, release_failed()).await;
    assert_eq!(state(&get(&mut runs, &run_id).await.unwrap()), "DELETION_FAILED");

    let operator = deployment.key("default", "operator").await;
    let denied = forget(&mut deployment.runs_as(&operator), &run_id, "gone").await;
    assert_eq!(refusal(denied), (Code::PermissionDenied, "PERMISSION_DENIED".to_owned()));
    assert_eq!(refusal(forget(&mut runs, &run_id, " ").await).1, "REASON_REQUIRED");
    assert_eq!(state(&forget(&mut runs, &run_id, "account was closed").await.unwrap()), "DELETED");
    let proof = receipt(&mut runs, &run_id).await.unwrap();
    assert_eq!(proof.receipts[0].kind(), proto::receipt::Kind::Forgotten);
    assert_eq!(proof.receipts[0].reason, "account was closed");
    let trail = deployment.store.audit_trail("default", 100).await.unwrap();
    let line = |decision| trail.iter().find(|line| line.action == "ForgetRun" && line.decision == decision);
    let allowed = line("ALLOWED").expect("the forget is audited");
    assert_eq!((allowed.actor.as_str(), allowed.policies.as_str()), ("admin", "admin-administers"));
    assert_eq!(allowed.detail, "account was closed");
    let lease = trail.iter().find(|line| line.action == "ForgetLease").expect("and so is every lease");
    assert_eq!(
        (lease.resource.as_str(), lease.detail.as_str()),
        (proof.receipts[0].lease_id.as_str(), "account was closed")
    );
    assert_eq!(line("DENIED").expect("the denial is audited").actor, "operator-1");
}

async fn case_d05_a_vanished_sandbox_deletes_cleanly(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let run_id = deployment.create().await.run_id;
    let broker = Worker::broker(deployment, "broker-1");
    let allocate = broker.claim().await;
    let bootstrap = report(&broker, &allocate, created(&allocate)).await.expect("BOOTSTRAP follows");
    let gone = Outcome::Gone(proto::Gone { how: "404 to a read by id".into() });
    let release = report(&broker, &bootstrap, gone).await.expect("a lost sandbox is released too");
    assert_eq!(state(&get(&mut runs, &run_id).await.unwrap()), "FAILED");
    assert_eq!(state(&delete(&mut runs, &run_id).await.unwrap()), "DELETING");
    report(&broker, &release, absent()).await;
    assert_eq!(refusal(get(&mut runs, &run_id).await).0, Code::NotFound);
    assert!(receipt(&mut runs, &run_id).await.unwrap().complete);
}

async fn case_d03_t10_fifty_deletes_at_once_have_one_truth_and_denials_stay_denials(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let broker = Worker::broker(deployment, "broker-1");
    let (run_id, release) = releasing(&broker).await;
    let viewer = deployment.key("default", "viewer").await;
    let foreign = deployment.key("theirs", "admin").await;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..50 {
        let key = match number % 5 {
            0 => &viewer,
            1 => &foreign,
            _ => &deployment.admin_key,
        };
        let (mut runs, run_id) = (deployment.runs_as(key), run_id.clone());
        tasks.spawn(async move { (number % 5, delete(&mut runs, &run_id).await) });
    }
    while let Some(done) = tasks.join_next().await {
        match done.unwrap() {
            (0, outcome) => assert_eq!(refusal(outcome).0, Code::PermissionDenied),
            (1, outcome) => assert_eq!(refusal(outcome).0, Code::NotFound),
            (_, outcome) => assert_eq!(state(&outcome.unwrap()), "DELETING"),
        }
    }
    let asked = timeline(&mut runs, &run_id).await;
    assert_eq!(asked.iter().filter(|line| line.to == "DELETING").count(), 1);
    // The deletes told the holder, they did not take its claim.
    report(&broker, &release, absent()).await;
    assert_eq!(refusal(get(&mut runs, &run_id).await).0, Code::NotFound);
}

async fn a_deletion_that_hangs_for_an_hour_may_be_forgotten(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let broker = Worker::broker(deployment, "broker-1");
    let (run_id, _release) = releasing(&broker).await;
    delete(&mut runs, &run_id).await.unwrap();
    deployment.clock.advance(std::time::Duration::from_secs(3601));
    assert_eq!(state(&forget(&mut runs, &run_id, "host is gone").await.unwrap()), "DELETED");
}

on_both_engines!(
    case_s08_an_unknown_run_is_not_found_by_everything_and_nothing_is_made,
    case_d07_cancelled_before_create_is_deleted_directly_with_its_receipt,
    case_d02_t9_deleting_a_deleted_run_is_authorized_then_ok_without_change,
    case_s07_cancel_twice_is_ok_and_changes_nothing_more,
    case_d11_deleting_is_not_deleted_until_absence_was_observed,
    case_t7_a_failed_teardown_is_shown_retried_and_forgotten_only_with_a_reason,
    case_d05_a_vanished_sandbox_deletes_cleanly,
    case_d03_t10_fifty_deletes_at_once_have_one_truth_and_denials_stay_denials,
    a_deletion_that_hangs_for_an_hour_may_be_forgotten,
);
