//! The push of the result. The agent's processes are ended first; what it left uncommitted is committed; then the commit
//! travels into a fresh bare repository, made without the token, and only from there, by explicit address, to the server.
//! So nothing in the agent's repository (configuration, hooks, rewritten addresses) has a say while the token is there.

use crate::{
    git::{
        askpass::{self, Credential},
        classify::Fault,
        clone::{GitError, GitLimits, Transfer, plain, step},
        collect::WorkTree,
        command,
        names::{OURS, is_ref_name},
        repo_url::RepoUrl,
    },
    provider::{Class, ProviderFailure},
    sandbox::Sandbox,
};

/// Where to push what.
pub(crate) struct PushRequest<'a> {
    /// The run's repository.
    pub(crate) url: &'a RepoUrl,
    /// Branch name on the server.
    pub(crate) branch: &'a str,
    /// Only when the secret is bound to the repository's host.
    pub(crate) credential: Option<&'a Credential>,
    /// Different for every attempt.
    pub(crate) attempt: &'a str,
}

/// Pushes head and work tree (as staged by `collect`) and returns the commit pushed.
///
/// # Errors
/// See [`GitError`]. The branch moves only forward: a push that would rewrite it is `PUSH_REFUSED`.
pub(crate) async fn push(tree: &WorkTree<'_>, request: &PushRequest<'_>) -> Result<String, GitError> {
    if !is_ref_name(request.branch) {
        return Err(refused("not a name a branch can have"));
    }
    let (sandbox, limits) = (tree.sandbox, tree.limits);
    let commit = commit_everything(tree).await?;
    let folder = format!("/tmp/{OURS}push-{}", request.attempt);
    let pushed = async {
        copy(sandbox, tree.folder, &commit, &folder, limits).await?;
        // Filters of the agent's repository ran until here; none of its processes may see the token's process.
        sandbox.kill_all(limits.step).await?;
        send(sandbox, request, &commit, &folder, limits).await
    }
    .await;
    let cleared = step(sandbox, plain(["rm", "-rf", "--", &folder]), limits, "removing the push folder").await;
    pushed?;
    cleared?;
    Ok(commit)
}

/// A commit of the staged tree on top of the head, unless nothing differs. Head and the agent's index follow, so that
/// the agent's next work builds on it.
async fn commit_everything(tree: &WorkTree<'_>) -> Result<String, GitError> {
    let head = tree.head().await?;
    if head.is_empty() {
        return Err(refused("there is no commit to push"));
    }
    let staged = tree.line(tree.git(["write-tree"]), "writing the tree").await?;
    let committed = tree
        .line(tree.git(["rev-parse", "--verify", "--end-of-options", &format!("{head}^{{tree}}")]), "reading the head")
        .await?;
    if staged == committed {
        return Ok(head);
    }
    let mut spec = tree.git(["commit-tree", "-p", &head, "-m", "Work of the run", &staged]);
    for role in ["AUTHOR", "COMMITTER"] {
        spec.env.insert(format!("GIT_{role}_NAME"), "Berth".to_owned());
        spec.env.insert(format!("GIT_{role}_EMAIL"), "berth@berth.invalid".to_owned());
    }
    let commit = tree.line(spec, "committing the work tree").await?;
    tree.must(
        command(tree.folder, ["update-ref", "-m", "berth: work of the run", "HEAD", &commit, &head]),
        "moving the head",
    )
    .await?;
    // Its index may be locked or broken; that concerns only the agent.
    let _ = tree.must(command(tree.folder, ["reset", "--quiet", "--mixed"]), "refreshing the index").await;
    Ok(commit)
}

/// The commit and its history, through the pack protocol: no alternates, no hard links, no configuration come along.
async fn copy(sandbox: &Sandbox, from: &str, commit: &str, to: &str, limits: GitLimits) -> Result<(), GitError> {
    let init = command("/tmp", ["init", "--quiet", "--bare", "--template=", "--", to]);
    step(sandbox, init, limits, "preparing the push").await?;
    let source = format!("file://{from}");
    // The head is always advertised; fetching it by name needs no permission of the agent's configuration.
    let mut fetch = command(
        to,
        ["fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--", &source, "HEAD:refs/heads/berth"],
    );
    fetch.env.insert("GIT_ALLOW_PROTOCOL".to_owned(), "file".to_owned());
    step(sandbox, fetch, limits, "copying the commit").await?;
    let check = command(to, ["rev-parse", "--verify", "--end-of-options", "refs/heads/berth"]);
    let finished = sandbox.run(check, limits.step, 256).await?;
    if finished.line() == commit { Ok(()) } else { Err(refused("the head moved meanwhile")) }
}

async fn send(
    sandbox: &Sandbox,
    request: &PushRequest<'_>,
    commit: &str,
    folder: &str,
    limits: GitLimits,
) -> Result<(), GitError> {
    let secrets = format!("{folder}/berth-askpass");
    if request.credential.is_some() {
        step(sandbox, askpass::install(&secrets), limits, "installing the password helper").await?;
    }
    let target = format!("{commit}:refs/heads/{}", request.branch);
    let spec = command(folder, ["push", "--quiet", "--no-verify", "--no-signed", "--", request.url.as_str(), &target]);
    let transfer = Transfer { sandbox, url: request.url, credential: request.credential, secrets: &secrets, limits };
    match transfer.run(spec).await {
        Err(GitError::Failed(failure)) if failure.reason == Fault::Other.reason() => {
            Err(ProviderFailure { reason: "PUSH_REFUSED", ..failure }.into())
        }
        Err(GitError::Failed(failure)) if failure.reason == Fault::Timeout.reason() => {
            Err(ProviderFailure { reason: "PUSH_TIMEOUT", ..failure }.into())
        }
        outcome => outcome,
    }
}

fn refused(message: &str) -> GitError {
    ProviderFailure::new(Class::Permanent, "PUSH_REFUSED", message).into()
}
