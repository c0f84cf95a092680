//! What a claimed action does. Every action is idempotent, starts provider calls only while its claim is live, and turns
//! whatever happens into an outcome; reporting it is the worker's business.

mod allocate;
mod bootstrap;
mod release;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    claims::Claim,
    config::Timeouts,
    git::repo_url::RepoUrl,
    lifecycle::Lifecycle,
    provider::{Class, EgressRule, Provider, ProviderFailure, registry::Registry},
    task::{Action, Outcome, Task},
};

/// What all actions share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Context {
    /// The providers.
    pub(crate) registry: Registry,
    /// Lifecycle, for secrets.
    pub(crate) lifecycle: Lifecycle,
    /// Bounds.
    pub(crate) timeouts: Timeouts,
    /// Plain http and private addresses are allowed.
    pub(crate) allow_private_repos: bool,
    /// What every sandbox may reach beside its repository.
    pub(crate) egress: Arc<BTreeSet<EgressRule>>,
}

/// Carries the action out. The caller drops this when the claim is over.
pub(crate) async fn act(context: &Context, task: &Task, claim: &Claim) -> Outcome {
    // Leaves time to report: an outcome after the deadline would be lost.
    let margin = (task.time_left / 10).min(Duration::from_secs(3));
    let until = claim.deadline.checked_sub(margin).unwrap_or_else(Instant::now);
    match task.action {
        Action::Allocate => allocate::allocate(context, task, claim, until).await,
        Action::Bootstrap => bootstrap::bootstrap(context, task, claim, until).await,
        Action::Release => release::release(context, task, claim, until).await,
    }
}

impl Context {
    /// The provider that holds (or is to make) the task's sandbox: the one recorded, else the one asked for.
    fn provider(&self, task: &Task) -> Result<Arc<dyn Provider>, ProviderFailure> {
        let name = task.identity.as_ref().map_or(task.provider.as_str(), |identity| identity.provider.as_str());
        self.registry.get(name).ok_or_else(|| {
            ProviderFailure::new(
                Class::Permanent,
                "PROVIDER_UNKNOWN",
                format!("this broker does not serve provider {name:?}"),
            )
        })
    }

    fn repo_url(&self, task: &Task) -> Result<Option<RepoUrl>, ProviderFailure> {
        if task.repo_url.is_empty() {
            return Ok(None);
        }
        let parsed = RepoUrl::parse(&task.repo_url, self.allow_private_repos);
        parsed
            .map(Some)
            .map_err(|error| ProviderFailure::new(Class::Permanent, "REPO_ADDRESS_REFUSED", error.to_string()))
    }
}

/// A call that the end of its claim must not let begin.
fn claim_over() -> ProviderFailure {
    ProviderFailure::new(Class::Transient, "CLAIM_OVER", "the claim ended before the call was made")
}

#[cfg(test)]
mod tests;
