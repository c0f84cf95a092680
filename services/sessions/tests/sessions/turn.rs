//! Whole turns: tools, their limits, and what is counted.

use berth_rpc::lifecycle::{event::Payload, run};

use crate::lifecycle::Lifecycle;
use crate::world::{World, results};

const FIX: &str = r#"{"conversations":[{"turns":[
    {"text":"Looking.","thinking":"hm","tools":[{"name":"read","input":{"path":"calc.sh"}},{"name":"bash","input":{"command":"fail 1"}}]},
    {"tools":[{"name":"edit","input":{"path":"calc.sh","old_string":"a * b","new_string":"a / b"}}]},
    {"tools":[{"name":"bash","input":{"command":"echo ok"}}]},
    {"text":"Fixed the division."}
]}]}"#;

fn kinds(payloads: &[Payload]) -> Vec<&'static str> {
    let kind = |payload: &Payload| match payload {
        Payload::UserMessage(_) => "user",
        Payload::MessageAccepted(_) => "accepted",
        Payload::AssistantDelta(_) => "delta",
        Payload::AttemptVoided(_) => "voided",
        Payload::AssistantMessage(_) => "reply",
        Payload::ToolCall(_) => "call",
        Payload::ToolOutput(_) => "output",
        Payload::ToolResult(_) => "result",
        Payload::TurnEnded(_) => "ended",
        Payload::Notice(_) => "notice",
        Payload::RunStateChanged(_) => "state",
    };
    payloads.iter().map(kind).collect()
}

#[tokio::test]
async fn a_scripted_turn_reads_edits_runs_and_completes() {
    let (world, _worker) = {
        let world = World::new(FIX).await;
        world.broker.files.lock().unwrap().insert("calc.sh".into(), b"divide() { a * b }\n".to_vec());
        world.prompt();
        let worker = world.worker();
        (world, worker)
    };
    world.settled(run::State::Completed).await;
    assert_eq!(world.broker.file("calc.sh").unwrap(), "divide() { a / b }\n");
    let payloads = world.payloads();
    let expected = [
        "user", "state", "accepted", "delta", "reply", "call", "result", "call", "output", "result", "reply", "call",
        "result", "reply", "call", "output", "result", "delta", "reply", "ended", "state",
    ];
    assert_eq!(kinds(&payloads), expected);
    let told: Vec<String> = results(&payloads).into_iter().map(|result| result.text).collect();
    assert_eq!(told, ["1\tdivide() { a * b }", "exit 1\nit failed\n", "replaced 1", "ok\n"]);
    world.lifecycle.see(|ledger| {
        let result = ledger.result.clone().unwrap();
        assert_eq!((result.text.as_str(), result.head_commit.as_str()), ("Fixed the division.", "abc"));
        assert_eq!(ledger.reports, ["launched", "collected", "parked"]);
        let numbers: Vec<i64> = ledger.events.iter().filter(|e| e.launch == 1).map(|e| e.launch_sequence).collect();
        assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>());
    });
    let calls = world.calls().await;
    let last = calls.last().unwrap();
    let body = &last["body"];
    assert_eq!(body["messages"][1]["content"][0]["type"], "thinking");
    assert!(body["messages"][1]["content"][0]["signature"].is_string());
    assert_eq!(body["tools"].as_array().unwrap().len(), 4);
    assert!(!body.to_string().contains(crate::world::KEY));
}

#[tokio::test]
async fn case_n05_real_usage_is_summed() {
    let script = r#"{"conversations":[{"turns":[
        {"tools":[{"name":"bash","input":{"command":"echo 1"}}],"usage":{"input_tokens":100,"output_tokens":7}},
        {"text":"Done.","usage":{"input_tokens":250,"output_tokens":5}}]}]}"#;
    let (world, _worker) = World::running(script).await;
    world.settled(run::State::Completed).await;
    world.lifecycle.see(|ledger| {
        let usage = ledger.usage;
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.model_calls), (350, 12, 2));
    });
}

