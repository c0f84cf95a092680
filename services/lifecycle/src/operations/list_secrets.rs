//! ListSecrets: names and hosts, never values.

use berth_rpc::lifecycle as proto;

use crate::{Lifecycle, authenticate::Admitted, error::Error, guard, policy::Resource, to_proto};

/// The tenant's secrets by name.
///
/// # Errors
/// NOT_FOUND (TENANT_NOT_FOUND), denied.
pub(crate) async fn list_secrets(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::ListSecretsRequest,
) -> Result<proto::ListSecretsResponse, Error> {
    let tenant = guard::tenant_id(&request.tenant, &call.caller()?.tenant)?;
    app.policy.authorize(call.subject(), call.action(), Resource::Tenant(&tenant))?;
    let stored = app.store.secrets(tenant.as_str()).await?;
    Ok(proto::ListSecretsResponse { secrets: stored.iter().map(to_proto::secret).collect() })
}
