//! From create to the proof of absence, through crashes and hostile leftovers.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use berth_sandbox::{ErrorKind, ExecSpec, Missing, Observed, SandboxConfig, SandboxError, Sandboxes, Spec};

use super::stage::{Stage, config, eventually, init, is_root, spec, text, within};

#[tokio::test]
async fn a_sandbox_is_found_observed_listed_and_destroyed_twice() {
    let stage = Stage::new().await;
    assert_eq!(stage.sandboxes.observe("life").await.unwrap(), Observed::Absent);
    let created = stage.sandboxes.create("life", &spec()).await.unwrap();
    assert_eq!(stage.sandboxes.create("life", &spec()).await.unwrap_err().kind(), ErrorKind::Exists);
    let found = stage.sandboxes.find("life").await.unwrap().unwrap();
    assert_eq!(found.record.as_ref(), Some(&created.record));
    assert_eq!(found.observed, Observed::Running { since: created.record.created_at });
    assert_eq!(stage.sandboxes.list().await.unwrap(), [found]);
    assert!(!stage.sandboxes.observed_absent("life").await.unwrap());
    for _ in 0..2 {
        stage.sandboxes.destroy("life").await.unwrap();
        assert!(stage.sandboxes.observed_absent("life").await.unwrap());
    }
    // Whoever is its parent collects it in its own time; until then it is no more than an entry.
    eventually("the init is collected", || async {
        !std::path::Path::new(&format!("/proc/{}", created.record.pid)).exists()
    })
    .await;
    assert!(created.record.cgroups.iter().all(|group| !group.exists()));
    for bad in ["", "../x", "A", "a/b"] {
        assert_eq!(stage.sandboxes.destroy(bad).await.unwrap_err().kind(), ErrorKind::Invalid);
    }
    stage.finish().await;
}

