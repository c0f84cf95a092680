//! The gateway's own pages, reflection and health.

use std::time::Duration;

use berth_gateway::Upstreams;
use berth_serve::peer::{ServiceChannel, connect, connect_in_process};
use serde_json::json;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tonic_reflection::pb::{v1, v1alpha};

use crate::{
    fakes::{Fake, Recorder, SERVICE_KEY},
    harness::{answer, eventually, gateway, gateway_with_metrics, start},
};

#[tokio::test]
async fn readiness_says_what_is_missing() {
    let fake = Fake { recorder: Recorder::new() };
    let recorder = fake.recorder.clone();
    // Nothing listens here yet.
    let reserved = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = reserved.local_addr().unwrap();
    drop(reserved);
    let upstreams = CancellationToken::new();
    let channels = Upstreams {
        lifecycle: ServiceChannel::with_key(
            connect(&format!("http://{addr}")).unwrap(),
            &SERVICE_KEY.to_owned().into(),
        ),
        sessions: ServiceChannel::anonymous(connect_in_process(fake.sessions(), upstreams.clone())),
        broker: ServiceChannel::anonymous(connect_in_process(fake.broker(), upstreams.clone())),
    };
    let gateway = start(channels, recorder, upstreams, |_| {}).await;
    assert_eq!(gateway.http.get(gateway.url("/healthz")).send().await.unwrap().status(), 200);
    eventually("sessions answers", async || gateway.get("/readyz").await.1["upstreams"]["sessions"] == true).await;
    let (code, page) = gateway.get("/readyz").await;
    assert_eq!(code, 503);
    assert_eq!(page["ready"], false);
    let missing = ["lifecycle does not answer", "the assertion key is not registered with lifecycle"];
    assert_eq!(page["missing"], json!(missing));
    let (code, body) = gateway.get("/v1/agent-runs/r1").await;
    assert_eq!((code, body["error"]["reason"].as_str().unwrap()), (503, "GATEWAY_STARTING"));

    // Lifecycle comes late: everything heals by itself.
    let routes = fake.lifecycle();
    let served = tokio::spawn(tonic::transport::Server::builder().add_routes(routes).serve(addr));
    eventually("ready", async || gateway.get("/readyz").await.0 == 200).await;
    assert_eq!(gateway.get("/readyz").await.1["missing"], json!([]));
    assert_eq!(gateway.get("/v1/agent-runs/r1").await.0, 200);
    served.abort();
}

#[tokio::test]
async fn metrics_openapi_and_methods_of_pages() {
    let gateway = gateway().await;
    let page = |path: &str| gateway.http.get(gateway.url(path)).send();
    assert_eq!(page("/metrics").await.unwrap().status(), 200);
    let document: serde_json::Value = page("/openapi.json").await.unwrap().json().await.unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document, berth_gateway::openapi_document(None));
    let wrong = gateway.http.post(gateway.url("/healthz")).send().await.unwrap();
    assert_eq!(wrong.status(), 405);
    assert_eq!(wrong.headers()["allow"], "GET, HEAD, OPTIONS");
}

#[tokio::test]
async fn calls_are_counted_and_traced() {
    let telemetry = berth_serve::telemetry::init(&berth_serve::telemetry::Config::default()).unwrap();
    let gateway = gateway_with_metrics(telemetry.metrics(), |_| {}).await;
    let trace_id = "0af7651916cd43dd8448eb211c80319c";
    let traceparent = format!("00-{trace_id}-b7ad6b7169203331-01");
    let get = gateway.request("GET", "/v1/agent-runs/r1").header("traceparent", &traceparent);
    assert_eq!(answer(get).await.0, 200);
    assert_eq!(gateway.get("/v1/agent-runs/missing").await.0, 404);
    assert_eq!(gateway.get("/nowhere/at/all").await.0, 404);
    let seen = gateway.recorder.all("GetRun")[0].header("traceparent").unwrap();
    assert!(seen.contains(trace_id) && seen != traceparent, "a span of ours under the caller's: {seen}");

    let page = gateway.http.get(gateway.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let counted = |route: &str, code: &str| {
        page.lines().any(|line| {
            line.starts_with("berth_gateway_requests_total{")
                && line.contains(&format!("route=\"{route}\""))
                && line.contains(&format!("code=\"{code}\""))
        })
    };
    assert!(counted("GET /v1/agent-runs/{run_id}", "OK"), "{page}");
    assert!(counted("GET /v1/agent-runs/{run_id}", "NOT_FOUND"), "{page}");
    assert!(counted("unmatched", "NOT_FOUND"), "{page}");
    assert!(page.contains("berth_gateway_request_duration_seconds_bucket{"), "{page}");
    assert!(!page.contains("nowhere"), "raw paths are no labels");
}

#[tokio::test]
async fn reflection_lists_services_in_both_versions() {
    let gateway = gateway().await;
    let channel = gateway.channel().await;
    let wanted = ["berth.lifecycle.v1.RunService", "berth.sessions.v1.SessionService", "grpc.health.v1.Health"];

    let request = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(String::new())),
    };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let answer = answers.next().await.unwrap().unwrap();
    let Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(list)) = answer.message_response
    else {
        panic!("no list");
    };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(wanted.iter().all(|name| names.contains(name)), "{names:?}");

    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
            "berth.lifecycle.v1.RunService.CreateRun".into(),
        )),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
    let answer = answers.next().await.unwrap().unwrap();
    use v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse;
    assert!(matches!(answer.message_response, Some(FileDescriptorResponse(_))));
}

#[tokio::test]
async fn health_follows_the_upstreams() {
    let gateway = gateway().await;
    let mut client = HealthClient::new(gateway.channel().await);
    let check = |service: &str| HealthCheckRequest { service: service.to_owned() };
    for service in ["", "berth.lifecycle.v1.RunService", "berth.broker.v1.ProviderService"] {
        let mut watch = client.watch(check(service)).await.unwrap().into_inner();
        let serving = async { while watch.message().await.unwrap().unwrap().status() != ServingStatus::Serving {} };
        tokio::time::timeout(Duration::from_secs(10), serving).await.expect("serving");
    }
    assert_eq!(client.check(check("nonsense")).await.unwrap_err().code(), tonic::Code::NotFound);
    let mut watch = client.watch(check("berth.lifecycle.v1.RunService")).await.unwrap().into_inner();
    gateway.upstreams.cancel();
    let stopped = async { while watch.message().await.unwrap().unwrap().status() != ServingStatus::NotServing {} };
    tokio::time::timeout(Duration::from_secs(10), stopped).await.expect("not serving");
}
