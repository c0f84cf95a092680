//! Fences: a report spends its own, a resend gets the stored reply, everything else that is late changes nothing.

use berth_rpc::lifecycle::{self as proto, report_request::Outcome, run::State, work::Action};
use tonic::Code;

use crate::{
    fixture::{Deployment, assert_refused, on_both_engines},
    worker::{Worker, absent, bootstrapped, created, failure, start_driving},
};

on_both_engines!(
    case_s06_a_late_report_of_an_older_attempt_changes_nothing,
    a_resend_gets_the_stored_reply,
    a_resend_never_revives_a_released_lease,
    an_outcome_must_answer_the_claimed_action,
    case_l15_a_late_create_of_a_cancelled_run_is_released,
    a_report_by_another_worker_is_stale,
);

async fn case_s06_a_late_report_of_an_older_attempt_changes_nothing(d: &Deployment) {
    let run = d.create().await;
    let (first, second) = (Worker::broker(d, "broker-1"), Worker::broker(d, "broker-2"));
    let old = first.claim().await;
    let unknown = proto::Unknown {
        failure: Some(failure(proto::provider_failure::Class::Transient, "TIMEOUT")),
        create_horizon: None,
    };
    assert!(first.report(&old, Outcome::Unknown(unknown)).await.unwrap().is_none(), "the retry waits its turn");
    let new = second.claim().await;
    assert_eq!((new.row_id == old.row_id, new.fence > old.fence), (true, true));
    let before = d.timeline(&run.run_id).await;
    assert_refused(first.report(&old, created(&old)).await, Code::Aborted, "STALE_FENCE");
    assert!(d.get(&run.run_id).await.unwrap().sandbox.is_none());
    assert_eq!(d.timeline(&run.run_id).await, before);
    // It is recorded all the same: it may explain a sandbox nobody knows.
    let trail = d.store.audit_trail("default", 10).await.unwrap();
    assert!(trail.iter().any(|line| line.decision == "IGNORED" && line.actor == "broker-1"), "{trail:?}");
    assert!(second.report(&new, created(&new)).await.unwrap().is_some());
}

async fn a_resend_gets_the_stored_reply(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let allocate = broker.claim().await;
    let next = broker.report(&allocate, created(&allocate)).await.unwrap().unwrap();
    let before = d.timeline(&run.run_id).await;
    let again = broker.report(&allocate, created(&allocate)).await.unwrap().unwrap();
    assert_eq!((again.fence, again.action()), (next.fence, Action::Bootstrap));
    assert_eq!(d.timeline(&run.run_id).await, before, "applied once");
    let other = Outcome::Refused(failure(proto::provider_failure::Class::Permanent, "FORBIDDEN"));
    assert_refused(broker.report(&allocate, other).await, Code::Aborted, "STALE_FENCE");
    // Once the handed-over action has been reported too, the old resend hands nothing out.
    broker.report(&again, bootstrapped()).await.unwrap();
    assert_refused(broker.report(&allocate, created(&allocate)).await, Code::Aborted, "STALE_FENCE");
    assert!(broker.report(&again, bootstrapped()).await.unwrap().is_none());
}

async fn a_resend_never_revives_a_released_lease(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let allocate = broker.claim().await;
    d.cancel(&run.run_id).await.unwrap();
    let release = broker.report(&allocate, created(&allocate)).await.unwrap().expect("released at once");
    broker.report(&release, absent()).await.unwrap();
    assert_refused(broker.report(&allocate, created(&allocate)).await, Code::Aborted, "STALE_FENCE");
    assert!(d.receipts(&run.run_id).await.complete);
    assert_eq!(d.delete(&run.run_id).await.unwrap().state(), State::Deleted);
}

async fn an_outcome_must_answer_the_claimed_action(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let allocate = broker.claim().await;
    for wrong in [absent(), bootstrapped(), Outcome::Launched(proto::Launched {})] {
        assert_refused(broker.report(&allocate, wrong).await, Code::InvalidArgument, "OUTCOME_MISMATCH");
    }
    let mut empty = broker.report_request(&allocate, absent());
    empty.outcome = None;
    assert_refused(d.work("sandbox-broker").report(empty).await, Code::InvalidArgument, "OUTCOME_MISSING");
    assert_eq!(d.get(&run.run_id).await.unwrap().state(), State::Provisioning);
    assert!(broker.report(&allocate, created(&allocate)).await.unwrap().is_some(), "the fence is not spent by it");
}

async fn case_l15_a_late_create_of_a_cancelled_run_is_released(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let allocate = broker.claim().await;
    assert_eq!(d.cancel(&run.run_id).await.unwrap().state(), State::Cancelled);
    assert_eq!(d.delete(&run.run_id).await.unwrap().state(), State::Deleting);
    let release = broker.report(&allocate, created(&allocate)).await.unwrap().expect("released at once");
    assert_eq!(release.action(), Action::Release);
    let run_now = d.get(&run.run_id).await.unwrap();
    assert_eq!(run_now.state(), State::Deleting);
    broker.report(&release, absent()).await.unwrap();
    d.until_deleted(&run.run_id).await;
}

async fn a_report_by_another_worker_is_stale(d: &Deployment) {
    d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    let thief = Worker::sessions(d, "sessions-2");
    let ended = Outcome::Ended(proto::Ended { failure: None });
    assert_refused(thief.report(&drive, ended.clone()).await, Code::Aborted, "STALE_FENCE");
    sessions.report(&drive, ended).await.unwrap();
}
