//! What every test needs: a root of its own, sandboxes over it, and short ways to run a command and to wait.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use berth_sandbox::{ExecSpec, InitCommand, Missing, Output, SandboxConfig, Sandboxes, Spec};

/// Most output a test looks at.
const LIMIT: usize = 1 << 20;

/// A root directory with its sandboxes; all of them are destroyed at the end.
pub(crate) struct Stage {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) sandboxes: Sandboxes,
}

/// The init program of this build, where a test that was copied elsewhere keeps it beside itself.
pub(crate) fn init() -> InitCommand {
    let beside = std::env::current_exe().unwrap().with_file_name("berth-sandbox-init");
    let exe = if beside.exists() { beside } else { PathBuf::from(env!("CARGO_BIN_EXE_berth-sandbox-init")) };
    InitCommand { exe, args: Vec::new() }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An ordinary user may do without control groups.
pub(crate) fn config(root: &Path) -> SandboxConfig {
    let mut config = SandboxConfig::new(root, init());
    if !is_root() {
        config.allow = BTreeSet::from([Missing::NoCgroup]);
    }
    config
}

/// A sandbox that does not outlive a failed test for long.
pub(crate) fn spec() -> Spec {
    Spec { deadline: Some(SystemTime::now() + Duration::from_secs(300)), ..Spec::default() }
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// With changed settings.
    pub(crate) async fn with(change: impl FnOnce(&mut SandboxConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(&directory.path().join("root"));
        change(&mut config);
        let sandboxes = Sandboxes::new(config).await.unwrap();
        Self { directory, sandboxes }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    pub(crate) async fn create(&self, key: &str) {
        self.sandboxes.create(key, &spec()).await.unwrap();
    }

    /// Runs a shell line as the agent.
    pub(crate) async fn sh(&self, key: &str, line: &str) -> Output {
        self.run(key, ExecSpec::shell(line)).await
    }

    pub(crate) async fn run(&self, key: &str, spec: ExecSpec) -> Output {
        let handle = self.sandboxes.exec(key, spec).await.unwrap();
        within(handle.output(LIMIT)).await.unwrap()
    }

    /// Runs a shell line that must succeed, and returns what it printed.
    pub(crate) async fn ok(&self, key: &str, line: &str) -> String {
        let output = self.sh(key, line).await;
        assert!(output.exit.success(), "{line}: {output:?}");
        text(&output.stdout)
    }

    /// Destroys what is left; the proof that nothing is left beside the tests' own checks.
    pub(crate) async fn finish(self) {
        for found in self.sandboxes.list().await.unwrap() {
            self.sandboxes.destroy(&found.key).await.unwrap();
            assert!(self.sandboxes.observed_absent(&found.key).await.unwrap());
        }
        assert_eq!(std::fs::read_dir(self.root()).unwrap().count(), 0);
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// No wait of a test is longer.
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), work).await.expect("took too long")
}

/// Waits until the condition holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let until = tokio::time::Instant::now() + Duration::from_secs(30);
    while !condition().await {
        assert!(tokio::time::Instant::now() < until, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
