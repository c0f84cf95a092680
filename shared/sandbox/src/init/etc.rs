//! The generated files of `/etc`.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::protocol::Ids;

/// Writes them into `etc`.
pub(super) fn write(etc: &Path, ids: Ids) -> io::Result<()> {
    let Ids { root, agent } = ids;
    let root = root.unwrap_or(0);
    let passwd = format!(
        "root:x:{root}:{root}:root:/root:/usr/sbin/nologin\n\
         agent:x:{agent}:{agent}:agent:/home/agent:/bin/sh\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    );
    let group = format!("root:x:{root}:\nagent:x:{agent}:\nnogroup:x:65534:\n");
    for (name, text) in [
        ("passwd", passwd.as_str()),
        ("group", group.as_str()),
        ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
        ("hostname", "sandbox\n"),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"),
        // No name server: names are resolved by the egress proxy. Asking on loopback fails at once.
        ("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"),
    ] {
        let path = etc.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}
