//! CreateKey: a key for a caller or a service. Its text is in this answer and nowhere else.

use berth_domain::{
    caller::Role,
    id::{PrincipalId, TenantId},
};
use berth_rpc::lifecycle as proto;
use secrecy::ExposeSecret as _;
use uuid::Uuid;

use crate::{
    Lifecycle,
    authenticate::Admitted,
    error::Error,
    guard,
    policy::{Resource, Service},
    store::keys::{Holder, NewCredential},
    to_proto, vault,
};

/// Services belong to the deployment; their keys are kept by tenant `default`.
const SERVICE_TENANT: &str = "default";

/// Makes a key. A key for another tenant or for a service needs an administrator of tenant `default`.
///
/// # Errors
/// NOT_FOUND (TENANT_NOT_FOUND), denied; INVALID_ARGUMENT (PRINCIPAL_INVALID, ROLE_INVALID, SERVICE_INVALID).
pub(crate) async fn create_key(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::CreateKeyRequest,
) -> Result<proto::CreateKeyResponse, Error> {
    let tenant = guard::tenant_id(&request.tenant, &call.caller()?.tenant)?;
    let for_service = !request.service.is_empty();
    let resource = if for_service { Resource::Deployment } else { Resource::Tenant(&tenant) };
    let decision = app.policy.authorize(call.subject(), call.action(), resource)?;
    let (tenant, holder) = if for_service { service(&request)? } else { (tenant, principal(&request)?) };

    let text = vault::new_api_key();
    let key_id = format!("key-{}", Uuid::now_v7().simple());
    let actor = call.actor();
    let new = NewCredential {
        key_id: &key_id,
        key_hash: vault::hash_api_key(text.expose_secret()),
        tenant: tenant.as_str(),
        holder: &holder,
        created_by: &actor,
    };
    let whom = match &holder {
        Holder::Caller { principal, role } => format!("{key_id}: {principal} as {} in {tenant}", role.as_str()),
        Holder::Service(service) => format!("{key_id}: service {service}"),
    };
    let stored = app.store.insert_key(&new, &decision.trail(call.subject(), &whom)).await?;
    tracing::info!(key_id, %tenant, "key created");
    Ok(proto::CreateKeyResponse { key: Some(to_proto::key(&stored)), value: text.expose_secret().to_owned() })
}

fn service(request: &proto::CreateKeyRequest) -> Result<(TenantId, Holder), Error> {
    let wrong = |message: &str| Error::invalid("service", "SERVICE_INVALID", message);
    if !request.principal.is_empty() || !request.role.is_empty() {
        return Err(wrong("a key is for a service, or for a principal with a role"));
    }
    let service = Service::parse(&request.service);
    let service = service.ok_or_else(|| wrong("the services are gateway, sandbox-broker and sessions"))?;
    let tenant = TenantId::parse(SERVICE_TENANT).map_err(|error| Error::Internal(error.to_string()))?;
    Ok((tenant, Holder::Service(service.as_str().to_owned())))
}

fn principal(request: &proto::CreateKeyRequest) -> Result<Holder, Error> {
    let principal = PrincipalId::parse(&request.principal).map_err(|_| {
        let message = "a principal is 1 to 64 of a-z, 0-9 and -";
        Error::invalid("principal", "PRINCIPAL_INVALID", message)
    })?;
    let role = match request.role.as_str() {
        "" => Some(Role::Member),
        name => Role::parse(name).filter(|role| *role != Role::Service),
    };
    let role =
        role.ok_or_else(|| Error::invalid("role", "ROLE_INVALID", "the roles are admin, operator, member and viewer"))?;
    Ok(Holder::Caller { principal: principal.to_string(), role })
}
