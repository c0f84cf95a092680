//! Starting the git binary with nothing of the host in it: no environment, no global or system configuration.

use std::path::Path;

use tokio::process::Command;

/// Where git and the shell are looked for; the host's own PATH is not read.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Settings every git process gets: repositories of other owners are fine, nothing runs on in the background.
const SETTINGS: [(&str, &str); 4] =
    [("safe.directory", "*"), ("gc.auto", "0"), ("receive.autogc", "false"), ("maintenance.auto", "false")];

/// A git command in `directory`, killed when its handle is dropped.
pub(crate) fn git(directory: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .current_dir(directory)
        .env_clear()
        .env("PATH", SEARCH_PATH)
        .env("HOME", "/nonexistent")
        .env("LC_ALL", "C")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_CONFIG_COUNT", SETTINGS.len().to_string())
        .kill_on_drop(true);
    for (number, (key, value)) in SETTINGS.iter().enumerate() {
        command.env(format!("GIT_CONFIG_KEY_{number}"), key).env(format!("GIT_CONFIG_VALUE_{number}"), value);
    }
    command
}
