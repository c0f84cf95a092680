//! Identifiers: newtypes over checked strings, and the two names derived from them (sandbox key, deployment hash).
//!
//! Must not live here: anything that generates randomness. Callers hand in a UUID.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A string that is not an identifier of the kind asked for. The offending text is not repeated: it may be hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {what} id")]
pub struct InvalidId {
    what: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks the character set `[a-z0-9-]{1,64}` and the prefix of this kind of id.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
                let fits = (1..=64).contains(&text.len()) && text.bytes().all(allowed);
                match text.strip_prefix($prefix) {
                    Some(rest) if fits && !rest.is_empty() => Ok(Self(text.to_owned())),
                    Some(_) | None => Err(InvalidId { what: $what }),
                }
            }

            /// The id made of this kind's prefix and the UUID in simple form.
            pub fn new(uuid: Uuid) -> Self {
                Self(format!("{}{}", $prefix, uuid.simple()))
            }

            /// The id as text, prefix included.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

id!(/// One agent task.
    RunId, "run", "run-");
id!(/// One claim on one provider sandbox; never reused.
    LeaseId, "lease", "lease-");
id!(/// The conversation of a run.
    SessionId, "session", "ses-");
id!(/// One message of a session.
    MessageId, "message", "msg-");
id!(/// One process that claims work.
    WorkerId, "worker", "");
id!(/// One tenant.
    TenantId, "tenant", "");
id!(/// One principal inside a tenant.
    PrincipalId, "principal", "");
id!(/// One proof of absence.
    ReceiptId, "receipt", "");

const LEASE_PREFIX: &str = "lease-";

/// The name under which every ALLOCATE attempt of this lease asks for its sandbox (R6): a pure function of deployment and lease, never of the attempt.
pub fn sandbox_key(deployment_hash: &str, lease: &LeaseId) -> String {
    let bare = lease.as_str().strip_prefix(LEASE_PREFIX).unwrap_or(lease.as_str());
    format!("berth-{deployment_hash}-{bare}")
}

/// Ten hexadecimal digits of the SHA-256 of the deployment's UUID; tells our sandboxes from those of another deployment.
pub fn deployment_hash(deployment: Uuid) -> String {
    let digest = Sha256::digest(deployment.as_bytes());
    hex::encode(&digest[..5])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_check_prefix_and_characters() {
        assert!(RunId::parse("run-0193").is_ok());
        for bad in ["", "run-", "run-A", "run-../x", "lease-1", "run-é", &format!("run-{}", "a".repeat(61))] {
            assert!(RunId::parse(bad).is_err(), "{bad}");
        }
        assert!(WorkerId::parse("broker-1").is_ok());
        assert!(serde_json::from_str::<RunId>("\"nope\"").is_err());
    }

    #[test]
    fn sandbox_key_depends_on_deployment_and_lease_only() {
        let hash = deployment_hash(Uuid::from_u128(7));
        assert_eq!(hash.len(), 10);
        let lease = LeaseId::new(Uuid::from_u128(9));
        assert_eq!(sandbox_key(&hash, &lease), format!("berth-{hash}-{}", Uuid::from_u128(9).simple()));
        assert!(sandbox_key(&hash, &lease).len() <= 64);
    }
}
