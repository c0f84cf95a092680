//! What every adapter must do, whatever its vendor: one suite, run by each adapter's tests over a provider that may make
//! sandboxes. Compiled into tests only.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use berth_sandbox_broker::provider::{
    Class, CreateOutcome, CreateSpec, Destroyed, ExecError, ExecItem, ExecSpec, Identity, ObservedState, Process,
    Provider, registry,
};

/// Runs the whole suite under keys that start with `prefix`.
pub(crate) async fn check(provider: &dyn Provider, prefix: &str) {
    declares_what_it_does(provider);
    one_sandbox_per_key(provider, &format!("{prefix}-one")).await;
    absence_is_observed(provider, &format!("{prefix}-absent")).await;
    foreign_identities_are_refused(provider, &format!("{prefix}-foreign")).await;
    commands_run_and_end(provider, &format!("{prefix}-exec")).await;
}

fn spec() -> CreateSpec {
    let deadline = SystemTime::now() + Duration::from_secs(600);
    CreateSpec { image: String::new(), deadline, egress: BTreeSet::new() }
}

async fn create(provider: &dyn Provider, key: &str) -> Identity {
    match provider.create(key, &spec()).await {
        CreateOutcome::Created(identity) => identity,
        other => panic!("{key}: {other:?}"),
    }
}

fn declares_what_it_does(provider: &dyn Provider) {
    let features = registry::features(provider);
    assert_eq!(features.contains(&"exec"), provider.exec().is_some());
    assert_eq!(features.contains(&"find_by_lease"), provider.lookup().is_some());
    assert_eq!(features.contains(&"egress_allow_list"), provider.egress().is_some());
    let declared = provider.declaration();
    assert!(!declared.name.is_empty() && !declared.account_scope.is_empty() && declared.max_sandboxes > 0);
}

async fn one_sandbox_per_key(provider: &dyn Provider, key: &str) {
    let made = create(provider, key).await;
    assert_eq!(made.provider, provider.declaration().name);
    assert_eq!(made.account_scope, provider.declaration().account_scope);
    // A resent create never makes a second one.
    match provider.create(key, &spec()).await {
        CreateOutcome::Exists(same) => assert_eq!(same.sandbox_id, made.sandbox_id),
        other => panic!("{other:?}"),
    }
    if let Some(lookup) = provider.lookup() {
        assert_eq!(lookup.find_by_lease(key).await.unwrap().unwrap().sandbox_id, made.sandbox_id);
    }
    assert_eq!(provider.observe(&made).await.unwrap().state, ObservedState::Running);
    provider.destroy(Some(&made), key).await.unwrap();
}

async fn absence_is_observed(provider: &dyn Provider, key: &str) {
    assert_eq!(provider.destroy(None, key).await.unwrap(), Destroyed::NothingThere);
    let made = create(provider, key).await;
    provider.destroy(Some(&made), key).await.unwrap();
    assert_eq!(provider.observe(&made).await.unwrap().state, ObservedState::Absent);
    if let Some(lookup) = provider.lookup() {
        assert_eq!(lookup.find_by_lease(key).await.unwrap(), None);
    }
    assert_eq!(provider.destroy(Some(&made), key).await.unwrap(), Destroyed::NothingThere);
}

async fn foreign_identities_are_refused(provider: &dyn Provider, key: &str) {
    let made = create(provider, key).await;
    let elsewhere = Identity { account_scope: "another-account".to_owned(), ..made.clone() };
    assert_eq!(provider.observe(&elsewhere).await.unwrap_err().class, Class::ScopeChanged);
    assert_eq!(provider.destroy(Some(&elsewhere), key).await.unwrap_err().class, Class::ScopeChanged);
    let other = Identity { sandbox_id: format!("{key}-other"), ..made.clone() };
    assert_eq!(provider.destroy(Some(&other), key).await.unwrap_err().class, Class::IdentityDiffers);
    assert_eq!(provider.observe(&made).await.unwrap().state, ObservedState::Running, "untouched");
    provider.destroy(Some(&made), key).await.unwrap();
}

async fn commands_run_and_end(provider: &dyn Provider, key: &str) {
    let Some(exec) = provider.exec() else { return };
    let made = create(provider, key).await;
    let command =
        |argv: &[&str]| ExecSpec { argv: argv.iter().map(|word| (*word).to_owned()).collect(), ..ExecSpec::default() };

    let both = ExecSpec { stdin: "in".into(), ..command(&["/bin/sh", "-c", "cat; echo err >&2; exit 3"]) };
    let (stdout, stderr, code) = said(exec.start(&made, both).await.unwrap()).await;
    assert_eq!((stdout.as_str(), stderr.as_str(), code), ("in", "err\n", 3));

    let missing = exec.start(&made, command(&["/no/such/program"])).await;
    assert!(matches!(missing, Err(ExecError::NotStarted(_))), "{missing:?}");

    let forever = exec.start(&made, command(&["sleep", "1000"])).await.unwrap();
    drop(forever);
    let mut left = String::from("?");
    for _ in 0..100 {
        left = said(exec.start(&made, command(&["pgrep", "-x", "sleep"])).await.unwrap()).await.0;
        if left.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(left, "", "a dropped command is killed");

    let mut stays = exec.start(&made, command(&["sleep", "1000"])).await.unwrap();
    exec.kill_all(&made).await.unwrap();
    assert!(matches!(stays.next().await, Some(Ok(ExecItem::Exit(exit))) if exit.signal == 9));

    provider.destroy(Some(&made), key).await.unwrap();
    let gone = exec.start(&made, command(&["true"])).await;
    assert!(matches!(gone, Err(ExecError::NoSandbox)), "{gone:?}");
}

async fn said(mut process: Process) -> (String, String, i32) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        match process.next().await.expect("a command ends with its exit").unwrap() {
            ExecItem::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            ExecItem::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            ExecItem::Exit(exit) => {
                let text = |bytes| String::from_utf8(bytes).unwrap();
                return (text(stdout), text(stderr), exit.code);
            }
        }
    }
}
