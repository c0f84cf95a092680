//! BOOTSTRAP's work tree: clone into a folder of this attempt, check the ref out, rename into place. A clone that was cut
//! leaves only its own folder and can never land later.

use std::time::Duration;

use crate::{
    git::{
        askpass::{self, Credential},
        checkout,
        classify::Fault,
        command,
        names::{OURS, WORKSPACE},
        repo_url::RepoUrl,
    },
    provider::{Class, ExecError, ExecSpec, ProviderFailure},
    redact::Redactor,
    sandbox::Sandbox,
};

/// Output kept of commands that print one line.
pub(super) const LINE_BYTES: usize = 4 << 10;

/// The agent's own git configuration.
const AGENT_CONFIG: &str = "\
[user]
\tname = Berth Agent
\temail = agent@berth.invalid
[init]
\tdefaultBranch = main
";

/// Why there is no work tree.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GitError {
    /// git, or what it talked to, refused.
    #[error(transparent)]
    Failed(#[from] ProviderFailure),
    /// The command could not be run.
    #[error(transparent)]
    Exec(ExecError),
}

impl From<ExecError> for GitError {
    fn from(error: ExecError) -> Self {
        match error {
            ExecError::Provider(failure) => GitError::Failed(failure),
            other => GitError::Exec(other),
        }
    }
}

/// What to clone, and where to.
#[derive(Debug)]
pub(crate) struct CloneRequest<'a> {
    /// None: an empty work folder.
    pub(crate) url: Option<&'a RepoUrl>,
    /// Empty: the repository's default branch.
    pub(crate) reference: &'a str,
    /// Absolute folder below the workspace.
    pub(crate) workdir: &'a str,
    /// Only for repositories on the hosts the secret is bound to.
    pub(crate) credential: Option<&'a Credential>,
    /// Different for every attempt.
    pub(crate) attempt: &'a str,
}

/// Bounds of the steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GitLimits {
    /// One transfer.
    pub(crate) transfer: Duration,
    /// Any other step.
    pub(crate) step: Duration,
    /// Transfers tried when the repository is unreachable.
    pub(crate) attempts: u32,
    /// Wait between them.
    pub(crate) delay: Duration,
}

/// Makes the work tree and returns its base commit; empty when there is none (no repository, or an empty one).
///
/// # Errors
/// See [`GitError`].
pub(crate) async fn clone(
    sandbox: &Sandbox,
    request: &CloneRequest<'_>,
    limits: GitLimits,
) -> Result<String, GitError> {
    let ours = format!("{WORKSPACE}/{OURS}clone-{}", request.attempt);
    clear(sandbox, request.workdir, limits).await?;
    let base_commit = match request.url {
        None => {
            let init = command(WORKSPACE, ["init", "--quiet", "--template=", "--initial-branch=main", "--", &ours]);
            step(sandbox, init, limits, "git init").await?;
            String::new()
        }
        Some(url) => {
            let secrets = format!("/tmp/{OURS}{}", request.attempt);
            if request.credential.is_some() {
                step(sandbox, askpass::install(&secrets), limits, "installing the password helper").await?;
            }
            let made = fetch_and_check_out(sandbox, request, url, &ours, &secrets, limits).await;
            if request.credential.is_some() {
                step(sandbox, plain(["rm", "-rf", "--", &secrets]), limits, "removing the password helper").await?;
            }
            made.map_err(given_up)?
        }
    };
    // Fails on a folder that is not empty: whoever came first stays.
    step(sandbox, plain(["mv", "-T", "--", &ours, request.workdir]), limits, "moving the clone into place").await?;
    introduce(sandbox, limits).await?;
    Ok(base_commit)
}