#[tokio::test]
async fn case_a09_a_tool_that_was_not_granted_does_not_run() {
    let script = r#"{"conversations":[{"turns":[
        {"tools":[{"name":"bash","input":{"command":"echo 1"}},{"name":"write","input":{"path":"f","content":"x"}},{"name":"rm","input":{}}]},
        {"text":"Done."}]}]}"#;
    let world = World::new(script).await;
    world.lifecycle.change(|ledger| ledger.work.tools = vec!["read".into()]);
    world.prompt();
    let _worker = world.worker();
    world.settled(run::State::Completed).await;
    assert_eq!(*world.broker.ran.borrow(), Vec::<String>::new());
    assert_eq!(world.broker.file("f"), None);
    let told = results(&world.payloads());
    assert!(told.iter().all(|result| result.is_error));
    assert!(
        told[0].text.contains("not granted")
            && told[1].text.contains("not granted")
            && told[2].text.contains("no tool")
    );
    let calls = world.calls().await;
    assert_eq!(calls[0]["body"]["tools"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn case_n04_an_empty_file_and_a_deleting_edit_work() {
    let script = r#"{"conversations":[{"turns":[
        {"tools":[{"name":"write","input":{"path":"empty","content":""}},{"name":"edit","input":{"path":"f","old_string":"gone\n","new_string":""}}]},
        {"tools":[{"name":"read","input":{"path":"nowhere"}},{"name":"read","input":{}}]},
        {"text":"Done."}]}]}"#;
    let world = World::new(script).await;
    world.broker.files.lock().unwrap().insert("f".into(), b"kept\ngone\n".to_vec());
    world.prompt();
    let _worker = world.worker();
    world.settled(run::State::Completed).await;
    assert_eq!(world.broker.file("empty").as_deref(), Some(""));
    assert_eq!(world.broker.file("f").as_deref(), Some("kept\n"));
    let told = results(&world.payloads());
    assert_eq!(told[0].text, "wrote 0 bytes");
    assert!(told[2].is_error && told[2].text.contains("no file nowhere"));
    assert!(told[3].is_error && told[3].text.contains("missing field"));
}

#[tokio::test]
async fn case_n06_a_flood_is_capped_for_model_and_reader() {
    let script = r#"{"conversations":[{"turns":[{"tools":[{"name":"bash","input":{"command":"flood 2000000"}}]},{"text":"Done."}]}]}"#;
    let (world, _worker) = World::running(script).await;
    world.settled(run::State::Completed).await;
    let payloads = world.payloads();
    let told = &results(&payloads)[0];
    assert!(told.truncated && told.text.len() < 32_000 && told.text.contains("bytes of output are not shown"));
    let shown: usize = payloads
        .iter()
        .map(|payload| if let Payload::ToolOutput(output) = payload { output.text.len() } else { 0 })
        .sum();
    assert!(shown < 300_000, "{shown}");
}

#[tokio::test]
async fn a_lost_append_answer_is_asked_again_and_nothing_is_doubled() {
    let world = World::new(FIX).await;
    world.broker.files.lock().unwrap().insert("calc.sh".into(), b"a * b".to_vec());
    world.lifecycle.lose_append_answers.store(4, std::sync::atomic::Ordering::SeqCst);
    world.prompt();
    let _worker = world.worker();
    world.settled(run::State::Completed).await;
    assert_eq!(*world.broker.ran.borrow(), ["fail 1", "echo ok"]);
    assert_eq!(results(&world.payloads()).len(), 4);
}

#[tokio::test]
async fn a_command_whose_stream_breaks_is_unknown_and_not_repeated() {
    let script =
        r#"{"conversations":[{"turns":[{"tools":[{"name":"bash","input":{"command":"vanish"}}]},{"text":"Done."}]}]}"#;
    let (world, _worker) = World::running(script).await;
    world.settled(run::State::Completed).await;
    assert_eq!(*world.broker.ran.borrow(), ["vanish"]);
    let told = &results(&world.payloads())[0];
    assert!(
        told.interrupted && told.is_error && told.text.contains("outcome is unknown") && told.text.contains("half")
    );
}

#[tokio::test]
async fn a_lost_sandbox_hands_the_session_back() {
    let script =
        r#"{"conversations":[{"turns":[{"tools":[{"name":"bash","input":{"command":"lost"}}]},{"text":"Done."}]}]}"#;
    let (world, _worker) = World::running(script).await;
    let handed_back =
        |lifecycle: &Lifecycle| lifecycle.see(|ledger| ledger.reports.iter().filter(|r| **r == "ended").count());
    world.settled(run::State::Completed).await;
    assert_eq!(handed_back(&world.lifecycle), 1);
    assert_eq!(*world.broker.ran.borrow(), ["lost"]);
}

#[tokio::test]
async fn a_worker_that_leaves_hands_over_and_another_goes_on() {
    let script =
        r#"{"conversations":[{"turns":[{"tools":[{"name":"bash","input":{"command":"hang"}}]},{"text":"Done."}]}]}"#;
    let (world, first) = World::running(script).await;
    crate::broker::Broker::until(&world.broker.ran, "hang").await;
    first.leave();
    crate::broker::Broker::until(&world.broker.killed, "hang").await;
    let _second = world.worker();
    world.settled(run::State::Completed).await;
    assert_eq!(*world.broker.ran.borrow(), ["hang"]);
    assert!(results(&world.payloads())[0].interrupted);
}
