//! Who asks: tenant, principal, role and how they proved it.
//!
//! Must not live here: credentials themselves (`credential` is a key's public id) and decisions (Cedar policies make them).

use crate::id::{PrincipalId, TenantId};
use serde::{Deserialize, Serialize};

/// What a principal may do at most; the policies decide the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Everything inside the tenant, Forget included.
    Admin,
    /// Sees and repairs runs of the tenant.
    Operator,
    /// Creates runs and works with its own.
    Member,
    /// Reads.
    Viewer,
    /// One of Berth's own services.
    Service,
}

impl Role {
    /// Every role, most powerful first.
    pub const ALL: [Role; 5] = [Role::Admin, Role::Operator, Role::Member, Role::Viewer, Role::Service];

    /// The stored and spoken name.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Admin => "admin",
            Role::Operator => "operator",
            Role::Member => "member",
            Role::Viewer => "viewer",
            Role::Service => "service",
        }
    }

    /// The role of that name, if there is one.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == text)
    }
}

/// How the caller authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AuthMethod {
    /// A tenant's API key.
    ApiKey,
    /// The key of one of our services.
    ServiceKey,
    /// An assertion minted by the gateway for a caller it verified.
    Assertion,
    /// The bearer of one launch.
    LaunchBearer,
    /// A token of an identity provider.
    Oidc,
    /// A client certificate.
    Mtls,
}

impl AuthMethod {
    /// The stored and logged name.
    pub fn as_str(self) -> &'static str {
        match self {
            AuthMethod::ApiKey => "api_key",
            AuthMethod::ServiceKey => "service_key",
            AuthMethod::Assertion => "assertion",
            AuthMethod::LaunchBearer => "launch_bearer",
            AuthMethod::Oidc => "oidc",
            AuthMethod::Mtls => "mtls",
        }
    }
}

/// The verified caller of one request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    /// The tenant the request acts in.
    pub tenant: TenantId,
    /// Who it is.
    pub principal: PrincipalId,
    /// What it may do at most.
    pub role: Role,
    /// How it authenticated.
    pub method: AuthMethod,
    /// The public id of the credential used (never the credential).
    pub credential: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_round_trip() {
        for role in Role::ALL {
            assert_eq!(Role::parse(role.as_str()), Some(role));
        }
        assert_eq!(Role::parse("root"), None);
    }
}
