//! ReadFile and WriteFile: contents as they are, and no way to a file outside the agent's folders.

use berth_rpc::broker as api;

use super::world::{World, hold, reason};

async fn world() -> World {
    let mut world = World::new().await;
    world.ready("").await;
    world
}

async fn read(world: &mut World, path: &str, max_bytes: i64) -> Result<api::ReadFileResponse, String> {
    let request = api::ReadFileRequest { hold: hold(), path: path.to_owned(), max_bytes };
    world.client.read_file(request).await.map(tonic::Response::into_inner).map_err(|status| reason(&status))
}

async fn write(world: &mut World, path: &str, content: &[u8]) -> Result<i64, String> {
    let request = api::WriteFileRequest { hold: hold(), path: path.to_owned(), content: content.to_vec() };
    let written = world.client.write_file(request).await.map_err(|status| reason(&status))?;
    Ok(written.into_inner().size)
}

#[tokio::test]
async fn contents_survive_the_round_trip() {
    let mut world = world().await;
    let binary: Vec<u8> = (0..=255u8).cycle().take(300_000).collect();
    for (path, content) in [
        ("text.txt", &b"line\n"[..]),
        ("empty", b""),
        ("binary", &binary),
        ("/tmp/elsewhere", b"x"),
        ("-rf", b"option"),
        ("odd $(name)\n", b"odd"),
    ] {
        assert_eq!(write(&mut world, path, content).await, Ok(content.len() as i64), "{path:?}");
        let file = read(&mut world, path, 0).await.unwrap();
        assert!(file.content == content && file.size == content.len() as i64 && !file.truncated, "{path:?}");
    }
    let part = read(&mut world, "binary", 1000).await.unwrap();
    assert!(part.content == binary[..1000] && part.size == 300_000 && part.truncated);
    assert_eq!(world.ok("stat -c '%a %U' text.txt; ls -A | grep -c berth; true").await, "644 agent\n0");
    world.finish().await;
}

#[tokio::test]
async fn the_largest_file_fits_and_no_larger() {
    let mut world = world().await;
    let large = vec![b'x'; 10 << 20];
    assert_eq!(write(&mut world, "large", &large).await, Ok(large.len() as i64));
    assert_eq!(read(&mut world, "large", 0).await.unwrap().content.len(), large.len());
    assert_eq!(write(&mut world, "large", &vec![b'x'; (10 << 20) + 1]).await, Err("FILE_TOO_LARGE".to_owned()));
    assert_eq!(read(&mut world, "large", (10 << 20) + 1).await, Err("MAX_BYTES_INVALID".to_owned()));
    world.finish().await;
}

#[tokio::test]
async fn a_replaced_file_keeps_its_mode_and_a_link_stays_a_link() {
    let mut world = world().await;
    world.ok("echo old > tool; chmod 755 tool; ln -s tool link").await;
    write(&mut world, "link", b"new\n").await.unwrap();
    assert_eq!(world.ok("cat tool; stat -c %a tool; readlink link").await, "new\n755\ntool");
    world.finish().await;
}

#[tokio::test]
async fn only_the_agents_folders_are_reached() {
    let mut world = world().await;
    world.ok("ln -s /etc/passwd passwd; ln -s /etc etc; ln -s /proc/1/environ env; mkdir dir; mkfifo fifo; echo x > secret; chmod 0 secret").await;
    for path in ["/etc/passwd", "../../etc/passwd", "passwd", "etc/passwd", "/proc/self/environ", "env", "/dev/zero"] {
        let refused = read(&mut world, path, 0).await.unwrap_err();
        assert!(
            refused == "PATH_OUTSIDE_WORKDIR" || (path == "env" && refused == "FILE_NOT_FOUND"),
            "{path}: {refused}"
        );
    }
    for (path, expected) in
        [("none", "FILE_NOT_FOUND"), ("dir", "NOT_A_FILE"), ("fifo", "NOT_A_FILE"), ("secret", "FILE_UNREADABLE")]
    {
        assert_eq!(read(&mut world, path, 0).await, Err(expected.to_owned()), "{path}");
    }
    for (path, expected) in [
        ("passwd", "PATH_OUTSIDE_WORKDIR"),
        ("etc/x", "PATH_OUTSIDE_WORKDIR"),
        ("/etc/x", "PATH_OUTSIDE_WORKDIR"),
        ("/workspace", "PATH_OUTSIDE_WORKDIR"),
        ("none/x", "PARENT_MISSING"),
        ("dir", "NOT_A_FILE"),
        ("fifo", "NOT_A_FILE"),
        ("secret", "FILE_UNWRITABLE"),
    ] {
        assert_eq!(write(&mut world, path, b"x").await, Err(expected.to_owned()), "{path}");
    }
    world.finish().await;
}
