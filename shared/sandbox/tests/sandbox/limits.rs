//! Limits of a whole sandbox: by control groups where there are any, by rlimits where not.

use std::collections::BTreeSet;

use berth_sandbox::{LimitsBy, Missing, SandboxLimits, Spec};

use super::stage::{Stage, is_root, spec, text};

fn tight() -> Spec {
    let limits = SandboxLimits {
        memory_bytes: Some(100 << 20),
        processes: Some(40),
        cpu_millis: Some(500),
        ..SandboxLimits::default()
    };
    Spec { limits, ..spec() }
}

const HOG: &str = "python3 -c 'b = bytearray(400 << 20); print(len(b))'";
const MANY: &str = "for i in $(seq 100); do sleep 3 & done; wait";

#[tokio::test]
async fn control_groups_hold_memory_and_processes_and_go_with_the_sandbox() {
    let stage = Stage::new().await;
    let created = stage.sandboxes.create("tight", &tight()).await.unwrap();
    if !is_root() {
        assert_eq!(created.record.capabilities.limits_by, LimitsBy::Rlimits);
        assert!(created.record.cgroups.is_empty());
        return stage.finish().await;
    }
    assert_ne!(created.record.capabilities.limits_by, LimitsBy::Rlimits);
    let hog = stage.sh("tight", HOG).await;
    assert_eq!(hog.exit.signal.or(hog.exit.code.map(|code| code - 128)), Some(9), "{hog:?}");
    // Split over processes it does not get more, which is what rlimits cannot do.
    let split = stage.sh("tight", "for i in 1 2 3 4; do python3 -c 'b = bytearray(40 << 20); import time; time.sleep(2)' & p=\"$p $!\"; done; r=0; for q in $p; do wait $q || r=1; done; exit $r").await;
    assert!(!split.exit.success(), "{split:?}");
    let many = stage.sh("tight", MANY).await;
    assert!(text(&many.stderr).contains("fork"), "{many:?}");
    stage.ok("tight", "echo still working").await;
    assert!(created.record.cgroups.iter().all(|group| group.exists()));
    stage.sandboxes.destroy("tight").await.unwrap();
    assert!(created.record.cgroups.iter().all(|group| !group.exists()));
    stage.finish().await;
}

#[tokio::test]
async fn rlimits_stand_in_where_control_groups_are_missing() {
    let stage = Stage::with(|config| {
        config.unavailable = BTreeSet::from([Missing::NoCgroup]);
        config.allow = BTreeSet::from([Missing::NoCgroup]);
    })
    .await;
    let created = stage.sandboxes.create("tight", &tight()).await.unwrap();
    assert_eq!(created.record.capabilities.limits_by, LimitsBy::Rlimits);
    assert!(!created.record.capabilities.cpu_limit && created.record.cgroups.is_empty());
    let hog = stage.sh("tight", HOG).await;
    assert!(text(&hog.stderr).contains("MemoryError"), "{hog:?}");
    let many = stage.sh("tight", MANY).await;
    assert!(text(&many.stderr).contains("fork"), "{many:?}");
    stage.finish().await;
}
