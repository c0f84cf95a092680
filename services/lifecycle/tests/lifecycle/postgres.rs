//! A real Postgres for the tests: one throw-away cluster for all test processes, one database per test.
//! `BERTH_TEST_POSTGRES_URL` names a server to use instead.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use sqlx::{Connection as _, Executor as _, PgConnection};

/// An account that is not root: Postgres refuses to run as root.
const NOBODY: u32 = 65534;
const START_WITHIN: Duration = Duration::from_secs(60);

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

pub(crate) async fn connect(url: &str) -> PgConnection {
    let until = Instant::now() + START_WITHIN;
    loop {
        match PgConnection::connect(url).await {
            Ok(connection) => return connection,
            Err(error) if Instant::now() > until => panic!("postgres does not answer: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Finds or starts the server that all test processes of this machine share. It ends by itself, soon after the last of them.
fn start() -> String {
    let initdb = installed("initdb");
    let version = initdb.iter().rev().nth(2).and_then(|part| part.to_str()).unwrap_or("any").to_owned();
    let folder = std::env::temp_dir().join(format!("berth-test-postgres-{version}"));
    fs::create_dir_all(&folder).expect("temporary folder");
    if as_root() {
        chown(&folder, Some(NOBODY), Some(NOBODY)).expect("folder for postgres");
    }
    // Whoever starts or ends the server holds this one.
    let change = lock_file(&folder.join("change.lock"));
    change.lock().expect("lock");
    // Everyone who uses it shares this one, until the process ends.
    let users = lock_file(&folder.join("users.lock"));
    users.lock_shared().expect("lock");
    std::mem::forget(users);
    let port = fs::read_to_string(folder.join("port")).ok().and_then(|port| port.trim().parse().ok());
    let port = port.filter(|port: &u16| TcpStream::connect(("127.0.0.1", *port)).is_ok());
    let port = port.unwrap_or_else(|| start_server(&initdb, &folder));
    format!("postgres://postgres@127.0.0.1:{port}")
}

fn lock_file(path: &Path) -> fs::File {
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).expect("lock file");
    if as_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).expect("lock file for postgres");
    }
    file
}

/// A fresh cluster every time: nothing of earlier tests is left in it.
fn start_server(initdb: &Path, folder: &Path) -> u16 {
    let _ = fs::remove_dir_all(folder.join("data"));
    let made = as_ordinary_user(folder)
        .arg(initdb)
        .args(["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "-D", "data"])
        .output()
        .expect("initdb is installed");
    assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
    let server = as_ordinary_user(folder)
        .args(["setsid", "sh", "-c", SUPERVISE, "supervise"])
        .arg(installed("postgres"))
        .arg(port.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    drop(server.expect("postgres is installed"));
    let until = Instant::now() + START_WITHIN;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "postgres does not start; see {}", folder.join("log").display());
        std::thread::sleep(Duration::from_millis(20));
    }
    fs::write(folder.join("port"), port.to_string()).expect("port file");
    port
}

/// Runs the server in the current folder and ends it when no test process has used it for a moment. Holding the change lock
/// while it looks keeps a new user from finding a server that is about to end.
const SUPERVISE: &str = r#"
"$1" -D data -h 127.0.0.1 -p "$2" -F -c unix_socket_directories= -c max_connections=400 -c shared_buffers=64MB \
    -c max_wal_size=256MB > log 2>&1 &
server=$!
while sleep 5 && kill -0 $server 2> /dev/null; do
    flock change.lock sh -c 'flock -n -x users.lock true && rm -f port' && { kill -INT $server; break; }
done
wait $server
"#;

/// A command line that begins with whatever it takes not to be root.
fn as_ordinary_user(folder: &Path) -> Command {
    let mut command = Command::new(if as_root() { "setpriv" } else { "env" });
    command.current_dir(folder).env("LC_ALL", "C");
    if as_root() {
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
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
