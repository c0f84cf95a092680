//! DELETED: content goes, proofs stay.

use berth_domain::id::RunId;
use berth_rpc::lifecycle::{self as proto, run::State};
use tonic::Code;

use crate::{
    fixture::{Deployment, assert_refused, on_both_engines, request},
    worker::{Worker, absent, complete, start_driving},
};

on_both_engines!(content_is_erased_with_the_deletion, the_key_of_a_deleted_run_makes_no_new_one);

const CANARY: &str = "canary-7d1e";

async fn content_is_erased_with_the_deletion(d: &Deployment) {
    let run = d
        .create_from(proto::CreateRunRequest {
            prompt: CANARY.to_owned(),
            system_prompt: format!("you are {CANARY}"),
            ..request()
        })
        .await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    complete(&sessions, &drive).await;
    d.until_state(&run.run_id, State::Completed).await;
    d.delete(&run.run_id).await.unwrap();
    let shown = d.get(&run.run_id).await.unwrap();
    assert_eq!((shown.state(), shown.prompt.as_str()), (State::Deleting, CANARY), "not before it is proven");
    broker.report(&broker.claim().await, absent()).await.unwrap();
    d.until_deleted(&run.run_id).await;

    let run_id = RunId::parse(&run.run_id).unwrap();
    let loaded = d.store.read(&run_id).await.unwrap().expect("the row stays");
    assert!(!format!("{loaded:?}").contains(CANARY));
    assert!(loaded.record.result.is_none() && loaded.aggregate.session.messages.is_empty());
    assert!(d.store.events_after(&run_id, 0, 1000).await.unwrap().unwrap().events.is_empty());
    assert!(d.store.open_texts(&run_id).await.unwrap().is_empty());
    let read = proto::ReadRequest { run_id: run.run_id.clone(), ..Default::default() };
    assert_refused(d.log().read(read).await, Code::NotFound, "RUN_NOT_FOUND");
    assert!(!d.timeline(&run.run_id).await.is_empty());
    assert!(d.receipts(&run.run_id).await.complete);
}

async fn the_key_of_a_deleted_run_makes_no_new_one(d: &Deployment) {
    let asked = || proto::CreateRunRequest { request_id: "once".to_owned(), ..request() };
    let run = d.create_from(asked()).await;
    d.cancel(&run.run_id).await.unwrap();
    assert_eq!(d.delete(&run.run_id).await.unwrap().state(), State::Deleted);
    assert_refused(d.runs().create_run(asked()).await, Code::NotFound, "RUN_NOT_FOUND");
    d.clock.advance(std::time::Duration::from_secs(24 * 3600 + 1));
    assert_ne!(d.create_from(asked()).await.run_id, run.run_id, "after a day the key is free");
}
