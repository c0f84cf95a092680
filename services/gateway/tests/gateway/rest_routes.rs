//! Every REST route of the design, both JSON forms, query parameters, idempotency.

use berth_rpc::{lifecycle as pb, sessions};
use serde_json::json;

use crate::harness::{answer, gateway};

#[tokio::test]
async fn every_route_reaches_its_rpc() {
    let gateway = gateway().await;
    for (method, path, body, rpc) in [
        ("POST", "/v1/agent-runs", "{\"prompt\":\"p\"}", "CreateRun"),
        ("GET", "/v1/agent-runs", "", "ListRuns"),
        ("GET", "/v1/agent-runs/r1", "", "GetRun"),
        ("DELETE", "/v1/agent-runs/r1", "", "DeleteRun"),
        ("POST", "/v1/agent-runs/r1:cancel", "", "CancelRun"),
        ("POST", "/v1/agent-runs/r1:forget", "{\"reason\":\"x\"}", "ForgetRun"),
        ("POST", "/v1/agent-runs/r1:retry-deletion", "{}", "RetryDeletion"),
        ("GET", "/v1/agent-runs/r1:receipt", "", "GetReceipt"),
        ("GET", "/v1/agent-runs/r1/transitions", "", "ListTransitions"),
        ("POST", "/v1/agent-runs/r1/messages", "{\"text\":\"hi\"}", "SendMessage"),
        ("GET", "/v1/agent-runs/r1/events", "", "ListEvents"),
        ("GET", "/v1/providers", "", "ListProviders"),
        ("PUT", "/v1/tenants/default/secrets/github_token", "{\"value\":\"v\"}", "PutSecret"),
        ("GET", "/v1/tenants/default/secrets", "", "ListSecrets"),
        ("DELETE", "/v1/tenants/default/secrets/github_token", "", "DeleteSecret"),
        ("PUT", "/api/tenants/default/secrets/github_token", "{\"value\":\"v\"}", "PutSecret"),
        ("GET", "/api/tenants/default/secrets", "", "ListSecrets"),
        ("DELETE", "/api/tenants/default/secrets/github_token", "", "DeleteSecret"),
        ("POST", "/v1/keys", "{\"principal\":\"bob\"}", "CreateKey"),
        ("GET", "/v1/keys", "", "ListKeys"),
        ("DELETE", "/v1/keys/key-1", "", "RevokeKey"),
    ] {
        let before = gateway.recorder.all(rpc).len();
        let (code, body) = answer(gateway.request(method, path).body(body)).await;
        assert_eq!(code, 200, "{method} {path}: {body}");
        assert_eq!(gateway.recorder.all(rpc).len(), before + 1, "{method} {path}");
    }
    let put = gateway.recorder.last("PutSecret").decode::<pb::PutSecretRequest>();
    assert_eq!((put.tenant.as_str(), put.name.as_str(), put.value.as_str()), ("default", "github_token", "v"));
    assert_eq!(gateway.recorder.last("ForgetRun").decode::<pb::ForgetRunRequest>().run_id, "r1");
    let sent = gateway.recorder.last("SendMessage").decode::<sessions::SendMessageRequest>();
    assert_eq!((sent.run_id.as_str(), sent.text.as_str()), ("r1", "hi"));
}

#[tokio::test]
async fn both_json_forms_mean_the_same_and_numbers_may_be_text() {
    let gateway = gateway().await;
    let snake = json!({
        "prompt": "p", "sandbox_provider": "local", "tools": ["read", "bash"], "max_turns": "15",
        "budget": {"max_tokens": 7, "wall_clock": "90s"}, "on_sandbox_loss": "RECREATE",
    });
    let camel = json!({
        "prompt": "p", "sandboxProvider": "local", "tools": ["read", "bash"], "maxTurns": 15,
        "budget": {"maxTokens": "7", "wallClock": "90s"}, "onSandboxLoss": "RECREATE",
    });
    for body in [snake, camel] {
        let (code, answered) = gateway.post("/v1/agent-runs", &body.to_string()).await;
        assert_eq!(code, 200, "{answered}");
        let request = gateway.recorder.last("CreateRun").decode::<pb::CreateRunRequest>();
        assert_eq!(request.max_turns, 15);
        assert_eq!(request.sandbox_provider, "local");
        assert_eq!(request.tools, ["read", "bash"]);
        assert_eq!(request.on_sandbox_loss(), pb::run::OnSandboxLoss::Recreate);
        let budget = request.budget.unwrap();
        assert_eq!((budget.max_tokens, budget.wall_clock.unwrap().seconds), (7, 90));
    }
}