#[tokio::test]
async fn a_new_broker_over_the_same_root_finds_uses_and_destroys() {
    let stage = Stage::new().await;
    stage.create("kept").await;
    stage.ok("kept", "echo kept > file; (sleep 1000 &) ; true").await;
    let running = stage.sandboxes.exec("kept", ExecSpec::shell("sleep 999")).await.unwrap();
    let Stage { directory, sandboxes } = stage;
    // All of the first broker is gone, its connections included.
    drop(running);
    drop(sandboxes);
    let config = config(&directory.path().join("root"));
    let stage = Stage { directory, sandboxes: Sandboxes::new(config).await.unwrap() };
    assert!(matches!(stage.sandboxes.observe("kept").await.unwrap(), Observed::Running { .. }));
    assert_eq!(stage.ok("kept", "cat file").await, "kept");
    eventually("the exec of the dead broker is gone, its daemon is not", || async {
        stage
            .ok("kept", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -oE 'slee[p] [0-9]+' | sort | tr '\\n' ' '")
            .await
            == "sleep 1000"
    })
    .await;
    stage.finish().await;
}

#[tokio::test]
async fn the_init_outlives_its_broker_process_and_a_creation_cut_anywhere_leaves_nothing_unknown() {
    let stage = Stage::new().await;
    // A real broker process would be killed here; an aborted task lets the blocking creation finish, so the cut is acted
    // out from the other side: the directory without a record, as it is before `Go`.
    std::fs::create_dir_all(stage.root().join("half/workspace/deep")).unwrap();
    assert_eq!(stage.sandboxes.observe("half").await.unwrap(), Observed::Stopped);
    let found = stage.sandboxes.find("half").await.unwrap().unwrap();
    assert!(found.record.is_none());
    assert_eq!(stage.sandboxes.exec("half", ExecSpec::shell("true")).await.unwrap_err().kind(), ErrorKind::NotRunning);
    assert_eq!(stage.sandboxes.create("half", &spec()).await.unwrap_err().kind(), ErrorKind::Exists);
    stage.sandboxes.destroy("half").await.unwrap();
    assert!(stage.sandboxes.observed_absent("half").await.unwrap());

    // An init whose broker dies before `Go` ends by itself.
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    let (ours, theirs) = UnixStream::pair().unwrap();
    let listener = UnixListener::bind(stage.directory.path().join("socket")).unwrap();
    let mut orphan = std::process::Command::new(init().exe)
        .args(["serve", "orphan", "00000000"])
        .stdin(OwnedFd::from(theirs))
        .stdout(OwnedFd::from(listener))
        .spawn()
        .unwrap();
    drop(ours);
    let status = within(tokio::task::spawn_blocking(move || orphan.wait().unwrap())).await.unwrap();
    assert!(!status.success());
    stage.finish().await;
}

#[tokio::test]
async fn create_raced_by_destroy_leaves_nothing() {
    let stage = Stage::new().await;
    for round in 0..10 {
        let key = format!("race-{round}");
        let (sandboxes, name) = (stage.sandboxes.clone(), key.clone());
        let mut creating = tokio::spawn(async move { sandboxes.create(&name, &spec()).await });
        let early = tokio::time::timeout(Duration::from_millis(round * 3), &mut creating).await;
        let _ = stage.sandboxes.destroy(&key).await;
        if early.is_err() {
            let _ = creating.await.unwrap();
        }
        stage.sandboxes.destroy(&key).await.unwrap();
        assert!(stage.sandboxes.observed_absent(&key).await.unwrap(), "{key}");
    }
    stage.finish().await;
}

#[tokio::test]
async fn an_init_killed_from_outside_leaves_a_stopped_sandbox() {
    let stage = Stage::new().await;
    let created = stage.sandboxes.create("dead", &spec()).await.unwrap();
    let mut exec = stage.sandboxes.exec("dead", ExecSpec::shell("sleep 1000")).await.unwrap();
    let pid = rustix::process::Pid::from_raw(created.record.pid.cast_signed()).unwrap();
    // Only the last resort reaches it: everything else is ignored by a pid 1.
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    stage.ok("dead", "true").await;
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let cut = loop {
        match within(exec.next()).await {
            Some(Ok(_)) => {}
            Some(Err(failure)) => break failure,
            None => panic!("the exec ended without a word"),
        }
    };
    assert!(matches!(cut, SandboxError::Connection(_)), "{cut}");
    eventually("it is seen as stopped", || async {
        stage.sandboxes.observe("dead").await.unwrap() == Observed::Stopped
    })
    .await;
    assert_eq!(stage.sandboxes.exec("dead", ExecSpec::shell("true")).await.unwrap_err().kind(), ErrorKind::NotRunning);
    stage.finish().await;
}

#[tokio::test]
async fn a_hostile_tree_is_deleted_without_following_it_out() {
    let stage = Stage::new().await;
    let outside = stage.directory.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("precious"), "precious").unwrap();
    stage.create("hostile").await;
    let script = format!(
        "import os\n\
         for i in range(3000):\n    os.mkdir('a-long-directory-name'); os.chdir('a-long-directory-name')\n\
         os.chdir('/workspace')\n\
         os.symlink({outside:?}, 'out'); os.symlink('/', 'root'); os.symlink('..', 'up'); os.mkfifo('fifo')\n\
         open(b'\\xff\\xfe\\n', 'w').close(); open('-rf', 'w').close(); os.mkdir('~1'); os.mkdir('dir\\n')\n\
         os.makedirs('closed/inner/x'); os.chmod('closed/inner', 0); os.chmod('closed', 0)\n\
         os.chdir('/home/agent')\n\
         [open(str(i), 'w').close() for i in range(3000)]\n\
         os.chmod('/home/agent', 0)\n"
    );
    let output = stage.run("hostile", ExecSpec::new(["/usr/bin/python3", "-c", &script])).await;
    assert!(output.exit.success(), "{}", text(&output.stderr));
    within(stage.sandboxes.destroy("hostile")).await.unwrap();
    assert!(stage.sandboxes.observed_absent("hostile").await.unwrap());
    assert!(outside.join("precious").exists());
    stage.finish().await;
}

#[tokio::test]
async fn a_sandbox_ends_itself_at_its_deadline() {
    let stage = Stage::new().await;
    let soon = SystemTime::now() + Duration::from_secs(2);
    let spec = Spec { deadline: Some(soon), ..Spec::default() };
    stage.sandboxes.create("brief", &spec).await.unwrap();
    stage.sandboxes.create("longer", &spec).await.unwrap();
    let later = SystemTime::now() + Duration::from_secs(3600);
    stage.sandboxes.set_deadline("longer", Some(later)).await.unwrap();
    eventually("it is over", || async { stage.sandboxes.observe("brief").await.unwrap() == Observed::Stopped }).await;
    assert!(SystemTime::now() >= soon);
    stage.ok("longer", "true").await;
    let record = stage.sandboxes.find("longer").await.unwrap().unwrap().record.unwrap();
    assert_eq!(record.spec.deadline, Some(later));
    stage.finish().await;
}

