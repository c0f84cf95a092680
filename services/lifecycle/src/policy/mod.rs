//! Authorization: Cedar with a validated schema and built-in policies, and the one way every operation asks it.
//!
//! A decision is pure: it is made inside the transaction that read the row, from the caller that was verified and the
//! tenant the row names. Denials keep two faces apart: what may not be seen is NOT_FOUND (the same answer as for a thing
//! that does not exist), what may be seen but not done is PERMISSION_DENIED.
//!
//! Must not live here: credentials (see `authenticate`), SQL, gRPC.

mod engine;
#[cfg(test)]
mod tests;

use berth_domain::{
    caller::Caller,
    id::{RunId, TenantId},
};

pub(crate) use engine::{Policy, PolicyError};

use crate::store::audit::AuditEntry;

/// One of Berth's own services, known by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// The public port.
    Gateway,
    /// Works lease actions.
    SandboxBroker,
    /// Works session actions.
    Sessions,
}

impl Service {
    /// Every service that has a key.
    pub const ALL: [Service; 3] = [Service::Gateway, Service::SandboxBroker, Service::Sessions];

    /// The name in keys, policies and the `services` of the access option.
    pub fn as_str(self) -> &'static str {
        match self {
            Service::Gateway => "gateway",
            Service::SandboxBroker => "sandbox-broker",
            Service::Sessions => "sessions",
        }
    }

    /// The service of that name, if there is one.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|service| service.as_str() == text)
    }
}

/// Who asks: exactly one of the two, proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A caller, directly or behind a service.
    Caller(Caller),
    /// A service on its own account.
    Service(Service),
}

impl Subject {
    /// For logs and the audit table: the principal, or the service's name.
    pub fn name(&self) -> &str {
        match self {
            Subject::Caller(caller) => caller.principal.as_str(),
            Subject::Service(service) => service.as_str(),
        }
    }

    /// The caller's tenant; None for a service.
    pub fn tenant(&self) -> Option<&TenantId> {
        match self {
            Subject::Caller(caller) => Some(&caller.tenant),
            Subject::Service(_) => None,
        }
    }
}

/// What a decision is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource<'a> {
    /// A tenant as a whole: creation, lists, secrets, keys.
    Tenant(&'a TenantId),
    /// One run and the tenant it lies in.
    Run(&'a RunId, &'a TenantId),
    /// This deployment.
    Deployment,
}

impl Resource<'_> {
    /// Type and id, for logs and the audit table.
    pub(crate) fn label(&self) -> String {
        match self {
            Resource::Tenant(tenant) => format!("Tenant/{tenant}"),
            Resource::Run(run, _) => format!("Run/{run}"),
            Resource::Deployment => "Deployment".to_owned(),
        }
    }

    fn tenant(&self) -> Option<&TenantId> {
        match self {
            Resource::Tenant(tenant) | Resource::Run(_, tenant) => Some(tenant),
            Resource::Deployment => None,
        }
    }
}

/// What Cedar said, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The answer.
    pub allowed: bool,
    /// The action asked about.
    pub action: String,
    /// Type and id of the resource.
    pub resource: String,
    /// Ids of the policies that determined the answer, sorted; empty when nothing permitted it.
    pub policies: Vec<String>,
}

/// A refusal, with what the audit table needs. Its text is for the log; what the client is told is decided at the edge.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} on {} denied to {principal}", decision.action, decision.resource)]
pub struct Denial {
    /// The decision that refused.
    pub decision: Decision,
    /// Who asked.
    pub principal: String,
    /// The tenant the caller acts for; None for services.
    pub tenant: Option<TenantId>,
    /// Whether the subject may know that the resource exists.
    pub visible: bool,
    /// Whether a run was asked about (else a tenant or the deployment).
    pub about_run: bool,
    /// Stable upper-case reason, where the client may know it.
    pub reason: &'static str,
    /// For the client, where it may know it.
    pub message: String,
}

impl Denial {
    /// A refusal that no policy could lift: the credential is not for this kind of call.
    pub fn of_credential(
        reason: &'static str,
        message: String,
        action: &str,
        principal: &str,
        tenant: Option<TenantId>,
    ) -> Self {
        let resource = Resource::Deployment.label();
        let decision = Decision { allowed: false, action: action.to_owned(), resource, policies: Vec::new() };
        Self { decision, principal: principal.to_owned(), tenant, visible: true, about_run: false, reason, message }
    }

    /// Its line for the audit trail.
    pub fn trail(&self) -> AuditEntry {
        trail(self.tenant.as_ref(), &self.principal, &self.decision, "")
    }
}

impl Decision {
    /// The line an administrative write leaves in the audit trail; `detail` holds no secret.
    pub fn trail(&self, subject: &Subject, detail: &str) -> AuditEntry {
        trail(subject.tenant(), subject.name(), self, detail)
    }
}

/// What services do lies in the trail of tenant `default`.
fn trail(tenant: Option<&TenantId>, actor: &str, decision: &Decision, detail: &str) -> AuditEntry {
    AuditEntry {
        tenant: tenant.map_or("default", TenantId::as_str).to_owned(),
        actor: actor.to_owned(),
        action: decision.action.clone(),
        resource: decision.resource.clone(),
        decision: if decision.allowed { "ALLOWED" } else { "DENIED" }.to_owned(),
        policies: decision.policies.join(","),
        detail: detail.to_owned(),
    }
}

impl Policy {
    /// The decision, or the denial to return. Logged with the policies that determined it.
    ///
    /// # Errors
    /// [`Denial`]; `visible` says whether the client may learn that the resource exists.
    pub(crate) fn authorize(
        &self,
        subject: &Subject,
        action: &str,
        resource: Resource<'_>,
    ) -> Result<Decision, Denial> {
        let decision = self.decide(subject, action, resource);
        tracing::debug!(
            principal = subject.name(),
            tenant = subject.tenant().map_or("", TenantId::as_str),
            action,
            resource = decision.resource,
            allowed = decision.allowed,
            policies = decision.policies.join(","),
            "access decided"
        );
        if decision.allowed {
            return Ok(decision);
        }
        Err(Denial {
            visible: self.sees(subject, resource),
            about_run: matches!(resource, Resource::Run(..)),
            principal: subject.name().to_owned(),
            tenant: subject.tenant().cloned(),
            reason: "PERMISSION_DENIED",
            message: format!("the caller may not {action}"),
            decision,
        })
    }

    /// Whether the subject may know that the resource exists: a run it may read, its own tenant, the deployment.
    fn sees(&self, subject: &Subject, resource: Resource<'_>) -> bool {
        match (subject, resource) {
            (Subject::Service(_), _) | (_, Resource::Deployment) => true,
            (Subject::Caller(_), Resource::Run(..)) => self.decide(subject, "GetRun", resource).allowed,
            (Subject::Caller(caller), Resource::Tenant(_)) => resource.tenant() == Some(&caller.tenant),
        }
    }
}
