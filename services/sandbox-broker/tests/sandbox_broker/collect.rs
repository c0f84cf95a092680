//! Collect: what the agent left, whatever it did to its repository.

use berth_rpc::{broker as api, lifecycle as pb};

use super::{
    repository::GitServer,
    world::{World, hold, reason},
};

async fn collect(world: &mut World) -> pb::Result {
    let request = api::CollectRequest { hold: hold(), push_branch: String::new() };
    world.client.collect(request).await.unwrap().into_inner().result.unwrap()
}

#[tokio::test]
async fn head_and_diff_with_untracked_binary_and_ignored_files() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    world.ready_with(&server).await;
    let nothing = collect(&mut world).await;
    assert_eq!((nothing.head_commit.as_str(), nothing.diff.as_str()), (server.head.as_str(), ""));
    world
        .ok("echo committed > README; git commit -qam agent; echo 'echo $(($1 / $2))' > calc.sh; rm main; \
             mkdir ignored; echo i > ignored/i; echo new > 'new file'; printf '\\0\\1\\2' > binary; git add binary")
        .await;
    let before = world.ok("git status --porcelain; git rev-parse HEAD").await;
    let result = collect(&mut world).await;
    assert_eq!(result.base_commit, server.head);
    assert_eq!(result.head_commit, before.lines().last().unwrap());
    for line in
        ["-demo", "+committed", "-echo $(($1 * $2))", "+echo $(($1 / $2))", "+++ b/new file", "deleted file mode"]
    {
        assert!(result.diff.contains(line), "{line}: {}", result.diff);
    }
    assert!(result.diff.contains("Binary files /dev/null and b/binary differ"), "{}", result.diff);
    assert!(!result.diff.contains("ignored/i") && !result.diff_truncated && result.collect_error.is_none());
    assert_eq!(world.ok("git status --porcelain; git rev-parse HEAD; ls -A /tmp").await, before, "untouched");
    world.finish().await;
}

#[tokio::test]
async fn a_diff_over_a_mebibyte_is_cut_after_a_line_and_marked() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    world.ready_with(&server).await;
    world.ok("seq 1 400000 > long").await;
    let result = collect(&mut world).await;
    assert!(result.diff_truncated && result.diff.len() <= 1 << 20 && result.diff.len() > (1 << 20) - 100);
    assert!(result.diff.ends_with('\n'));
    world.finish().await;
}

#[tokio::test]
async fn the_agents_configuration_runs_nothing_and_hides_nothing() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    world.ready_with(&server).await;
    world
        .ok("printf '#!/bin/sh\\ntouch /tmp/ran\\n' > /tmp/x; chmod +x /tmp/x; \
             git config diff.external /tmp/x; git config core.fsmonitor /tmp/x; git config core.pager /tmp/x; \
             git config core.hooksPath /tmp/hooks; git config diff.t.textconv /tmp/x; echo '* diff=t' > .gitattributes; \
             git config color.ui always; git config diff.noprefix true; git config color.diff always; echo changed > README")
        .await;
    let result = collect(&mut world).await;
    assert!(result.diff.contains("--- a/README\n+++ b/README\n@@ -1 +1 @@\n-demo\n+changed\n"), "{}", result.diff);
    assert_eq!(world.ok("ls /tmp").await, "x");
    world.finish().await;
}

#[tokio::test]
async fn without_a_commit_everything_is_new() {
    let mut world = World::new().await;
    world.ready("").await;
    world.ok("echo made > made").await;
    let result = collect(&mut world).await;
    assert_eq!((result.head_commit.as_str(), result.base_commit.as_str()), ("", ""));
    assert!(result.diff.contains("+++ b/made\n@@ -0,0 +1 @@\n+made\n"), "{}", result.diff);
    assert!(result.collect_error.is_none());
    world.finish().await;
}

#[tokio::test]
async fn a_destroyed_repository_is_explained() {
    let server = GitServer::public().await;
    let mut world = World::new().await;
    world.ready_with(&server).await;
    world.ok("rm -rf .git").await;
    let error = collect(&mut world).await.collect_error.unwrap();
    assert_eq!(error.reason, "COLLECT_FAILED", "{}", error.message);
    world.sandboxes().await.destroy(super::world::KEY).await.unwrap();
    let request = api::CollectRequest { hold: hold(), push_branch: "x".to_owned() };
    assert_eq!(reason(&world.client.collect(request).await.unwrap_err()), "SANDBOX_LOST");
    world.finish().await;
}