#[tokio::test]
async fn a_sandbox_whose_directory_was_removed_by_others_ends_itself() {
    let stage = Stage::new().await;
    stage.create("bereft").await;
    std::fs::remove_dir_all(stage.root().join("bereft")).unwrap();
    let running = || {
        std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("serve\0bereft\0")
        })
    };
    eventually("the init is gone", || async { !running() }).await;
    stage.sandboxes.destroy("bereft").await.unwrap();
    assert!(stage.sandboxes.observed_absent("bereft").await.unwrap());
    stage.finish().await;
}

#[tokio::test]
async fn a_kernel_that_lacks_something_is_refused_by_name_unless_allowed() {
    for missing in Missing::ALL {
        let lacking = |config: &mut SandboxConfig| config.unavailable = BTreeSet::from([missing]);
        let stage = Stage::with(|config| {
            lacking(config);
            config.allow.clear();
        })
        .await;
        let refused = stage.sandboxes.create("no", &spec()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        if is_root() {
            assert!(refused.to_string().contains(missing.as_str()), "{refused}");
        }
        assert!(stage.sandboxes.observed_absent("no").await.unwrap());
        stage.finish().await;

        if missing == Missing::NoUserns && !is_root() {
            continue;
        }
        let stage = Stage::with(|config| {
            lacking(config);
            config.allow.insert(missing);
        })
        .await;
        let created = stage.sandboxes.create("less", &spec()).await.unwrap();
        let capabilities = created.record.capabilities;
        assert_eq!(capabilities.user_namespace, missing != Missing::NoUserns);
        assert_eq!(capabilities.network_namespace, missing != Missing::NoNetns);
        assert_eq!(capabilities.seccomp, missing != Missing::NoSeccomp);
        assert_eq!(stage.ok("less", "whoami; grep CapEff /proc/self/status").await, "agent\nCapEff:\t0000000000000000");
        assert!(!stage.sh("less", "echo x > /usr/x").await.exit.success());
        assert_eq!(stage.ok("less", "echo ${HTTP_PROXY:-none}").await == "none", missing == Missing::NoNetns);
        stage.finish().await;
    }
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused() {
    for (source, target) in [("relative", "/x"), ("/usr", "/workspace/x"), ("/usr", "/"), ("/usr", "/a/../tmp")] {
        let directory = tempfile::tempdir().unwrap();
        let mut config = SandboxConfig::new(directory.path().join("root"), init());
        config.read_only_binds = vec![berth_sandbox::ReadOnlyBind { source: source.into(), target: target.into() }];
        assert_eq!(Sandboxes::new(config).await.unwrap_err().kind(), ErrorKind::Invalid, "{source} {target}");
    }
    let not_an_init = berth_sandbox::InitCommand { exe: "/bin/echo".into(), args: Vec::new() };
    let directory = tempfile::tempdir().unwrap();
    let failure = Sandboxes::new(SandboxConfig::new(directory.path().join("root"), not_an_init)).await.unwrap_err();
    assert_eq!(failure.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn extra_binds_are_shown_read_only() {
    let shown = tempfile::tempdir().unwrap();
    std::fs::write(shown.path().join("tool"), "tool").unwrap();
    std::fs::set_permissions(shown.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let stage = Stage::with(|config| {
        let bind =
            |source: std::path::PathBuf, target: &str| berth_sandbox::ReadOnlyBind { source, target: target.into() };
        config.read_only_binds =
            vec![bind(shown.path().to_owned(), "/opt/tools"), bind(shown.path().join("tool"), "/opt/one")];
    })
    .await;
    stage.create("binds").await;
    assert_eq!(stage.ok("binds", "cat /opt/tools/tool /opt/one").await, "tooltool");
    assert!(!stage.sh("binds", "touch /opt/tools/x || echo y > /opt/one").await.exit.success());
    stage.finish().await;
}
