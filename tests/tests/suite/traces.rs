//! Spans of a run reach an OTLP collector and hang together: one trace from the client's call through every service.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_tests::{ServerOptions, World, eventually};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
    trace_service_server::{TraceService, TraceServiceServer},
};
use reqwest::Method;
use serde_json::json;
use tonic::{Request, Response, Status};

use super::main_job::demo_body;

/// Span names by trace id.
type Seen = Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>;

struct Collector(Seen);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut seen = self.0.lock().expect("lock");
        let spans = request.into_inner().resource_spans.into_iter().flat_map(|r| r.scope_spans).flat_map(|s| s.spans);
        for span in spans {
            seen.entry(hex::encode(&span.trace_id)).or_default().insert(span.name);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tokio::test]
async fn spans_of_create_provision_drive_steer_cancel_delete_and_destroy_are_exported() {
    let seen = Seen::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let collector = TraceServiceServer::new(Collector(seen.clone()));
    tokio::spawn(
        tonic::transport::Server::builder()
            .add_service(collector)
            .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)),
    );
    let world = World::demo().await;
    let options =
        ServerOptions { env: vec![("OTEL_EXPORTER_OTLP_ENDPOINT".into(), endpoint)], ..ServerOptions::default() };
    let server = world.server_with(options).await;
    let api = server.api();

    // The client's own trace goes on through Berth.
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let headers = [("traceparent", parent.as_str())];
    let body = demo_body(&world.repo_url());
    let run = api.try_call(Method::POST, "/v1/agent-runs", Some(body), &headers).await.unwrap().ok();
    assert_eq!(run["trace_id"], trace);
    let run_id = run["run_id"].as_str().unwrap().to_owned();
    api.wait_for(&run_id, &["COMPLETED"]).await;
    api.post(&format!("/v1/agent-runs/{run_id}/messages"), json!({"text": "thanks"})).await;
    api.post(&format!("/v1/agent-runs/{run_id}:cancel"), json!({})).await;
    api.wait_for(&run_id, &["COMPLETED", "CANCELLED", "FAILED"]).await;
    api.delete(&run_id).await.ok();
    api.wait_deleted(&run_id).await;

    let of_the_run = [
        "berth.lifecycle.v1.RunService/CreateRun",
        "provision/allocate",
        "provision/bootstrap",
        "session drive",
        "berth.broker.v1.SandboxService/Exec",
        "destroy/release",
    ];
    let of_calls = [
        "berth.lifecycle.v1.RunService/GetRun",
        "berth.sessions.v1.SessionService/SendMessage",
        "berth.lifecycle.v1.RunService/CancelRun",
        "berth.lifecycle.v1.RunService/DeleteRun",
    ];
    let complete = eventually(Duration::from_secs(30), || async {
        let seen = seen.lock().expect("lock");
        let mine = seen.get(trace)?;
        let everything: BTreeSet<&String> = seen.values().flatten().collect();
        let all = of_the_run.iter().all(|name| mine.contains(*name))
            && of_calls.iter().all(|name| everything.iter().any(|seen| seen == name));
        all.then_some(())
    })
    .await;
    assert!(complete.is_some(), "spans of the run's trace: {:#?}", seen.lock().unwrap().get(trace));
}
