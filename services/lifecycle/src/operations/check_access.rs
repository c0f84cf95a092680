//! CheckAccess: the decision about an RPC of broker or sessions that reads no row of lifecycle's.

use berth_rpc::{access, lifecycle as proto};

use crate::{
    Lifecycle,
    authenticate::Admitted,
    error::Error,
    policy::{Resource, Subject},
};

/// May the forwarded caller do this in its tenant?
///
/// # Errors
/// Denied; INVALID_ARGUMENT (ACTION_UNKNOWN) for what is not an RPC of callers about their tenant.
pub(crate) async fn check_access(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::CheckAccessRequest,
) -> Result<proto::CheckAccessResponse, Error> {
    call.service()?;
    let caller = call.on_behalf_of().ok_or_else(|| Error::Internal("CheckAccess without a caller".to_owned()))?;
    let about_tenant = access::all().into_iter().any(|(_, access)| {
        access.action == request.action && access.resource == "Tenant" && access.services.is_empty()
    });
    if !about_tenant {
        let message = "only RPCs of callers about their tenant are decided here";
        return Err(Error::invalid("action", "ACTION_UNKNOWN", message));
    }
    let subject = Subject::Caller(caller.clone());
    app.policy.authorize(&subject, &request.action, Resource::Tenant(&caller.tenant))?;
    Ok(proto::CheckAccessResponse { tenant: caller.tenant.to_string(), principal: caller.principal.to_string() })
}
