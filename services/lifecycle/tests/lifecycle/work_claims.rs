//! Claims: who gets what, and what Extend tells.

use std::{collections::HashSet, time::Duration};

use berth_domain::id::RunId;
use berth_rpc::lifecycle::{
    self as proto, extend_response::answer::Status, provider_failure::Class, report_request::Outcome, run::State,
    work::Action,
};
use tonic::Code;

use crate::{
    fixture::{Deployment, assert_refused, eventually, on_both_engines},
    worker::{Worker, absent, created, failure, lease_detail, provision, session_detail, start_driving},
};

on_both_engines!(
    a_row_is_claimed_once,
    a_waiting_claim_is_woken_by_new_work,
    a_claim_names_what_it_can_take,
    a_host_bound_sandbox_goes_to_its_own_host,
    extend_tells_what_changed,
    extend_shows_a_driver_its_waiting_messages,
    a_claim_whose_answer_was_lost_is_ended,
    queues_belong_to_their_services,
    a_large_answer_leaves_work_for_the_next_claim,
    a_full_host_is_waited_for,
    only_the_host_that_was_asked_proves_absence,
    absence_on_an_unknown_host_proves_nothing,
    a_row_that_cannot_be_read_keeps_no_other_waiting,
    rows_belong_to_their_services,
);

async fn a_row_is_claimed_once(d: &Deployment) {
    let mut made = HashSet::new();
    for _ in 0..30 {
        made.insert(d.create().await.run_id);
    }
    let workers: Vec<Worker<'_>> = (0..10).map(|n| Worker::broker(d, &format!("broker-{n}"))).collect();
    let rounds = workers.iter().map(|worker| async move {
        let mut claimed = Vec::new();
        for _ in 0..5 {
            claimed.extend(worker.look(3).await);
        }
        claimed
    });
    let mut claimed: Vec<proto::Work> = futures::future::join_all(rounds).await.into_iter().flatten().collect();
    let last = Worker::broker(d, "broker-last");
    eventually(|| async {
        let more = last.look(10).await;
        if more.is_empty() { Ok(()) } else { Err(more) }
    })
    .await;
    claimed.dedup_by(|a, b| a.row_id == b.row_id);
    let runs: HashSet<String> = claimed.iter().map(|work| work.run_id.clone()).collect();
    assert!(runs.len() == claimed.len(), "a row was handed out twice");
    assert!(runs.is_subset(&made));
    assert!(claimed.iter().all(|work| lease_detail(work).attempt == 1));
}

async fn a_waiting_claim_is_woken_by_new_work(d: &Deployment) {
    let broker = Worker::broker(d, "broker-1");
    let (work, run) = tokio::join!(broker.claim(), d.create());
    assert_eq!(work.run_id, run.run_id);
    assert_eq!(work.action(), Action::Allocate);
    assert!(work.time_left.unwrap().seconds > 0);
    let nothing = broker.request(1, Duration::from_millis(50));
    assert!(d.work("sandbox-broker").claim(nothing).await.unwrap().into_inner().works.is_empty());
}

async fn a_claim_names_what_it_can_take(d: &Deployment) {
    d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let mut other = broker.request(4, Duration::ZERO);
    other.provider_slots = [("e2b".to_owned(), 4)].into();
    assert!(d.work("sandbox-broker").claim(other).await.unwrap().into_inner().works.is_empty());
    let mut full = broker.request(4, Duration::ZERO);
    full.provider_slots = [("local".to_owned(), 0)].into();
    assert!(d.work("sandbox-broker").claim(full).await.unwrap().into_inner().works.is_empty());
    assert_eq!(broker.look(1).await.len(), 1);
}

async fn a_host_bound_sandbox_goes_to_its_own_host(d: &Deployment) {
    let run = d.create().await;
    let mut here = Worker::broker(d, "broker-a");
    here.localities = vec!["host-a".to_owned()];
    let mut there = Worker::broker(d, "broker-b");
    there.localities = vec!["host-b".to_owned()];
    provision(&here).await;
    d.cancel(&run.run_id).await.unwrap();
    assert!(there.look(4).await.is_empty(), "made on another host");
    assert_eq!(here.claim().await.action(), Action::Release);
}

