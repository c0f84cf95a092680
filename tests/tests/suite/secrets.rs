//! No secret where it does not belong: a private repository is cloned with the tenant's token, and the token and the model
//! key are then looked for everywhere.

use std::{fs, path::Path};

use berth_emulators::model_api::Script;
use berth_tests::World;
use serde_json::json;

use super::main_job::demo_body;

const TOKEN: &str = "ghp_canaryTokenThatMustNotLeak0123456789";
const MODEL_KEY: &str = "sk-ant-e2e-model-key-canary";

/// The agent looks for the token and the key wherever it can reach.
fn snooping_script() -> Script {
    let snoop = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; cat .git/config; \
                 grep -rs ghp_canary / --include='*' -l --exclude-dir=proc --exclude-dir=sys 2>/dev/null | head; echo searched";
    Script::parse(
        &json!({"conversations": [{"turns": [
            {"text": "looking around", "tools": [{"name": "bash", "input": {"command": snoop, "timeout_s": 120}}]},
            {"text": "nothing found"},
        ]}]})
        .to_string(),
    )
    .unwrap()
}

#[tokio::test]
async fn case_a01_case_a11_the_token_clones_a_private_repository_and_is_found_nowhere() {
    let world = World::new(snooping_script(), Some(TOKEN)).await;
    let server = world.server().await;
    let api = server.api();
    // Bound to another host first: it must not be offered to this server.
    api.put_secret("github_token", TOKEN, &[]).await.ok();
    let refused = api.create(demo_body(&world.repo_url())).await;
    let run = api.wait_for(&refused, &["FAILED", "COMPLETED"]).await;
    assert_eq!(run["error"]["reason"], "REPO_AUTH_REFUSED", "{run:#}");
    assert!(world.git().calls().iter().all(|call| call.credential.is_none()), "the token went to an unbound host");

    api.put_secret("github_token", TOKEN, &[&world.git_host()]).await.ok();
    let run_id = api.create(demo_body(&world.repo_url())).await;
    let run = api.wait_for(&run_id, &["FAILED", "COMPLETED"]).await;
    assert_eq!(run["state"], "COMPLETED", "{run:#}");
    assert!(world.git().calls().iter().any(|call| call.credential.is_some()), "the token was used for the bound host");

    let events = serde_json::to_string(&api.events(&run_id, 100).await).unwrap();
    assert!(events.contains("searched"), "the agent's search ran");
    let mut places = vec![
        ("events", events),
        ("run", run.to_string()),
        ("transitions", serde_json::to_string(&api.transitions(&run_id).await).unwrap()),
        ("secrets", api.get("/v1/tenants/default/secrets").await.text),
        ("metrics", api.get("/metrics").await.text),
        ("log", server.log()),
    ];
    let mut files = Vec::new();
    read_tree(&world.data(), &mut files);
    assert!(files.iter().any(|(name, _)| name.contains("berth.sqlite")), "the database was searched");
    places.extend(files.iter().map(|(name, text)| (name.as_str(), text.clone())));
    for (place, text) in places {
        // The search's own command line names the first characters only.
        for (what, secret) in [("token", TOKEN), ("model key", MODEL_KEY)] {
            assert!(!text.contains(secret), "the {what} is in {place}");
        }
    }
}

/// Every file below `root`, names relative; sandboxes' own trees included.
fn read_tree(root: &Path, into: &mut Vec<(String, String)>) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            read_tree(&path, into);
        } else if kind.is_file() && entry.metadata().is_ok_and(|m| m.len() < 64 << 20) {
            let bytes = fs::read(&path).unwrap_or_default();
            into.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
}
