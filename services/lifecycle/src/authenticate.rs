//! Who is calling: from an RPC's path and metadata to a proven subject. The immediate peer is `authorization: Bearer`: a
//! service key or a caller's key. A service passes the caller on in `x-berth-caller`, as an assertion signed by a registered
//! gateway key or as the caller's own key; it can only pass on what it was given.
//!
//! Must not live here: what the subject may do (see `policy`), except that RPCs for services need a service's key.

use std::{sync::Arc, time::Duration};

use berth_domain::{
    caller::{AuthMethod, Caller},
    id::{PrincipalId, TenantId},
};
use berth_rpc::{
    access::{self, Access},
    metadata,
};
use berth_serve::assertion;
use tonic::metadata::MetadataMap;

use crate::{
    error::Error,
    policy::{Denial, Policy, Resource, Service, Subject},
    store::{
        Store,
        keys::{Credential, Holder},
    },
    vault::hash_api_key,
};

/// Longest bearer that is looked at.
const MAX_CREDENTIAL_LEN: usize = 4096;
/// Actions a service may ask for on behalf of a caller where the RPC's name is another: (action, RPC).
const ACTIONS_ON_BEHALF: [(&str, &str); 3] =
    [("StreamEvents", "Read"), ("ListEvents", "Read"), ("SendMessage", "QueueMessage")];

/// How long after an assertion's time a stream that was opened with it may go on reading. Its credential is looked at with
/// every read, so a revocation ends the stream at once.
const STREAM_GRACE: Duration = Duration::from_secs(24 * 3600);

/// A verified call: the proof that an operation asks for. Made here only.
#[derive(Clone, Debug)]
pub struct Admitted {
    subject: Subject,
    action: String,
    on_behalf_of: Option<Caller>,
    idempotency_key: Option<String>,
    traceparent: String,
}

impl Admitted {
    /// Who asks.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// The Cedar action to decide.
    pub fn action(&self) -> &str {
        &self.action
    }

    /// The caller of an RPC that has one.
    ///
    /// # Errors
    /// Internal: the RPC is for services, and the operation should not ask.
    pub fn caller(&self) -> Result<&Caller, Error> {
        match &self.subject {
            Subject::Caller(caller) => Ok(caller),
            Subject::Service(_) => Err(Error::Internal(format!("{} has no caller", self.action))),
        }
    }

    /// The service of an RPC for services.
    ///
    /// # Errors
    /// Internal: the RPC is for callers, and the operation should not ask.
    pub fn service(&self) -> Result<Service, Error> {
        match &self.subject {
            Subject::Service(service) => Ok(*service),
            Subject::Caller(_) => Err(Error::Internal(format!("{} is no service's", self.action))),
        }
    }

    /// The verified caller a service asks about (CheckAccess only).
    pub fn on_behalf_of(&self) -> Option<&Caller> {
        self.on_behalf_of.as_ref()
    }

    /// `idempotency-key` as sent.
    pub fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }

    /// W3C traceparent as sent; empty without one.
    pub fn traceparent(&self) -> &str {
        &self.traceparent
    }

    /// Names in the timeline who did it.
    pub fn actor(&self) -> String {
        self.subject.name().to_owned()
    }
}

/// Verifies credentials against the store.
#[derive(Clone, Debug)]
pub(crate) struct Authenticator {
    store: Store,
    policy: Arc<Policy>,
}

impl Authenticator {
    /// Over this store, with these policies for RPCs about the deployment.
    pub(crate) fn new(store: Store, policy: Arc<Policy>) -> Self {
        Self { store, policy }
    }

