//! The pass-through as gRPC clients see it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use berth_rpc::{
    broker::{ListProvidersRequest, provider_service_client::ProviderServiceClient},
    lifecycle::{
        self as pb, key_service_client::KeyServiceClient, run_service_client::RunServiceClient,
        secret_service_client::SecretServiceClient, work_service_client::WorkServiceClient,
    },
    sessions::{StreamEventsRequest, session_service_client::SessionServiceClient, stream_events_response::Item},
    status::reason,
};
use berth_serve::assertion;
use tonic::Code;

use crate::{
    fakes::{AUDIENCE, SERVICE_KEY},
    harness::{eventually, gateway, gateway_with, signed},
};

#[tokio::test]
async fn every_public_service_is_reached() {
    let gateway = gateway().await;
    let channel = gateway.channel().await;
    let run = RunServiceClient::new(channel.clone()).get_run(signed(pb::GetRunRequest { run_id: "r1".into() })).await;
    assert_eq!(run.unwrap().into_inner().run_id, "r1");
    KeyServiceClient::new(channel.clone()).list_keys(signed(pb::ListKeysRequest {})).await.unwrap();
    ProviderServiceClient::new(channel.clone()).list_providers(signed(ListProvidersRequest {})).await.unwrap();
    let list = signed(pb::ListSecretsRequest { tenant: "default".into() });
    SecretServiceClient::new(channel.clone()).list_secrets(list).await.unwrap();
    let request = StreamEventsRequest { run_id: "ends".into(), after_sequence: 10 };
    let mut events = SessionServiceClient::new(channel).stream_events(signed(request)).await.unwrap().into_inner();
    let mut sequences = Vec::new();
    while let Some(response) = events.message().await.unwrap() {
        match response.item.unwrap() {
            Item::Event(event) => sequences.push(event.sequence),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(sequences, [11, 12, 13]);
}

#[tokio::test]
async fn upstreams_see_the_assertion_and_nothing_a_client_forged() {
    let gateway = gateway().await;
    let mut client = RunServiceClient::new(gateway.channel().await);
    let mut request = signed(pb::GetRunRequest { run_id: "r1".into() });
    for (name, value) in [
        ("x-berth-caller", "assertion forged"),
        ("x-berth-action", "ForgetRun"),
        ("x-berth-anything", "x"),
        ("cookie", "a=b"),
        ("idempotency-key", "k1"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ] {
        request.metadata_mut().insert(name, value.parse().unwrap());
    }
    client.get_run(request).await.unwrap();
    let seen = gateway.recorder.last("GetRun");
    assert_eq!(seen.header("authorization").unwrap(), format!("Bearer {SERVICE_KEY}"));
    assert_eq!(seen.header("idempotency-key").unwrap(), "k1");
    assert_eq!(seen.header("x-tenant-id").unwrap(), "default");
    assert!(seen.header("traceparent").unwrap().contains("0af7651916cd43dd8448eb211c80319c"));
    for name in ["x-berth-action", "x-berth-anything", "cookie"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
    assert_eq!(seen.metadata.get_all("x-berth-caller").iter().count(), 1);

    // What it sees instead is signed with the registered key, for this deployment, for a minute.
    let caller = seen.header("x-berth-caller").unwrap();
    let token = caller.strip_prefix("assertion ").unwrap();
    let registered = gateway.recorder.keys.lock().unwrap()[0].clone();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    let public: [u8; 32] = registered.public_key.try_into().unwrap();
    let claims = assertion::verify(token, &public, AUDIENCE, now).unwrap();
    assert_eq!(
        (claims.tenant.as_str(), claims.principal.as_str(), claims.credential.as_str()),
        ("default", "ada", "key-1")
    );
    assert_eq!(claims.kid, registered.key_id);

    // Sessions gets no credential at all.
    let request = StreamEventsRequest { run_id: "ends".into(), after_sequence: 0 };
    SessionServiceClient::new(gateway.channel().await).stream_events(signed(request)).await.unwrap();
    let seen = gateway.recorder.last("StreamEvents");
    assert_eq!(seen.header("authorization"), None);
    assert!(seen.header("x-berth-caller").unwrap().starts_with("assertion "));
}

#[tokio::test]
async fn a_credential_is_verified_once_a_second_at_most_and_a_bad_one_every_time() {
    let gateway = gateway().await;
    let mut client = RunServiceClient::new(gateway.channel().await);
    let burst = (0..20).map(|_| {
        let mut client = client.clone();
        async move { client.get_run(signed(pb::GetRunRequest { run_id: "r1".into() })).await }
    });
    let begun = std::time::Instant::now();
    for answer in futures::future::join_all(burst).await {
        answer.unwrap();
    }
    let seconds = begun.elapsed().as_secs() as usize + 1;
    assert!(gateway.recorder.all("Authenticate").len() <= seconds);

    let before = gateway.recorder.all("Authenticate").len();
    for _ in 0..2 {
        let mut request = tonic::Request::new(pb::GetRunRequest { run_id: "r1".into() });
        request.metadata_mut().insert("authorization", "Bearer foreign".parse().unwrap());
        let status = client.get_run(request).await.unwrap_err();
        assert_eq!((status.code(), reason(&status).unwrap().as_str()), (Code::Unauthenticated, "CREDENTIAL_INVALID"));
    }
    assert_eq!(gateway.recorder.all("Authenticate").len(), before + 2);
}

#[tokio::test]
async fn what_is_internal_is_denied_and_what_is_unknown_is_unimplemented() {
    let gateway = gateway().await;
    let channel = gateway.channel().await;
    let status = WorkServiceClient::new(channel.clone()).claim(signed(pb::ClaimRequest::default())).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).unwrap().as_str()), (Code::PermissionDenied, "RPC_NOT_PUBLIC"));
    let resolve = signed(pb::ResolveSecretRequest::default());
    let status = SecretServiceClient::new(channel.clone()).resolve_secret(resolve).await.unwrap_err();
    assert_eq!(reason(&status).unwrap(), "RPC_NOT_PUBLIC");
    assert!(gateway.recorder.all("ResolveSecret").is_empty());

    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let path = "/berth.lifecycle.v1.RunService/Nonsense".parse().unwrap();
    let codec = codec();
    let status = client.unary(tonic::Request::new(pb::GetRunRequest::default()), path, codec).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}

fn codec() -> tonic_prost::ProstCodec<pb::GetRunRequest, pb::Run> {
    tonic_prost::ProstCodec::default()
}

#[tokio::test]
async fn errors_pass_with_their_details() {
    let gateway = gateway().await;
    let mut client = RunServiceClient::new(gateway.channel().await);
    let status = client.get_run(signed(pb::GetRunRequest { run_id: "missing".into() })).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).unwrap().as_str()), (Code::NotFound, "RUN_NOT_FOUND"));
    assert_eq!(status.message(), "no such run: 100 % „nothing“");
}

