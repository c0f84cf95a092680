//! Exec: streaming, limits in time and output, signs of life, and the end of everything when the caller leaves.

use std::time::Duration;

use berth_domain::failure::Kind;
use berth_rpc::{broker::exec_response::Item, duration_to_proto, status::Failure};

use super::{
    fake::Fake,
    world::{KEY, World, eventually, reason, shell},
};

async fn world(change: impl FnOnce(&mut berth_sandbox_broker::Config)) -> World {
    let mut world = World::with(tempfile::tempdir().unwrap(), Fake::default(), change).await;
    world.ready("").await;
    world
}

async fn sleepers(world: &World) -> usize {
    let spec = berth_sandbox::ExecSpec::new(["pgrep", "-x", "sleep"]);
    let output = world.sandboxes().await.exec(KEY, spec).await.unwrap().output(1000).await.unwrap();
    String::from_utf8(output.stdout).unwrap().lines().count()
}

#[tokio::test]
async fn output_streams_while_the_command_runs() {
    let mut world = world(|_| {}).await;
    let mut stream =
        world.client.exec(shell("echo one; read -r x < /tmp/gate; echo two >&2; exit 7")).await.unwrap().into_inner();
    assert!(matches!(stream.message().await.unwrap().unwrap().item, Some(Item::Started(_))));
    // The gate does not exist: the line fails at once and the rest goes on.
    let mut items = Vec::new();
    while let Some(response) = stream.message().await.unwrap() {
        items.push(response.item.unwrap());
    }
    // The shell's complaint on stderr may come first: the two streams are two pipes.
    assert!(items.iter().any(|item| matches!(item, Item::Stdout(bytes) if bytes == b"one\n")), "{items:?}");
    assert!(matches!(items.last(), Some(Item::Exit(exit)) if exit.code == 7 && !exit.timed_out));

    let mut first = world.client.exec(shell("echo first; sleep 1000")).await.unwrap().into_inner();
    first.message().await.unwrap();
    assert!(matches!(first.message().await.unwrap().unwrap().item, Some(Item::Stdout(bytes)) if bytes == b"first\n"));
    drop(first);
    eventually("the dropped stream's group is killed", || async { sleepers(&world).await == 0 }).await;
    world.finish().await;
}

