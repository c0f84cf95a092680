//! What the model API does wrong, and the budgets.

use std::time::{Duration, Instant};

use berth_rpc::lifecycle::{Budget, event::Payload, run};

use crate::world::{KEY, World};

fn one_turn(turn: &str) -> String {
    format!(r#"{{"conversations":[{{"turns":[{turn}]}}]}}"#)
}

#[tokio::test]
async fn case_n03_backoff_waits_as_told_on_429() {
    let script = one_turn(r#"{"text":"Done.","fault":{"kind":"status","status":429,"retry_after_s":1}}"#);
    let began = Instant::now();
    let (world, _worker) = World::running(&script).await;
    world.settled(run::State::Completed).await;
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(world.calls().await.len(), 2);
    assert!(
        world
            .payloads()
            .iter()
            .any(|p| matches!(p, Payload::Notice(n) if n.code == "MODEL_RETRY" && n.text.contains("429")))
    );
}

#[tokio::test]
async fn case_n03_529_and_500_are_tried_again() {
    for status in [529, 500, 503] {
        let fault = format!(r#"{{"text":"Done.","fault":{{"kind":"status","status":{status},"times":3}}}}"#);
        let (world, _worker) = World::running(&one_turn(&fault)).await;
        world.settled(run::State::Completed).await;
        assert_eq!(world.calls().await.len(), 4, "{status}");
    }
}

#[tokio::test]
async fn case_n03_a_refused_request_is_not_tried_again() {
    for status in [400, 401, 404] {
        let fault = format!(r#"{{"text":"Done.","fault":{{"kind":"status","status":{status}}}}}"#);
        let (world, _worker) = World::running(&one_turn(&fault)).await;
        let (reason, text) = world.failed().await;
        assert_eq!((reason.as_str(), world.calls().await.len()), ("MODEL_ERROR", 1), "{status}");
        assert!(text.contains(&status.to_string()), "{text}");
    }
}

#[tokio::test]
async fn case_n03_a_wait_beyond_patience_ends_the_turn_rate_limited() {
    let script = one_turn(r#"{"text":"Done.","fault":{"kind":"status","status":429,"retry_after_s":3600}}"#);
    let (world, _worker) = World::running(&script).await;
    let (reason, text) = world.failed().await;
    assert_eq!(reason, "RATE_LIMITED");
    assert!(text.contains("3600 s"), "{text}");
}

#[tokio::test]
async fn case_n03_a_cut_stream_is_asked_for_again_as_a_whole_and_its_text_voided() {
    let text = "word ".repeat(200);
    let turns = format!(
        r#"{{"text":"{text}","tools":[{{"name":"bash","input":{{"command":"echo 1"}}}}],"fault":{{"kind":"status","status":529,"after_bytes":3000}}}},
           {{"text":"{text}","fault":{{"kind":"cut","after_bytes":2500}}}}"#
    );
    let (world, _worker) = World::running(&one_turn(&turns)).await;
    world.settled(run::State::Completed).await;
    assert_eq!(*world.broker.ran.borrow(), ["echo 1"]);
    assert_eq!(world.calls().await.len(), 4);
    // Every text that is not void adds up to the replies.
    let payloads = world.payloads();
    let void: Vec<i32> = payloads
        .iter()
        .filter_map(|p| if let Payload::AttemptVoided(v) = p { Some(v.attempt) } else { None })
        .collect();
    let shown: String = payloads
        .iter()
        .filter_map(|p| match p {
            Payload::AssistantDelta(delta) if !void.contains(&delta.attempt) => Some(delta.text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(shown, format!("{text}{text}"));
}

#[tokio::test]
async fn case_n03_max_tokens_goes_on_and_a_cut_call_is_not_run() {
    let turns = r#"
        {"text":"Part one,","tools":[{"name":"bash","input":{"command":"echo never"}}],"stop_reason":"max_tokens"},
        {"text":" part two.","stop_reason":"max_tokens"},
        {"text":"Done."}"#;
    let (world, _worker) = World::running(&one_turn(turns)).await;
    world.settled(run::State::Completed).await;
    assert_eq!(*world.broker.ran.borrow(), Vec::<String>::new());
    assert_eq!(world.calls().await.len(), 3);
    let notices = world.payloads().iter().filter(|p| matches!(p, Payload::Notice(n) if n.code == "REPLY_CUT")).count();
    assert_eq!(notices, 2);
}

#[tokio::test]
async fn case_n03_endless_cuts_end_with_a_reason() {
    let cut = r#"{"text":"more","stop_reason":"max_tokens"}"#;
    let (world, _worker) = World::running(&one_turn(&[cut; 10].join(","))).await;
    assert_eq!(world.failed().await.0, "MODEL_ERROR");
    assert_eq!(world.calls().await.len(), 4);
}

#[tokio::test]
async fn refusal_and_a_full_window_have_reasons_of_their_own() {
    for (stop, expected) in [("refusal", "MODEL_REFUSED"), ("model_context_window_exceeded", "CONTEXT_WINDOW_EXCEEDED")]
    {
        let (world, _worker) = World::running(&one_turn(&format!(r#"{{"text":"No.","stop_reason":"{stop}"}}"#))).await;
        assert_eq!(world.failed().await.0, expected);
    }
}

#[tokio::test]
async fn pause_turn_is_sent_again_as_it_is() {
    let (world, _worker) =
        World::running(&one_turn(r#"{"text":"Wait.","stop_reason":"pause_turn"},{"text":"Done."}"#)).await;
    world.settled(run::State::Completed).await;
    let calls = world.calls().await;
    assert_eq!(calls[1]["body"]["messages"].as_array().unwrap().len(), 2);
}

const LOOP: &str =
    r#"{"tools":[{"name":"bash","input":{"command":"echo 1"}}],"usage":{"input_tokens":40,"output_tokens":10}}"#;

#[tokio::test]
async fn case_s11_budgets_end_the_run_with_a_reason() {
    for (set, expected, calls) in [("turns", "BUDGET_TURNS", 3), ("tokens", "BUDGET_TOKENS", 2)] {
        let world = World::new(&one_turn(&[LOOP; 20].join(","))).await;
        world.lifecycle.change(|ledger| match set {
            "turns" => ledger.work.max_turns = 3,
            _ => ledger.work.budget = Some(Budget { max_tokens: 100, wall_clock: None }),
        });
        world.prompt();
        let _worker = world.worker();
        assert_eq!(world.failed().await.0, expected);
        assert_eq!(world.calls().await.len(), calls, "{set}");
    }
}

#[tokio::test]
async fn case_s11_the_wall_clock_ends_a_command_in_flight() {
    let world = World::new(&one_turn(r#"{"tools":[{"name":"bash","input":{"command":"hang"}}]}"#)).await;
    world.lifecycle.change(|ledger| ledger.wall_clock = Some(Duration::from_millis(1500)));
    world.prompt();
    let _worker = world.worker();
    assert_eq!(world.failed().await.0, "BUDGET_WALL_CLOCK");
    crate::broker::Broker::until(&world.broker.killed, "hang").await;
}

#[tokio::test]
async fn case_s11_the_wall_clock_ends_a_reply_in_flight_and_voids_its_half() {
    let text = "word ".repeat(200);
    let turn = format!(r#"{{"text":"{text}","fault":{{"kind":"slow","delay_ms":600000,"after_bytes":4000}}}}"#);
    let world = World::new(&one_turn(&turn)).await;
    world.lifecycle.change(|ledger| ledger.wall_clock = Some(Duration::from_millis(1500)));
    world.prompt();
    let _worker = world.worker();
    assert_eq!(world.failed().await.0, "BUDGET_WALL_CLOCK");
    let payloads = world.payloads();
    assert!(payloads.iter().any(|p| matches!(p, Payload::AssistantDelta(_))));
    assert!(payloads.iter().any(|p| matches!(p, Payload::AttemptVoided(void) if void.attempt == 1)));
}

#[tokio::test]
async fn a_missing_or_foreign_key_is_a_reason_and_the_key_is_sent_nowhere() {
    for (secret, expected) in
        [(None, "no secret"), (Some((KEY.to_owned(), vec!["api.anthropic.com".to_owned()])), "may not be used")]
    {
        let world = World::new(&one_turn(r#"{"text":"Done."}"#)).await;
        *world.lifecycle.secret.lock().unwrap() = secret;
        world.prompt();
        let _worker = world.worker();
        let (reason, text) = world.failed().await;
        assert_eq!(reason, "MODEL_KEY_MISSING");
        assert!(text.contains(expected), "{text}");
        assert_eq!(world.calls().await.len(), 0);
    }
}

#[tokio::test]
async fn the_deployments_own_key_serves_tenants_without_one() {
    let mut world = World::new(&one_turn(r#"{"text":"Done."}"#)).await;
    *world.lifecycle.secret.lock().unwrap() = None;
    world.config.model_api_key = Some(KEY.into());
    world.prompt();
    let _worker = world.worker();
    world.settled(run::State::Completed).await;
}