async fn extend_tells_what_changed(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let allocate = broker.claim().await;
    let status = |answers: Vec<proto::extend_response::Answer>| answers[0].status();
    assert_eq!(status(broker.extend(&[&allocate]).await), Status::Held);
    d.cancel(&run.run_id).await.unwrap();
    assert_eq!(status(broker.extend(&[&allocate]).await), Status::DesireChanged);
    let release = broker.report(&allocate, created(&allocate)).await.unwrap().unwrap();
    assert_eq!(status(broker.extend(&[&allocate]).await), Status::Gone);
    assert_eq!(status(broker.extend(&[&release]).await), Status::Held);
    let other = Worker::broker(d, "broker-2");
    assert_eq!(status(other.extend(&[&release]).await), Status::Gone);
}

async fn extend_shows_a_driver_its_waiting_messages(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    let request =
        proto::QueueMessageRequest { run_id: run.run_id, text: "also the docs".to_owned(), ..Default::default() };
    let queued = d.log().queue_message(request).await.unwrap().into_inner().message_id;
    let answers = sessions.extend(&[&drive]).await;
    assert_eq!(answers[0].status(), Status::Held);
    let waiting: Vec<&str> = answers[0].messages.iter().map(|message| message.message_id.as_str()).collect();
    assert!(waiting.contains(&queued.as_str()), "{waiting:?}");
}

async fn a_claim_whose_answer_was_lost_is_ended(d: &Deployment) {
    d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let lost = broker.claim().await;
    broker.extend(&[]).await;
    assert!(broker.look(1).await.is_empty(), "too early to tell");
    d.clock.advance(Duration::from_secs(11));
    broker.extend(&[]).await;
    let again = broker.claim().await;
    assert_eq!((again.row_id.as_str(), lease_detail(&again).attempt), (lost.row_id.as_str(), 2));
    assert!(lease_detail(&again).in_doubt, "the first may have been acted on after all");
    assert_refused(broker.report(&lost, created(&lost)).await, Code::Aborted, "STALE_FENCE");
}

async fn queues_belong_to_their_services(d: &Deployment) {
    let mut request = Worker::broker(d, "broker-1").request(1, Duration::ZERO);
    assert_refused(d.work("sessions").claim(request.clone()).await, Code::PermissionDenied, "QUEUE_FORBIDDEN");
    request.worker_id = "Broker 1".to_owned();
    let refused = d.work("sandbox-broker").claim(request).await;
    assert_refused(refused, Code::InvalidArgument, "WORKER_ID_INVALID");
    let ended = proto::ReportRequest {
        run_id: "run-01900000000070008000000000000000".to_owned(),
        worker_id: "broker-1".to_owned(),
        outcome: Some(Outcome::Parked(proto::Parked {})),
        ..Default::default()
    };
    assert_refused(d.work("sandbox-broker").report(ended).await, Code::NotFound, "RUN_NOT_FOUND");
}

async fn a_large_answer_leaves_work_for_the_next_claim(d: &Deployment) {
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let prompt = "x".repeat(1 << 20);
    for _ in 0..7 {
        d.create_from(proto::CreateRunRequest { prompt: prompt.clone(), ..crate::fixture::request() }).await;
        provision(&broker).await;
    }
    let first = sessions.look(64).await;
    assert_eq!(first.len(), 4, "four fill an answer");
    assert!(first.iter().all(|work| session_detail(work).messages[0].text.len() == 1 << 20));
    assert_eq!(sessions.look(64).await.len(), 3);
}

async fn a_full_host_is_waited_for(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let full = || Outcome::Refused(failure(Class::Transient, "PROVIDER_FULL"));
    for attempt in 1..=8 {
        let allocate = broker.claim().await;
        assert_eq!((allocate.action(), lease_detail(&allocate).attempt), (Action::Allocate, attempt));
        assert!(broker.report(&allocate, full()).await.unwrap().is_none(), "not at once");
        d.clock.advance(Duration::from_secs(15));
    }
    assert_eq!(d.get(&run.run_id).await.unwrap().state(), State::Provisioning);
    provision(&broker).await;
    d.until_state(&run.run_id, State::Running).await;
}

