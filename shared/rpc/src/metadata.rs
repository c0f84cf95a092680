//! Names of the metadata Berth's services read, and how a caller's credential is passed on.
//!
//! A service authenticates itself to lifecycle with `authorization: Bearer <service key>` and passes the caller on in
//! `x-berth-caller`: `assertion <token>` (minted by the gateway) or `bearer <key>` (the caller's own, when the service was
//! called directly). It can only pass on what it was given.

use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

/// `Bearer <key>` of the immediate peer.
pub const AUTHORIZATION: &str = "authorization";
/// The forwarded caller.
pub const CALLER: &str = "x-berth-caller";
/// The Cedar action the forwarded caller asked for, when it is not the name of the RPC called.
pub const ACTION: &str = "x-berth-action";
/// The tenant the caller acts for.
pub const TENANT: &str = "x-tenant-id";
/// Idempotency key over REST and gRPC alike.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// W3C trace context.
pub const TRACEPARENT: &str = "traceparent";

/// The caller a service was given, in the form it is passed on.
#[derive(Clone)]
pub struct ForwardedCaller {
    caller: MetadataValue<Ascii>,
    tenant: Option<MetadataValue<Ascii>>,
}

impl std::fmt::Debug for ForwardedCaller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ForwardedCaller(redacted)")
    }
}

impl ForwardedCaller {
    /// From the metadata of an incoming call: `x-berth-caller` if present, else the peer's own bearer. None without either.
    pub fn from_metadata(metadata: &MetadataMap) -> Option<Self> {
        let caller = match metadata.get(CALLER) {
            Some(value) => value.clone(),
            None => {
                let bearer = bearer(metadata)?;
                let mut value: MetadataValue<Ascii> = format!("bearer {bearer}").parse().ok()?;
                value.set_sensitive(true);
                value
            }
        };
        Some(Self { caller, tenant: metadata.get(TENANT).cloned() })
    }

    /// Writes the caller and the action it asked for into an outgoing call.
    pub fn apply(&self, metadata: &mut MetadataMap, action: &'static str) {
        metadata.insert(CALLER, self.caller.clone());
        if let Some(tenant) = &self.tenant {
            metadata.insert(TENANT, tenant.clone());
        }
        metadata.insert(ACTION, MetadataValue::from_static(action));
    }
}

/// The token of `authorization: Bearer …`; the scheme is case-insensitive (RFC 9110).
pub fn bearer(metadata: &MetadataMap) -> Option<&str> {
    let value = metadata.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
