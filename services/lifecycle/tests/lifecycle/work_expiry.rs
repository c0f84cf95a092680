//! Time: dead workers, passed deadlines, budgets. The clock is set forward instead of waiting.

use std::time::Duration;

use berth_rpc::lifecycle::{report_request::Outcome, run::State, work::Action};
use tonic::Code;

use crate::{
    fixture::{Deployment, assert_refused, on_both_engines},
    worker::{Worker, absent, complete, created, failure, launch, lease_detail, session_detail, start_driving},
};
use berth_rpc::lifecycle as proto;

on_both_engines!(
    case_s03_a_dead_workers_claim_goes_to_another,
    a_living_worker_keeps_its_claim,
    an_actions_own_deadline_ends_its_claim,
    case_s01_nobody_takes_the_lease,
    a_dead_driver_is_followed_by_another_launch,
    case_s11_the_wall_clock_ends_a_run,
    a_completed_run_gives_its_sandbox_back_after_a_while,
    a_failed_teardown_is_retried_and_ends,
);

async fn case_s03_a_dead_workers_claim_goes_to_another(d: &Deployment) {
    d.create().await;
    let (dead, heir) = (Worker::broker(d, "broker-1"), Worker::broker(d, "broker-2"));
    let lost = dead.claim().await;
    d.clock.advance(Duration::from_secs(61));
    let taken = heir.claim().await;
    assert_eq!((taken.row_id.as_str(), lease_detail(&taken).attempt), (lost.row_id.as_str(), 2));
    assert!(lease_detail(&taken).in_doubt);
    assert_eq!(lease_detail(&taken).key, lease_detail(&lost).key, "one key for every attempt");
    // The dead one comes back: what it held is gone, and what it knows changes nothing.
    let answers = dead.extend(&[&lost]).await;
    assert_eq!(answers[0].status(), proto::extend_response::answer::Status::Gone);
    assert_refused(dead.report(&lost, created(&lost)).await, Code::Aborted, "STALE_FENCE");
    assert!(heir.report(&taken, created(&taken)).await.unwrap().is_some());
}

async fn a_living_worker_keeps_its_claim(d: &Deployment) {
    d.create().await;
    let (broker, rival) = (Worker::broker(d, "broker-1"), Worker::broker(d, "broker-2"));
    let allocate = broker.claim().await;
    for _ in 0..3 {
        d.clock.advance(Duration::from_secs(30));
        let answers = broker.extend(&[&allocate]).await;
        assert_eq!(answers[0].status(), proto::extend_response::answer::Status::Held);
        assert!(rival.look(1).await.is_empty());
    }
    assert!(broker.report(&allocate, created(&allocate)).await.unwrap().is_some());
}

async fn an_actions_own_deadline_ends_its_claim(d: &Deployment) {
    d.create().await;
    let (broker, heir) = (Worker::broker(d, "broker-1"), Worker::broker(d, "broker-2"));
    let allocate = broker.claim().await;
    for _ in 0..3 {
        d.clock.advance(Duration::from_secs(50));
        broker.extend(&[&allocate]).await;
    }
    let answers = broker.extend(&[&allocate]).await;
    assert_eq!(answers[0].status(), proto::extend_response::answer::Status::Gone, "two minutes are over");
    assert_eq!(heir.claim().await.row_id, allocate.row_id);
}

async fn case_s01_nobody_takes_the_lease(d: &Deployment) {
    let run = d.create().await;
    d.clock.advance(Duration::from_secs(301));
    let failed = d.until_state(&run.run_id, State::Failed).await;
    assert!(!failed.error.unwrap().reason.is_empty());
    let receipts = d.receipts(&run.run_id).await;
    assert_eq!(receipts.receipts[0].kind(), proto::receipt::Kind::NeverCreated);
    let timeline = d.timeline(&run.run_id).await;
    assert!(timeline.contains(&"lease REQUESTED>RELEASED".to_owned()), "{timeline:?}");
}

async fn a_dead_driver_is_followed_by_another_launch(d: &Deployment) {
    let run = d.create().await;
    let (broker, dead) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &dead).await;
    dead.append(&drive, 1, vec![crate::worker::notice("half way")]).await.unwrap();
    d.clock.advance(Duration::from_secs(61));
    let heir = Worker::sessions(d, "sessions-2");
    let next = launch(&heir).await;
    assert_eq!(session_detail(&next).launch, 2);
    assert_eq!(session_detail(&next).messages.len(), 1, "the prompt is to be done again");
    let late = dead.append(&drive, 2, vec![crate::worker::notice("late")]).await;
    assert_refused(late, Code::Aborted, "STALE_LAUNCH");
    complete(&heir, &next).await;
    d.until_state(&run.run_id, State::Completed).await;
}

async fn case_s11_the_wall_clock_ends_a_run(d: &Deployment) {
    let request = proto::CreateRunRequest {
        budget: Some(proto::Budget {
            wall_clock: Some(berth_rpc::duration_to_proto(Duration::from_secs(600))),
            ..Default::default()
        }),
        ..crate::fixture::request()
    };
    let run = d.create_from(request).await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    for _ in 0..11 {
        d.clock.advance(Duration::from_secs(55));
        sessions.extend(&[&drive]).await;
    }
    let failed = d.until_state(&run.run_id, State::Failed).await;
    assert_eq!(failed.error.unwrap().reason, "BUDGET_WALL_CLOCK");
    assert_eq!(broker.claim().await.action(), Action::Release);
}

async fn a_completed_run_gives_its_sandbox_back_after_a_while(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    complete(&sessions, &drive).await;
    d.until_state(&run.run_id, State::Completed).await;
    assert!(broker.look(1).await.is_empty(), "the sandbox lingers");
    d.clock.advance(Duration::from_secs(901));
    let release = broker.claim().await;
    assert_eq!(release.action(), Action::Release);
    broker.report(&release, absent()).await.unwrap();
    assert_eq!(d.get(&run.run_id).await.unwrap().state(), State::Completed, "and the run stays what it is");
    assert_eq!(d.delete(&run.run_id).await.unwrap().state(), State::Deleted);
}

async fn a_failed_teardown_is_retried_and_ends(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let allocate = broker.claim().await;
    d.cancel(&run.run_id).await.unwrap();
    d.delete(&run.run_id).await.unwrap();
    let release = broker.report(&allocate, created(&allocate)).await.unwrap().unwrap();
    let refused = Outcome::ReleaseFailed(failure(proto::provider_failure::Class::Permanent, "UNAUTHORIZED"));
    assert!(broker.report(&release, refused).await.unwrap().is_none());
    d.until_state(&run.run_id, State::DeletionFailed).await;
    assert!(broker.look(1).await.is_empty(), "slowly");
    d.clock.advance(Duration::from_secs(6 * 3600));
    let again = broker.claim().await;
    broker.report(&again, absent()).await.unwrap();
    d.until_deleted(&run.run_id).await;
}
