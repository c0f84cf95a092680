//! StreamEvents: every reader sees 1..N, once each, whatever happens on the way.

use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_events::Hint;
use berth_rpc::lifecycle::{Event, Notice, event::Payload};
use berth_rpc::sessions::{StreamEventsRequest, stream_events_response::Item};
use berth_rpc::status::reason;
use futures::StreamExt as _;
use rand::Rng as _;
use tokio::time::timeout;
use tonic::{Code, Status};

use crate::ledger::RUN;
use crate::lifecycle::DEADLINE;
use crate::messages::as_ada;
use crate::world::World;

const NOBODY: &str = r#"{"conversations":[]}"#;

fn stream_from(after_sequence: i64) -> StreamEventsRequest {
    StreamEventsRequest { run_id: RUN.into(), after_sequence }
}

fn note(text: String) -> Payload {
    Payload::Notice(Notice { code: "N".into(), text })
}

fn write(world: &World, count: usize) {
    world.lifecycle.change(|ledger| (0..count).for_each(|n| ledger.write(note(n.to_string()))));
}

/// Numbers until the stream ends.
async fn rest(world: &World, after: i64) -> (Vec<i64>, Option<Status>) {
    let (mut client, _shutdown) = world.client();
    let mut stream = client.stream_events(as_ada(stream_from(after))).await.unwrap().into_inner();
    let mut numbers = Vec::new();
    loop {
        match timeout(DEADLINE, stream.next()).await.expect("the stream goes on") {
            Some(Ok(response)) => {
                if let Some(Item::Event(event)) = response.item {
                    numbers.push(event.sequence);
                }
            }
            Some(Err(status)) => return (numbers, Some(status)),
            None => return (numbers, None),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_e01_readers_that_reconnect_at_random_see_every_event_once() {
    const TOTAL: i64 = 5000;
    let world = World::new(NOBODY).await;
    world.lifecycle.change(|ledger| ledger.queue("msg-1", "go"));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (mut client, shutdown) = world.client();
            tokio::spawn(async move {
                let _shutdown = shutdown;
                let mut seen: Vec<i64> = Vec::new();
                'connected: loop {
                    let after = seen.last().copied().unwrap_or(0);
                    let mut stream = client.stream_events(as_ada(stream_from(after))).await.unwrap().into_inner();
                    let stay = rand::rng().random_range(1..400);
                    for _ in 0..stay {
                        match timeout(DEADLINE, stream.next()).await.expect("the stream goes on") {
                            Some(Ok(response)) => match response.item {
                                Some(Item::Event(event)) => seen.push(event.sequence),
                                Some(Item::KeepAlive(_)) | None => {}
                                Some(Item::Lagged(lagged)) => {
                                    assert_eq!(lagged.after_sequence, seen.last().copied().unwrap_or(0))
                                }
                            },
                            Some(Err(status)) => panic!("{status}"),
                            None => break 'connected,
                        }
                    }
                }
                seen
            })
        })
        .collect();
    while world.lifecycle.see(|ledger| ledger.last()) < TOTAL {
        write(&world, rand::rng().random_range(1..20));
        // Other runs' events and stale hints come along too.
        world.bus.publish(Hint::Event(Box::new(Event { run_id: "run-2".into(), sequence: 1, ..Event::default() })));
        tokio::task::yield_now().await;
    }
    world.lifecycle.change(|ledger| ledger.cancel());
    let total = world.lifecycle.see(|ledger| ledger.last());
    for reader in readers {
        assert_eq!(reader.await.unwrap(), (1..=total).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn case_e04_a_replay_is_as_long_as_what_is_missing() {
    let world = World::new(NOBODY).await;
    world.lifecycle.change(|ledger| ledger.queue("msg-1", "go"));
    write(&world, 100);
    world.lifecycle.change(|ledger| ledger.cancel());
    let head = world.lifecycle.see(|ledger| ledger.last());
    let (numbers, end) = rest(&world, head - 7).await;
    assert_eq!(numbers, (head - 6..=head).collect::<Vec<_>>());
    assert!(end.is_none());
    assert_eq!(world.lifecycle.events_read.load(Ordering::SeqCst), 7);
    assert_eq!(rest(&world, head).await.0, Vec::<i64>::new());
    assert!(world.lifecycle.actions.lock().unwrap().iter().all(|action| action == "StreamEvents"));
}

#[tokio::test]
async fn cursors_that_make_no_sense_are_refused() {
    let world = World::new(NOBODY).await;
    write(&world, 3);
    let (mut client, _shutdown) = world.client();
    for (after, expected) in [(4, "CURSOR_AHEAD"), (-1, "CURSOR_INVALID")] {
        let status = client.stream_events(as_ada(stream_from(after))).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).as_deref()), (Code::InvalidArgument, Some(expected)));
    }
    let status = client.stream_events(tonic::Request::new(stream_from(0))).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn without_any_hint_the_log_is_polled_and_silence_is_broken_by_keep_alives() {
    let mut world = World::new(NOBODY).await;
    world.config.streams.keep_alive = Duration::from_millis(50);
    world.config.streams.poll = Duration::from_millis(200);
    // Hints of this bus never come: the ledger publishes on another.
    world.bus = berth_events::Bus::in_process();
    world.lifecycle.change(|ledger| ledger.queue("msg-1", "go"));
    let (mut client, _shutdown) = world.client();
    let head = world.lifecycle.see(|ledger| ledger.last());
    let mut stream = client.stream_events(as_ada(stream_from(head))).await.unwrap().into_inner();
    let quiet = timeout(DEADLINE, stream.next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(quiet.item, Some(Item::KeepAlive(_))));
    write(&world, 1);
    loop {
        let response = timeout(DEADLINE, stream.next()).await.unwrap().unwrap().unwrap();
        if let Some(Item::Event(event)) = response.item {
            assert_eq!(event.sequence, head + 1);
            break;
        }
    }
}

#[tokio::test]
async fn a_credential_that_ran_out_asks_the_reader_to_come_back() {
    let mut world = World::new(NOBODY).await;
    world.config.streams.poll = Duration::from_millis(50);
    world.lifecycle.change(|ledger| ledger.queue("msg-1", "go"));
    let (mut client, _shutdown) = world.client();
    let head = world.lifecycle.see(|ledger| ledger.last());
    let mut stream = client.stream_events(as_ada(stream_from(head))).await.unwrap().into_inner();
    world.lifecycle.revoked.store(true, Ordering::SeqCst);
    let last = timeout(DEADLINE, stream.next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(last.item, Some(Item::Lagged(lagged)) if lagged.after_sequence == head));
    assert_eq!(client.stream_events(as_ada(stream_from(head))).await.unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn at_shutdown_readers_are_told_where_to_go_on() {
    let world = World::new(NOBODY).await;
    world.lifecycle.change(|ledger| ledger.queue("msg-1", "go"));
    let (mut client, shutdown) = world.client();
    let mut stream = client.stream_events(as_ada(stream_from(0))).await.unwrap().into_inner();
    let head = world.lifecycle.see(|ledger| ledger.last());
    shutdown.cancel();
    let mut last = None;
    while let Some(response) = timeout(DEADLINE, stream.next()).await.unwrap() {
        last = response.unwrap().item;
    }
    assert!(matches!(last, Some(Item::Lagged(lagged)) if lagged.after_sequence == head));
}
