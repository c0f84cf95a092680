//! ResolveSecret: a secret's value for the work a service holds, and only for that: the claim must be live, the purpose must
//! be the work's, and the secret must be bound to the host the work goes to. Every value handed out is audited.

use berth_domain::{id::WorkerId, lease::Action as LeaseAction, session::Action as SessionAction, time::Time};
use berth_rpc::lifecycle as proto;
use secrecy::ExposeSecret as _;
use url::Url;

use crate::{
    Lifecycle,
    authenticate::Admitted,
    error::Error,
    guard,
    hosts::Place,
    policy::Service,
    store::{Decision, Loaded},
};

const GIT_TOKEN: &str = "github_token";
const MODEL_KEY: &str = "anthropic_api_key";

/// What a secret is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Cloning the run's repository.
    Clone,
    /// Pushing to it.
    Push,
    /// Asking the model.
    Model,
    /// Calling the sandbox provider.
    Provider,
}

/// The claimed action behind the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Lease(LeaseAction),
    Session(SessionAction),
}

/// The value, for the lease or session held under the fence.
///
/// # Errors
/// ABORTED (STALE_FENCE); INVALID_ARGUMENT (PURPOSE_UNKNOWN); PERMISSION_DENIED (PURPOSE_NOT_ALLOWED); NOT_FOUND
/// (SECRET_NOT_FOUND) when there is none, or none bound to the host of the work.
pub(crate) async fn resolve_secret(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::ResolveSecretRequest,
) -> Result<proto::ResolveSecretResponse, Error> {
    let service = call.service()?;
    let purpose = Purpose::parse(&request.purpose)?;
    // A run that is not there is a claim that is over.
    let run_id = guard::run_id(&request.run_id).map_err(|_| Error::stale_fence())?;
    let loaded = app.store.read(&run_id).await?.ok_or(Error::stale_fence())?;
    let (held, worker) = live_claim(&loaded, &request)?;
    if !app.store.is_alive(worker.as_str()).await? {
        return Err(Error::stale_fence());
    }
    allowed(purpose, service, held, &request.name)?;

    let not_found =
        Error::NotFound { reason: "SECRET_NOT_FOUND", message: "the tenant has no such secret for this host" };
    let tenant = loaded.aggregate.run.tenant.as_str();
    let Some(secret) = app.store.secret(tenant, &request.name).await? else { return Err(not_found) };
    if !purpose.is_bound(&secret.hosts, &loaded, &app.config.model_host) {
        return Err(not_found);
    }
    let value = app.vault.open(tenant, &secret.name, &secret.sealed)?;

    // The audit line and the claim it rests on are of one moment.
    let detail = format!("{} version {} for {}", secret.name, secret.version, request.purpose);
    app.store
        .transact(&run_id, |loaded| {
            let decision = app.allow(call, loaded)?;
            live_claim(loaded, &request)?;
            let mut trail = decision.trail(call.subject(), &detail);
            trail.tenant = loaded.aggregate.run.tenant.to_string();
            Ok(Decision::unchanged(()).audited(trail))
        })
        .await?;
    Ok(proto::ResolveSecretResponse {
        value: value.expose_secret().to_owned(),
        hosts: secret.hosts,
        version: i64::try_from(secret.version).unwrap_or(i64::MAX),
    })
}

/// The claim of the row and fence named, if its own deadline has not passed.
fn live_claim(loaded: &Loaded, request: &proto::ResolveSecretRequest) -> Result<(Held, WorkerId), Error> {
    let aggregate = &loaded.aggregate;
    let session = &aggregate.session;
    let lease = aggregate.leases.iter().find(|lease| lease.id.as_str() == request.row_id);
    let (fence, held, worker, deadline): (u64, Held, &WorkerId, Time) = match lease {
        Some(lease) => {
            let claim = lease.claim.as_ref().ok_or(Error::stale_fence())?;
            (lease.fence, Held::Lease(claim.action), &claim.worker, claim.deadline)
        }
        None if session.id.as_str() == request.row_id => {
            let claim = session.claim.as_ref().ok_or(Error::stale_fence())?;
            (session.fence, Held::Session(claim.action), &claim.worker, claim.deadline)
        }
        None => return Err(Error::stale_fence()),
    };
    if u64::try_from(request.fence) == Ok(fence) && loaded.now < deadline {
        Ok((held, worker.clone()))
    } else {
        Err(Error::stale_fence())
    }
}