async fn fetch_and_check_out(
    sandbox: &Sandbox,
    request: &CloneRequest<'_>,
    url: &RepoUrl,
    into: &str,
    secrets: &str,
    limits: GitLimits,
) -> Result<String, GitError> {
    let clone = command(
        WORKSPACE,
        [
            "clone",
            "--quiet",
            "--no-checkout",
            "--no-recurse-submodules",
            "--template=",
            "--origin=origin",
            "--",
            url.as_str(),
            into,
        ],
    );
    let transfer = Transfer { sandbox, url, credential: request.credential, secrets, limits };
    for attempt in 1.. {
        match transfer.run(clone.clone()).await {
            Ok(()) => break,
            Err(GitError::Failed(failure)) if failure.class == Class::Transient && attempt < limits.attempts => {
                tracing::info!(attempt, reason = failure.reason, "clone failed, trying again");
                step(sandbox, plain(["rm", "-rf", "--", into]), limits, "clearing the failed clone").await?;
                tokio::time::sleep(limits.delay).await;
            }
            Err(error) => return Err(error),
        }
    }
    checkout::check_out(&transfer, into, request.reference).await
}

/// The server had all the tries it gets: for the run that is definite, while a sandbox that failed may be tried again.
fn given_up(error: GitError) -> GitError {
    match error {
        GitError::Failed(failure) if failure.reason == Fault::Unreachable.reason() => {
            GitError::Failed(ProviderFailure { class: Class::Permanent, ..failure })
        }
        other => other,
    }
}

/// One exchange with the repository's server, with the token where there is one.
pub(crate) struct Transfer<'a> {
    pub(super) sandbox: &'a Sandbox,
    pub(super) url: &'a RepoUrl,
    pub(super) credential: Option<&'a Credential>,
    /// Folder of the password helper.
    pub(super) secrets: &'a str,
    pub(super) limits: GitLimits,
}

impl Transfer<'_> {
    /// Runs a git command that talks to the server.
    pub(super) async fn run(&self, mut spec: ExecSpec) -> Result<(), GitError> {
        spec.env.insert("GIT_ALLOW_PROTOCOL".to_owned(), self.url.protocols().to_owned());
        let mut redactor = Redactor::default();
        if let Some(credential) = self.credential {
            spec = credential.attach(spec, &askpass::path(self.secrets));
            redactor = Redactor::of(credential.token());
        }
        let finished = self.sandbox.run(spec, self.limits.transfer, LINE_BYTES).await?;
        if finished.success() {
            return Ok(());
        }
        Err(Fault::of(&finished).failure(&finished, &redactor).into())
    }
}

/// Whatever an earlier attempt left is ended and removed. Nothing of an agent can be lost: no session was launched yet.
async fn clear(sandbox: &Sandbox, workdir: &str, limits: GitLimits) -> Result<(), GitError> {
    sandbox.kill_all(limits.step).await?;
    let line = r#"umask 022; find /workspace /tmp -mindepth 1 -maxdepth 1 -name "$2*" -exec rm -rf -- {} + && rm -rf -- "$1" && mkdir -p -- "$(dirname -- "$1")""#;
    step(sandbox, plain(["/bin/sh", "-c", line, "sh", workdir, OURS]), limits, "preparing the work folder").await
}

/// Tells git in the agent's own commands who commits.
async fn introduce(sandbox: &Sandbox, limits: GitLimits) -> Result<(), GitError> {
    let mut spec = plain(["/bin/sh", "-c", "umask 022; cat > /home/agent/.gitconfig"]);
    spec.stdin = AGENT_CONFIG.into();
    step(sandbox, spec, limits, "configuring git").await
}

/// A command that is not git.
pub(super) fn plain<const N: usize>(argv: [&str; N]) -> ExecSpec {
    ExecSpec { argv: argv.map(str::to_owned).into(), cwd: "/".to_owned(), ..ExecSpec::default() }
}

/// Runs one step that talks to nobody and must succeed.
pub(super) async fn step(sandbox: &Sandbox, spec: ExecSpec, limits: GitLimits, what: &str) -> Result<(), GitError> {
    let finished = sandbox.run(spec, limits.step, LINE_BYTES).await?;
    if finished.success() {
        return Ok(());
    }
    let words = super::classify::last_words(&finished.stderr, &Redactor::default());
    Err(ProviderFailure::new(Class::Permanent, "CLONE_FAILED", format!("{what}: {words}")).into())
}
