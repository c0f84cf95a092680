//! The walk-through of the main job by HTTP: secrets, create, poll, events, delete, proof.

use berth_tests::{ServerOptions, World};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// The flat body of the walk-through; `max_turns` is a string on purpose.
pub(super) fn demo_body(repo_url: &str) -> Value {
    json!({
        "prompt": "Fix the failing test.",
        "sandbox_provider": "local",
        "repo_url": repo_url,
        "repo_ref": "main",
        "tools": ["read", "write", "edit", "bash"],
        "max_turns": "15",
    })
}

#[tokio::test]
async fn the_walk_through_works_as_the_readme_says() {
    let world = World::demo().await;
    let server = world.server().await;
    let api = server.api();
    api.put_secret("github_token", "ghp_walkthrough", &[]).await.ok();

    let body = demo_body(&world.repo_url());
    let key = [("idempotency-key", "walk-1")];
    let created = api.try_call(Method::POST, "/v1/agent-runs", Some(body.clone()), &key).await.unwrap().ok();
    let run_id = created["run_id"].as_str().unwrap().to_owned();
    let again = api.try_call(Method::POST, "/v1/agent-runs", Some(body.clone()), &key).await.unwrap().ok();
    assert_eq!(again["run_id"], created["run_id"], "same key and body: same run");
    let mut other = body.clone();
    other["prompt"] = json!("Something else.");
    let refused = api.try_call(Method::POST, "/v1/agent-runs", Some(other), &key).await.unwrap();
    assert_eq!((refused.status, refused.reason()), (StatusCode::CONFLICT, "IDEMPOTENCY_KEY_REUSED"));

    let run = api.wait_for(&run_id, &["COMPLETED", "FAILED"]).await;
    assert_eq!(run["state"], "COMPLETED", "{run:#}");
    let result = &run["result"];
    assert!(!result["text"].as_str().unwrap().is_empty());
    assert_eq!(result["head_commit"].as_str().unwrap().len(), 40);
    let diff = result["diff"].as_str().unwrap();
    assert!(diff.contains("-") && diff.contains("calc.sh"), "{diff}");
    assert!(run["usage"]["input_tokens"].as_str().unwrap().parse::<u64>().unwrap() > 0);

    let events = api.events(&run_id, 3).await;
    let numbers: Vec<u64> = events.iter().map(|e| e["sequence"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(numbers, (1..=events.len() as u64).collect::<Vec<_>>());
    let has = |name: &str| events.iter().any(|e| e.get(name).is_some());
    for name in ["user_message", "tool_call", "tool_output", "tool_result", "assistant_message", "run_state_changed"] {
        assert!(has(name), "no {name} in the log");
    }

    let deleting = api.delete(&run_id).await;
    assert_eq!(deleting.status, StatusCode::OK);
    assert_eq!(deleting.body["state"], "DELETING");
    api.wait_deleted(&run_id).await;
    assert_eq!(api.run(&run_id).await.reason(), "RUN_NOT_FOUND");
    let before = api.transitions(&run_id).await;
    assert_eq!(api.delete(&run_id).await.status, StatusCode::OK, "a second DELETE succeeds");
    assert_eq!(api.transitions(&run_id).await, before, "and changes nothing");
    assert_eq!(before.last().unwrap()["to"], "DELETED");

    let receipt = api.get(&format!("/v1/agent-runs/{run_id}:receipt")).await.ok();
    assert_eq!(receipt["complete"], true);
    assert_eq!(receipt["receipts"][0]["kind"], "OBSERVED_ABSENT");
    assert!(server.sandboxes().is_empty(), "{:?}", server.sandboxes());

    // The key of a deleted run never makes a new one.
    let late = api.try_call(Method::POST, "/v1/agent-runs", Some(body), &key).await.unwrap();
    assert_eq!(late.status, StatusCode::NOT_FOUND, "{}", late.text);
}

#[tokio::test]
async fn case_l08_the_sandbox_id_is_shown_before_bootstrap_ends() {
    let world = World::demo().await;
    let server = world.server().await;
    let api = server.api();
    let run_id = api.create(demo_body(&world.repo_url())).await;
    api.wait_for(&run_id, &["COMPLETED"]).await;
    let transitions = api.transitions(&run_id).await;
    let position = |to: &str| transitions.iter().position(|t| t["entity"] == "LEASE" && t["to"] == to);
    let (allocated, ready) = (position("ALLOCATED").expect("allocated"), position("READY").expect("ready"));
    assert!(allocated < ready, "the identity is durable before bootstrap ends");
    let run = api.run(&run_id).await.ok();
    assert!(run["sandbox"]["sandbox_id"].as_str().unwrap().starts_with("berth-"));
    assert_eq!(run["sandbox"]["provider"], "local");
}

#[tokio::test]
async fn the_main_job_works_on_postgres_too() {
    let server = std::env::var("BERTH_TEST_POSTGRES_URL").expect("tests/run starts Postgres and says where");
    let world = World::demo().await;
    let options = ServerOptions { database_url: Some(format!("{server}/postgres")), ..ServerOptions::default() };
    let server = world.server_with(options).await;
    let api = server.api();
    let run_id = api.create(demo_body(&world.repo_url())).await;
    let run = api.wait_for(&run_id, &["COMPLETED", "FAILED"]).await;
    assert_eq!(run["state"], "COMPLETED", "{run:#}");
    api.delete(&run_id).await.ok();
    api.wait_deleted(&run_id).await;
    assert!(server.sandboxes().is_empty());
    assert!(!world.data().join("berth.sqlite").exists());
}

#[tokio::test]
async fn the_result_is_pushed_to_the_branch_asked_for() {
    let token = "ghp_push_token_of_the_test";
    let world = World::new(berth_emulators::demo::demo_script(), Some(token)).await;
    let server = world.server().await;
    let api = server.api();
    api.put_secret("github_token", token, &[&world.git_host()]).await.ok();
    let mut body = demo_body(&world.repo_url());
    body["push_branch"] = json!("berth/fix-divide");
    let run_id = api.create(body).await;
    let run = api.wait_for(&run_id, &["COMPLETED", "FAILED"]).await;
    assert_eq!(run["result"]["pushed_branch"], "berth/fix-divide", "{run:#}");
    let pushed = world.pushed("berth/fix-divide").expect("the branch is on the server");
    assert!(pushed.contains("a / b"), "{pushed}");
}

#[tokio::test]
async fn sigterm_is_orderly_and_unfinished_work_resumes() {
    let world = World::demo().await;
    let mut server = world.server().await;
    let api = server.api();
    let run_id = api.create(demo_body(&world.repo_url())).await;
    assert!(server.terminate().await, "exit code 0 after SIGTERM");
    server.start_again().await;
    let run = api.wait_for(&run_id, &["COMPLETED", "FAILED"]).await;
    assert_eq!(run["state"], "COMPLETED", "{run:#}");
    api.delete(&run_id).await.ok();
    api.wait_deleted(&run_id).await;
    assert!(server.sandboxes().is_empty());
}

#[tokio::test]
async fn generated_keys_are_private_and_a_second_server_on_the_same_data_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::demo().await;
    let server = world.server().await;
    for name in ["admin.key", "master.key"] {
        let mode = std::fs::metadata(world.data().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert_eq!(server.log().matches("admin.key").count(), 1, "its place is printed once");
    let lost = world.data().with_file_name("lost");
    std::fs::create_dir(&lost).unwrap();
    std::fs::write(lost.join("berth.sqlite"), "").unwrap();
    let start = |data: &std::path::Path| {
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir"];
        std::process::Command::new(berth_tests::berth()).args(arguments).arg(data).output().unwrap()
    };
    let refused = start(&lost);
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("master.key"),
        "{refused:?}"
    );
    let second = start(&world.data());
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("in use"), "{second:?}");
}
