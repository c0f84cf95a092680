//! ListKeys: who has keys, never the keys.

use berth_rpc::lifecycle as proto;

use crate::{Lifecycle, authenticate::Admitted, error::Error, policy::Resource, to_proto};

/// The tenant's keys; for those who keep the services' keys, these too.
///
/// # Errors
/// Denied.
pub(crate) async fn list_keys(
    app: &Lifecycle,
    call: &Admitted,
    _request: proto::ListKeysRequest,
) -> Result<proto::ListKeysResponse, Error> {
    let tenant = &call.caller()?.tenant;
    app.policy.authorize(call.subject(), call.action(), Resource::Tenant(tenant))?;
    let with_services = app.policy.decide(call.subject(), "CreateKey", Resource::Deployment).allowed;
    let stored = app.store.keys(tenant.as_str(), with_services).await?;
    Ok(proto::ListKeysResponse { keys: stored.iter().map(to_proto::key).collect() })
}
