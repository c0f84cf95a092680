//! ResolveLease: the sandbox behind a session's claim, for a broker that is asked to act in it.

use berth_domain::{id::sandbox_key, lease::State};
use berth_rpc::lifecycle as proto;

use crate::{Lifecycle, authenticate::Admitted, error::Error, guard, to_proto};

/// The current lease of the run, while the session's claim is live.
///
/// # Errors
/// ABORTED (STALE_FENCE) when the claim is over; FAILED_PRECONDITION (LEASE_NOT_READY).
pub(crate) async fn resolve_lease(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::ResolveLeaseRequest,
) -> Result<proto::ResolveLeaseResponse, Error> {
    call.service()?;
    let run_id = guard::run_id(&request.run_id)?;
    let loaded = app.store.read(&run_id).await?.ok_or(Error::run_not_found())?;
    let session = &loaded.aggregate.session;
    let claim = session.claim.as_ref().ok_or(Error::stale_fence())?;
    let same = session.id.as_str() == request.session_id && u64::try_from(request.session_fence) == Ok(session.fence);
    if !same || claim.deadline <= loaded.now || !app.store.is_alive(claim.worker.as_str()).await? {
        return Err(Error::stale_fence());
    }
    let not_ready = || Error::illegal_state("LEASE_NOT_READY", "the run has no sandbox that is ready");
    let lease = loaded.aggregate.current().filter(|lease| lease.state == State::Ready).ok_or_else(not_ready)?;
    let identity = lease.identity.as_ref().ok_or_else(not_ready)?;
    let endpoint = if app.config.host_bound_providers.contains(&identity.provider) {
        app.store.endpoint_of(&identity.scope).await?.unwrap_or_default()
    } else {
        String::new()
    };
    Ok(proto::ResolveLeaseResponse {
        lease_id: lease.id.to_string(),
        tenant: loaded.aggregate.run.tenant.to_string(),
        identity: Some(to_proto::identity(identity)),
        key: sandbox_key(app.store.deployment_hash(), &lease.id),
        workdir: lease.workdir.clone().unwrap_or_default(),
        repo_url: loaded.record.spec.repo_url.clone(),
        base_commit: loaded.record.progress.base_commit.clone(),
        endpoint,
    })
}
