//! Messages sent while the agent works.

use berth_rpc::lifecycle::{event::Payload, run};
use serde_json::Value;

use crate::broker::Broker;
use crate::world::{World, results};

fn texts(call: &Value) -> Vec<String> {
    let messages = call["body"]["messages"].as_array().unwrap();
    let blocks = messages
        .iter()
        .filter(|message| message["role"] == "user")
        .flat_map(|message| message["content"].as_array().unwrap());
    blocks.filter_map(|block| block["text"].as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn case_n01_case_n02_two_quick_steers_are_in_the_next_request_in_order() {
    let script = r#"{"conversations":[{"turns":[
        {"text":"Working.","fault":{"kind":"slow","delay_ms":300},"tools":[{"name":"bash","input":{"command":"echo 1"}}]},
        {"text":"Heard."}]}]}"#;
    let (world, _worker) = World::running(script).await;
    world.event("accepted", |payload| matches!(payload, Payload::MessageAccepted(_))).await;
    world.lifecycle.change(|ledger| {
        ledger.queue("msg-2", "steer one");
        ledger.queue("msg-3", "steer two");
    });
    world.settled(run::State::Completed).await;
    let calls = world.calls().await;
    assert_eq!(calls.len(), 2);
    assert_eq!(texts(&calls[0]), ["Fix the test."]);
    assert_eq!(texts(&calls[1]), ["Fix the test.", "steer one", "steer two"]);
    let newest = calls[1]["body"]["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(newest["content"][0]["type"], "tool_result");
    let ended: Vec<Vec<String>> = world
        .payloads()
        .into_iter()
        .filter_map(|payload| match payload {
            Payload::TurnEnded(ended) => Some(ended.message_ids),
            _ => None,
        })
        .collect();
    assert_eq!(ended, [["msg-1", "msg-2", "msg-3"]]);
}

#[tokio::test]
async fn a_message_during_the_last_reply_begins_a_turn_of_its_own() {
    let script = r#"{"conversations":[
        {"when":{"prompt_contains":"more"},"turns":[{"text":"Did more."}]},
        {"turns":[{"text":"Done.","fault":{"kind":"slow","delay_ms":300}}]}]}"#;
    let (world, _worker) = World::running(script).await;
    world.event("accepted", |payload| matches!(payload, Payload::MessageAccepted(_))).await;
    world.lifecycle.change(|ledger| ledger.queue("msg-2", "do more"));
    world.settled(run::State::Completed).await;
    assert_eq!(world.lifecycle.see(|ledger| ledger.result.clone().unwrap().text), "Did more.");
    assert_eq!(world.lifecycle.see(|ledger| ledger.launch), 1);
}

#[tokio::test]
async fn a_follow_up_goes_on_in_a_new_launch_with_the_whole_history() {
    let script = r#"{"conversations":[
        {"when":{"prompt_contains":"again"},"turns":[{"tools":[{"name":"bash","input":{"command":"echo 2"}}]},{"text":"Again done."}]},
        {"turns":[{"tools":[{"name":"bash","input":{"command":"echo 1"}}]},{"text":"Done."}]}]}"#;
    let (world, _worker) = World::running(script).await;
    world.settled(run::State::Completed).await;
    world.lifecycle.change(|ledger| ledger.queue("msg-2", "again"));
    Broker::until(&world.broker.ran, "echo 2").await;
    world.settled(run::State::Completed).await;
    assert_eq!(world.lifecycle.see(|ledger| ledger.launch), 2);
    let calls = world.calls().await;
    assert_eq!(texts(calls.last().unwrap()), ["Fix the test.", "again"]);
    assert_eq!(results(&world.payloads()).len(), 2);
}
