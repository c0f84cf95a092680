//! RELEASE: destroy the recorded sandbox and everything under the key, then look at both. Only when both are absent, under
//! the scope the sandbox was made in, is it Absent. An accepted delete proves nothing.

use tokio::time::{Instant, sleep, timeout};

use super::{Context, claim_over};
use crate::{
    claims::Claim,
    provider::{Class, Destroyed, ObservedState, Provider, ProviderFailure},
    task::{Outcome, Task},
};

pub(super) async fn release(context: &Context, task: &Task, claim: &Claim, until: Instant) -> Outcome {
    match destroy_and_look(context, task, claim, until).await {
        Ok(outcome) => outcome,
        Err(failure) => Outcome::ReleaseFailed(failure),
    }
}

async fn destroy_and_look(
    context: &Context,
    task: &Task,
    claim: &Claim,
    until: Instant,
) -> Result<Outcome, ProviderFailure> {
    let provider = context.provider(task)?;
    let declared = provider.declaration();
    if let Some(identity) = &task.identity
        && identity.account_scope != declared.account_scope
    {
        let message = "the sandbox was made under another account scope; its absence cannot be seen from here";
        return Err(ProviderFailure::new(Class::ScopeChanged, "SCOPE_CHANGED", message));
    }
    if !claim.is_live() {
        return Err(claim_over());
    }
    let destroy = provider.destroy(task.identity.as_ref(), &task.key);
    let destroyed =
        timeout(context.timeouts.destroy, destroy).await.map_err(|_| ProviderFailure::timeout("the removal"))??;
    tracing::debug!(key = task.key, ?destroyed, "destroy accepted");

    let mut seen = look(context, provider.as_ref(), task).await?;
    for _ in 1..context.timeouts.absence_looks.max(1) {
        if seen.absent || Instant::now() >= until {
            break;
        }
        sleep(context.timeouts.look_delay).await;
        seen = look(context, provider.as_ref(), task).await?;
    }
    let what = match destroyed {
        Destroyed::Accepted => "destroyed",
        Destroyed::NothingThere => "nothing was there",
    };
    let how = format!("{what}; {}", seen.how);
    if seen.absent {
        Ok(Outcome::Absent { how, account_scope: declared.account_scope.clone() })
    } else {
        Ok(Outcome::StillThere { how })
    }
}

struct Seen {
    absent: bool,
    how: String,
}

/// By the recorded id and by the key.
async fn look(context: &Context, provider: &dyn Provider, task: &Task) -> Result<Seen, ProviderFailure> {
    let limit = context.timeouts.observe;
    let mut seen = Seen { absent: true, how: String::new() };
    if let Some(identity) = &task.identity {
        let by_id =
            timeout(limit, provider.observe(identity)).await.map_err(|_| ProviderFailure::timeout("the look"))??;
        seen.absent = by_id.state == ObservedState::Absent;
        seen.how = format!("by id {}; ", by_id.how);
    }
    let Some(lookup) = provider.lookup() else {
        if task.identity.is_none() || task.in_doubt {
            let message = "this provider cannot look a sandbox up by its key, and a second one may exist";
            return Err(ProviderFailure::new(Class::Permanent, "NO_LOOKUP", message));
        }
        return Ok(seen);
    };
    let by_key =
        timeout(limit, lookup.find_by_lease(&task.key)).await.map_err(|_| ProviderFailure::timeout("the lookup"))??;
    seen.how.push_str(&format!("by key {}: {}", task.key, if by_key.is_some() { "still there" } else { "nothing" }));
    seen.absent &= by_key.is_none();
    Ok(seen)
}
