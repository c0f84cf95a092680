//! Cancel and delete as clients see them.

use std::time::Duration;

use berth_emulators::model_api::Script;
use berth_tests::{Api, World, eventually};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::main_job::demo_body;

/// A run whose bash call lasts until it is stopped.
fn long_script() -> Script {
    Script::parse(
        &json!({"conversations": [{"turns": [
            {"text": "waiting", "tools": [{"name": "bash", "input": {"command": "echo begun; exec sleep 300"}}]},
            {"text": "done"},
        ]}]})
        .to_string(),
    )
    .unwrap()
}

async fn long_run(world: &World, api: &Api) -> String {
    let run_id = api.create(demo_body(&world.repo_url())).await;
    eventually(Duration::from_secs(60), || async {
        let events = api.events(&run_id, 100).await;
        events.iter().any(|e| e["tool_output"]["text"].as_str().is_some_and(|t| t.contains("begun"))).then_some(())
    })
    .await
    .expect("the command began");
    run_id
}

#[tokio::test]
async fn case_s07_cancel_stops_work_in_flight_and_is_idempotent() {
    let world = World::new(long_script(), None).await;
    let server = world.server().await;
    let api = server.api();
    let run_id = long_run(&world, &api).await;

    let active = api.delete(&run_id).await;
    assert_eq!((active.status, active.reason()), (StatusCode::BAD_REQUEST, "RUN_ACTIVE"), "{}", active.text);

    for _ in 0..2 {
        let cancelled = api.post(&format!("/v1/agent-runs/{run_id}:cancel"), json!({})).await.ok();
        assert_eq!(cancelled["state"], "CANCELLED");
    }
    eventually(Duration::from_secs(20), || async { server.sandboxes().is_empty().then_some(()) })
        .await
        .expect("the sandbox is released after cancel, without a delete");
    api.delete(&run_id).await.ok();
    api.wait_deleted(&run_id).await;
    let changes: Vec<Value> = api.transitions(&run_id).await;
    let cancelled = changes.iter().filter(|t| t["entity"] == "RUN" && t["to"] == "CANCELLED").count();
    assert_eq!(cancelled, 1, "cancel causes no second transition");
}

#[tokio::test]
async fn case_d03_fifty_concurrent_deletes_have_one_truth() {
    let world = World::demo().await;
    let server = world.server().await;
    let api = server.api();
    let run_id = api.create(demo_body(&world.repo_url())).await;
    api.wait_for(&run_id, &["COMPLETED"]).await;
    let member = api.with("berth_not_a_key", "default");
    let deletes = (0..50).map(|i| {
        let (api, member, run_id) = (api.clone(), member.clone(), run_id.clone());
        tokio::spawn(async move {
            let stranger = i % 10 == 0;
            let answer = if stranger { member.delete(&run_id).await } else { api.delete(&run_id).await };
            (stranger, answer)
        })
    });
    for joined in futures::future::join_all(deletes).await {
        let (stranger, answer) = joined.unwrap();
        if stranger {
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "a denial stays a denial");
        } else {
            assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
            assert!(["DELETING", "DELETED"].contains(&answer.body["state"].as_str().unwrap()));
        }
    }
    api.wait_deleted(&run_id).await;
    let transitions = api.transitions(&run_id).await;
    let releasing = transitions.iter().filter(|t| t["entity"] == "LEASE" && t["to"] == "RELEASING").count();
    assert_eq!(releasing, 1, "one teardown");
    let receipt = api.get(&format!("/v1/agent-runs/{run_id}:receipt")).await.ok();
    assert_eq!(receipt["receipts"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn case_d05_a_run_whose_sandbox_vanished_deletes_cleanly() {
    let world = World::demo().await;
    let server = world.server().await;
    let api = server.api();
    let run_id = api.create(demo_body(&world.repo_url())).await;
    api.wait_for(&run_id, &["COMPLETED"]).await;
    let [sandbox] = &server.sandboxes()[..] else { panic!("one sandbox lives on for `linger`") };
    std::fs::remove_dir_all(world.data().join("sandboxes").join(sandbox)).ok();
    api.delete(&run_id).await.ok();
    api.wait_deleted(&run_id).await;
    assert!(server.sandboxes().is_empty());
}

#[tokio::test]
async fn case_d02_case_s08_unknown_runs_are_not_found_and_nothing_is_made() {
    let world = World::demo().await;
    let server = world.server().await;
    let api = server.api();
    let unknown = "run-00000000000000000000000000000000";
    let calls = [
        (Method::GET, format!("/v1/agent-runs/{unknown}"), None),
        (Method::DELETE, format!("/v1/agent-runs/{unknown}"), None),
        (Method::POST, format!("/v1/agent-runs/{unknown}:cancel"), Some(json!({}))),
        (Method::POST, format!("/v1/agent-runs/{unknown}:retry-deletion"), Some(json!({}))),
        (Method::POST, format!("/v1/agent-runs/{unknown}/messages"), Some(json!({"text": "hi"}))),
        (Method::GET, format!("/v1/agent-runs/{unknown}/events"), None),
        (Method::GET, format!("/v1/agent-runs/{unknown}/transitions"), None),
        (Method::GET, format!("/v1/agent-runs/{unknown}:receipt"), None),
    ];
    for (method, path, body) in calls {
        let answer = api.call(method.clone(), &path, body).await;
        assert_eq!(
            (answer.status, answer.reason()),
            (StatusCode::NOT_FOUND, "RUN_NOT_FOUND"),
            "{method} {path}: {}",
            answer.text
        );
    }
    let runs = api.get("/v1/agent-runs").await.ok();
    assert!(runs["runs"].as_array().is_none_or(Vec::is_empty), "{runs}");
}
