//! Authenticate: what the gateway asks before it mints an assertion for a caller.

use berth_rpc::lifecycle as proto;
use secrecy::{ExposeSecret as _, SecretString};

use crate::{Lifecycle, authenticate::Admitted, error::Error};

/// Verifies a caller's credential for a tenant.
///
/// # Errors
/// UNAUTHENTICATED (CREDENTIAL_INVALID), PERMISSION_DENIED (TENANT_MISMATCH).
pub(crate) async fn authenticate(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::AuthenticateRequest,
) -> Result<proto::AuthenticateResponse, Error> {
    call.service()?;
    let credential = SecretString::from(request.credential);
    let tenant = Some(request.tenant.as_str()).filter(|tenant| !tenant.is_empty());
    let caller = app.authenticator.caller_by_key(credential.expose_secret(), tenant, call.action()).await?;
    Ok(proto::AuthenticateResponse {
        tenant: caller.tenant.to_string(),
        principal: caller.principal.to_string(),
        role: caller.role.as_str().to_owned(),
        credential_id: caller.credential,
        audience: app.store.deployment().to_string(),
    })
}
