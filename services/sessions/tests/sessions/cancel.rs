//! Cancelling while something is in flight.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use berth_rpc::lifecycle::{event::Payload, run};
use tokio::time::timeout;

use crate::broker::Broker;
use crate::world::World;

#[tokio::test]
async fn case_s07_cancel_kills_a_long_command_and_writes_nothing_after_it() {
    let script =
        r#"{"conversations":[{"turns":[{"tools":[{"name":"bash","input":{"command":"hang"}}]},{"text":"Done."}]}]}"#;
    let (world, _worker) = World::running(script).await;
    Broker::until(&world.broker.ran, "hang").await;
    let began = Instant::now();
    world.lifecycle.change(|ledger| ledger.cancel());
    Broker::until(&world.broker.killed, "hang").await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(
        matches!(world.payloads().last(), Some(Payload::RunStateChanged(change)) if change.to() == run::State::Cancelled)
    );
    assert_eq!(world.lifecycle.see(|ledger| ledger.reports.clone()), ["launched"]);
}

#[tokio::test]
async fn case_s07_cancel_ends_a_slow_model_call() {
    let script = r#"{"conversations":[{"turns":[{"text":"Done.","fault":{"kind":"slow","delay_ms":600000}}]}]}"#;
    let mut world = World::new(script).await;
    world.config.slots = 1;
    world.prompt();
    let _worker = world.worker();
    world.event("accepted", |payload| matches!(payload, Payload::MessageAccepted(_))).await;
    let mut claims = world.lifecycle.claim_calls.subscribe();
    let before = *claims.borrow_and_update();
    world.lifecycle.change(|ledger| ledger.cancel());
    // The worker's one slot is free again, and asked for work, once the call was given up.
    timeout(Duration::from_secs(3), claims.wait_for(|calls| *calls > before)).await.expect("the slot is free").unwrap();
    assert_eq!(world.lifecycle.see(|ledger| ledger.reports.clone()), ["launched"]);
}

#[tokio::test]
async fn a_changed_desire_stops_the_work_and_is_reported() {
    let script =
        r#"{"conversations":[{"turns":[{"tools":[{"name":"bash","input":{"command":"hang"}}]},{"text":"Done."}]}]}"#;
    let (world, _worker) = World::running(script).await;
    Broker::until(&world.broker.ran, "hang").await;
    world.lifecycle.desire_changed.store(true, Ordering::SeqCst);
    Broker::until(&world.broker.killed, "hang").await;
    world.lifecycle.until("ended is reported", |ledger| ledger.reports.contains(&"ended")).await;
}
