//! DELETED: content goes, proofs stay.

use berth_domain::id::RunId;
use berth_domain::run::Outcome as RunOutcome;
use berth_lifecycle::store::Engine as StoreEngine;
use berth_rpc::lifecycle::{self as proto, provider_failure::Class, report_request::Outcome, run::State};
use tonic::Code;

use crate::{
    fixture::{Deployment, assert_refused, eventually, on_both_engines, request},
    worker::{Worker, absent, complete, failure, start_driving},
};

on_both_engines!(
    content_is_erased_with_the_deletion,
    error_texts_are_erased_with_the_deletion,
    the_key_of_a_deleted_run_makes_no_new_one,
);

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
    assert!(d.store.open_texts(&run_id, usize::MAX).await.unwrap().is_empty());
    let read = proto::ReadRequest { run_id: run.run_id.clone(), ..Default::default() };
    assert_refused(d.log().read(read).await, Code::NotFound, "RUN_NOT_FOUND");
    assert!(!d.timeline(&run.run_id).await.is_empty());
    assert!(d.receipts(&run.run_id).await.complete);
}

async fn error_texts_are_erased_with_the_deletion(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let message = format!("the provider said {CANARY}");
    let refused = proto::ProviderFailure { message, ..failure(Class::Permanent, "REJECTED") };
    broker.report(&broker.claim().await, Outcome::Refused(refused)).await.unwrap();
    let failed = d.until_state(&run.run_id, State::Failed).await;
    assert!(failed.error.unwrap().message.contains(CANARY));
    d.store.checkpoint().await.unwrap();
    assert_eq!(d.files_with(CANARY).is_empty(), d.store.engine() == StoreEngine::Postgres, "the search finds it");
    assert_eq!(d.delete(&run.run_id).await.unwrap().state(), State::Deleted);

    let loaded = d.store.read(&RunId::parse(&run.run_id).unwrap()).await.unwrap().expect("the row stays");
    assert!(!format!("{loaded:?}").contains(CANARY));
    let Some(RunOutcome::Failed { reason, .. }) = &loaded.aggregate.run.outcome else { panic!("the reason stays") };
    assert_eq!(reason.as_str(), "ALLOCATE_REFUSED");
    assert!(loaded.spent.is_empty(), "replies are gone too");
    assert!(d.store.owes_checkpoint());
    eventually(|| async {
        d.store.checkpoint().await.expect("checkpointed");
        if d.store.owes_checkpoint() { Err("a reader kept the log") } else { Ok(()) }
    })
    .await;
    assert_eq!(d.files_with(CANARY), Vec::<String>::new());
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