#[tokio::test]
async fn answers_are_canonical_json_with_proto_names() {
    let gateway = gateway().await;
    let (_, run) = gateway.get("/v1/agent-runs/r1").await;
    assert_eq!(run["state"], "RUNNING");
    assert_eq!(run["run_id"], "r1");
    assert_eq!(run["max_turns"], 15);
    // More digits than a double holds.
    assert_eq!(run["last_sequence"], "9007199254740993");
    assert_eq!(run["create_time"], "2027-01-15T08:00:00Z");
    assert_eq!(run["conversation"], false);
    assert!(run.get("result").is_none(), "{run}");
    assert_eq!(gateway.get("/v1/agent-runs").await.1, json!({"runs": [], "next_page_token": ""}));
}

#[tokio::test]
async fn query_parameters_fill_the_request() {
    let gateway = gateway().await;
    let (code, _) = gateway.get("/v1/agent-runs?page_size=5&pageToken=a%2Bb&state=COMPLETED").await;
    assert_eq!(code, 200);
    let request = gateway.recorder.last("ListRuns").decode::<pb::ListRunsRequest>();
    assert_eq!((request.page_size, request.page_token.as_str()), (5, "a+b"));
    assert_eq!(request.state(), pb::run::State::Completed);
}

#[tokio::test]
async fn the_idempotency_key_is_the_request_id() {
    let gateway = gateway().await;
    let create =
        |body: &str| gateway.request("POST", "/v1/agent-runs").header("idempotency-key", "key-7").body(body.to_owned());
    for body in
        ["{\"prompt\":\"p\"}", "{\"prompt\":\"p\",\"request_id\":\"\"}", "{\"prompt\":\"p\",\"requestId\":\"key-7\"}"]
    {
        assert_eq!(answer(create(body)).await.0, 200, "{body}");
        assert_eq!(gateway.recorder.last("CreateRun").decode::<pb::CreateRunRequest>().request_id, "key-7");
    }
    let (code, body) = answer(create("{\"prompt\":\"p\",\"request_id\":\"other\"}")).await;
    assert_eq!((code, &body["error"]["reason"]), (400, &json!("IDEMPOTENCY_KEY_MISMATCH")));
    assert_eq!(gateway.recorder.all("CreateRun").len(), 3);
}

#[tokio::test]
async fn a_path_and_a_body_that_disagree_are_refused() {
    let gateway = gateway().await;
    let put = |body: &'static str| gateway.request("PUT", "/v1/tenants/default/secrets/a").body(body);
    assert_eq!(answer(put("{\"value\":\"v\",\"name\":\"a\"}")).await.0, 200);
    let (code, body) = answer(put("{\"value\":\"v\",\"tenant\":\"other\"}")).await;
    assert_eq!((code, &body["error"]["reason"]), (400, &json!("FIELD_MISMATCH")));
}

#[tokio::test]
async fn head_and_options_are_sane() {
    let gateway = gateway().await;
    let head = gateway.request("HEAD", "/v1/agent-runs/r1").send().await.unwrap();
    assert_eq!(head.status(), 200);
    assert_eq!(head.text().await.unwrap(), "");
    let options =
        gateway.http.request(reqwest::Method::OPTIONS, gateway.url("/v1/agent-runs/r1")).send().await.unwrap();
    assert_eq!(options.status(), 204);
    assert_eq!(options.headers()["allow"], "DELETE, GET, HEAD, OPTIONS");
    let patch = gateway.request("PATCH", "/v1/agent-runs").send().await.unwrap();
    assert_eq!(patch.status(), 405);
    assert_eq!(patch.headers()["allow"], "GET, HEAD, OPTIONS, POST");
}
