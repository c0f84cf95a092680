//! Which commit a ref means, and the checkout of it: a branch, a tag, or a full or abbreviated commit id, in that order.
//! A ref that is none of these is an error, never the default branch.

use crate::{
    git::{
        classify::Fault,
        clone::{GitError, LINE_BYTES, Transfer, step},
        command,
        names::{is_commit_id, is_ref_name},
    },
    provider::{Class, ProviderFailure},
};

enum Target {
    Default,
    Branch(String),
    Commit(String),
}

/// Checks `reference` out in the fresh clone at `folder` and returns the commit; empty for an empty repository.
pub(super) async fn check_out(transfer: &Transfer<'_>, folder: &str, reference: &str) -> Result<String, GitError> {
    let target = resolve(transfer, folder, reference).await?;
    let spec = match &target {
        Target::Default => {
            if rev_parse(transfer, folder, "HEAD").await?.is_none() {
                return Ok(String::new());
            }
            command(folder, ["reset", "--quiet", "--hard"])
        }
        Target::Branch(branch) => {
            let remote = format!("refs/remotes/origin/{branch}");
            command(folder, ["checkout", "--quiet", "--force", "--track", "-B", branch, &remote, "--"])
        }
        Target::Commit(commit) => command(folder, ["checkout", "--quiet", "--force", "--detach", commit, "--"]),
    };
    step(transfer.sandbox, spec, transfer.limits, "git checkout").await?;
    rev_parse(transfer, folder, "HEAD").await?.ok_or_else(|| not_found("nothing is checked out"))
}

async fn resolve(transfer: &Transfer<'_>, folder: &str, reference: &str) -> Result<Target, GitError> {
    if reference.is_empty() || reference == "HEAD" {
        return Ok(Target::Default);
    }
    if !is_ref_name(reference) {
        return Err(not_found("not a name a ref can have"));
    }
    let branch = reference.strip_prefix("refs/heads/").unwrap_or(reference);
    if rev_parse(transfer, folder, &format!("refs/remotes/origin/{branch}")).await?.is_some() && branch != "HEAD" {
        return Ok(Target::Branch(branch.to_owned()));
    }
    let tag = reference.strip_prefix("refs/tags/").unwrap_or(reference);
    if let Some(commit) = rev_parse(transfer, folder, &format!("refs/tags/{tag}")).await? {
        return Ok(Target::Commit(commit));
    }
    if is_commit_id(reference)
        && let Some(commit) = rev_parse(transfer, folder, reference).await?
    {
        return Ok(Target::Commit(commit));
    }
    // Not under a branch or tag, but the server may have it: a pull request's head, or a commit nothing points to.
    let whole_id = is_commit_id(reference) && reference.len() >= 40;
    if (whole_id || reference.starts_with("refs/")) && fetch(transfer, folder, reference).await? {
        let commit = rev_parse(transfer, folder, "FETCH_HEAD").await?;
        return commit.map(Target::Commit).ok_or_else(|| not_found("the ref names no commit"));
    }
    Err(not_found("the repository has no such branch, tag or commit"))
}

/// False when the server does not have it.
async fn fetch(transfer: &Transfer<'_>, folder: &str, reference: &str) -> Result<bool, GitError> {
    let spec = command(folder, ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--", "origin", reference]);
    match transfer.run(spec).await {
        Ok(()) => Ok(true),
        Err(GitError::Failed(failure)) if failure.reason == Fault::RefNotFound.reason() => Ok(false),
        Err(error) => Err(error),
    }
}

async fn rev_parse(transfer: &Transfer<'_>, folder: &str, name: &str) -> Result<Option<String>, GitError> {
    let commit = format!("{name}^{{commit}}");
    let spec = command(folder, ["rev-parse", "--verify", "--quiet", "--end-of-options", &commit]);
    let finished = transfer.sandbox.run(spec, transfer.limits.step, LINE_BYTES).await?;
    Ok(finished.success().then(|| finished.line()))
}

fn not_found(message: &str) -> GitError {
    ProviderFailure::new(Class::Permanent, Fault::RefNotFound.reason(), message).into()
}
