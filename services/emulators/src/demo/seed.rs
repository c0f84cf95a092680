//! Making the demo repository with git itself: bare, one commit, the same id on every machine.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::git_http::git::git;

/// The directory of the repository below the one given.
const NAME: &str = "demo.git";
/// The longest one git command may take.
const TIMEOUT: Duration = Duration::from_secs(30);
const PERSON: &str = "Berth Demo";
const EMAIL: &str = "demo@berth.invalid";
const DATE: &str = "2026-01-01T00:00:00Z";
const MESSAGE: &str = "Add calc with its test\n";

/// The files: mode, name, content.
const FILES: [(&str, &str, &str); 3] = [
    ("100644", "README.md", include_str!("repository/README.md")),
    ("100644", "calc.sh", include_str!("repository/calc.sh")),
    ("100755", "test.sh", include_str!("repository/test.sh")),
];

/// A repository that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeded {
    /// The bare repository, `demo.git` in the directory given; `main` is its branch.
    pub path: PathBuf,
    /// The commit `main` points to, as hex.
    pub head: String,
}

/// Why no repository was made.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// Something of that name is there.
    #[error("{0} exists already")]
    Exists(PathBuf),
    /// Git is missing or could not be talked to.
    #[error("git could not be run")]
    Run(#[from] io::Error),
    /// Git refused.
    #[error("git {command} failed: {stderr}")]
    Failed {
        /// The subcommand.
        command: String,
        /// The end of what git said.
        stderr: String,
    },
    /// Git did not end in time.
    #[error("git {0} took too long")]
    Timeout(String),
}

/// Creates `demo.git` in `directory` (which must exist), with the seeded bug: `divide` returns `a * b`.
///
/// # Errors
/// When it exists already, or git is missing, slow or unwilling.
pub async fn seed_demo_repository(directory: &Path) -> Result<Seeded, SeedError> {
    let path = directory.join(NAME);
    if path.exists() {
        return Err(SeedError::Exists(path));
    }
    run(directory, &["init", "--quiet", "--bare", "--template=", "--initial-branch=main", NAME], "").await?;
    let mut listing = String::new();
    for (mode, name, content) in FILES {
        let blob = run(&path, &["hash-object", "-w", "--stdin"], content).await?;
        listing.push_str(&format!("{mode} blob {blob}\t{name}\n"));
    }
    let tree = run(&path, &["mktree"], &listing).await?;
    let head = run(&path, &["commit-tree", &tree], MESSAGE).await?;
    run(&path, &["update-ref", "refs/heads/main", &head], "").await?;
    Ok(Seeded { path, head })
}

/// Runs git with `input` and returns its output without the line end.
async fn run(directory: &Path, arguments: &[&str], input: &str) -> Result<String, SeedError> {
    let mut command = git(directory);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for role in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{role}_NAME"), PERSON)
            .env(format!("GIT_{role}_EMAIL"), EMAIL)
            .env(format!("GIT_{role}_DATE"), DATE);
    }
    let name = arguments.first().copied().unwrap_or_default();
    let mut child = command.spawn()?;
    let stdin = child.stdin.take();
    let finished = async {
        if let Some(mut stdin) = stdin {
            stdin.write_all(input.as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(TIMEOUT, finished).await.map_err(|_| SeedError::Timeout(name.to_owned()))??;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(SeedError::Failed { command: name.to_owned(), stderr });
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bug_is_where_the_script_looks_for_it() {
        let calc = FILES[1].2;
        assert_eq!(calc.matches("echo $((a * b))").count(), 1);
        let script = serde_json::to_string(&crate::demo::demo_script()).unwrap();
        assert!(script.contains("echo $((a * b))") && script.contains("echo $((a / b))"));
    }
}
