//! The way out: exactly the hosts and ports that the rules name.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use berth_sandbox::{EgressCounts, EgressRule, ExecSpec};

use super::stage::{Stage, eventually, text, within};

/// A server on the host's loopback that answers every request: `/redirect-PORT` redirects there, all else says `hello`
/// and repeats the headers it got.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let (mut request, mut byte) = (Vec::new(), [0]);
                while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                    request.push(byte[0]);
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                let answer = match path.strip_prefix("/redirect-") {
                    Some(port) => {
                        format!("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{port}/\r\ncontent-length: 0\r\n\r\n")
                    }
                    None => {
                        let body = format!("hello\n{request}");
                        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
                    }
                };
                let _ = stream.write_all(answer.as_bytes());
            });
        }
    });
    address
}

fn rule(host: &str, port: u16, allow_private: bool) -> EgressRule {
    EgressRule { host: host.to_owned(), port, allow_private }
}

/// Curl without its exception for loopback addresses.
fn curl(arguments: &str) -> ExecSpec {
    let mut spec = ExecSpec::shell(format!("curl -s --max-time 20 {arguments}"));
    spec.env.extend([("NO_PROXY".to_owned(), String::new()), ("no_proxy".to_owned(), String::new())]);
    spec
}

#[tokio::test]
async fn exactly_the_listed_host_and_port_is_reached() {
    let stage = Stage::new().await;
    stage.create("out").await;
    let (allowed, other) = (server().port(), server().port());
    let closed = stage.run("out", curl(&format!("-w '%{{http_code}}' http://127.0.0.1:{allowed}/"))).await;
    assert!(text(&closed.stdout).ends_with("503"), "{closed:?}");

    let guard = stage.sandboxes.egress("out", vec![rule("127.0.0.1", allowed, true)]).await.unwrap();
    let plain = stage.run("out", curl(&format!("-H 'connection: x-hop' -H 'x-hop: 1' -H 'proxy-authorization: p' -H 'host: other.example' http://127.0.0.1:{allowed}/path?q=1"))).await;
    let said = text(&plain.stdout);
    assert!(said.starts_with("hello") && said.contains("GET /path?q=1 HTTP/1.1"), "{said}");
    assert!(said.to_lowercase().contains(&format!("host: 127.0.0.1:{allowed}")), "{said}");
    assert!(!said.contains("x-hop") && !said.contains("proxy-") && !said.contains("other.example"), "{said}");
    let tunnel = stage.run("out", curl(&format!("-p http://127.0.0.1:{allowed}/"))).await;
    assert!(text(&tunnel.stdout).starts_with("hello"), "{tunnel:?}");
    assert_eq!(guard.counts(), EgressCounts { allowed: 2, denied: 0 });

    for target in [
        format!("127.0.0.1:{other}"),
        format!("localhost:{allowed}"),
        format!("127.0.0.2:{allowed}"),
        "github.com:443".into(),
    ] {
        let refused = stage.run("out", curl(&format!("-i http://{target}/"))).await;
        let said = text(&refused.stdout);
        assert!(
            said.starts_with("HTTP/1.1 403")
                && said.contains("x-berth-egress: not_on_the_allow_list")
                && said.contains(&target),
            "{said}"
        );
        let refused = stage.run("out", curl(&format!("-p http://{target}/"))).await;
        assert!(!refused.exit.success());
    }
    assert_eq!(guard.counts(), EgressCounts { allowed: 2, denied: 8 });
    assert_eq!(guard.last_denied()[0].target, format!("127.0.0.1:{other}"));

    // A redirect is not followed by the proxy, and its target is judged like any other.
    let redirect =
        stage.run("out", curl(&format!("-L -w '%{{http_code}}' http://127.0.0.1:{allowed}/redirect-{other}"))).await;
    assert!(text(&redirect.stdout).ends_with("403"), "{redirect:?}");
    // A request that is none for a proxy.
    let odd = stage.run("out", curl("--noproxy '*' -w '%{http_code}' http://127.0.0.1:3128/")).await;
    assert!(text(&odd.stdout).ends_with("400"), "{odd:?}");
    drop(guard);
    let closed = stage.run("out", curl(&format!("-w '%{{http_code}}' http://127.0.0.1:{allowed}/"))).await;
    assert!(text(&closed.stdout).ends_with("503"), "{closed:?}");
    stage.finish().await;
}

#[tokio::test]
async fn private_addresses_need_a_rule_that_says_so() {
    let stage = Stage::new().await;
    stage.create("private").await;
    let port = server().port();
    let rules =
        vec![rule("127.0.0.1", port, false), rule("localhost", port, false), rule("169.254.169.254", 80, false)];
    let guard = stage.sandboxes.egress("private", rules).await.unwrap();
    for target in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), "169.254.169.254:80".into()] {
        let refused = stage.run("private", curl(&format!("-i http://{target}/"))).await;
        assert!(text(&refused.stdout).contains("x-berth-egress: address_not_public"), "{refused:?}");
    }
    // Another guard (a restarted broker's) takes over; the end of the old one does not close it.
    let again = stage.sandboxes.egress("private", vec![rule("LOCALHOST", port, true)]).await.unwrap();
    drop(guard);
    let passed = stage.run("private", curl(&format!("http://localhost:{port}/"))).await;
    assert!(text(&passed.stdout).starts_with("hello"), "{passed:?}");
    drop(again);
    stage.finish().await;
}

#[tokio::test]
async fn a_dead_server_is_told_apart_and_an_open_tunnel_ends_with_its_guard() {
    let stage = Stage::new().await;
    stage.create("tunnel").await;
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let guard = stage
        .sandboxes
        .egress("tunnel", vec![rule("127.0.0.1", port, true), rule("127.0.0.1", gone, true)])
        .await
        .unwrap();
    let dead = stage.run("tunnel", curl(&format!("-i http://127.0.0.1:{gone}/"))).await;
    assert!(text(&dead.stdout).starts_with("HTTP/1.1 502"), "{dead:?}");

    let mut held = curl(&format!("-p --max-time 100 http://127.0.0.1:{port}/"));
    held.limits.wall_s = Some(50);
    let held = stage.sandboxes.exec("tunnel", held).await.unwrap();
    eventually("the tunnel is open", || async { guard.counts().allowed == 2 }).await;
    let (mut upstream, _) = within(tokio::task::spawn_blocking(move || silent.accept().unwrap())).await.unwrap();
    drop(guard);
    let ended = within(held.output(1000)).await.unwrap();
    assert!(!ended.exit.success() && !ended.exit.timed_out, "{ended:?}");
    // The server sees the end as well.
    let mut rest = Vec::new();
    within(tokio::task::spawn_blocking(move || upstream.read_to_end(&mut rest))).await.unwrap().unwrap();
    stage.finish().await;
}
