//! RevokeKey: at once and for ever.

use berth_domain::id::TenantId;
use berth_rpc::lifecycle as proto;

use crate::{Lifecycle, authenticate::Admitted, error::Error, policy::Resource, store::keys::Holder, to_proto};

/// Revokes a key; a revoked one stays as it is.
///
/// # Errors
/// NOT_FOUND (KEY_NOT_FOUND) for unknown and foreign keys, denied.
pub(crate) async fn revoke_key(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::RevokeKeyRequest,
) -> Result<proto::Key, Error> {
    let not_found = || Error::NotFound { reason: "KEY_NOT_FOUND", message: "no such key" };
    // Who may revoke no key of its own tenant learns nothing about which keys exist.
    let own = &call.caller()?.tenant;
    app.policy.authorize(call.subject(), call.action(), Resource::Tenant(own))?;
    let key = app.store.credential_by_id(&request.key_id).await?.ok_or_else(not_found)?;
    let tenant = TenantId::parse(&key.tenant).map_err(|error| Error::Internal(error.to_string()))?;
    let resource = match key.holder {
        Holder::Service(_) => Resource::Deployment,
        Holder::Caller { .. } => Resource::Tenant(&tenant),
    };
    let decision = app.policy.authorize(call.subject(), call.action(), resource).map_err(|denial| {
        tracing::debug!(%denial, "another tenant's key");
        not_found()
    })?;
    let trail = decision.trail(call.subject(), &request.key_id);
    let revoked = app.store.revoke_key(&request.key_id, &trail).await?.ok_or_else(not_found)?;
    tracing::info!(key_id = revoked.key_id, "key revoked");
    Ok(to_proto::key(&revoked))
}
