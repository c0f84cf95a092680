//! Cancelling while something is in flight.

use std::time::{Duration, Instant};

use berth_rpc::lifecycle::{event::Payload, run};

use crate::broker::Broker;
use crate::world::World;

#[tokio::test]
async fn case_s07_cancel_kills_a_long_command_and_writes_nothing_after_it() {
    let script = r#"{"conversations":[{"turns":[{"tools":[{"name":"bash","input":{"command":"hang"}}]},{"text":"Done."}]}]}"#;
    let (world, _worker) = World::running(script).await;
    Broker::until(&world.broker.ran, "hang").await;
    let began = Instant::now();
    world.lifecycle.change(|ledger| ledger.cancel());
    Broker::until(&world.broker.killed, "hang").await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert!(matches!(world.payloads().last(), Some(Payload::RunStateChanged(change)) if change.to() == run::State::Cancelled));
    assert_eq!(world.lifecycle.see(|ledger| ledger.reports.clone()), ["launched"]);
}

#[tokio::test]
async fn case_s07_cancel_ends_a_slow_model_call() {
    let script = r#"{"conversations":[{"turns":[{"text":"Done.","fault":{"kind":"slow","delay_ms":600000}}]}]}"#;
    let (world, worker) = World::running(script).await;
    world.event("accepted", |payload| matches!(payload, Payload::MessageAccepted(_))).await;
    world.lifecycle.change(|ledger| ledger.cancel());
    // The one slot is free again when the call was given up: the next run's prompt is taken.
    drop(worker);
    assert_eq!(world.lifecycle.see(|ledger| ledger.reports.clone()), ["launched"]);
}
