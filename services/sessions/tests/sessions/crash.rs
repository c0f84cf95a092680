//! Workers that die, and the next one that goes on from the log.

use berth_rpc::lifecycle::{
    AppendRequest, AssistantDelta, AssistantMessage, Event, MessageAccepted, ToolCall, ToolOutput, Usage,
    event::Payload, report_request::Outcome, run, tool_output,
};

use crate::broker::Broker;
use crate::ledger::{RUN, SESSION};
use crate::world::{World, results};

#[tokio::test]
async fn a_command_in_flight_at_a_crash_is_answered_unknown_and_never_run_twice() {
    let script = r#"{"conversations":[{"turns":[
        {"tools":[{"name":"bash","input":{"command":"echo 1"}},{"name":"bash","input":{"command":"hang"}},{"name":"bash","input":{"command":"echo 3"}}]},
        {"text":"Checked."}]}]}"#;
    let (world, first) = World::running(script).await;
    Broker::until(&world.broker.ran, "hang").await;
    first.kill(&world).await;
    Broker::until(&world.broker.killed, "hang").await;
    world.lifecycle.change(|ledger| ledger.expire());
    let _second = world.worker();
    world.settled(run::State::Completed).await;
    assert_eq!(*world.broker.ran.borrow(), ["echo 1", "hang"]);
    let told = results(&world.payloads());
    assert_eq!((told.len(), told[0].text.as_str()), (3, "1\n"));
    assert!(told[1].interrupted && told[1].is_error && told[1].text.contains("outcome is unknown"));
    assert!(!told[2].interrupted && told[2].is_error && told[2].text.contains("not run"));
    let calls = world.calls().await;
    assert_eq!(calls.len(), 2);
    let content = calls[1]["body"]["messages"].as_array().unwrap().last().unwrap()["content"].clone();
    assert_eq!(content.as_array().unwrap().len(), 3);
    assert_eq!(world.lifecycle.see(|ledger| ledger.result.clone().unwrap().text), "Checked.");
}

/// A launch of an earlier worker, as far as its events say.
fn earlier_launch(world: &World, payloads: Vec<Payload>) {
    world.lifecycle.change(|ledger| {
        ledger.next_work().unwrap();
        ledger.report(ledger.fence, Outcome::Launched(berth_rpc::lifecycle::Launched {})).unwrap();
        let drive = ledger.next_work().unwrap();
        let events = payloads.into_iter().enumerate().map(|(index, payload)| Event {
            launch_sequence: index as i64 + 1,
            payload: Some(payload),
            ..Event::default()
        });
        let events: Vec<Event> = events.collect();
        for events in events.chunks(256).map(<[Event]>::to_vec) {
            let (run_id, session_id, launch) = (RUN.into(), SESSION.into(), ledger.launch);
            ledger.append(AppendRequest { run_id, session_id, fence: drive.fence, launch, events }).unwrap();
        }
        ledger.expire();
    });
}

fn accepted() -> Payload {
    Payload::MessageAccepted(MessageAccepted { message_id: "msg-1".into() })
}

#[tokio::test]
async fn a_crash_between_the_last_reply_and_the_turns_end_asks_nothing_again() {
    let world = World::new(r#"{"conversations":[{"turns":[{"text":"asked twice"}]}]}"#).await;
    world.prompt();
    let reply = AssistantMessage {
        content_json: r#"[{"type":"text","text":"All done."}]"#.into(),
        stop_reason: "end_turn".into(),
        usage: Some(Usage::default()),
        ..AssistantMessage::default()
    };
    earlier_launch(&world, vec![accepted(), Payload::AssistantMessage(reply)]);
    let _worker = world.worker();
    world.settled(run::State::Completed).await;
    assert_eq!(world.calls().await.len(), 0);
    assert_eq!(world.lifecycle.see(|ledger| ledger.result.clone().unwrap().text), "All done.");
}

#[tokio::test]
async fn a_log_of_several_pages_goes_on_where_it_stopped() {
    // More shown output and text than one page of the log holds, between the parts of the conversation.
    let world = World::new(r#"{"conversations":[{"turns":[{"text":"unused"},{"text":"Checked."}]}]}"#).await;
    world.prompt();
    let delta = |_| Payload::AssistantDelta(AssistantDelta { attempt: 1, text: "word ".into() });
    let output = |_| {
        let stream = tool_output::Stream::Stdout.into();
        Payload::ToolOutput(ToolOutput { call_id: "toolu_1".into(), stream, text: "line\n".into() })
    };
    let reply = AssistantMessage {
        content_json: r#"[{"type":"tool_use","id":"toolu_1","name":"bash","input":{"command":"make"}}]"#.into(),
        stop_reason: "tool_use".into(),
        usage: Some(Usage::default()),
        ..AssistantMessage::default()
    };
    let call = ToolCall { call_id: "toolu_1".into(), name: "bash".into(), input_json: r#"{"command":"make"}"#.into() };
    let mut payloads = vec![accepted()];
    payloads.extend((0..1500).map(delta));
    payloads.extend([Payload::AssistantMessage(reply), Payload::ToolCall(call)]);
    payloads.extend((0..1500).map(output));
    earlier_launch(&world, payloads);
    world.lifecycle.change(|ledger| ledger.queue("msg-2", "And then stop."));
    let _worker = world.worker();
    world.settled(run::State::Completed).await;
    let told = results(&world.payloads());
    assert!(told.len() == 1 && told[0].interrupted && told[0].text.contains("outcome is unknown"), "{told:?}");
    assert!(world.broker.ran.borrow().is_empty());
    let calls = world.calls().await;
    assert_eq!(calls.len(), 1);
    let messages = calls[0]["body"]["messages"].as_array().unwrap();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    assert!(messages[2].to_string().contains("And then stop."), "{}", messages[2]);
    assert_eq!(world.lifecycle.see(|ledger| ledger.result.clone().unwrap().text), "Checked.");
}

#[tokio::test]
async fn case_s04_a_stranded_prompt_is_delivered_once_by_the_next_launch() {
    let world = World::new(r#"{"conversations":[{"turns":[{"text":"Done."}]}]}"#).await;
    world.prompt();
    earlier_launch(&world, vec![accepted()]);
    earlier_launch(&world, vec![]);
    let _worker = world.worker();
    world.settled(run::State::Completed).await;
    let calls = world.calls().await;
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0]["body"]["messages"].as_array().unwrap().len(), 1);
    assert_eq!(calls[0]["body"]["messages"][0]["content"].as_array().unwrap().len(), 1);
    assert_eq!(world.lifecycle.see(|ledger| ledger.launch), 3);
}

#[tokio::test]
async fn a_worker_without_contact_lets_go_before_its_claim_may_be_taken() {
    let script =
        r#"{"conversations":[{"turns":[{"tools":[{"name":"bash","input":{"command":"hang"}}]},{"text":"Done."}]}]}"#;
    let (world, _worker) = World::running(script).await;
    Broker::until(&world.broker.ran, "hang").await;
    world.lifecycle.deaf.store(true, std::sync::atomic::Ordering::SeqCst);
    Broker::until(&world.broker.killed, "hang").await;
    assert_eq!(results(&world.payloads()).len(), 0);
}
