//! The port itself: both HTTP versions, gRPC-Web, browsers, silent connections, shutdown.

use std::time::Duration;

use berth_rpc::lifecycle as pb;
use bytes::{Buf as _, Bytes};
use http::{Request, StatusCode};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    fakes::KEY,
    harness::{eventually, gateway, gateway_with},
};

/// One gRPC frame.
fn frame(message: &impl prost::Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let mut frame = vec![0];
    frame.extend((bytes.len() as u32).to_be_bytes());
    frame.extend(bytes);
    frame
}

#[tokio::test]
async fn raw_http2_gets_headers_data_and_trailers() {
    let gateway = gateway().await;
    let stream = tokio::net::TcpStream::connect(gateway.addr).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = Request::post(gateway.url("/berth.lifecycle.v1.RunService/GetRun"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {KEY}"));
    let (answer, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
    // In pieces that cut the frame's prefix.
    let bytes = frame(&pb::GetRunRequest { run_id: "r1".into() });
    for (index, piece) in bytes.chunks(3).enumerate() {
        body.send_data(Bytes::copy_from_slice(piece), (index + 1) * 3 >= bytes.len()).unwrap();
    }
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-type"], "application/grpc");
    let mut received = Vec::new();
    let mut answer = answer.into_body();
    while let Some(data) = answer.data().await {
        let data = data.unwrap();
        answer.flow_control().release_capacity(data.len()).unwrap();
        received.extend_from_slice(&data);
    }
    assert_eq!(answer.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    let mut message = &received[5..];
    assert_eq!((&received[1..5]).get_u32() as usize, message.len());
    assert_eq!(pb::Run::decode(&mut message).unwrap().run_id, "r1");
    driver.abort();
}

/// As headers and an empty data frame, gRPC's C core takes it for a broken stream.
#[tokio::test]
async fn an_error_without_messages_is_one_header_block() {
    let gateway = gateway().await;
    let stream = tokio::net::TcpStream::connect(gateway.addr).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    for (credential, code) in [(KEY, "5"), ("foreign", "16")] {
        let request = Request::post(gateway.url("/berth.lifecycle.v1.RunService/GetRun"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("authorization", format!("Bearer {credential}"));
        let (answer, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
        body.send_data(frame(&pb::GetRunRequest { run_id: "missing".into() }).into(), true).unwrap();
        let answer = answer.await.unwrap();
        assert_eq!(answer.headers()["grpc-status"], code);
        assert!(answer.body().is_end_stream(), "{code}");
    }
    driver.abort();
}

#[tokio::test]
async fn grpc_web_works_over_http1_and_from_an_allowed_origin() {
    let origin = "https://app.example";
    let gateway = gateway_with(|config| config.allowed_origins = vec![origin.to_owned()]).await;
    let url = gateway.url("/berth.lifecycle.v1.RunService/GetRun");
    let preflight = gateway.http.request(reqwest::Method::OPTIONS, &url).header("origin", origin);
    let preflight = preflight
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,x-grpc-web")
        .send();
    let preflight = preflight.await.unwrap();
    assert_eq!(preflight.headers()["access-control-allow-origin"], origin);
    assert_eq!(preflight.headers()["access-control-allow-headers"], "authorization,x-grpc-web");

    let call = gateway
        .request("POST", "/berth.lifecycle.v1.RunService/GetRun")
        .header("content-type", "application/grpc-web+proto")
        .header("origin", origin)
        .body(frame(&pb::GetRunRequest { run_id: "r1".into() }));
    let answer = call.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["access-control-allow-origin"], origin);
    let body = answer.bytes().await.unwrap();
    let length = (&body[1..5]).get_u32() as usize;
    assert_eq!(pb::Run::decode(&body[5..5 + length]).unwrap().run_id, "r1");
    let trailers = &body[5 + length..];
    assert_eq!(trailers[0], 0x80);
    assert!(String::from_utf8_lossy(trailers).contains("grpc-status:0"));

    let foreign = gateway.request("GET", "/v1/agent-runs").header("origin", "https://evil.example");
    assert!(foreign.send().await.unwrap().headers().get("access-control-allow-origin").is_none());
}

#[tokio::test]
async fn rest_works_over_http2_too() {
    let gateway = gateway().await;
    let client = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let answer = client.get(gateway.url("/v1/agent-runs/r1")).bearer_auth(KEY).send().await.unwrap();
    assert_eq!((answer.version(), answer.status()), (reqwest::Version::HTTP_2, StatusCode::OK));
}

#[tokio::test]
async fn silent_and_slow_connections_are_closed() {
    let gateway = gateway_with(|config| config.limits.header_timeout = Duration::from_millis(200)).await;
    for first in [&b""[..], b"PRI * HT", b"GET /healthz HTTP/1.1\r\nhost"] {
        let mut stream = tokio::net::TcpStream::connect(gateway.addr).await.unwrap();
        stream.write_all(first).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{first:?} was kept");
    }
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_one_to_end() {
    let gateway = gateway_with(|config| config.limits.max_connections = 2).await;
    let healthz = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    // The client's own idle connection holds one place, this one the other.
    let held = tokio::net::TcpStream::connect(gateway.addr).await.unwrap();
    let mut waiting = tokio::net::TcpStream::connect(gateway.addr).await.unwrap();
    waiting.write_all(healthz).await.unwrap();
    let mut answer = String::new();
    let early = tokio::time::timeout(Duration::from_millis(200), waiting.read_to_string(&mut answer)).await;
    assert!(early.is_err(), "{answer}");
    drop(held);
    tokio::time::timeout(Duration::from_secs(10), waiting.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn shutdown_lets_an_open_call_finish_and_cuts_what_hangs() {
    let gateway = gateway_with(|config| {
        config.limits.drain = Duration::from_secs(2);
        config.limits.unary_timeout = Duration::from_millis(500);
    })
    .await;
    let hanging = gateway.request("GET", "/v1/agent-runs/hangs").send();
    let hanging = tokio::spawn(hanging);
    eventually("called", async || !gateway.recorder.all("GetRun").is_empty()).await;
    gateway.shutdown.cancel();
    assert_eq!(hanging.await.unwrap().unwrap().status(), 504);
    tokio::time::timeout(Duration::from_secs(10), gateway.task).await.expect("the gateway ends").unwrap();
    assert!(tokio::net::TcpStream::connect(gateway.addr).await.is_err());
}
