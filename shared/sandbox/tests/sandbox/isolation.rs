//! What a sandbox can see and reach: its own, and nothing of the host or its neighbours.

use std::os::unix::net::UnixListener;

use berth_sandbox::ExecSpec;

use super::stage::{Stage, text};

#[tokio::test]
async fn files_of_the_sandbox_are_its_own_and_system_directories_are_read_only() {
    let stage = Stage::new().await;
    stage.create("files").await;
    assert_eq!(
        stage.ok("files", "pwd; whoami; id -u; id -g; echo $HOME; hostname").await,
        "/workspace\nagent\n1000\n1000\n/home/agent\nsandbox"
    );
    stage.ok("files", "echo w > /workspace/f && echo h > ~/f && echo t > /tmp/f && echo s > /dev/shm/f").await;
    assert_eq!(stage.ok("files", "cat /workspace/f ~/f /tmp/f /dev/shm/f").await, "w\nh\nt\ns");
    assert_eq!(
        stage
            .ok("files", "ls / | tr '\\n' ' '")
            .await
            .split(' ')
            .filter(|name| {
                ![
                    "bin",
                    "dev",
                    "etc",
                    "home",
                    "lib",
                    "lib32",
                    "lib64",
                    "libx32",
                    "proc",
                    "run",
                    "sbin",
                    "tmp",
                    "usr",
                    "var",
                    "workspace",
                ]
                .contains(name)
            })
            .collect::<Vec<_>>(),
        Vec::<&str>::new()
    );
    for place in
        ["/", "/usr", "/usr/bin", "/etc", "/dev", "/home", "/run", "/var", "/etc/ssl/certs", "/proc/sys/kernel"]
    {
        let output = stage.sh("files", &format!("echo x > {place}/made-by-test")).await;
        assert!(!output.exit.success(), "{place} is writable");
    }
    stage
        .ok(
            "files",
            "echo out > /dev/stdout; echo err > /dev/stderr; head -c 4 /dev/urandom | wc -c; test -c /dev/null",
        )
        .await;
    assert_eq!(stage.ok("files", "ls /proc/self/fd | wc -l").await, "4");
    stage
        .ok(
            "files",
            "grep -q '^NoNewPrivs:.1' /proc/self/status && grep -q '^CapBnd:.0000000000000000' /proc/self/status",
        )
        .await;
    stage
        .ok("files", "grep -q '^CapEff:.0000000000000000' /proc/self/status && grep -q '^Seccomp:.2' /proc/self/status")
        .await;
    stage.ok("files", "git --version && getent passwd agent && getent hosts localhost").await;
    stage.finish().await;
}

#[tokio::test]
async fn host_secrets_environment_and_other_sandboxes_are_out_of_reach() {
    let stage = Stage::new().await;
    let secret = stage.directory.path().join("secret");
    std::fs::write(&secret, "host-secret").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    stage.create("one").await;
    stage.create("two").await;
    stage.ok("two", "echo two-secret > /workspace/secret; chmod -R 777 /workspace").await;
    for path in [
        secret.clone(),
        stage.root().join("two/workspace/secret"),
        stage.root().join("one/state.json"),
        stage.root().join("one/control/exec.sock"),
        "/etc/shadow".into(),
        "/root".into(),
        "/proc/1/root".into(),
        "/proc/1/cwd".into(),
        "/proc/1/environ".into(),
        "/proc/1/fd".into(),
        "/sys".into(),
        "/proc/kcore".into(),
    ] {
        let line = format!("ls {0}/ || test -s {0} && cat {0}", path.display());
        let output = stage.sh("one", &line).await;
        assert!(!output.exit.success() || output.stdout.is_empty(), "{}: {output:?}", path.display());
    }
    // A link placed for the host to follow leads nowhere inside, and the host never follows it.
    let output = stage.sh("one", &format!("ln -s {} /workspace/link; cat /workspace/link", secret.display())).await;
    assert!(!output.exit.success());
    // The environment is exactly what was given: nothing of this process, whose environment has more.
    let environment = stage.ok("one", "env").await;
    assert!(!environment.contains("CARGO") && !environment.contains("RUST"), "{environment}");
    let everywhere = stage.sh("one", "cat /proc/*/environ | tr '\\0' '\\n'").await;
    assert!(!text(&everywhere.stdout).contains("CARGO"));
    stage.finish().await;
}

