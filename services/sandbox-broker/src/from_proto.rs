//! Lifecycle's messages as the broker's own types.

use std::time::{Duration, SystemTime};

use berth_rpc::{duration_from_proto, lifecycle as pb};

use crate::{
    provider::Identity,
    task::{Action, Task},
};

/// None for work that is not the broker's.
pub(crate) fn task(work: pb::Work) -> Option<Task> {
    let action = match work.action() {
        pb::work::Action::Allocate => Action::Allocate,
        pb::work::Action::Bootstrap => Action::Bootstrap,
        pb::work::Action::Release => Action::Release,
        pb::work::Action::Unspecified
        | pb::work::Action::Launch
        | pb::work::Action::Drive
        | pb::work::Action::Check
        | pb::work::Action::Collect
        | pb::work::Action::Park => return None,
    };
    let Some(pb::work::Detail::Lease(lease)) = work.detail else { return None };
    let deadline = lease.hard_deadline.as_ref().map(system_time);
    let lifetime = lease.max_lifetime.as_ref().map_or(Duration::from_secs(24 * 3600), duration_from_proto);
    Some(Task {
        lease_id: work.row_id,
        run_id: work.run_id,
        fence: work.fence,
        action,
        time_left: work.time_left.as_ref().map_or(Duration::ZERO, duration_from_proto),
        traceparent: work.traceparent,
        provider: lease.provider,
        key: lease.key,
        attempt: lease.attempt,
        in_doubt: lease.in_doubt,
        identity: lease.identity.map(identity),
        image: lease.image,
        repo_url: lease.repo_url,
        repo_ref: lease.repo_ref,
        workdir: lease.workdir,
        hard_deadline: deadline.unwrap_or_else(|| SystemTime::now() + lifetime),
    })
}

pub(crate) fn identity(identity: pb::SandboxIdentity) -> Identity {
    Identity {
        sandbox_id: identity.sandbox_id,
        sandbox_url: identity.sandbox_url,
        account_scope: identity.account_scope,
        provider: identity.provider,
        provider_deadline: identity.provider_deadline.as_ref().map(system_time),
    }
}

fn system_time(time: &prost_types::Timestamp) -> SystemTime {
    let micros = berth_rpc::time_from_proto(time).0;
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros.max(0).unsigned_abs())
}
