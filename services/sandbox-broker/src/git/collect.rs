//! What the run made: head commit and the difference of the work tree to the base commit, untracked files included. The
//! agent's own index is not touched: everything happens in a temporary one. Whatever the agent configured (external diff,
//! text conversion, hooks, monitors) is out, and would run as the agent anyway.

use crate::{
    git::{
        clone::{GitError, GitLimits, LINE_BYTES, plain, step},
        command,
        names::OURS,
    },
    provider::{Class, ExecSpec, ProviderFailure},
    sandbox::Sandbox,
};

/// Longest diff that is kept, in bytes.
pub(crate) const DIFF_BYTES: usize = 1 << 20;
/// The id git gives to a tree without entries; known to every repository.
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// The result's git part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Empty when there is no commit.
    pub(crate) head_commit: String,
    /// Unified diff.
    pub(crate) diff: String,
    /// It was longer.
    pub(crate) diff_truncated: bool,
}

/// A work tree and the temporary index all of this happens in.
pub(crate) struct WorkTree<'a> {
    pub(super) sandbox: &'a Sandbox,
    pub(super) folder: &'a str,
    pub(super) limits: GitLimits,
    index: String,
}

impl<'a> WorkTree<'a> {
    /// `attempt` names our temporary files.
    pub(crate) fn new(sandbox: &'a Sandbox, folder: &'a str, attempt: &str, limits: GitLimits) -> Self {
        Self { sandbox, folder, limits, index: format!("/tmp/{OURS}index-{attempt}") }
    }

    /// Head commit and diff. The index stays for a push; see [`WorkTree::forget_index`].
    ///
    /// # Errors
    /// See [`GitError`]; a folder that is no git work tree any more is `COLLECT_FAILED`.
    pub(crate) async fn collect(&self, base_commit: &str) -> Result<Collected, GitError> {
        let head_commit = self.head().await?;
        self.stage_everything(&head_commit).await?;
        let (diff, diff_truncated) = self.diff(base_commit).await?;
        Ok(Collected { head_commit, diff, diff_truncated })
    }

    /// The commit the work tree stands on; empty on a branch without one.
    pub(super) async fn head(&self) -> Result<String, GitError> {
        let spec = command(self.folder, ["rev-parse", "--verify", "--quiet", "--end-of-options", "HEAD^{commit}"]);
        let finished = self.sandbox.run(spec, self.limits.step, LINE_BYTES).await?;
        Ok(if finished.success() { finished.line() } else { String::new() })
    }

    async fn stage_everything(&self, head: &str) -> Result<(), GitError> {
        let start = if head.is_empty() { "--empty" } else { head };
        self.must(self.git(["read-tree", start]), "the work folder is no git repository").await?;
        self.must(self.git(["add", "--all", "--", "."]), "staging the work tree").await
    }

    async fn diff(&self, base_commit: &str) -> Result<(String, bool), GitError> {
        let base = if base_commit.is_empty() { EMPTY_TREE } else { base_commit };
        let options = [
            "diff",
            "--cached",
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
            "--no-renames",
            "--submodule=short",
            "--src-prefix=a/",
            "--dst-prefix=b/",
        ];
        let spec = self.git(options.into_iter().chain(["--end-of-options", base, "--"]));
        let finished = self.sandbox.run(spec, self.limits.step, DIFF_BYTES).await?;
        if !finished.success() {
            return Err(failed("the difference to the base commit cannot be told", &finished.stderr));
        }
        let text = String::from_utf8_lossy(&finished.stdout).into_owned();
        Ok(cut_on_line_border(text, finished.truncated))
    }

    /// Removes the temporary index.
    ///
    /// # Errors
    /// See [`GitError`].
    pub(crate) async fn forget_index(&self) -> Result<(), GitError> {
        step(self.sandbox, plain(["rm", "-f", "--", &self.index]), self.limits, "removing the temporary index").await
    }

    /// A git command on the temporary index.
    pub(super) fn git<'s>(&self, args: impl IntoIterator<Item = &'s str>) -> ExecSpec {
        let mut spec = command(self.folder, args);
        spec.env.insert("GIT_INDEX_FILE".to_owned(), self.index.clone());
        spec
    }

    /// Runs a command that must succeed.
    pub(super) async fn must(&self, spec: ExecSpec, what: &str) -> Result<(), GitError> {
        let finished = self.sandbox.run(spec, self.limits.step, LINE_BYTES).await?;
        if finished.success() { Ok(()) } else { Err(failed(what, &finished.stderr)) }
    }

    /// Runs a command that must succeed and print one line.
    pub(super) async fn line(&self, spec: ExecSpec, what: &str) -> Result<String, GitError> {
        let finished = self.sandbox.run(spec, self.limits.step, LINE_BYTES).await?;
        if finished.success() { Ok(finished.line()) } else { Err(failed(what, &finished.stderr)) }
    }
}

fn failed(what: &str, stderr: &str) -> GitError {
    let words = super::classify::last_words(stderr, &crate::redact::Redactor::default());
    ProviderFailure::new(Class::Permanent, "COLLECT_FAILED", format!("{what}: {words}")).into()
}

/// At most [`DIFF_BYTES`], ending after a line.
fn cut_on_line_border(mut text: String, truncated: bool) -> (String, bool) {
    // Bytes that are no text grew when they were replaced.
    if text.len() <= DIFF_BYTES && !truncated {
        return (text, false);
    }
    let end = (0..=DIFF_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let border = text[..end].rfind('\n').map_or(0, |line| line + 1);
    text.truncate(border);
    (text, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_is_cut_after_a_line() {
        assert_eq!(cut_on_line_border("a\nb\n".to_owned(), false), ("a\nb\n".to_owned(), false));
        assert_eq!(cut_on_line_border("a\nb\nhalf".to_owned(), true), ("a\nb\n".to_owned(), true));
        let long = format!("{}\n{}", "x".repeat(DIFF_BYTES - 10), "é".repeat(10));
        let (text, truncated) = cut_on_line_border(long, false);
        assert!(truncated && text.ends_with("x\n"));
    }
}
