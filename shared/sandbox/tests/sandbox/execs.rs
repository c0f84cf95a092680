//! Commands: streams, exit, signals, limits of one exec, background processes.

use std::time::Duration;

use berth_sandbox::{ErrorKind, ExecEvent, ExecLimits, ExecSpec};
use tokio::io::AsyncWriteExt;

use super::stage::{Stage, eventually, text, within};

#[tokio::test]
async fn output_input_and_exit_arrive_whole() {
    let stage = Stage::new().await;
    stage.create("io").await;
    let output = stage.sh("io", "echo out; echo err >&2; exit 7").await;
    assert_eq!((text(&output.stdout), text(&output.stderr), output.exit.code), ("out".into(), "err".into(), Some(7)));
    let killed = stage.sh("io", "kill -TERM $$").await;
    assert_eq!((killed.exit.code, killed.exit.signal), (None, Some(15)));

    let mut copy = stage.sandboxes.exec("io", ExecSpec { stdin: true, ..ExecSpec::new(["sha256sum"]) }).await.unwrap();
    let mut stdin = copy.stdin.take().unwrap();
    let megabytes = vec![b'x'; 3 << 20];
    stdin.write_all(&megabytes).await.unwrap();
    drop(stdin);
    let sum = within(copy.output(1000)).await.unwrap();
    assert!(text(&sum.stdout).starts_with("3bea8a9a"), "{}", text(&sum.stdout));

    // More output than any buffer on the way holds, read slowly: nothing is lost and nothing grows.
    let mut flood = stage.sandboxes.exec("io", ExecSpec::shell("head -c 20000000 /dev/zero")).await.unwrap();
    let mut total = 0;
    while let Some(event) = within(flood.next()).await {
        match event.unwrap() {
            ExecEvent::Stdout(bytes) => total += bytes.len(),
            ExecEvent::Stderr(bytes) => panic!("{bytes:?}"),
            ExecEvent::Exit(exit) => assert!(exit.success()),
        }
    }
    assert_eq!(total, 20_000_000);
    let no_input = stage.ok("io", "wc -c < /dev/stdin").await;
    assert_eq!(no_input, "0");
    stage.finish().await;
}

#[tokio::test]
async fn the_environment_and_directory_are_exactly_those_given() {
    let stage = Stage::new().await;
    stage.create("env").await;
    let mut spec = ExecSpec::new(["env"]);
    spec.env = [("PATH".to_owned(), "/usr/bin".to_owned()), ("A".to_owned(), "1 \"2\" $3\n4".to_owned())].into();
    let output = stage.run("env", spec).await;
    let mut names: Vec<&str> = std::str::from_utf8(&output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name)
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["A", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "PATH", "http_proxy", "https_proxy", "no_proxy"]);
    let elsewhere = stage.run("env", ExecSpec { cwd: "/tmp".to_owned(), ..ExecSpec::new(["pwd"]) }).await;
    assert_eq!(text(&elsewhere.stdout), "/tmp");
    stage.finish().await;
}

#[tokio::test]
async fn what_cannot_start_is_a_typed_error() {
    let stage = Stage::new().await;
    stage.create("no").await;
    stage.ok("no", "touch /workspace/plain; mkdir /workspace/dir").await;
    for (spec, step) in [
        (ExecSpec::new(["no-such-program"]), "execute"),
        (ExecSpec::new(["/workspace/plain"]), "execute"),
        (ExecSpec::new(["/workspace/dir"]), "execute"),
        (ExecSpec { cwd: "/nowhere".to_owned(), ..ExecSpec::new(["true"]) }, "working directory"),
        (ExecSpec::new(["a\0b"]), "fork"),
    ] {
        let failure = stage.sandboxes.exec("no", spec).await.unwrap_err();
        assert_eq!(failure.kind(), ErrorKind::NotStarted);
        assert!(failure.to_string().contains(step), "{failure}");
    }
    let nothing = stage.sandboxes.exec("no", ExecSpec::new(Vec::<String>::new())).await.unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::Invalid);
    assert_eq!(stage.sandboxes.exec("absent", ExecSpec::shell("true")).await.unwrap_err().kind(), ErrorKind::NotFound);
    stage.finish().await;
}

#[tokio::test]
async fn a_server_started_by_one_exec_answers_in_the_next_even_when_it_writes_to_the_old_output() {
    let stage = Stage::new().await;
    stage.create("server").await;
    stage
        .ok("server", "echo served > index.html; python3 -u -m http.server 8000 --bind 127.0.0.1 & echo started")
        .await;
    eventually("the server answers", || async {
        stage.sh("server", "curl -sf http://127.0.0.1:8000/").await.exit.success()
    })
    .await;
    // It logs every request to an output whose exec is long over.
    for _ in 0..5 {
        assert_eq!(stage.ok("server", "curl -sf http://127.0.0.1:8000/index.html").await, "served");
    }
    stage.sandboxes.kill_all("server").await.unwrap();
    assert!(!stage.sh("server", "curl -sf http://127.0.0.1:8000/").await.exit.success());
    assert_eq!(stage.ok("server", "cat index.html").await, "served");
    stage.finish().await;
}