/// A run of which nobody knows whether its sandbox was made: its worker died while it was at it.
async fn in_doubt(dead: &Worker<'_>) -> String {
    let d = dead.deployment;
    let run_id = d.create().await.run_id;
    assert_eq!(dead.claim().await.action(), Action::Allocate);
    d.clock.advance(Duration::from_secs(61));
    eventually(|| async {
        let loaded = d.store.read(&RunId::parse(&run_id).unwrap()).await.unwrap().expect("the run is there");
        if loaded.aggregate.leases[0].in_doubt { Ok(()) } else { Err("the claim has not ended yet") }
    })
    .await;
    d.clock.advance(Duration::from_secs(60));
    run_id
}

async fn only_the_host_that_was_asked_proves_absence(d: &Deployment) {
    let run_id = in_doubt(&Worker::broker(d, "broker-1")).await;
    let mut other = Worker::broker(d, "broker-2");
    other.localities = vec!["host-b".to_owned()];
    assert!(other.look(4).await.is_empty(), "a second attempt elsewhere would leave the first in doubt for ever");
    d.cancel(&run_id).await.unwrap();
    assert!(other.look(4).await.is_empty(), "what it does not find there proves nothing");
    let again = Worker::broker(d, "broker-3");
    let release = again.claim().await;
    assert_eq!(release.action(), Action::Release);
    assert!(lease_detail(&release).identity.is_none());
    let elsewhere = proto::Absent { how: "looked by key".to_owned(), account_scope: "host-b".to_owned() };
    again.report(&release, Outcome::Absent(elsewhere)).await.unwrap();
    assert!(d.receipts(&run_id).await.receipts.is_empty());
    d.delete(&run_id).await.unwrap();
    again.report(&again.claim().await, absent()).await.unwrap();
    d.until_deleted(&run_id).await;
    assert_eq!(d.receipts(&run_id).await.receipts[0].account_scope, "host-a");
}

async fn absence_on_an_unknown_host_proves_nothing(d: &Deployment) {
    let mut nowhere = Worker::broker(d, "broker-1");
    nowhere.localities = Vec::new();
    let run_id = in_doubt(&nowhere).await;
    d.cancel(&run_id).await.unwrap();
    let broker = Worker::broker(d, "broker-2");
    let release = broker.claim().await;
    assert_eq!(release.action(), Action::Release);
    broker.report(&release, absent()).await.unwrap();
    assert_eq!(d.delete(&run_id).await.unwrap().state(), State::Deleting, "tried again at once");
    broker.report(&broker.claim().await, absent()).await.unwrap();
    assert_eq!(d.get(&run_id).await.unwrap().state(), State::DeletionFailed);
    assert!(d.receipts(&run_id).await.receipts.is_empty());
}

async fn a_row_that_cannot_be_read_keeps_no_other_waiting(d: &Deployment) {
    let (damaged, whole) = (d.create().await, d.create().await);
    d.execute(&format!("UPDATE leases SET doc = '{{}}' WHERE run_id = '{}'", damaged.run_id)).await;
    let works = Worker::broker(d, "broker-1").look(1).await;
    assert_eq!(works.len(), 1);
    assert_eq!(works[0].run_id, whole.run_id);
}

async fn rows_belong_to_their_services(d: &Deployment) {
    d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let allocate = broker.claim().await;
    let impostor = Worker::sessions(d, "broker-1");
    let refused = impostor.report(&allocate, created(&allocate)).await;
    assert_refused(refused, Code::PermissionDenied, "QUEUE_FORBIDDEN");
    assert_eq!(impostor.extend(&[&allocate]).await[0].status(), Status::Gone);
    d.clock.advance(Duration::from_secs(11));
    impostor.extend(&[]).await;
    assert_eq!(broker.extend(&[&allocate]).await[0].status(), Status::Held, "nor does it end what it does not name");
    assert!(broker.report(&allocate, created(&allocate)).await.unwrap().is_some());
}
