//! The demo's parts together: a plain tool loop plays the script against a real clone, and the bug is gone.

use std::path::Path;

use berth_emulators::demo::{DEMO_PROMPT, demo_script, seed_demo_repository};
use berth_emulators::git_http::GitHttpConfig;
use serde_json::{Value, json};

use crate::world::{GitClient, GitServer, Model, assemble, events, request, streamed, text};

#[tokio::test]
async fn the_scripted_model_fixes_the_seeded_bug() {
    let root = tempfile::tempdir().unwrap();
    seed_demo_repository(root.path()).await.unwrap();
    let server = GitServer::start(GitHttpConfig::new(root.path())).await;
    let git = GitClient::new(root.path());
    git.succeed(root.path(), &["clone", "--quiet", &server.url("demo.git"), "work"]).await;
    let work = root.path().join("work");
    let before = git.run_in(&work, "sh", &["test.sh"]).await;
    assert_eq!(before.status.code(), Some(1));
    assert!(text(&before.stdout).contains("FAILED: divide 12 3 should be 4 but is 36"), "{}", text(&before.stdout));

    let model = Model::play(demo_script()).await;
    let mut messages = vec![json!({"role": "user", "content": DEMO_PROMPT})];
    let mut outputs = Vec::new();
    let last = loop {
        let response = model.ask(&streamed(request(json!(messages)))).await;
        let reply = assemble(&events(&response.text().await.unwrap()));
        messages.push(json!({"role": "assistant", "content": reply["content"]}));
        if reply["stop_reason"] != "tool_use" {
            break reply;
        }
        let mut results = Vec::new();
        for call in reply["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use") {
            let output = run_tool(&git, &work, call).await;
            results.push(json!({"type": "tool_result", "tool_use_id": call["id"], "content": output}));
            outputs.push(output);
        }
        messages.push(json!({"role": "user", "content": results}));
    };
    assert_eq!(last["stop_reason"], "end_turn");
    assert!(outputs[1].contains("some tests failed") && outputs.last().unwrap().contains("all tests passed"));
    let diff = git.succeed(&work, &["diff"]).await;
    assert!(diff.contains("-    echo $((a * b))") && diff.contains("+    echo $((a / b))"), "{diff}");
    assert!(git.run_in(&work, "sh", &["test.sh"]).await.status.success());
}

async fn run_tool(git: &GitClient, work: &Path, call: &Value) -> String {
    let input = |name: &str| call["input"][name].as_str().unwrap();
    match call["name"].as_str().unwrap() {
        "read" => std::fs::read_to_string(work.join(input("path"))).unwrap(),
        "edit" => {
            let path = work.join(input("path"));
            let content = std::fs::read_to_string(&path).unwrap();
            assert_eq!(content.matches(input("old_string")).count(), 1);
            std::fs::write(&path, content.replace(input("old_string"), input("new_string"))).unwrap();
            "replaced 1".to_owned()
        }
        "bash" => text(&git.run_in(work, "sh", &["-c", input("command")]).await.stdout),
        other => panic!("the script calls an unknown tool {other}"),
    }
}
