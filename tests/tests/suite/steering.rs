//! Messages to a running agent.

use std::time::Duration;

use berth_emulators::model_api::Script;
use berth_tests::{World, eventually};
use serde_json::{Value, json};

use super::main_job::demo_body;

/// The first tool call lasts until the test has created a file in the workdir through nothing but time; the steered prompt has
/// a conversation of its own.
fn script() -> Script {
    Script::parse(
        &json!({"conversations": [
            {"when": {"prompt_contains": "Fix the failing test"}, "turns": [
                {"text": "working", "tools": [{"name": "bash", "input": {"command": "echo begun; sleep 2; echo slept"}}]},
                {"text": "finished without a steer"},
            ]},
            {"when": {"prompt_contains": "second steer"}, "turns": [{"text": "steered well"}]},
        ]})
        .to_string(),
    )
    .unwrap()
}

#[tokio::test]
async fn case_n01_case_n02_steers_reach_the_next_model_request_in_order() {
    let world = World::new(script(), None).await;
    let server = world.server().await;
    let api = server.api();
    let run_id = api.create(demo_body(&world.repo_url())).await;
    eventually(Duration::from_secs(60), || async {
        let events = api.events(&run_id, 100).await;
        events.iter().any(|e| e.get("tool_call").is_some()).then_some(())
    })
    .await
    .expect("the agent works");
    let messages = format!("/v1/agent-runs/{run_id}/messages");
    for text in ["first steer", "second steer"] {
        api.post(&messages, json!({"text": text})).await.ok();
    }
    let run = api.wait_for(&run_id, &["COMPLETED", "FAILED"]).await;
    assert_eq!(run["result"]["text"], "steered well", "{run:#}");

    let calls: Value =
        reqwest::get(format!("{}/__emulator/calls", world.model_url())).await.unwrap().json().await.unwrap();
    let text = calls.to_string();
    let (first, second) = (text.find("first steer"), text.find("second steer"));
    assert!(first.is_some() && first < second, "both steers, in order: {text:.2000}");
    let log = api.events(&run_id, 100).await;
    let accepted = log.iter().filter(|e| e.get("message_accepted").is_some()).count();
    assert_eq!(accepted, 3, "the prompt and two steers");
}
