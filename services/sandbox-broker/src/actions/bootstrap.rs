//! BOOTSTRAP: wait until the sandbox runs commands, then make the work folder: a clone of the run's repository at its ref,
//! or an empty repository. The token is resolved for this claim, used only on the hosts it is bound to, and forgotten.

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::Context;
use crate::{
    claims::Claim,
    git::{
        askpass::Credential,
        clone::{self, CloneRequest, GitError},
        names,
        repo_url::RepoUrl,
    },
    lifecycle::Held,
    provider::{Class, ExecError, ExecSpec, Identity, ProviderFailure},
    sandbox::Sandbox,
    task::{Outcome, Task},
};

/// Folder of a run without a repository that names none.
const PLAIN_FOLDER: &str = "work";

pub(super) async fn bootstrap(context: &Context, task: &Task, claim: &Claim, until: Instant) -> Outcome {
    let steps = async {
        let sandbox = sandbox(context, task)?;
        match make_ready(context, task, claim, &sandbox).await {
            Ok(outcome) => Ok(outcome),
            // No contact proves nothing; a read of the durable id does.
            Err(GitError::Exec(ExecError::NoSandbox)) => lost_or_failed(context, &sandbox).await,
            Err(GitError::Exec(error)) => {
                Err(ProviderFailure::new(Class::Transient, "BOOTSTRAP_FAILED", error.to_string()))
            }
            Err(GitError::Failed(failure)) if failure.class == Class::Transient => match lost(context, &sandbox).await?
            {
                Some(gone) => Ok(gone),
                None => Err(failure),
            },
            Err(GitError::Failed(failure)) => Err(failure),
        }
    };
    let unwanted = || ProviderFailure::new(Class::Permanent, "DESIRE_CHANGED", "released before the sandbox was ready");
    let outcome = tokio::select! {
        biased;
        () = claim.desire_changed() => Err(unwanted()),
        steps = timeout_at(until, steps) => {
            steps.unwrap_or_else(|_| Err(ProviderFailure::new(Class::Permanent, "BOOTSTRAP_TIMEOUT", "the sandbox was not ready in time")))
        }
    };
    outcome.unwrap_or_else(Outcome::BootstrapFailed)
}

fn sandbox(context: &Context, task: &Task) -> Result<Sandbox, ProviderFailure> {
    let recorded = |identity: &Identity| Ok(Sandbox { provider: context.provider(task)?, identity: identity.clone() });
    let missing = || ProviderFailure::new(Class::Permanent, "BOOTSTRAP_FAILED", "no sandbox is recorded");
    task.identity.as_ref().ok_or_else(missing).and_then(recorded)
}

async fn make_ready(context: &Context, task: &Task, claim: &Claim, sandbox: &Sandbox) -> Result<Outcome, GitError> {
    let url = context.repo_url(task)?;
    let workdir = work_folder(task, url.as_ref())?;
    wait_until_it_answers(context, sandbox).await?;
    let credential = match &url {
        Some(url) => credential(context, claim, url).await?,
        None => None,
    };
    let attempt = format!("{}-{}", task.fence, uuid::Uuid::new_v4().simple());
    let request = CloneRequest {
        url: url.as_ref(),
        reference: &task.repo_ref,
        workdir: &workdir,
        credential: credential.as_ref(),
        attempt: &attempt,
    };
    let base_commit = clone::clone(sandbox, &request, context.timeouts.git()).await?;
    Ok(Outcome::Bootstrapped { workdir, base_commit })
}

fn work_folder(task: &Task, url: Option<&RepoUrl>) -> Result<String, ProviderFailure> {
    let asked = match (task.workdir.as_str(), url) {
        ("", Some(url)) => url.folder(),
        ("", None) => PLAIN_FOLDER.to_owned(),
        (workdir, _) => workdir.to_owned(),
    };
    let refused = || {
        ProviderFailure::new(
            Class::Permanent,
            "WORKDIR_REFUSED",
            "workdir must be a relative folder inside the workspace",
        )
    };
    names::work_folder(&asked).ok_or_else(refused)
}

/// Bounded polling with a delay between tries.
async fn wait_until_it_answers(context: &Context, sandbox: &Sandbox) -> Result<(), GitError> {
    let mut last = ExecError::NoSandbox;
    for attempt in 0..context.timeouts.readiness_tries.max(1) {
        if attempt > 0 {
            sleep(context.timeouts.readiness_delay).await;
        }
        let probe = ExecSpec { argv: vec!["true".to_owned()], cwd: "/".to_owned(), ..ExecSpec::default() };
        match sandbox.run(probe, context.timeouts.observe, 0).await {
            Ok(finished) if finished.success() => return Ok(()),
            Ok(finished) => {
                last = ExecError::NotStarted(format!("a first command ended with code {}", finished.exit.code))
            }
            Err(ExecError::Provider(failure)) if failure.class != Class::Transient => return Err(failure.into()),
            // It may just be gone: no use in waiting for it.
            Err(ExecError::NoSandbox) if lost(context, sandbox).await?.is_some() => {
                return Err(ExecError::NoSandbox.into());
            }
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

/// The tenant's token, if there is one and it may be shown to the repository's host.
async fn credential(context: &Context, claim: &Claim, url: &RepoUrl) -> Result<Option<Credential>, ProviderFailure> {
    let held = Held { run_id: &claim.run_id, row_id: &claim.lease_id, fence: claim.fence };
    match context.lifecycle.repo_token(held, "CLONE").await {
        Ok(token) => Ok(token.and_then(|token| Credential::for_repo(url, token.value, &token.hosts))),
        Err(status) => {
            tracing::warn!(code = ?status.code(), "the repository token could not be resolved");
            Err(ProviderFailure::new(Class::Transient, "SECRET_UNAVAILABLE", "the repository token could not be read"))
        }
    }
}

async fn lost(context: &Context, sandbox: &Sandbox) -> Result<Option<Outcome>, ProviderFailure> {
    let look = sandbox.provider.observe(&sandbox.identity);
    let seen = timeout(context.timeouts.observe, look).await.map_err(|_| ProviderFailure::timeout("the look"))??;
    Ok(seen.state.is_lost().then_some(Outcome::Gone { how: seen.how }))
}

async fn lost_or_failed(context: &Context, sandbox: &Sandbox) -> Result<Outcome, ProviderFailure> {
    let silent = || ProviderFailure::new(Class::Transient, "BOOTSTRAP_FAILED", "the sandbox runs but does not answer");
    lost(context, sandbox).await?.ok_or_else(silent)
}