#[tokio::test]
async fn processes_and_loopback_are_the_sandboxes_own() {
    let stage = Stage::new().await;
    stage.create("one").await;
    stage.create("two").await;
    let seen = stage.ok("one", "ls /proc | grep -c '^[0-9]'").await;
    assert!(seen.parse::<u32>().unwrap() <= 4, "{seen} processes");
    stage.ok("one", "sleep 1000 > /dev/null 2>&1 &").await;
    // One process list for all execs of a sandbox, and none for its neighbour.
    assert_eq!(stage.ok("one", "grep -l '^sleep' /proc/[0-9]*/comm | wc -l").await, "1");
    assert_eq!(stage.ok("two", "grep -l '^sleep' /proc/[0-9]*/comm | wc -l").await, "0");
    assert!(!stage.sh("one", &format!("kill -9 {}", std::process::id())).await.exit.success());
    stage.sh("one", "kill -9 1; kill -9 -1").await;
    stage.ok("one", "echo the init lives").await;
    stage.finish().await;
}

#[tokio::test]
async fn host_loopback_sockets_and_networks_are_out_of_reach() {
    let stage = Stage::new().await;
    stage.create("net").await;
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let socket = stage.directory.path().join(".s.PGSQL.5432");
    let _postgres = UnixListener::bind(&socket).unwrap();
    let abstract_name = format!("berth-test-{}", std::process::id());
    let address =
        <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(&abstract_name)
            .unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();
    let script = format!(
        r#"
import socket, sys
def refused(what, act):
    try:
        act()
    except OSError as failure:
        print(what, 'refused', failure.errno)
    else:
        print(what, 'REACHED')
def tcp(host, port, family=socket.AF_INET):
    s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(3); s.connect((host, port))
def unix(path):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM); s.connect(path)
def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('1.1.1.1', 53))
refused('loopback', lambda: tcp('127.0.0.1', {port}))
refused('loopback6', lambda: tcp('::1', {port}, socket.AF_INET6))
refused('internet', lambda: tcp('1.1.1.1', 443))
refused('metadata', lambda: tcp('169.254.169.254', 80))
refused('udp', udp)
refused('postgres', lambda: unix({socket:?}))
refused('abstract', lambda: unix('\0{abstract_name}'))
refused('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
refused('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
refused('vsock', lambda: socket.socket(40, socket.SOCK_STREAM))
print(sorted(name for _, name in socket.if_nameindex()))
"#
    );
    let output = stage.run("net", ExecSpec::new(["/usr/bin/python3", "-c", &script])).await;
    let said = text(&output.stdout);
    assert!(output.exit.success(), "{output:?}");
    assert_eq!(said.matches("refused").count(), 10, "{said}");
    assert!(said.ends_with("['lo']") && !said.contains("REACHED"), "{said}");
    stage.finish().await;
}

#[tokio::test]
async fn new_namespaces_mounts_and_traces_are_refused() {
    let stage = Stage::new().await;
    stage.create("calls").await;
    for line in [
        "unshare -U true",
        "unshare -r true",
        "mount -t tmpfs none /tmp",
        "umount /proc",
        "chroot / true",
        "setpriv --reuid 0 true",
    ] {
        let output = stage.sh("calls", line).await;
        assert!(!output.exit.success(), "{line} worked");
    }
    stage.finish().await;
}

#[tokio::test]
async fn a_broker_that_is_root_offers_an_inner_root_without_power_outside() {
    let stage = Stage::new().await;
    stage.create("inner").await;
    let as_root = |line: &str| ExecSpec { user: berth_sandbox::ExecUser::InnerRoot, ..ExecSpec::shell(line) };
    if !super::stage::is_root() {
        let refused = stage.sandboxes.exec("inner", as_root("true")).await.unwrap_err();
        assert_eq!(refused.kind(), berth_sandbox::ErrorKind::Invalid);
        return stage.finish().await;
    }
    let output = stage
        .run(
            "inner",
            as_root("id -u; echo secret > /dev/shm/s; chmod 600 /dev/shm/s; ls -ln /usr/bin/env | cut -d' ' -f3"),
        )
        .await;
    assert_eq!(text(&output.stdout), "0\n65534", "{output:?}");
    assert!(!stage.sh("inner", "cat /dev/shm/s").await.exit.success());
    for line in
        ["mount -t tmpfs none /tmp", "echo x > /usr/bin/x", "unshare -m true", "hostname other", "cat /proc/1/environ"]
    {
        assert!(!stage.run("inner", as_root(line)).await.exit.success(), "{line} worked");
    }
    stage.finish().await;
}
