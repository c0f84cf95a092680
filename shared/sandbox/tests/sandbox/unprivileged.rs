//! The whole set again as an ordinary user: the test program is copied to where everybody can read it and started anew
//! under another uid. An ordinary user who runs the tests has run them that way already.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::stage::is_root;

const NOBODY: u32 = 65534;

#[test]
fn everything_holds_for_an_ordinary_user() {
    if !is_root() {
        return;
    }
    let place = tempfile::Builder::new().prefix("as-nobody-").tempdir_in("/tmp").unwrap();
    let open = |path: &std::path::Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    open(place.path());
    let tests = place.path().join("tests");
    let init = place.path().join("berth-sandbox-init");
    std::fs::copy(std::env::current_exe().unwrap(), &tests).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_berth-sandbox-init"), &init).unwrap();
    open(&tests);
    open(&init);
    let output = Command::new(&tests)
        .args(["--test-threads", "2"])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("CARGO_MARKER", "a variable the sandboxes must not show")
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("test result: ok"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
