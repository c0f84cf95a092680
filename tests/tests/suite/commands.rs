//! `berth demo` and `berth keys` as a user types them.

use std::process::{Output, Stdio};

use berth_tests::{World, berth};
use reqwest::StatusCode;

async fn run(arguments: &[&str], env: &[(&str, &str)]) -> Output {
    tokio::process::Command::new(berth())
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .output()
        .await
        .expect("berth runs")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn the_demo_shows_the_main_job_and_leaves_nothing() {
    let output = run(&["demo"], &[]).await;
    let shown = text(&output);
    assert!(output.status.success(), "{shown}");
    let mut rest = shown.as_str();
    for expected in [
        "SCRIPTED model",
        "state       PROVISIONING",
        "state       RUNNING",
        "tool        bash",
        "state       COMPLETED",
        "-    echo $((a * b))",
        "+    echo $((a / b))",
        "test before fails",
        "test after  passes",
        "delete      DELETING",
        "OBSERVED_ABSENT",
        "get         NOT_FOUND",
        "Done.",
    ] {
        let at =
            rest.find(expected).unwrap_or_else(|| panic!("`{expected}` is missing, or out of order, in:\n{shown}"));
        rest = &rest[at..];
    }
}

#[tokio::test]
async fn an_interrupted_demo_deletes_its_run_and_leaves_nothing() {
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    let mut child = tokio::process::Command::new(berth())
        .arg("demo")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .expect("berth runs");
    let pid = rustix::process::Pid::from_raw(child.id().expect("running") as i32).expect("a pid");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut shown = String::new();
    while let Some(line) = lines.next_line().await.expect("output") {
        if line.contains("state       RUNNING") {
            rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signal");
        }
        shown += &line;
        shown.push('\n');
    }
    child.wait().await.expect("ended");
    assert!(shown.contains("receipt") && shown.contains("get         NOT_FOUND"), "{shown}");
}

#[tokio::test]
async fn keys_are_made_listed_and_revoked() {
    let world = World::demo().await;
    let server = world.server().await;
    let url = format!("http://127.0.0.1:{}", server.port());
    let data = world.data();
    let env = [("BERTH_URL", url.as_str()), ("BERTH_DATA_DIR", data.to_str().expect("utf-8"))];

    let made = run(&["keys", "create", "--principal", "ada", "--role", "viewer"], &env).await;
    assert!(made.status.success(), "{}", text(&made));
    let key = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let key_id = text(&made).lines().find_map(|l| l.strip_prefix("key id: ").map(str::to_owned)).expect("key id");

    let viewer = server.api().with(&key, "default");
    viewer.get("/v1/agent-runs").await.ok();
    let denied = viewer.post("/v1/agent-runs", super::main_job::demo_body(&world.repo_url())).await;
    assert_eq!(denied.status, StatusCode::FORBIDDEN, "{}", denied.text);

    let listed = run(&["keys", "list"], &env).await;
    assert!(text(&listed).contains(&key_id) && !text(&listed).contains(&key));
    let revoked = run(&["keys", "revoke", &key_id], &env).await;
    assert!(revoked.status.success(), "{}", text(&revoked));
    let gone = berth_tests::eventually(std::time::Duration::from_secs(3), || async {
        (viewer.get("/v1/agent-runs").await.status == StatusCode::UNAUTHORIZED).then_some(())
    });
    gone.await.expect("a revoked key is refused");
    let stranger = run(&["keys", "list"], &[("BERTH_URL", &url), ("BERTH_API_KEY", "berth_nobody")]).await;
    assert!(!stranger.status.success() && text(&stranger).contains("CREDENTIAL_INVALID"), "{}", text(&stranger));
}