/// Each secret has its purpose, each purpose its service and action.
fn allowed(purpose: Purpose, service: Service, held: Held, name: &str) -> Result<(), Error> {
    let fits = match (purpose, service, held) {
        (Purpose::Clone, Service::SandboxBroker, Held::Lease(LeaseAction::Bootstrap)) => name == GIT_TOKEN,
        // The broker collects in the sandbox for the holder of the session.
        (Purpose::Push, Service::SandboxBroker, Held::Session(SessionAction::Collect)) => name == GIT_TOKEN,
        (Purpose::Model, Service::Sessions, Held::Session(SessionAction::Launch | SessionAction::Drive)) => {
            name == MODEL_KEY
        }
        (Purpose::Provider, Service::SandboxBroker, Held::Lease(_)) => name != GIT_TOKEN && name != MODEL_KEY,
        (Purpose::Clone | Purpose::Push | Purpose::Model | Purpose::Provider, _, _) => false,
    };
    if fits {
        return Ok(());
    }
    let message = "the work that is held does not need this secret for this purpose".to_owned();
    Err(Error::Denied { reason: "PURPOSE_NOT_ALLOWED", message })
}

impl Purpose {
    fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "CLONE" => Ok(Self::Clone),
            "PUSH" => Ok(Self::Push),
            "MODEL" => Ok(Self::Model),
            "PROVIDER" => Ok(Self::Provider),
            _ => Err(Error::invalid("purpose", "PURPOSE_UNKNOWN", "CLONE, PUSH, MODEL or PROVIDER")),
        }
    }

    /// Whether the place the value will be sent to is one of `hosts`. A run without repository clones nothing.
    fn is_bound(self, hosts: &[String], loaded: &Loaded, model_host: &str) -> bool {
        let place = match self {
            Self::Clone | Self::Push => {
                Url::parse(&loaded.record.spec.repo_url).ok().and_then(|url| Place::of_url(&url))
            }
            Self::Model => Place::parse(model_host),
            // The provider's adapter knows where it calls, and checks.
            Self::Provider => return true,
        };
        place.is_some_and(|place| place.is_bound(hosts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_purpose_has_its_service_action_and_name() {
        let lease = Held::Lease(LeaseAction::Bootstrap);
        let drive = Held::Session(SessionAction::Drive);
        let collect = Held::Session(SessionAction::Collect);
        for (purpose, service, held, name) in [
            (Purpose::Clone, Service::SandboxBroker, lease, GIT_TOKEN),
            (Purpose::Push, Service::SandboxBroker, collect, GIT_TOKEN),
            (Purpose::Model, Service::Sessions, drive, MODEL_KEY),
            (Purpose::Provider, Service::SandboxBroker, Held::Lease(LeaseAction::Release), "e2b_api_key"),
        ] {
            assert!(allowed(purpose, service, held, name).is_ok(), "{purpose:?}");
        }
        for (purpose, service, held, name) in [
            (Purpose::Clone, Service::Sessions, lease, GIT_TOKEN),
            (Purpose::Clone, Service::SandboxBroker, Held::Lease(LeaseAction::Release), GIT_TOKEN),
            (Purpose::Clone, Service::SandboxBroker, lease, MODEL_KEY),
            (Purpose::Push, Service::SandboxBroker, drive, GIT_TOKEN),
            (Purpose::Model, Service::SandboxBroker, drive, MODEL_KEY),
            (Purpose::Model, Service::Sessions, collect, MODEL_KEY),
            (Purpose::Model, Service::Sessions, drive, GIT_TOKEN),
            (Purpose::Provider, Service::SandboxBroker, lease, GIT_TOKEN),
            (Purpose::Provider, Service::SandboxBroker, lease, MODEL_KEY),
        ] {
            assert_eq!(allowed(purpose, service, held, name).unwrap_err().reason(), "PURPOSE_NOT_ALLOWED");
        }
    }
}