    /// Verifies a call to the RPC at `path`. RPCs about the deployment are decided here; those about a run or tenant are
    /// decided by their operation, which knows the row.
    ///
    /// # Errors
    /// Unauthenticated (CREDENTIAL_MISSING, CREDENTIAL_INVALID), Denied (TENANT_MISMATCH, SERVICE_KEY_REQUIRED, policy),
    /// or a failed store.
    pub(crate) async fn admit(&self, path: &str, metadata: &MetadataMap) -> Result<Admitted, Error> {
        // Fails closed: an RPC that declares nothing cannot be called.
        let access = access::access(path).ok_or_else(credential_missing)?;
        let peer = self.peer(metadata).await?;
        let mut on_behalf_of = None;
        let (subject, action) = if !access.services.is_empty() {
            let service = service_peer(&peer, access)?;
            if access.action == "CheckAccess" {
                on_behalf_of = Some(self.forwarded(metadata, access, Duration::ZERO).await?);
            }
            (Subject::Service(service), access.action.clone())
        } else if let Holder::Service(service) = &peer.holder {
            let action = action_on_behalf(metadata, access);
            let streams = service == Service::Sessions.as_str() && action == "StreamEvents";
            let grace = if streams { STREAM_GRACE } else { Duration::ZERO };
            (Subject::Caller(self.forwarded(metadata, access, grace).await?), action)
        } else {
            let caller = caller(&peer, AuthMethod::ApiKey, tenant_header(metadata)?, &access.action)?;
            (Subject::Caller(caller), access.action.clone())
        };
        if access.resource == "Deployment" {
            self.policy.authorize(&subject, &action, Resource::Deployment)?;
        }
        Ok(Admitted {
            subject,
            action,
            on_behalf_of,
            idempotency_key: text(metadata, metadata::IDEMPOTENCY_KEY),
            traceparent: text(metadata, metadata::TRACEPARENT).unwrap_or_default(),
        })
    }

    /// The caller behind a bearer key, acting for `tenant` (None: the credential's only one); `action` is for the audit trail.
    ///
    /// # Errors
    /// Unauthenticated (CREDENTIAL_INVALID), Denied (TENANT_MISMATCH), or a failed store.
    pub(crate) async fn caller_by_key(&self, key: &str, tenant: Option<&str>, action: &str) -> Result<Caller, Error> {
        caller(&self.credential(key).await?, AuthMethod::ApiKey, tenant, action)
    }

    async fn peer(&self, metadata: &MetadataMap) -> Result<Credential, Error> {
        if metadata.get(metadata::AUTHORIZATION).is_none() {
            return Err(credential_missing());
        }
        let key = metadata::bearer(metadata).ok_or_else(credential_invalid)?;
        self.credential(key).await
    }

    async fn forwarded(&self, metadata: &MetadataMap, access: &Access, grace: Duration) -> Result<Caller, Error> {
        let value = metadata.get(metadata::CALLER).ok_or_else(credential_missing)?;
        let value = value.to_str().map_err(|_| credential_invalid())?;
        let tenant = tenant_header(metadata)?;
        match value.split_once(' ') {
            Some(("assertion", token)) => self.caller_by_assertion(token, tenant, &access.action, grace).await,
            Some(("bearer", key)) => self.caller_by_key(key, tenant, &access.action).await,
            Some(_) | None => Err(credential_invalid()),
        }
    }

    /// Signature by a registered gateway key, audience, time; then the credential it was made from must still hold and
    /// still belong to that tenant and principal. The role is the credential's: the assertion cannot raise it.
    async fn caller_by_assertion(
        &self,
        token: &str,
        tenant: Option<&str>,
        action: &str,
        grace: Duration,
    ) -> Result<Caller, Error> {
        let key_id = assertion::key_id(token).ok_or_else(credential_invalid)?;
        let (public_key, now) = self.store.assertion_key(&key_id).await?.ok_or_else(credential_invalid)?;
        let audience = self.store.deployment().to_string();
        let now_s = now.0.div_euclid(1_000_000);
        let claims = assertion::verify_within(token, &public_key, &audience, now_s, grace).map_err(|refused| {
            tracing::debug!(%refused, "assertion refused");
            credential_invalid()
        })?;
        let credential = self.store.credential_by_id(&claims.credential).await?.ok_or_else(credential_invalid)?;
        let caller = caller(&credential, AuthMethod::Assertion, tenant, action)?;
        if caller.tenant.as_str() != claims.tenant || caller.principal.as_str() != claims.principal {
            return Err(credential_invalid());
        }
        Ok(caller)
    }

    async fn credential(&self, key: &str) -> Result<Credential, Error> {
        if key.len() > MAX_CREDENTIAL_LEN {
            return Err(credential_invalid());
        }
        let credential = self.store.credential_by_hash(&hash_api_key(key)).await?.ok_or_else(credential_invalid)?;
        match credential.revoked_at {
            None => Ok(credential),
            Some(_) => Err(credential_invalid()),
        }
    }

    /// Leaves a line in the audit trail for a call that was refused to somebody known.
    pub(crate) async fn record_denial(&self, denial: &Denial) {
        if let Err(error) = self.store.audit(&denial.trail()).await {
            tracing::error!(error = &error as &dyn std::error::Error, "a denial could not be audited");
        }
    }
}