#[tokio::test]
async fn deadlines_are_honoured_and_given() {
    let gateway = gateway_with(|config| config.limits.unary_timeout = Duration::from_millis(300)).await;
    let mut client = RunServiceClient::new(gateway.channel().await);
    // The client's own.
    let mut request = signed(pb::GetRunRequest { run_id: "hangs".into() });
    request.set_timeout(Duration::from_millis(100));
    let status = client.get_run(request).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    gateway.recorder.cancelled(1).await;
    assert!(gateway.recorder.last("GetRun").header("grpc-timeout").is_some());
    // The gateway's.
    let status = client.get_run(signed(pb::GetRunRequest { run_id: "hangs".into() })).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).unwrap().as_str()), (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"));
    gateway.recorder.cancelled(2).await;
    // Over REST too.
    let (code, body) = gateway.get("/v1/agent-runs/hangs").await;
    assert_eq!((code, body["error"]["reason"].as_str().unwrap()), (504, "DEADLINE_EXCEEDED"));
}

#[tokio::test]
async fn a_deadline_ends_a_stream_that_runs() {
    let gateway = gateway().await;
    let mut client = SessionServiceClient::new(gateway.channel().await);
    let mut request = signed(StreamEventsRequest { run_id: "keeps".into(), after_sequence: 0 });
    // Set by hand: tonic's own would end the stream at the client.
    request.metadata_mut().insert("grpc-timeout", "400m".parse().unwrap());
    let mut events = client.stream_events(request).await.unwrap().into_inner();
    let status = loop {
        match events.message().await {
            Ok(item) => assert!(item.is_some(), "ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::DeadlineExceeded);
    gateway.recorder.cancelled(1).await;
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_upstream() {
    let gateway = gateway().await;
    let mut client = RunServiceClient::new(gateway.channel().await);
    let call = tokio::spawn(async move { client.get_run(signed(pb::GetRunRequest { run_id: "hangs".into() })).await });
    eventually("called", async || !gateway.recorder.all("GetRun").is_empty()).await;
    call.abort();
    gateway.recorder.cancelled(1).await;

    let mut client = SessionServiceClient::new(gateway.channel().await);
    let request = signed(StreamEventsRequest { run_id: "keeps".into(), after_sequence: 0 });
    let mut events = client.stream_events(request).await.unwrap().into_inner();
    events.message().await.unwrap();
    drop(events);
    gateway.recorder.cancelled(2).await;
}

#[tokio::test]
async fn shutdown_ends_streams_with_a_reason() {
    let gateway = gateway().await;
    let mut client = SessionServiceClient::new(gateway.channel().await);
    let request = signed(StreamEventsRequest { run_id: "keeps".into(), after_sequence: 0 });
    let mut events = client.stream_events(request).await.unwrap().into_inner();
    events.message().await.unwrap();
    gateway.shutdown.cancel();
    let status = loop {
        match events.message().await {
            Ok(item) => assert!(item.is_some(), "ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!((status.code(), reason(&status).unwrap().as_str()), (Code::Unavailable, "GATEWAY_STOPPING"));
    tokio::time::timeout(Duration::from_secs(10), gateway.task).await.expect("the gateway ends").unwrap();
    gateway.recorder.cancelled(1).await;
}

#[tokio::test]
async fn messages_have_a_limit_in_both_directions() {
    let gateway = gateway_with(|config| config.limits.max_message_bytes = 1000).await;
    let mut client = RunServiceClient::new(gateway.channel().await);
    let create = |bytes: usize| signed(pb::CreateRunRequest { prompt: "x".repeat(bytes), ..Default::default() });
    let status = client.create_run(create(2000)).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).unwrap().as_str()), (Code::ResourceExhausted, "MESSAGE_TOO_LARGE"));
    assert!(gateway.recorder.all("CreateRun").is_empty());
    client.create_run(create(500)).await.unwrap();
    // The answer repeats the id.
    let status = client.get_run(signed(pb::GetRunRequest { run_id: "r".repeat(980) })).await.unwrap_err();
    assert_eq!(reason(&status).as_deref(), Some("MESSAGE_TOO_LARGE"), "{status:?}");
}

#[tokio::test]
async fn ten_mebibytes_pass_through() {
    let gateway = gateway().await;
    let mut client = RunServiceClient::new(gateway.channel().await);
    let prompt = "x".repeat(10 << 20);
    client.create_run(signed(pb::CreateRunRequest { prompt: prompt.clone(), ..Default::default() })).await.unwrap();
    assert_eq!(gateway.recorder.last("CreateRun").decode::<pb::CreateRunRequest>().prompt.len(), prompt.len());
}

#[tokio::test]
async fn an_upstream_that_is_gone_is_unavailable_and_says_nothing_internal() {
    let gateway = gateway().await;
    let mut client = RunServiceClient::new(gateway.channel().await);
    client.get_run(signed(pb::GetRunRequest { run_id: "r1".into() })).await.unwrap();
    gateway.upstreams.cancel();
    eventually("gone", async || gateway.get("/readyz").await.0 == 503).await;
    let status = client.get_run(signed(pb::GetRunRequest { run_id: "r1".into() })).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).unwrap().as_str()), (Code::Unavailable, "UPSTREAM_UNAVAILABLE"));
    let (code, body) = gateway.get("/v1/agent-runs/r1").await;
    assert_eq!((code, body["error"]["reason"].as_str().unwrap()), (503, "UPSTREAM_UNAVAILABLE"));
    assert_eq!(body["error"]["message"], "lifecycle does not answer");
}
