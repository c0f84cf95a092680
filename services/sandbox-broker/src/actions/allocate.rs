//! ALLOCATE: one sandbox under the lease's key. Any attempt but a first, certain one looks the key up first and adopts
//! what is there (R6). What ended without a definite answer is Unknown, never Refused (R7).

use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::{Context, claim_over};
use crate::{
    claims::Claim,
    provider::{Class, CreateOutcome, CreateSpec, ObservedState, Provider, ProviderFailure},
    task::{Outcome, Task},
};

/// How long a create in flight may still finish once nobody wants the sandbox: a definite answer is worth more than haste.
const GRACE: Duration = Duration::from_secs(2);

pub(super) async fn allocate(context: &Context, task: &Task, claim: &Claim, until: Instant) -> Outcome {
    let provider = match context.provider(task) {
        Ok(provider) => provider,
        Err(failure) => return Outcome::Refused(failure),
    };
    let create_horizon = provider.declaration().create_horizon;
    let unknown = |failure| Outcome::Unknown { failure, create_horizon };
    let spec = match create_spec(context, task) {
        Ok(spec) => spec,
        Err(failure) => return Outcome::Refused(failure),
    };

    if task.attempt > 1 || task.in_doubt {
        match adopt(context, provider.as_ref(), task, &spec).await {
            Ok(Some(outcome)) => return outcome,
            Ok(None) => {}
            Err(failure) => return unknown(failure),
        }
    }
    if claim.is_unwanted() {
        return Outcome::Refused(ProviderFailure::new(
            Class::Permanent,
            "DESIRE_CHANGED",
            "released before the sandbox was asked for",
        ));
    }
    if !claim.is_live() {
        return unknown(claim_over());
    }

    let create = provider.create(&task.key, &spec);
    tokio::pin!(create);
    let answered = tokio::select! {
        answered = timeout_at(until.min(Instant::now() + context.timeouts.create), &mut create) => answered.ok(),
        () = claim.desire_changed() => timeout(GRACE, &mut create).await.ok(),
    };
    match answered {
        Some(CreateOutcome::Created(identity)) => Outcome::Created(identity),
        Some(CreateOutcome::Exists(identity)) => Outcome::Adopted(identity),
        Some(CreateOutcome::Refused(failure)) => Outcome::Refused(failure),
        Some(CreateOutcome::Unknown(failure)) => unknown(failure),
        None => unknown(ProviderFailure::timeout("the creation")),
    }
}

fn create_spec(context: &Context, task: &Task) -> Result<CreateSpec, ProviderFailure> {
    let mut egress = (*context.egress).clone();
    if let Some(url) = context.repo_url(task)? {
        egress.insert(url.egress(context.allow_private_repos));
    }
    Ok(CreateSpec { image: task.image.clone(), deadline: task.hard_deadline, egress })
}

/// What an earlier attempt made, if it can still be used; what cannot is removed.
async fn adopt(
    context: &Context,
    provider: &dyn Provider,
    task: &Task,
    spec: &CreateSpec,
) -> Result<Option<Outcome>, ProviderFailure> {
    let Some(lookup) = provider.lookup() else { return Ok(None) };
    let observe = context.timeouts.observe;
    let found = timeout(observe, lookup.find_by_lease(&task.key))
        .await
        .map_err(|_| ProviderFailure::timeout("the lookup"))??;
    let Some(identity) = found else { return Ok(None) };
    let seen =
        timeout(observe, provider.observe(&identity)).await.map_err(|_| ProviderFailure::timeout("the look"))??;
    match seen.state {
        ObservedState::Running | ObservedState::Paused => {
            if let Some(egress) = provider.egress() {
                let bound = timeout(observe, egress.bind(&task.key, &spec.egress)).await;
                bound.map_err(|_| ProviderFailure::timeout("opening the way out"))??;
            }
            Ok(Some(Outcome::Adopted(identity)))
        }
        ObservedState::Absent => Ok(None),
        ObservedState::Ended => {
            let destroy = provider.destroy(Some(&identity), &task.key);
            timeout(context.timeouts.destroy, destroy).await.map_err(|_| ProviderFailure::timeout("the removal"))??;
            Ok(None)
        }
    }
}
