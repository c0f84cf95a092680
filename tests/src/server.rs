//! A real `berth serve` process: started, killed at any moment, started again on the same data.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{Api, eventually};

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Base URL of the model API.
    pub model_url: String,
    /// BERTH_ALLOW_PRIVATE_REPOS.
    pub allow_private_repos: bool,
    /// BERTH_DATABASE_URL.
    pub database_url: Option<String>,
    /// Further environment.
    pub env: Vec<(String, String)>,
}

/// One data folder and the process on it. Dropping it kills the process and every sandbox of the folder.
#[derive(Debug)]
pub struct Server {
    child: Option<Child>,
    data: PathBuf,
    port: u16,
    options: ServerOptions,
    starts: u32,
}

impl Server {
    /// Starts `berth serve` on a free port and waits until it is ready.
    pub async fn start(data: &Path, options: ServerOptions) -> Self {
        let mut server = Self { child: None, data: data.to_owned(), port: free_port(), options, starts: 0 };
        server.start_again().await;
        server
    }

    /// Starts the process again on the same data and port; returns how long it took to be ready.
    pub async fn start_again(&mut self) -> Duration {
        assert!(self.child.is_none(), "the server is running");
        self.starts += 1;
        let log = fs::File::options().create(true).append(true).open(self.log_path()).expect("log file");
        let mut command = Command::new(berth());
        command
            .arg("serve")
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("BERTH_LISTEN", format!("127.0.0.1:{}", self.port))
            .env("BERTH_DATA_DIR", &self.data)
            .env("BERTH_ANTHROPIC_BASE_URL", &self.options.model_url)
            .env("BERTH_DEFAULT_MODEL", "scripted")
            .env("BERTH_LOG", "info,berth_lifecycle=debug,berth_sandbox_broker=debug,berth_sessions=debug")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log handle"))
            .stderr(log);
        if self.options.allow_private_repos {
            command.env("BERTH_ALLOW_PRIVATE_REPOS", "1");
        }
        if let Some(url) = &self.options.database_url {
            command.env("BERTH_DATABASE_URL", url);
        }
        command.envs(self.options.env.iter().cloned());
        let began = Instant::now();
        self.child = Some(command.spawn().expect("berth starts"));
        let url = format!("http://127.0.0.1:{}/readyz", self.port);
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build().expect("client");
        let log_path = self.log_path();
        let child = self.child.as_mut().expect("just started");
        eventually(Duration::from_secs(30), || {
            if let Ok(Some(status)) = child.try_wait() {
                panic!("berth serve ended with {status}:\n{}", tail(&log_path));
            }
            let asked = client.get(&url).send();
            async { asked.await.is_ok_and(|answer| answer.status().is_success()).then_some(()) }
        })
        .await
        .unwrap_or_else(|| panic!("berth serve is not ready:\n{}", tail(&self.log_path())));
        began.elapsed()
    }

    /// SIGKILL, as a crash would.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("the server is running");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }

    /// SIGTERM; waits for the end and returns whether it was orderly.
    pub async fn terminate(&mut self) -> bool {
        let mut child = self.child.take().expect("the server is running");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signal");
        let status = eventually(Duration::from_secs(15), || {
            let status = child.try_wait().expect("wait");
            async move { status }
        })
        .await;
        status.unwrap_or_else(|| panic!("berth serve does not stop:\n{}", tail(&self.log_path()))).success()
    }

    /// A client with the administrator's key.
    pub fn api(&self) -> Api {
        Api::new(self.port, self.admin_key())
    }

    /// The generated administrator's key.
    pub fn admin_key(&self) -> String {
        fs::read_to_string(self.data.join("admin.key")).expect("admin.key").trim().to_owned()
    }

    /// Port of the API.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Process id of the running server.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server is running").id()
    }

    /// Names in the sandbox folder that are sandboxes.
    pub fn sandboxes(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.data.join("sandboxes")) else { return Vec::new() };
        entries
            .filter_map(Result::ok)
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .filter(|n| n.starts_with("berth-"))
            .collect()
    }

    /// Everything the server printed.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.data.with_extension("log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- server log\n{}", tail(&self.log_path()));
        }
        kill_sandboxes_under(&self.data);
    }
}

/// Sandboxes outlive the broker by design; a test's must not outlive the test. An init is known by the key in its command
/// line, and its key is the name of its folder.
fn kill_sandboxes_under(data: &Path) {
    let keys: Vec<String> = fs::read_dir(data.join("sandboxes"))
        .map(|entries| entries.filter_map(Result::ok).map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    let Ok(processes) = fs::read_dir("/proc") else { return };
    for process in processes.filter_map(Result::ok) {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let cmdline = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&cmdline);
        if text.contains("sandbox-init")
            && keys.iter().any(|key| key.starts_with("berth-") && text.contains(key.as_str()))
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// The binary under test lies beside the test's own `deps` folder; `cargo build --workspace` made it.
pub fn berth() -> PathBuf {
    let test = std::env::current_exe().expect("own path");
    let target = test.parent().and_then(Path::parent).expect("target folder");
    let berth = target.join("berth");
    assert!(berth.exists(), "{} is missing: run cargo build --workspace first", berth.display());
    berth
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

fn tail(path: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
