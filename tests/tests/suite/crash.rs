//! kill -9 of the whole server at every committed transition and at random moments: the run completes and deletes, and
//! nothing is left. A seeded subset by default; everything with BERTH_TEST_FULL=1 (`tests/run --full`).

use std::{env, time::Duration};

use berth_tests::{Server, World, eventually};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::main_job::demo_body;

/// Moments of one seed; printed with a failure so that it can be repeated.
const SEED: u64 = 7420;

#[tokio::test]
async fn case_s01_kill_at_every_committed_transition() {
    let full = env::var_os("BERTH_TEST_FULL").is_some();
    // One undisturbed run tells how many transitions there are.
    let world = World::demo().await;
    let server = world.server().await;
    let total = undisturbed(&server, &world).await;
    drop(server);
    let mut random = StdRng::seed_from_u64(SEED);
    let points: Vec<usize> =
        if full { (1..=total).collect() } else { (0..4).map(|_| random.random_range(1..=total)).collect() };
    println!("{total} transitions in one run; killing after {points:?}");
    for point in points {
        let world = World::demo().await;
        let mut server = world.server().await;
        let run_id = server.api().create(demo_body(&world.repo_url())).await;
        let reached = drive_until(&server, &run_id, point).await;
        server.kill();
        println!("killed after transition {point}: {reached}");
        server.start_again().await;
        finish(&mut server, &run_id).await;
    }
}

#[tokio::test]
async fn kill_at_random_moments() {
    let full = env::var_os("BERTH_TEST_FULL").is_some();
    let mut random = StdRng::seed_from_u64(SEED);
    for round in 0..if full { 20 } else { 3 } {
        let world = World::demo().await;
        let mut server = world.server().await;
        let run_id = server.api().create(demo_body(&world.repo_url())).await;
        for _ in 0..random.random_range(1..=3) {
            let moment = Duration::from_millis(random.random_range(5..1500));
            tokio::time::sleep(moment).await;
            println!("round {round}: kill after {moment:?}");
            server.kill();
            server.start_again().await;
        }
        finish(&mut server, &run_id).await;
    }
}

#[tokio::test]
async fn case_d09_kill_while_deleting() {
    let seeds = if env::var_os("BERTH_TEST_FULL").is_some() { 100 } else { 3 };
    let world = World::demo().await;
    let mut server = world.server().await;
    for seed in 0..seeds {
        let mut random = StdRng::seed_from_u64(seed);
        let api = server.api();
        let run_id = api.create(demo_body(&world.repo_url())).await;
        api.wait_for(&run_id, &["COMPLETED"]).await;
        api.delete(&run_id).await.ok();
        tokio::time::sleep(Duration::from_micros(random.random_range(0..120_000))).await;
        server.kill();
        server.start_again().await;
        server.api().wait_deleted(&run_id).await;
        assert!(server.sandboxes().is_empty(), "seed {seed} left {:?}", server.sandboxes());
    }
}

async fn undisturbed(server: &Server, world: &World) -> usize {
    let api = server.api();
    let run_id = api.create(demo_body(&world.repo_url())).await;
    api.wait_for(&run_id, &["COMPLETED"]).await;
    api.delete(&run_id).await.ok();
    api.wait_deleted(&run_id).await;
    api.transitions(&run_id).await.len()
}

/// Lets the run go on (and asks for deletion once it is settled) until it has `point` transitions. Asks without a pause, so
/// that the kill falls as close behind the commit as a client can see it.
async fn drive_until(server: &Server, run_id: &str, point: usize) -> String {
    let api = server.api();
    let drive = async {
        loop {
            let transitions = api.transitions(run_id).await;
            if let Some(reached) = transitions.get(point - 1) {
                let (from, to) = (&reached["from"], &reached["to"]);
                return format!("{} {from} -> {to}, {} committed", reached["entity"], transitions.len());
            }
            if transitions.iter().any(|t| t["entity"] == "RUN" && t["to"] == "COMPLETED") {
                api.delete(run_id).await;
            }
        }
    };
    let reached = tokio::time::timeout(Duration::from_secs(60), drive).await;
    reached.unwrap_or_else(|_| panic!("{run_id} never had {point} transitions"))
}

/// After the crash: the run ends COMPLETED (or is already being deleted), deletes, and nothing is left.
async fn finish(server: &mut Server, run_id: &str) {
    let api = server.api();
    let path = format!("/v1/agent-runs/{run_id}");
    eventually(Duration::from_secs(120), || async {
        let answer = api.try_call(Method::GET, &path, None, &[]).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Some(());
        }
        match answer.body["state"].as_str() {
            Some("COMPLETED") => {
                let fixed = answer.body["result"]["diff"].as_str().is_some_and(|diff| diff.contains("calc.sh"));
                assert!(fixed || edit_was_interrupted(&api.events(run_id, 1000).await), "{}", answer.text);
                api.delete(run_id).await;
                None
            }
            Some("FAILED" | "CANCELLED") => panic!("the run ended badly: {}", answer.text),
            _ => None,
        }
    })
    .await
    .unwrap_or_else(|| panic!("{run_id} did not end after the crash"));
    let receipt = api.get(&format!("{path}:receipt")).await.ok();
    assert_eq!(receipt["complete"], json!(true), "{receipt:#}");
    assert!(server.sandboxes().is_empty(), "left behind: {:?}", server.sandboxes());
}

/// An edit that a crash cut off, or that a dead launch had not begun, is answered so and never run again; the scripted model
/// does not look and goes on without it. Nothing else excuses a missing fix.
fn edit_was_interrupted(log: &[Value]) -> bool {
    let blocks = log
        .iter()
        .filter_map(|event| event["assistant_message"]["content_json"].as_str())
        .filter_map(|text| serde_json::from_str::<Vec<Value>>(text).ok())
        .flatten();
    let edits: Vec<Value> = blocks.filter(|block| block["name"] == "edit").map(|block| block["id"].clone()).collect();
    log.iter().map(|event| &event["tool_result"]).any(|result| {
        edits.contains(&result["call_id"])
            && result["text"].as_str().is_some_and(|text| text.starts_with("Interrupted"))
    })
}