#[tokio::test]
async fn arguments_environment_input_and_folder_arrive_as_they_are() {
    let mut world = world(|_| {}).await;
    world.ok("mkdir -p sub").await;
    let mut request = shell(r#"printf '%s|%s|' "$1" "$V"; pwd; cat"#);
    request.argv.extend(["sh".to_owned(), "a b; $(id)\n'\"".to_owned()]);
    request.env.insert("V".to_owned(), "`x`".to_owned());
    request.cwd = "sub".to_owned();
    request.stdin = b"typed".to_vec();
    let said = world.exec(request).await.unwrap();
    assert_eq!(said.stdout, "a b; $(id)\n'\"|`x`|/workspace/work/sub\ntyped");
    world.finish().await;
}

#[tokio::test]
async fn a_timeout_kills_the_group() {
    let mut world = world(|_| {}).await;
    let mut request = shell("echo before; sleep 1000 & sleep 1000");
    request.timeout = Some(duration_to_proto(Duration::from_millis(700)));
    let said = world.exec(request).await.unwrap();
    let exit = said.exit.unwrap();
    assert!(exit.timed_out && exit.code == -1 && said.stdout == "before\n", "{exit:?}");
    eventually("the group is killed", || async { sleepers(&world).await == 0 }).await;
    world.finish().await;
}

#[tokio::test]
async fn output_over_the_cap_is_dropped_and_counted() {
    let mut world = world(|_| {}).await;
    let mut request = shell("head -c 3000000 /dev/zero | tr '\\0' x; echo done >&2");
    request.max_output_bytes = 1000;
    let said = world.exec(request).await.unwrap();
    let exit = said.exit.unwrap();
    assert_eq!((said.stdout.len() + said.stderr.len(), exit.dropped_bytes, exit.code), (1000, 3_000_005 - 1000, 0));
    world.finish().await;
}

#[tokio::test]
async fn case_e07_a_silent_command_survives_and_shows_signs_of_life() {
    // Twenty minutes against a keep-alive of fifteen seconds, scaled down by about a thousand.
    let mut world = world(|config| config.timeouts.keepalive = Duration::from_millis(20)).await;
    let said = world.exec(shell("sleep 1.2; echo done")).await.unwrap();
    assert_eq!((said.stdout.as_str(), said.exit.unwrap().code), ("done\n", 0));
    assert!(said.alive > 10, "{} signs of life", said.alive);
    world.finish().await;
}

#[tokio::test]
async fn a_running_command_ends_with_its_callers_claim_and_with_nothing_less() {
    let mut world = world(|config| config.timeouts.fence_check = Duration::from_millis(50)).await;
    // One that is quiet, one that never pauses.
    for line in ["sleep 1000", "sleep 1000 & yes"] {
        let mut stream = world.client.exec(shell(line)).await.unwrap().into_inner();
        assert!(matches!(stream.message().await.unwrap().unwrap().item, Some(Item::Started(_))));
        let (fake, before) = (world.fake.clone(), world.fake.state().resolves);
        fake.state().resolve_refusal = Some(tonic::Status::unavailable("busy"));
        let follow = async {
            loop {
                match stream.message().await {
                    Ok(Some(response)) => assert!(!matches!(response.item, Some(Item::Exit(_))), "{line}"),
                    Ok(None) => panic!("ended without exit or error: {line}"),
                    Err(status) => break status,
                }
            }
        };
        let claim_ends = async {
            eventually("checks that were not answered", || async { fake.state().resolves >= before + 3 }).await;
            assert_eq!(sleepers(&world).await, 1, "{line}");
            let stale = Failure::new(Kind::Conflict, "STALE_FENCE", "the claim is over");
            fake.state().resolve_refusal = Some(stale.into());
        };
        let (status, ()) = tokio::join!(follow, claim_ends);
        assert_eq!((status.code(), reason(&status).as_str()), (tonic::Code::Aborted, "STALE_FENCE"), "{line}");
        eventually("the group is killed", || async { sleepers(&world).await == 0 }).await;
        fake.state().resolve_refusal = None;
    }
    world.finish().await;
}

#[tokio::test]
async fn a_background_server_answers_in_the_next_command() {
    let mut world = world(|_| {}).await;
    let server =
        "import http.server as h; h.HTTPServer(('127.0.0.1', 8123), h.SimpleHTTPRequestHandler).serve_forever()";
    let mut request = shell("setsid python3 -c \"$1\" >/dev/null 2>&1 & echo up");
    request.argv.extend(["sh".to_owned(), server.to_owned()]);
    assert_eq!(world.exec(request).await.unwrap().exit.unwrap().code, 0);
    let ask = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/').status)";
    let line = format!("for i in $(seq 100); do python3 -c \"{ask}\" 2>/dev/null && exit; sleep 0.1; done; exit 1");
    assert_eq!(world.ok(&line).await, "200");
    world.finish().await;
}

#[tokio::test]
async fn bad_requests_are_refused_before_anything_runs() {
    let mut world = world(|_| {}).await;
    let check = |change: &dyn Fn(&mut berth_rpc::broker::ExecRequest)| {
        let mut request = shell("true");
        change(&mut request);
        request
    };
    for (expected, request) in [
        ("ARGV_EMPTY", check(&|request| request.argv.clear())),
        ("EXEC_ID_INVALID", check(&|request| request.exec_id.clear())),
        ("EXEC_INVALID", check(&|request| request.argv.push("a\0b".to_owned()))),
        ("ENV_INVALID", check(&|request| drop(request.env.insert("A=B".to_owned(), String::new())))),
        ("PATH_OUTSIDE_WORKDIR", check(&|request| request.cwd = "/etc".to_owned())),
        ("MAX_OUTPUT_INVALID", check(&|request| request.max_output_bytes = -1)),
        ("TIMEOUT_TOO_LONG", check(&|request| request.timeout = Some(duration_to_proto(Duration::from_secs(1 << 30))))),
        ("EXEC_NOT_STARTED", check(&|request| request.cwd = "missing".to_owned())),
        ("EXEC_NOT_STARTED", check(&|request| request.argv = vec!["no-such-program".to_owned()])),
        ("HOLD_MISSING", check(&|request| request.hold = None)),
        ("STALE_FENCE", check(&|request| request.hold.as_mut().unwrap().session_fence = 2)),
    ] {
        let status = world.exec(request).await.unwrap_err();
        assert_eq!(reason(&status), expected);
        if expected == "STALE_FENCE" {
            assert_eq!(status.code(), tonic::Code::Aborted);
        }
    }
    let mut running = shell("sleep 1000");
    running.exec_id = "same".to_owned();
    let first = world.client.exec(running.clone()).await.unwrap();
    assert_eq!(reason(&world.exec(running.clone()).await.unwrap_err()), "EXEC_RUNNING");
    drop(first);
    eventually("the id is free again", || async { sleepers(&world).await == 0 }).await;
    world.finish().await;
}

#[tokio::test]
async fn a_host_bound_sandbox_of_another_broker_is_not_touched() {
    let mut world = world(|_| {}).await;
    {
        let mut state = world.fake.state();
        let lease = state.lease.as_mut().unwrap();
        lease.identity.as_mut().unwrap().account_scope = "elsewhere/1".to_owned();
        lease.endpoint = "http://other:1".to_owned();
    }
    let status = world.exec(shell("true")).await.unwrap_err();
    assert_eq!(reason(&status), "SERVED_ELSEWHERE");
    world.finish().await;
}

#[tokio::test]
async fn a_sandbox_that_ends_under_a_command_is_lost() {
    let mut world = world(|_| {}).await;
    let mut stream = world.client.exec(shell("sleep 1000")).await.unwrap().into_inner();
    stream.message().await.unwrap();
    world.sandboxes().await.destroy(KEY).await.unwrap();
    let status = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("ended without exit or error"),
            Err(status) => break status,
        }
    };
    assert_eq!(reason(&status), "SANDBOX_LOST");
    world.finish().await;
}
