//! The broker's own types as lifecycle's and the public API's messages.

use std::time::SystemTime;

use berth_domain::time::Time;
use berth_rpc::{
    broker as api, duration_to_proto,
    lifecycle::{self as pb, report_request::Outcome as Report},
    time_to_proto,
};

use crate::{
    provider::{Class, DeadlineEffect, Health, Identity, Provider, ProviderFailure, registry},
    task::Outcome,
};

pub(crate) fn report(outcome: Outcome) -> Report {
    match outcome {
        Outcome::Created(identity) => Report::Created(created(&identity)),
        Outcome::Adopted(identity) => Report::Adopted(created(&identity)),
        Outcome::Refused(reason) if reason.class == Class::CredentialsMissing => {
            Report::CredentialsMissing(failure(reason))
        }
        Outcome::Refused(reason) => Report::Refused(failure(reason)),
        Outcome::Unknown { failure: reason, create_horizon } => Report::Unknown(pb::Unknown {
            failure: Some(failure(reason)),
            create_horizon: Some(duration_to_proto(create_horizon)),
        }),
        Outcome::Bootstrapped { workdir, base_commit } => {
            Report::Bootstrapped(pb::Bootstrapped { workdir, base_commit })
        }
        Outcome::BootstrapFailed(reason) => Report::BootstrapFailed(failure(reason)),
        Outcome::Gone { how } => Report::Gone(pb::Gone { how }),
        Outcome::Absent { how, account_scope } => Report::Absent(pb::Absent { how, account_scope }),
        Outcome::StillThere { how } => Report::StillThere(pb::StillThere { how }),
        Outcome::ReleaseFailed(reason) => Report::ReleaseFailed(failure(reason)),
    }
}

fn created(identity: &Identity) -> pb::Created {
    pb::Created {
        identity: Some(pb::SandboxIdentity {
            sandbox_id: identity.sandbox_id.clone(),
            sandbox_url: identity.sandbox_url.clone(),
            account_scope: identity.account_scope.clone(),
            provider: identity.provider.clone(),
            provider_deadline: identity.provider_deadline.map(timestamp),
        }),
    }
}

fn timestamp(time: SystemTime) -> prost_types::Timestamp {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    time_to_proto(Time::default().plus(since))
}

fn failure(failure: ProviderFailure) -> pb::ProviderFailure {
    use pb::provider_failure::Class as Wire;
    let class = match failure.class {
        Class::Transient => Wire::Transient,
        Class::Permanent => Wire::Permanent,
        Class::CredentialsMissing => Wire::CredentialsMissing,
        Class::ScopeChanged => Wire::ScopeChanged,
        Class::IdentityDiffers => Wire::IdentityDiffers,
    };
    pb::ProviderFailure { class: class.into(), reason: failure.reason.to_owned(), message: failure.message }
}

pub(crate) fn provider(provider: &dyn Provider, health: Health, live: u32) -> api::Provider {
    use api::provider::{DeadlineEffect as WireEffect, Health as WireHealth};
    let declaration = provider.declaration();
    let effect = match declaration.deadline_effect {
        DeadlineEffect::Kill => WireEffect::Kill,
        DeadlineEffect::Suspend => WireEffect::Suspend,
        DeadlineEffect::Stop => WireEffect::Stop,
        DeadlineEffect::None => WireEffect::None,
    };
    let (health, message) = match health {
        Health::Healthy(note) => (WireHealth::Healthy, note),
        Health::Degraded(why) => (WireHealth::Degraded, why),
        Health::Unavailable(why) => (WireHealth::Unavailable, why),
    };
    api::Provider {
        name: declaration.name.to_owned(),
        features: registry::features(provider).into_iter().map(str::to_owned).collect(),
        health: health.into(),
        message,
        max_sandboxes: i32::try_from(declaration.max_sandboxes).unwrap_or(i32::MAX),
        live_sandboxes: i32::try_from(live).unwrap_or(i32::MAX),
        deadline_effect: effect.into(),
        host_bound: declaration.host_bound,
    }
}
