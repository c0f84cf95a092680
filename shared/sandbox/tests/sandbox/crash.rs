//! A broker process killed with SIGKILL at any moment: what it was creating is nothing, or is found and released.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use berth_sandbox::{Observed, Sandboxes};
use tokio::time::timeout;

use super::stage::{Stage, config, eventually, spec, within};

/// Argument (for the test harness: one more filter) by which a test program is made a broker to be killed.
const ROOT: &str = "broker-root=";

/// The broker to be killed: creates sandboxes and runs commands in them for ever. As an ordinary test it does nothing.
#[tokio::test]
async fn broker_process() {
    let Some(root) = std::env::args().find_map(|argument| argument.strip_prefix(ROOT).map(str::to_owned)) else {
        return;
    };
    let sandboxes = Sandboxes::new(config(Path::new(&root))).await.unwrap();
    for number in 0.. {
        let key = format!("crash-{number}");
        sandboxes.create(&key, &spec()).await.unwrap();
        let command = berth_sandbox::ExecSpec::shell("echo alive > file; sleep 1000");
        std::mem::forget(sandboxes.exec(&key, command).await.unwrap());
    }
}

#[tokio::test]
async fn a_killed_broker_leaves_only_what_the_next_one_finds_uses_and_releases() {
    let stage = Stage::new().await;
    let (mut running, mut half_made) = (0, 0);
    let log = stage.directory.path().join("broker.log");
    for round in 0..12 {
        let mut broker = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sandbox::crash::broker_process", &format!("{ROOT}{}", stage.root().display())])
            .stdin(Stdio::null())
            .stdout(File::create(&log).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("it has begun", || async {
            // The harness prints only when the broker gave up.
            let gave_up = std::fs::read_to_string(&log).unwrap().contains("panicked");
            assert!(!gave_up, "{}", std::fs::read_to_string(&log).unwrap());
            !stage.sandboxes.list().await.unwrap().is_empty()
        })
        .await;
        // Most rounds cut the first creation, each a little later in its course; the last ones a broker with work.
        if round < 9 {
            let _ = timeout(Duration::from_millis(round * 3), std::future::pending::<()>()).await;
        } else {
            eventually("a sandbox runs", || async {
                let all = stage.sandboxes.list().await.unwrap();
                all.iter().any(|found| matches!(found.observed, Observed::Running { .. }))
            })
            .await;
        }
        broker.kill().unwrap();
        within(tokio::task::spawn_blocking(move || broker.wait())).await.unwrap().unwrap();

        for found in stage.sandboxes.list().await.unwrap() {
            match found.observed {
                Observed::Running { .. } => {
                    running += 1;
                    eventually("the connection's commands end with the broker", || async {
                        match stage
                            .sandboxes
                            .exec(&found.key, berth_sandbox::ExecSpec::shell("ls /proc | grep -c '^[0-9]'"))
                            .await
                        {
                            Ok(handle) => {
                                String::from_utf8_lossy(&within(handle.output(100)).await.unwrap().stdout).trim() == "4"
                            }
                            // Not yet taking commands; or recorded but never told to go, and just ending for that.
                            Err(_) => stage.sandboxes.observe(&found.key).await.unwrap() == Observed::Stopped,
                        }
                    })
                    .await;
                }
                Observed::Stopped => half_made += 1,
                Observed::Absent => panic!("listed but absent"),
            }
            stage.sandboxes.destroy(&found.key).await.unwrap();
            // A starter that the dying broker had only just forked shows for a moment, until it misses its broker.
            eventually("nothing is left", || async { stage.sandboxes.observed_absent(&found.key).await.unwrap() })
                .await;
        }
    }
    assert!(running > 0 && half_made + running >= 12, "{running} running, {half_made} half made");
    stage.finish().await;
}
