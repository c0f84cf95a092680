//! The whole way of a run, from CreateRun to the receipt.

use berth_rpc::lifecycle::{self as proto, report_request::Outcome, run::State, work::Action};
use tonic::Code;

use crate::{
    fixture::{Deployment, assert_refused, on_both_engines},
    worker::{
        Worker, absent, bootstrapped, complete, created, failure, launch, lease_detail, provision, session_detail,
        start_driving,
    },
};

on_both_engines!(
    a_run_completes_and_is_deleted_with_a_receipt,
    case_l08_the_identity_is_shown_before_bootstrap,
    a_refused_create_fails_the_run_and_leaves_a_receipt,
    a_lost_sandbox_fails_the_run_and_is_released,
    a_lost_sandbox_is_replaced_when_asked,
    a_failed_bootstrap_releases_the_sandbox,
    a_failed_drive_fails_the_run,
    the_broker_finds_the_sandbox_behind_a_live_claim_only,
);

async fn a_run_completes_and_is_deleted_with_a_receipt(d: &Deployment) {
    let run = d.create().await;
    assert_eq!(run.state(), State::Provisioning);
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    let detail = session_detail(&drive);
    assert_eq!((detail.launch, detail.messages.len()), (1, 1));
    assert_eq!(detail.messages[0].text, "fix the failing test");
    assert_eq!((detail.workdir.as_str(), detail.base_commit.as_str()), ("/workspace/repo", "c0ffee"));
    assert_eq!(d.get(&run.run_id).await.unwrap().state(), State::Running);

    complete(&sessions, &drive).await;
    let done = d.until_state(&run.run_id, State::Completed).await;
    let result = done.result.expect("a result");
    assert_eq!((result.text.as_str(), result.head_commit.as_str()), ("done", "beef"));
    assert!(result.diff.starts_with("--- a"));
    assert_eq!((done.turn, done.usage.unwrap().output_tokens), (1, 5));

    let deleting = d.delete(&run.run_id).await.unwrap();
    assert_eq!(deleting.state(), State::Deleting);
    let release = broker.claim().await;
    assert_eq!(release.action(), Action::Release);
    assert_eq!(lease_detail(&release).identity.as_ref().unwrap().account_scope, "host-a");
    broker.report(&release, absent()).await.unwrap();
    d.until_deleted(&run.run_id).await;
    let receipts = d.receipts(&run.run_id).await;
    assert!(receipts.complete);
    assert_eq!(receipts.receipts.len(), 1);
    assert_eq!(receipts.receipts[0].kind(), proto::receipt::Kind::ObservedAbsent);
    assert_eq!(receipts.receipts[0].observed_by, "broker-1");
    let timeline = d.timeline(&run.run_id).await;
    for line in [
        "run >PROVISIONING",
        "lease REQUESTED>ALLOCATING",
        "lease ALLOCATING>ALLOCATED",
        "lease ALLOCATED>READY",
        "session PENDING>STARTING",
        "run PROVISIONING>RUNNING",
        "session STARTING>LIVE",
        "session LIVE>ENDING",
        "run RUNNING>COMPLETED",
        "session ENDING>IDLE",
        "run COMPLETED>DELETING",
        "lease RELEASING>RELEASED",
        "run DELETING>DELETED",
    ] {
        assert!(timeline.iter().any(|have| have == line), "{line} in {timeline:#?}");
    }
    // Deleted again: authorized, then OK without change.
    assert_eq!(d.delete(&run.run_id).await.unwrap().state(), State::Deleted);
}

async fn case_l08_the_identity_is_shown_before_bootstrap(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let allocate = broker.claim().await;
    assert!(d.get(&run.run_id).await.unwrap().sandbox.is_none());
    let mut request = broker.report_request(&allocate, created(&allocate));
    request.take_next = false;
    d.work("sandbox-broker").report(request).await.unwrap();
    let sandbox = d.get(&run.run_id).await.unwrap().sandbox.expect("durable before anything starts in it");
    assert_eq!(sandbox.sandbox_id, format!("sandbox-{}", lease_detail(&allocate).key));
    assert_eq!(sandbox.lease_state, "ALLOCATED");
    assert_eq!(broker.claim().await.action(), Action::Bootstrap);
}

async fn a_refused_create_fails_the_run_and_leaves_a_receipt(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let allocate = broker.claim().await;
    let refused = failure(proto::provider_failure::Class::Permanent, "FORBIDDEN");
    assert!(broker.report(&allocate, Outcome::Refused(refused)).await.unwrap().is_none());
    let failed = d.get(&run.run_id).await.unwrap();
    assert_eq!((failed.state(), failed.error.unwrap().reason.as_str()), (State::Failed, "ALLOCATE_REFUSED"));
    let receipts = d.receipts(&run.run_id).await;
    assert_eq!(receipts.receipts[0].kind(), proto::receipt::Kind::NeverCreated);
    assert_eq!(d.delete(&run.run_id).await.unwrap().state(), State::Deleted);
}

