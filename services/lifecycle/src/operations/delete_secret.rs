//! DeleteSecret: the sealed value is erased.

use berth_rpc::lifecycle as proto;

use crate::{Lifecycle, authenticate::Admitted, error::Error, guard, policy::Resource};

/// Erases it; a second time it is not found.
///
/// # Errors
/// NOT_FOUND (TENANT_NOT_FOUND, SECRET_NOT_FOUND), denied.
pub(crate) async fn delete_secret(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::DeleteSecretRequest,
) -> Result<proto::DeleteSecretResponse, Error> {
    let tenant = guard::tenant_id(&request.tenant, &call.caller()?.tenant)?;
    let decision = app.policy.authorize(call.subject(), call.action(), Resource::Tenant(&tenant))?;
    let trail = decision.trail(call.subject(), &request.name);
    if !app.store.delete_secret(tenant.as_str(), &request.name, &trail).await? {
        return Err(Error::NotFound { reason: "SECRET_NOT_FOUND", message: "the tenant has no such secret" });
    }
    tracing::info!(%tenant, name = request.name, "secret deleted");
    Ok(proto::DeleteSecretResponse {})
}