/// The service behind `peer`, when the RPC is for it.
fn service_peer(peer: &Credential, access: &Access) -> Result<Service, Error> {
    let (name, tenant) = match &peer.holder {
        Holder::Service(name) if access.services.contains(name) => {
            return Service::parse(name).ok_or_else(|| Error::Internal(format!("{name} is no service")));
        }
        Holder::Service(name) => (name, None),
        Holder::Caller { principal, .. } => (principal, TenantId::parse(&peer.tenant).ok()),
    };
    let message = format!("{} is for {} only", access.action, access.services.join(" and "));
    Err(Denial::of_credential("SERVICE_KEY_REQUIRED", message, &access.action, name, tenant).into())
}

/// The caller behind a credential that holds, acting for `tenant` (None: its only one).
fn caller(credential: &Credential, method: AuthMethod, tenant: Option<&str>, action: &str) -> Result<Caller, Error> {
    let Holder::Caller { principal, role } = &credential.holder else { return Err(credential_invalid()) };
    if credential.revoked_at.is_some() {
        return Err(credential_invalid());
    }
    let stored = |_| Error::Internal(format!("credential {} is malformed", credential.key_id));
    let own = TenantId::parse(&credential.tenant).map_err(stored)?;
    if tenant.is_some_and(|tenant| tenant != credential.tenant) {
        let message = "the credential is not for this tenant".to_owned();
        return Err(Denial::of_credential("TENANT_MISMATCH", message, action, principal, Some(own)).into());
    }
    Ok(Caller {
        tenant: own,
        principal: PrincipalId::parse(principal).map_err(stored)?,
        role: *role,
        method,
        credential: credential.key_id.clone(),
    })
}

/// What the caller asked the service for, when this RPC serves it; else the RPC itself.
fn action_on_behalf(metadata: &MetadataMap, access: &Access) -> String {
    let asked = metadata.get(metadata::ACTION).and_then(|value| value.to_str().ok());
    let known = ACTIONS_ON_BEHALF.iter().find(|(action, rpc)| *rpc == access.action && Some(*action) == asked);
    known.map_or_else(|| access.action.clone(), |(action, _)| (*action).to_owned())
}

/// `x-tenant-id`; an empty one counts as none.
fn tenant_header(metadata: &MetadataMap) -> Result<Option<&str>, Error> {
    let Some(value) = metadata.get(metadata::TENANT) else { return Ok(None) };
    let value = value.to_str().map_err(|_| credential_invalid())?;
    Ok(Some(value).filter(|tenant| !tenant.is_empty()))
}

fn text(metadata: &MetadataMap, name: &str) -> Option<String> {
    let value = metadata.get(name)?.to_str().ok()?;
    (!value.is_empty()).then(|| value.to_owned())
}

fn credential_missing() -> Error {
    Error::Unauthenticated {
        reason: "CREDENTIAL_MISSING",
        message: "a credential is required: authorization: Bearer …",
    }
}

fn credential_invalid() -> Error {
    Error::Unauthenticated { reason: "CREDENTIAL_INVALID", message: "the credential is not valid" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_action(action: &'static str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert(metadata::ACTION, action.parse().unwrap());
        metadata
    }

    #[test]
    fn a_service_names_only_actions_its_rpc_serves() {
        let read = access::access("/berth.lifecycle.v1.LogService/Read").unwrap();
        let queue = access::access("/berth.lifecycle.v1.LogService/QueueMessage").unwrap();
        assert_eq!(action_on_behalf(&with_action("StreamEvents"), read), "StreamEvents");
        assert_eq!(action_on_behalf(&with_action("ListEvents"), read), "ListEvents");
        assert_eq!(action_on_behalf(&with_action("SendMessage"), queue), "SendMessage");
        // Anything else is decided as the RPC that is really called.
        assert_eq!(action_on_behalf(&with_action("StreamEvents"), queue), "QueueMessage");
        assert_eq!(action_on_behalf(&with_action("GetRun"), queue), "QueueMessage");
        assert_eq!(action_on_behalf(&MetadataMap::new(), read), "Read");
    }

    #[test]
    fn the_actions_on_behalf_are_rpcs() {
        for (action, rpc) in ACTIONS_ON_BEHALF {
            for name in [action, rpc] {
                assert!(access::all().iter().any(|(_, access)| access.action == name), "{name}");
            }
        }
    }
}
