//! A real Postgres for the tests: one throw-away cluster per test process, one database per test. `BERTH_TEST_POSTGRES_URL`
//! names a server to use instead.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{OnceLock, mpsc},
    time::{Duration, Instant},
};

use sqlx::{Connection as _, Executor as _, PgConnection};

/// An account that is not root: Postgres refuses to run as root.
const NOBODY: u32 = 65534;
const START_WITHIN: Duration = Duration::from_secs(60);
const PREFIX: &str = "berth-test-postgres-";

/// The URL of a fresh, empty database.
pub(crate) async fn database() -> String {
    static SERVER: OnceLock<String> = OnceLock::new();
    let server = SERVER.get_or_init(|| match std::env::var("BERTH_TEST_POSTGRES_URL") {
        Ok(url) => url.trim_end_matches('/').to_owned(),
        Err(_) => start(),
    });
    let name = format!("berth_{}", uuid::Uuid::new_v4().simple());
    let mut connection = connect(&format!("{server}/postgres")).await;
    connection.execute(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.expect("create database");
    format!("{server}/{name}")
}

/// Removes a database made by [`database`].
pub(crate) async fn drop_database(url: &str) {
    let (server, name) = url.rsplit_once('/').expect("a database URL");
    let mut connection = connect(&format!("{server}/postgres")).await;
    let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
    connection.execute(sqlx::AssertSqlSafe(drop)).await.expect("drop database");
}

async fn connect(url: &str) -> PgConnection {
    let until = Instant::now() + START_WITHIN;
    loop {
        match PgConnection::connect(url).await {
            Ok(connection) => return connection,
            Err(error) if Instant::now() > until => panic!("postgres does not answer: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Makes a cluster in a temporary folder and starts it; it dies with this process.
fn start() -> String {
    remove_leftovers();
    let folder = std::env::temp_dir().join(format!("{PREFIX}{}", std::process::id()));
    fs::create_dir_all(&folder).expect("temporary folder");
    if as_root() {
        chown(&folder, Some(NOBODY), Some(NOBODY)).expect("folder for postgres");
    }
    let data = folder.join("data");
    let copied = command(Path::new("cp"), &folder).arg("-r").arg(template()).arg(&data).output().expect("cp");
    assert!(copied.status.success(), "cp: {}", String::from_utf8_lossy(&copied.stderr));
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
    run(&folder, &data, port);
    format!("postgres://postgres@127.0.0.1:{port}")
}

/// An initialised cluster, made once per machine: initdb takes seconds, a copy does not.
fn template() -> PathBuf {
    let initdb = installed("initdb");
    let version = initdb.iter().rev().nth(2).and_then(|part| part.to_str()).unwrap_or("any").to_owned();
    let folder = std::env::temp_dir().join(format!("berth-test-template-{version}"));
    fs::create_dir_all(&folder).expect("temporary folder");
    if as_root() {
        chown(&folder, Some(NOBODY), Some(NOBODY)).expect("folder for postgres");
    }
    let lock = fs::File::create(folder.join("lock")).expect("lock file");
    lock.lock().expect("lock");
    let done = folder.join("done");
    if !done.exists() {
        let _ = fs::remove_dir_all(folder.join("data"));
        let made = command(&initdb, &folder)
            .args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"])
            .args(["--wal-segsize=1", "-D", "data"])
            .output()
            .expect("initdb is installed");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        fs::write(done, "").expect("mark");
    }
    folder.join("data")
}

/// The server is told to end when the thread that started it does, so that thread never does before the process.
fn run(folder: &Path, data: &Path, port: u16) {
    let mut server = command(&installed("postgres"), folder);
    server.arg("-D").arg(data).args(["-h", "127.0.0.1", "-p", &port.to_string(), "-F"]);
    for setting in [
        "unix_socket_directories=",
        "max_connections=200",
        "min_wal_size=2MB",
        "max_wal_size=64MB",
        "shared_buffers=32MB",
        "logging_collector=off",
    ] {
        server.args(["-c", setting]);
    }
    let log = fs::File::create(folder.join("log")).expect("log file");
    server.stdout(Stdio::null()).stderr(log);
    let (started, wait) = mpsc::channel();
    std::thread::Builder::new()
        .name("postgres-parent".to_owned())
        .spawn(move || {
            let mut child = server.spawn().expect("postgres is installed");
            started.send(()).expect("the test waits");
            let status = child.wait();
            eprintln!("postgres ended: {status:?}");
        })
        .expect("thread");
    wait.recv().expect("postgres was started");
}

/// Runs as an ordinary user, and not longer than the thread that starts it.
fn command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.current_dir(folder).env("LC_ALL", "C");
    if as_root() {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    command.args(["--pdeathsig", "QUIT"]).arg(program);
    command
}

fn installed(program: &str) -> PathBuf {
    let found = fs::read_dir("/usr/lib/postgresql").ok().and_then(|versions| {
        let mut versions: Vec<PathBuf> = versions.flatten().map(|entry| entry.path()).collect();
        versions.sort();
        versions.into_iter().rev().map(|path| path.join("bin").join(program)).find(|path| path.exists())
    });
    found.unwrap_or_else(|| PathBuf::from(program))
}

fn as_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").map(|own| own.uid() == 0).unwrap_or(false)
}

/// Folders of test processes that are no more.
fn remove_leftovers() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        if pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