#[tokio::test]
async fn a_background_child_holding_the_output_does_not_hold_the_exec() {
    let stage = Stage::new().await;
    stage.create("held").await;
    let began = std::time::Instant::now();
    let output = stage.sh("held", "(sleep 100; echo late) & echo early").await;
    assert_eq!(text(&output.stdout), "early");
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(stage.ok("held", "grep -l '^sleep' /proc/[0-9]*/comm | wc -l").await, "1");
    stage.finish().await;
}

#[tokio::test]
async fn kill_and_a_dropped_handle_end_the_whole_group() {
    let stage = Stage::new().await;
    stage.create("kill").await;
    let line = "trap '' TERM HUP; sleep 1001 & (set -m; sleep 1002 & wait) & sleep 1003; echo survived";
    let sleeping = || async { stage.ok("kill", "grep -l '^sleep' /proc/[0-9]*/comm | wc -l").await };
    let mut killed = stage.sandboxes.exec("kill", ExecSpec::shell(line)).await.unwrap();
    eventually("all started", || async { sleeping().await == "3" }).await;
    killed.kill().await.unwrap();
    let exit = loop {
        if let ExecEvent::Exit(exit) = within(killed.next()).await.unwrap().unwrap() {
            break exit;
        }
    };
    assert_eq!(exit.signal, Some(9));
    drop(killed);

    stage.sandboxes.kill_all("kill").await.unwrap();
    let dropped = stage.sandboxes.exec("kill", ExecSpec::shell(line)).await.unwrap();
    eventually("all started", || async { sleeping().await == "3" }).await;
    drop(dropped);
    // The group, and the process that made a group of its own in the same session.
    eventually("all gone", || async { sleeping().await == "0" }).await;
    stage.finish().await;
}

#[tokio::test]
async fn orphans_are_collected_and_a_fork_bomb_can_be_stopped() {
    let stage = Stage::new().await;
    stage.create("orphans").await;
    stage.ok("orphans", "for i in 1 2 3 4 5 6 7 8; do (sleep 0.01 &) ; done").await;
    eventually("no zombies", || async {
        stage.ok("orphans", "grep -l 'State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l").await == "0"
    })
    .await;
    let bomb =
        stage.sandboxes.exec("orphans", ExecSpec::shell("b() { setsid sh -c 'sleep 5' & b; }; b")).await.unwrap();
    eventually("many processes", || async {
        let output = stage.sandboxes.exec("orphans", ExecSpec::shell("ls /proc | grep -c '^[0-9]'")).await;
        match output {
            Ok(handle) => {
                text(&within(handle.output(100)).await.unwrap().stdout).parse::<u32>().is_ok_and(|count| count > 50)
            }
            Err(_) => true,
        }
    })
    .await;
    within(stage.sandboxes.kill_all("orphans")).await.unwrap();
    drop(bomb);
    within(stage.sandboxes.kill_all("orphans")).await.unwrap();
    assert!(stage.ok("orphans", "ls /proc | grep -c '^[0-9]'").await.parse::<u32>().unwrap() <= 4);
    stage.finish().await;
}

#[tokio::test]
async fn limits_of_one_exec_hold() {
    let stage = Stage::new().await;
    stage.create("bound").await;
    let with = |line: &str, limits: ExecLimits| ExecSpec { limits, ..ExecSpec::shell(line) };
    let wall = stage.run("bound", with("sleep 100", ExecLimits { wall_s: Some(1), ..ExecLimits::default() })).await;
    assert!(wall.exit.timed_out && wall.exit.signal == Some(9), "{wall:?}");
    let cpu =
        stage.run("bound", with("while :; do :; done", ExecLimits { cpu_s: Some(1), ..ExecLimits::default() })).await;
    assert!(matches!(cpu.exit.signal, Some(9 | 24)), "{cpu:?}");
    let file = stage
        .run(
            "bound",
            with("head -c 100000 /dev/zero > big", ExecLimits { file_size: Some(5000), ..ExecLimits::default() }),
        )
        .await;
    assert!(!file.exit.success());
    assert_eq!(stage.ok("bound", "wc -c < big").await, "5000");
    let files = stage.run("bound", with("ulimit -n", ExecLimits { nofile: Some(33), ..ExecLimits::default() })).await;
    assert_eq!(text(&files.stdout), "33");
    let space = stage
        .run(
            "bound",
            with(
                "python3 -c 'b=bytearray(300000000)'",
                ExecLimits { address_space: Some(200 << 20), ..ExecLimits::default() },
            ),
        )
        .await;
    assert!(!space.exit.success());
    let processes = stage
        .run(
            "bound",
            with(
                "for i in 1 2 3 4 5 6 7 8 9; do sleep 1 & done; wait",
                ExecLimits { nproc: Some(4), ..ExecLimits::default() },
            ),
        )
        .await;
    assert!(text(&processes.stderr).contains("fork"), "{processes:?}");
    stage.finish().await;
}
