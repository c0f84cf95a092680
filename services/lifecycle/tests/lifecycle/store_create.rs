//! Creation is one transaction, and what is written stays.

use std::time::Duration;

use berth_rpc::lifecycle::{self as proto, event::Payload, run::State};
use futures::future::join_all;

use crate::{
    fixture::{Deployment, Engine, on_both_engines, request},
    worker::{Worker, complete, notice, start_driving},
};

on_both_engines!(
    case_s09_a_create_cut_anywhere_leaves_all_or_nothing,
    one_key_makes_one_run_however_many_ask,
    the_prompt_is_event_one,
);

/// The call is dropped after more and more time; whatever is listed then is whole, and asking again finds or makes it.
async fn case_s09_a_create_cut_anywhere_leaves_all_or_nothing(d: &Deployment) {
    for n in 0..40u64 {
        let key = format!("key-{n}");
        let mut client = d.runs();
        let cut = tokio::time::timeout(
            Duration::from_micros(n * 250),
            client.create_run(proto::CreateRunRequest { request_id: key.clone(), ..request() }),
        );
        let _ = cut.await;
        let again = d.create_from(proto::CreateRunRequest { request_id: key, ..request() }).await;
        assert_eq!(again.state(), State::Provisioning);
    }
    let listed = d.runs().list_runs(proto::ListRunsRequest { page_size: 200, ..Default::default() }).await.unwrap();
    let runs = listed.into_inner().runs;
    assert_eq!(runs.len(), 40, "one per key");
    for run in runs {
        assert_eq!(d.timeline(&run.run_id).await, ["run >PROVISIONING", "lease >REQUESTED", "session >PENDING"]);
        assert_eq!(d.events(&run.run_id).await.len(), 2);
    }
    let broker = Worker::broker(d, "broker-1");
    assert_eq!(broker.look(64).await.len(), 40, "every one is work for somebody");
}

async fn one_key_makes_one_run_however_many_ask(d: &Deployment) {
    let asked = || proto::CreateRunRequest { request_id: "the-same".to_owned(), ..request() };
    let runs = join_all((0..20).map(|_| d.create_from(asked()))).await;
    assert!(runs.iter().all(|run| run.run_id == runs[0].run_id));
}

async fn the_prompt_is_event_one(d: &Deployment) {
    let run = d.create().await;
    let events = d.events(&run.run_id).await;
    assert!(matches!(&events[0].payload, Some(Payload::UserMessage(message))
        if message.text == "fix the failing test" && message.principal == "admin"));
    assert!(matches!(&events[1].payload, Some(Payload::RunStateChanged(change)) if change.to() == State::Provisioning));
    assert_eq!(run.last_sequence, 2);
    assert!(run.change_seq > 0);
}

/// Restarted over the same database at every stage: nothing is lost, and the work goes on.
async fn survives_restarts(engine: Engine) {
    let mut d = Deployment::start(engine).await;
    let deployment_id = d.store.deployment();
    let run_id = d.create().await.run_id;
    d = d.restart().await;
    assert_eq!(d.store.deployment(), deployment_id);
    let drive = {
        let (broker, sessions) = (Worker::broker(&d, "broker-1"), Worker::sessions(&d, "sessions-1"));
        let drive = start_driving(&broker, &sessions).await;
        sessions.append(&drive, 1, (0..600).step_by(3).map(|n| notice(&n.to_string())).collect()).await.unwrap();
        drive
    };
    let before = d.events(&run_id).await;
    d = d.restart().await;
    assert_eq!(d.events(&run_id).await, before);
    let sessions = Worker::sessions(&d, "sessions-1");
    sessions.append(&drive, 201, vec![notice("the claim holds too")]).await.unwrap();
    d.clock.advance(Duration::from_secs(61));
    let heir = Worker::sessions(&d, "sessions-2");
    let next = crate::worker::launch(&heir).await;
    complete(&heir, &next).await;
    d.until_state(&run_id, State::Completed).await;
    d.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_e09_the_log_is_durable_sqlite() {
    survives_restarts(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_e09_the_log_is_durable_postgres() {
    survives_restarts(Engine::Postgres).await;
}