async fn a_lost_sandbox_fails_the_run_and_is_released(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    observe(d, &run.run_id, "another-sandbox").await;
    assert_eq!(d.get(&run.run_id).await.unwrap().state(), State::Running, "another sandbox proves nothing");
    let sandbox = d.get(&run.run_id).await.unwrap().sandbox.unwrap();
    observe(d, &run.run_id, &sandbox.sandbox_id).await;
    let failed = d.get(&run.run_id).await.unwrap();
    assert_eq!((failed.state(), failed.error.unwrap().reason.as_str()), (State::Failed, "SANDBOX_LOST"));
    assert_refused(sessions.append(&drive, 1, vec![]).await, Code::Aborted, "STALE_FENCE");
    let release = broker.claim().await;
    assert_eq!(release.action(), Action::Release);
    broker.report(&release, absent()).await.unwrap();
    assert!(d.receipts(&run.run_id).await.complete);
}

async fn a_lost_sandbox_is_replaced_when_asked(d: &Deployment) {
    let request = proto::CreateRunRequest {
        on_sandbox_loss: proto::run::OnSandboxLoss::Recreate.into(),
        ..crate::fixture::request()
    };
    let run = d.create_from(request).await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    start_driving(&broker, &sessions).await;
    let first = d.get(&run.run_id).await.unwrap().sandbox.unwrap();
    observe(d, &run.run_id, &first.sandbox_id).await;
    assert_eq!(d.get(&run.run_id).await.unwrap().state(), State::Recovering);
    // Two rows are due: the release of the lost one and the allocation of its replacement.
    let mut works = broker.look(8).await;
    works.sort_by_key(|work| work.action);
    let actions: Vec<Action> = works.iter().map(proto::Work::action).collect();
    assert_eq!(actions, [Action::Allocate, Action::Release]);
    broker.report(&works[1], absent()).await.unwrap();
    let bootstrap = broker.report(&works[0], created(&works[0])).await.unwrap().unwrap();
    broker.report(&bootstrap, bootstrapped()).await.unwrap();
    let drive = launch(&sessions).await;
    assert_eq!(session_detail(&drive).launch, 2);
    complete(&sessions, &drive).await;
    let done = d.until_state(&run.run_id, State::Completed).await;
    assert_ne!(done.sandbox.unwrap().lease_id, first.lease_id);
}

async fn a_failed_bootstrap_releases_the_sandbox(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let allocate = broker.claim().await;
    let bootstrap = broker.report(&allocate, created(&allocate)).await.unwrap().unwrap();
    let outcome = Outcome::BootstrapFailed(failure(proto::provider_failure::Class::Permanent, "REF_NOT_FOUND"));
    let release = broker.report(&bootstrap, outcome).await.unwrap().expect("the release is handed over at once");
    assert_eq!(release.action(), Action::Release);
    let failed = d.get(&run.run_id).await.unwrap();
    assert_eq!((failed.state(), failed.error.unwrap().reason.as_str()), (State::Failed, "REF_NOT_FOUND"));
    broker.report(&release, absent()).await.unwrap();
    assert!(d.receipts(&run.run_id).await.complete);
}

async fn a_failed_drive_fails_the_run(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    let error = proto::Error { reason: "MODEL_ERROR".to_owned(), message: "overloaded".to_owned() };
    let ended = Outcome::Ended(proto::Ended { failure: Some(error) });
    assert!(sessions.report(&drive, ended).await.unwrap().is_none());
    let failed = d.get(&run.run_id).await.unwrap();
    assert_eq!((failed.state(), failed.error.unwrap().reason.as_str()), (State::Failed, "MODEL_ERROR"));
}

async fn the_broker_finds_the_sandbox_behind_a_live_claim_only(d: &Deployment) {
    let run = d.create().await;
    let (mut broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    broker.localities = vec!["host-a".to_owned()];
    provision(&broker).await;
    let drive = launch(&sessions).await;
    let request = proto::ResolveLeaseRequest {
        run_id: run.run_id.clone(),
        session_id: drive.row_id.clone(),
        session_fence: drive.fence,
    };
    let found = d.work("sandbox-broker").resolve_lease(request.clone()).await.unwrap().into_inner();
    assert_eq!(found.workdir, "/workspace/repo");
    assert_eq!(found.endpoint, "http://broker-1.test");
    assert_eq!(found.tenant, "default");
    let stale = proto::ResolveLeaseRequest { session_fence: drive.fence - 1, ..request.clone() };
    assert_refused(d.work("sandbox-broker").resolve_lease(stale).await, Code::Aborted, "STALE_FENCE");
    d.cancel(&run.run_id).await.unwrap();
    assert_refused(d.work("sandbox-broker").resolve_lease(request).await, Code::Aborted, "STALE_FENCE");
}

async fn observe(d: &Deployment, run_id: &str, sandbox_id: &str) {
    let lease_id = d.get(run_id).await.unwrap().sandbox.unwrap().lease_id;
    let request = proto::ReportObservationRequest {
        run_id: run_id.to_owned(),
        lease_id,
        sandbox_id: sandbox_id.to_owned(),
        observed: proto::report_observation_request::Observed::Absent.into(),
        how: "exec found no sandbox".to_owned(),
    };
    d.work("sandbox-broker").report_observation(request).await.expect("observed");
}
