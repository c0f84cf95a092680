//! What REST refuses and how: one JSON shape, stable reasons, no value repeated.

use serde_json::json;

use crate::{
    fakes::KEY,
    harness::{Gateway, answer, gateway},
};

async fn refused(gateway: &Gateway, method: &str, path: &str, body: &str) -> (u16, String, String) {
    let (code, body) = answer(gateway.request(method, path).body(body.to_owned())).await;
    let error = &body["error"];
    assert_eq!(error["code"], code, "{method} {path}: {body}");
    let text = |name: &str| error[name].as_str().unwrap_or_else(|| panic!("no {name}: {body}")).to_owned();
    assert!(error["details"].is_array(), "{body}");
    (code, text("reason"), text("message"))
}

#[tokio::test]
async fn bad_requests_are_told_apart() {
    let gateway = gateway().await;
    for (method, path, body, code, reason, said) in [
        ("POST", "/v1/agent-runs", "{\"prompt\": \"x\",\n  oops}", 400, "MALFORMED_JSON", "line 2, column 3"),
        ("POST", "/v1/agent-runs", "[1]", 400, "BODY_NOT_AN_OBJECT", "object"),
        ("POST", "/v1/agent-runs", "{\"promt\":\"x\"}", 400, "UNKNOWN_FIELD", "promt"),
        ("POST", "/v1/agent-runs", "{\"budget\":{\"max_tokenz\":1}}", 400, "UNKNOWN_FIELD", "budget.max_tokenz"),
        (
            "POST",
            "/v1/agent-runs",
            "{\"max_turns\":\"many\"}",
            400,
            "INVALID_VALUE",
            "max_turns must be a 32-bit integer",
        ),
        ("POST", "/v1/agent-runs", "{\"tools\":\"bash\"}", 400, "INVALID_VALUE", "tools must be a list"),
        ("POST", "/v1/agent-runs", "{\"budget\":{\"wall_clock\":\"soon\"}}", 400, "INVALID_VALUE", "budget.wall_clock"),
        ("POST", "/v1/agent-runs", "{\"on_sandbox_loss\":\"EXPLODE\"}", 400, "INVALID_VALUE", "RECREATE"),
        ("POST", "/v1/agent-runs", "{\"run\":{},\"prompt\":1}", 400, "UNKNOWN_FIELD", "run"),
        ("POST", "/v1/agent-runs", "{\"max_turns\":1,\"maxTurns\":2}", 400, "DUPLICATE_FIELD", "twice"),
        ("POST", "/v1/agent-runs?prompt=x", "{}", 400, "UNKNOWN_FIELD", "body"),
        ("GET", "/v1/agent-runs?page_sise=1", "", 400, "UNKNOWN_FIELD", "page_sise"),
        ("GET", "/v1/agent-runs?page_size=x", "", 400, "INVALID_VALUE", "page_size"),
        ("GET", "/v1/agent-runs?page_size=1&page_size=2", "", 400, "DUPLICATE_FIELD", "twice"),
        ("GET", "/v1/agent-runs", "{\"page_size\":1}", 400, "BODY_NOT_TAKEN", "no body"),
        ("GET", "/v1/agent-runz", "", 404, "ROUTE_NOT_FOUND", "no route"),
        ("GET", "/v1/agent-runs/r1:explode", "", 404, "ROUTE_NOT_FOUND", "no route"),
        ("GET", "/", "", 404, "ROUTE_NOT_FOUND", "no route"),
        ("PATCH", "/v1/agent-runs/r1", "", 405, "METHOD_NOT_ALLOWED", "DELETE, GET"),
        ("GET", "/v1/agent-runs/r1:watch", "", 406, "STREAM_ONLY", "text/event-stream"),
    ] {
        let (got, why, message) = refused(&gateway, method, path, body).await;
        assert_eq!((got, why.as_str()), (code, reason), "{method} {path} {body}: {message}");
        assert!(message.contains(said), "{method} {path} {body}: {message}");
    }
    assert!(gateway.recorder.all("CreateRun").is_empty(), "nothing bad reached the upstream");
}

#[tokio::test]
async fn an_upstreams_error_keeps_reason_details_and_text() {
    let gateway = gateway().await;
    let (code, body) = gateway.get("/v1/agent-runs/missing").await;
    assert_eq!(code, 404);
    let error = &body["error"];
    assert_eq!(error["status"], "NOT_FOUND");
    assert_eq!(error["reason"], "RUN_NOT_FOUND");
    assert_eq!(error["message"], "no such run: 100 % „nothing“");
    assert_eq!(error["details"][0]["@type"], "type.googleapis.com/google.rpc.ErrorInfo");

    let active = answer(gateway.request("DELETE", "/v1/agent-runs/active")).await;
    assert_eq!((active.0, &active.1["error"]["reason"]), (400, &json!("RUN_ACTIVE")));
    assert_eq!(active.1["error"]["status"], "FAILED_PRECONDITION");

    let busy = gateway.request("GET", "/v1/agent-runs/busy").send().await.unwrap();
    assert_eq!(busy.status(), 429);
    assert_eq!(busy.headers()["retry-after"], "2");
}

#[tokio::test]
async fn a_ten_megabyte_prompt_gets_an_answer() {
    let gateway = gateway().await;
    let body = format!("{{\"prompt\":\"{}\"}}", "x".repeat(10 << 20));
    let (code, reason, _) = refused(&gateway, "POST", "/v1/agent-runs", &body).await;
    assert_eq!((code, reason.as_str()), (413, "BODY_TOO_LARGE"));
    // The same without a credential: still an answer, not a reset.
    let (code, _) = answer(gateway.http.post(gateway.url("/v1/agent-runs")).body(body)).await;
    assert_eq!(code, 401);
    assert!(gateway.recorder.all("CreateRun").is_empty());
    assert_eq!(gateway.get("/v1/agent-runs/r1").await.0, 200);
}

#[tokio::test]
async fn a_foreign_credential_is_refused_before_anything_else() {
    let gateway = gateway().await;
    let request = |credential: Option<&str>| {
        let request = gateway.http.post(gateway.url("/v1/agent-runs")).body("not json");
        match credential {
            Some(credential) => request.bearer_auth(credential),
            None => request,
        }
    };
    let response = request(Some("foreign-canary")).send().await.unwrap();
    assert_eq!(response.status(), 401);
    assert_eq!(response.headers()["www-authenticate"], "Bearer");
    let text = response.text().await.unwrap();
    assert!(text.contains("CREDENTIAL_INVALID") && !text.contains("foreign-canary"), "{text}");
    let (code, body) = answer(request(None)).await;
    assert_eq!((code, &body["error"]["reason"]), (401, &json!("CREDENTIAL_MISSING")));
    let other = gateway.http.get(gateway.url("/v1/agent-runs")).bearer_auth(KEY).header("x-tenant-id", "other");
    let (code, body) = answer(other).await;
    assert_eq!((code, &body["error"]["reason"]), (403, &json!("TENANT_MISMATCH")));
}

#[tokio::test]
async fn a_secret_is_never_repeated_in_an_error() {
    let gateway = gateway().await;
    for body in [
        "{\"value\":{\"x\":\"canary\"}}",
        "{\"value\":[\"canary\"]}",
        "{\"value\":\"canary\" x}",
        "{\"hosts\":\"canary\"}",
    ] {
        let request = gateway.request("PUT", "/v1/tenants/default/secrets/a").body(body);
        let text = request.send().await.unwrap().text().await.unwrap();
        assert!(text.contains("\"error\"") && !text.contains("canary"), "{text}");
    }
}
