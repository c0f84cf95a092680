//! Bad input: a typed error with a stable reason, no half-made run, no panic, no secret in any output.

use berth_tests::{ServerOptions, World};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::main_job::demo_body;

#[tokio::test]
async fn case_l18_bad_requests_are_refused_before_anything_is_made() {
    let world = World::demo().await;
    let server = world.server().await;
    let api = server.api();
    let good = demo_body(&world.repo_url());
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    let cases = [
        ("UNKNOWN_PROVIDER", with("sandbox_provider", json!("nimbus"))),
        ("UNKNOWN_FIELD", with("sandbox_providr", json!("local"))),
        ("UNKNOWN_TOOL", with("tools", json!(["read", "telnet"]))),
        ("PROMPT_EMPTY", with("prompt", json!("  "))),
        ("MAX_TURNS_OUT_OF_RANGE", with("max_turns", json!("100000"))),
        ("REPO_URL_INVALID", with("repo_url", json!("--upload-pack=touch /tmp/pwned"))),
        ("REPO_URL_INVALID", with("repo_url", json!("ext::sh -c 'touch /tmp/pwned'"))),
        ("REPO_URL_SCHEME", with("repo_url", json!("file:///etc"))),
        ("REPO_URL_CREDENTIALS", with("repo_url", json!("https://user:password@example.com/x.git"))),
        ("REPO_REF_INVALID", with("repo_ref", json!("--upload-pack=x"))),
        ("REPO_REF_INVALID", with("repo_ref", json!("a b; rm -rf /"))),
        ("WORKDIR_INVALID", with("workdir", json!("../../etc"))),
        ("WORKDIR_INVALID", with("workdir", json!("/etc"))),
    ];
    for (reason, body) in cases {
        let answer = api.post("/v1/agent-runs", body.clone()).await;
        assert_eq!((answer.status, answer.reason()), (StatusCode::BAD_REQUEST, reason), "{body}: {}", answer.text);
    }
    let malformed = raw(server.port(), &server.admin_key(), "{\"prompt\": ").await;
    assert_eq!((malformed.0, malformed.1.as_str()), (StatusCode::BAD_REQUEST, "MALFORMED_JSON"));
    let huge = raw(server.port(), &server.admin_key(), &json!({"prompt": "x".repeat(10 << 20)}).to_string()).await;
    assert_eq!((huge.0, huge.1.as_str()), (StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE"));
    let route = api.get("/v1/agent-run").await;
    assert_eq!((route.status, route.reason()), (StatusCode::NOT_FOUND, "ROUTE_NOT_FOUND"));
    let method = api.call(Method::PATCH, "/v1/agent-runs", Some(json!({}))).await;
    assert_eq!(method.status, StatusCode::METHOD_NOT_ALLOWED);
    let stranger = api.with("berth_wrong", "default").post("/v1/agent-runs", good.clone()).await;
    assert_eq!((stranger.status, stranger.reason()), (StatusCode::UNAUTHORIZED, "CREDENTIAL_INVALID"));

    let runs = api.get("/v1/agent-runs").await.ok();
    assert!(runs["runs"].as_array().is_none_or(Vec::is_empty), "{runs}");
    assert!(server.sandboxes().is_empty());
    assert!(!server.log().contains("panicked"), "a bad request caused a panic");
    assert!(!std::path::Path::new("/tmp/pwned").exists());
}

#[tokio::test]
async fn a_missing_model_key_a_missing_ref_and_an_unreachable_repository_are_told() {
    let world = World::demo().await;
    let server = world.server().await;
    let api = server.api();
    let mut missing_ref = demo_body(&world.repo_url());
    missing_ref["repo_ref"] = json!("no-such-branch");
    let gone = demo_body("http://127.0.0.1:9/nothing.git");
    for (reason, body) in [("REF_NOT_FOUND", missing_ref), ("REPO_UNREACHABLE", gone)] {
        let run_id = api.create(body).await;
        let run = api.wait_for(&run_id, &["FAILED", "COMPLETED"]).await;
        assert_eq!(run["error"]["reason"], reason, "{run:#}");
        api.delete(&run_id).await.ok();
        api.wait_deleted(&run_id).await;
    }
    assert!(server.sandboxes().is_empty());

    api.call(Method::DELETE, "/v1/tenants/default/secrets/anthropic_api_key", None).await.ok();
    let refused = api.post("/v1/agent-runs", demo_body(&world.repo_url())).await;
    assert_eq!(refused.reason(), "MODEL_KEY_MISSING", "{}", refused.text);
}

#[tokio::test]
async fn case_a07_a_private_repository_address_is_refused_unless_allowed() {
    let world = World::demo().await;
    let options = ServerOptions { env: vec![("BERTH_ALLOW_PRIVATE_REPOS".into(), "0".into())], ..Default::default() };
    let server = world.server_with(options).await;
    let answer = server.api().post("/v1/agent-runs", demo_body(&world.repo_url())).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert!(answer.reason().starts_with("REPO_URL_"), "{}", answer.text);
    assert!(world.git().calls().is_empty(), "nothing was asked of the repository's host");
}

/// Posts a body as it is.
async fn raw(port: u16, key: &str, body: &str) -> (StatusCode, String) {
    let answer = reqwest::Client::builder()
        .no_proxy()
        .build()
        .unwrap()
        .post(format!("http://127.0.0.1:{port}/v1/agent-runs"))
        .header("authorization", format!("Bearer {key}"))
        .header("x-tenant-id", "default")
        .header("content-type", "application/json")
        .body(body.to_owned())
        .send()
        .await
        .expect("an answer even to a refused body");
    let status = answer.status();
    let body: Value = answer.json().await.unwrap_or_default();
    (status, body["error"]["reason"].as_str().unwrap_or_default().to_owned())
}
