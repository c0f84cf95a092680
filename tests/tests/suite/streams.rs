//! Event streams: readers that reconnect at random see 1..N, no gap, no duplicate.

use std::time::Duration;

use berth_emulators::model_api::Script;
use berth_tests::{Api, World};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;

use super::main_job::demo_body;

/// A turn with much output in small pieces.
fn chatty_script() -> Script {
    let command = "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); [ $((i % 40)) = 0 ] && sleep 0.05; done";
    let turns = (0..6).map(|_| json!({"text": "more", "tools": [{"name": "bash", "input": {"command": command}}]}));
    let turns: Vec<_> = turns.into_iter().chain([json!({"text": "done"})]).collect();
    Script::parse(&json!({"conversations": [{"turns": turns}]}).to_string()).unwrap()
}

#[tokio::test]
async fn case_e01_two_readers_that_reconnect_see_every_event_once() {
    let world = World::new(chatty_script(), None).await;
    let server = world.server().await;
    let api = server.api();
    let run_id = api.create(demo_body(&world.repo_url())).await;
    let readers = [1u64, 2].map(|seed| tokio::spawn(read_all(api.clone(), run_id.clone(), seed)));
    let mut logs = Vec::new();
    for reader in readers {
        logs.push(tokio::time::timeout(Duration::from_secs(90), reader).await.expect("the stream ends").unwrap());
    }
    let log = api.events(&run_id, 1000).await;
    for (seen, reconnects) in logs {
        println!("{} events, {reconnects} reconnects", seen.len());
        assert_eq!(seen, (1..=log.len() as u64).collect::<Vec<_>>());
        assert!(reconnects > 3);
    }
}

/// Reads until the terminal event, dropping the connection after a random number of events.
async fn read_all(api: Api, run_id: String, seed: u64) -> (Vec<u64>, u32) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut seen, mut reconnects) = (Vec::new(), 0);
    loop {
        let mut stream = api.stream(&run_id, seen.last().copied()).await.expect("the server is up");
        let cut = random.random_range(1..15);
        for _ in 0..cut {
            let Some((id, name, data)) = stream.next().await else { break };
            seen.push(id);
            let settled = matches!(data["run_state_changed"]["to"].as_str(), Some("COMPLETED" | "FAILED"));
            if name == "run_state_changed" && settled {
                return (seen, reconnects);
            }
        }
        reconnects += 1;
    }
}

#[tokio::test]
async fn case_e09_the_log_survives_a_restart_and_streams_resume() {
    let world = World::demo().await;
    let mut server = world.server().await;
    let api = server.api();
    let run_id = api.create(demo_body(&world.repo_url())).await;
    api.wait_for(&run_id, &["COMPLETED"]).await;
    let before = api.events(&run_id, 50).await;
    server.kill();
    server.start_again().await;
    let after = api.events(&run_id, 50).await;
    assert_eq!(before, after);
    let mut stream = api.stream(&run_id, Some(3)).await.unwrap();
    let (first, ..) = stream.next().await.unwrap();
    assert_eq!(first, 4, "replay begins right after the cursor");
}
