//! Collect: head commit and diff of the work tree, and the push if a branch is named. What cannot be had is explained in
//! the result's `collect_error`; only a lost claim or a lost sandbox fails the call.

use berth_rpc::{broker as api, lifecycle as pb};

use crate::{
    actions::Context,
    error::Error,
    git::{
        askpass::Credential,
        classify::Fault,
        clone::GitError,
        collect::WorkTree,
        push::{self, PushRequest},
        repo_url::RepoUrl,
    },
    held::{self, HeldSandbox},
    lifecycle::Held,
    provider::{Class, ExecError, ProviderFailure},
};

pub(crate) async fn collect(context: &Context, request: api::CollectRequest) -> Result<api::CollectResponse, Error> {
    let held = held::resolve(context, request.hold).await?;
    let attempt = uuid::Uuid::new_v4().simple().to_string();
    let limits = context.timeouts.git();
    let tree = WorkTree::new(&held.sandbox, &held.workdir, &attempt, limits);
    let mut result = pb::Result { base_commit: held.base_commit.clone(), ..pb::Result::default() };
    // The work is done: nothing may change the tree between what is told and what is pushed, and nothing runs on in a sandbox
    // that only lingers for a follow-up.
    or_explained(context, &held, held.sandbox.kill_all(limits.step).await.map_err(GitError::from), &mut result).await?;
    if let Some(collected) = or_explained(context, &held, tree.collect(&held.base_commit).await, &mut result).await? {
        result.head_commit = collected.head_commit;
        result.diff = collected.diff;
        result.diff_truncated = collected.diff_truncated;
        if !request.push_branch.is_empty() {
            let pushed = push_branch(context, &held, &tree, &request.push_branch, &attempt).await;
            if let Some(commit) = or_explained(context, &held, pushed, &mut result).await? {
                result.head_commit = commit;
                result.pushed_branch = request.push_branch;
            }
        }
    }
    if let Err(error) = tree.forget_index().await {
        tracing::debug!(%error, "temporary index left in the sandbox");
    }
    Ok(api::CollectResponse { result: Some(result) })
}

/// The value, or the first reason why it is missing written into the result.
async fn or_explained<T>(
    context: &Context,
    held: &HeldSandbox,
    outcome: Result<T, GitError>,
    result: &mut pb::Result,
) -> Result<Option<T>, Error> {
    let failure = match outcome {
        Ok(value) => return Ok(Some(value)),
        Err(GitError::Failed(failure))
            if failure.class == Class::Transient && failure.reason != Fault::Unreachable.reason() =>
        {
            match held.explain(context, ExecError::Provider(failure.clone())).await {
                lost @ Error::SandboxLost { .. } => return Err(lost),
                _ => failure,
            }
        }
        Err(GitError::Failed(failure)) => failure,
        Err(GitError::Exec(error @ ExecError::NoSandbox)) => return Err(held.explain(context, error).await),
        Err(GitError::Exec(error)) => ProviderFailure::new(Class::Permanent, "COLLECT_FAILED", error.to_string()),
    };
    result.collect_error.get_or_insert(pb::Error { reason: failure.reason.to_owned(), message: failure.message });
    Ok(None)
}

async fn push_branch(
    context: &Context,
    held: &HeldSandbox,
    tree: &WorkTree<'_>,
    branch: &str,
    attempt: &str,
) -> Result<String, GitError> {
    let refused = |message: String| ProviderFailure::new(Class::Permanent, "PUSH_REFUSED", message);
    let url =
        RepoUrl::parse(&held.repo_url, context.allow_private_repos).map_err(|error| refused(error.to_string()))?;
    let claim = Held { run_id: &held.run_id, row_id: &held.session_id, fence: held.session_fence };
    let token = context.lifecycle.repo_token(claim, "PUSH").await.map_err(|status| {
        tracing::warn!(code = ?status.code(), "the repository token could not be resolved");
        ProviderFailure::new(Class::Permanent, "SECRET_UNAVAILABLE", "the repository token could not be read")
    })?;
    let credential = token.and_then(|token| Credential::for_repo(&url, token.value, &token.hosts));
    let request = PushRequest { url: &url, branch, credential: credential.as_ref(), attempt };
    push::push(tree, &request).await
}
