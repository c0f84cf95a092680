//! Who calls: the credential and tenant of a request, verified by lifecycle, become the only headers an upstream gets to
//! see. Decides nothing about what the caller may do.

use std::{sync::Arc, time::Duration};

use berth_rpc::{
    lifecycle::{AuthenticateRequest, identity_service_client::IdentityServiceClient},
    metadata,
};
use berth_serve::peer::ServiceChannel;
use http::{HeaderMap, HeaderName, HeaderValue};
use moka::future::Cache;
use sha2::{Digest as _, Sha256};
use tonic::Status;

use crate::{config::Limits, error::Error, signer::Signer};

/// Headers of a client that reach an upstream. Everything else is dropped: `authorization`, `cookie`, every `x-berth-*`.
const PASSED: [&str; 10] = [
    "content-type",
    "te",
    "grpc-encoding",
    "grpc-accept-encoding",
    "grpc-timeout",
    "user-agent",
    "traceparent",
    "tracestate",
    metadata::IDEMPOTENCY_KEY,
    metadata::TENANT,
];
const LONGEST_TENANT: usize = 256;

/// A verified caller, ready to be passed on.
#[derive(Clone)]
pub(crate) struct Caller {
    assertion: HeaderValue,
    tenant: HeaderValue,
}

/// Verifies credentials and remembers the answer for a moment.
#[derive(Clone)]
pub(crate) struct Authenticator {
    client: IdentityServiceClient<ServiceChannel>,
    signer: Signer,
    /// By SHA-256 of credential and tenant; failures are not kept.
    verified: Cache<[u8; 32], Caller>,
    timeout: Duration,
}

impl Authenticator {
    pub(crate) fn new(lifecycle: ServiceChannel, signer: Signer, limits: &Limits) -> Self {
        let verified = Cache::builder()
            .max_capacity(limits.identity_entries)
            .time_to_live(limits.identity_ttl.min(Duration::from_secs(1)))
            .build();
        Self { client: IdentityServiceClient::new(lifecycle), signer, verified, timeout: limits.identity_timeout }
    }

    /// The caller behind a request's headers.
    pub(crate) async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Status> {
        let credential = credential(headers)?;
        let tenant = tenant(headers)?;
        let verified = self.verified.try_get_with(key(credential, tenant), self.verify(credential, tenant)).await;
        verified.map_err(Arc::unwrap_or_clone)
    }

    async fn verify(&self, credential: &str, tenant: &str) -> Result<Caller, Status> {
        self.signer.ready().await?;
        let request = AuthenticateRequest { credential: credential.to_owned(), tenant: tenant.to_owned() };
        let mut client = self.client.clone();
        let answer = tokio::time::timeout(self.timeout, client.authenticate(request));
        let verified = match answer.await {
            Ok(Ok(response)) => response.into_inner(),
            // What lifecycle says about the credential is for the caller; that it said nothing is ours to report.
            Ok(Err(status)) if status.code() != tonic::Code::Unavailable => return Err(status),
            Ok(Err(status)) => {
                tracing::warn!(error = status.message(), "lifecycle did not verify a credential");
                return Err(Error::UpstreamUnavailable("lifecycle").into());
            }
            Err(_) => return Err(Error::UpstreamUnavailable("lifecycle").into()),
        };
        let tenant = HeaderValue::try_from(&verified.tenant).map_err(|_| Error::UpstreamBroken)?;
        Ok(Caller { assertion: self.signer.mint(verified), tenant })
    }
}

impl Caller {
    /// What an upstream gets instead of `headers`.
    pub(crate) fn forwarded(&self, headers: &HeaderMap) -> HeaderMap {
        let mut forwarded = HeaderMap::with_capacity(PASSED.len() + 2);
        for name in PASSED {
            let name = HeaderName::from_static(name);
            for value in headers.get_all(&name) {
                forwarded.append(name.clone(), value.clone());
            }
        }
        forwarded.insert(metadata::CALLER, self.assertion.clone());
        forwarded.insert(metadata::TENANT, self.tenant.clone());
        forwarded
    }
}

fn credential(headers: &HeaderMap) -> Result<&str, Error> {
    let mut values = headers.get_all(http::header::AUTHORIZATION).iter();
    let value = values.next().ok_or(Error::CredentialMissing)?;
    if values.next().is_some() {
        return Err(Error::CredentialMalformed);
    }
    let (scheme, token) = value.to_str().ok().and_then(|v| v.split_once(' ')).ok_or(Error::CredentialMalformed)?;
    let token = token.trim();
    if scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() { Ok(token) } else { Err(Error::CredentialMalformed) }
}

/// Empty when the header is absent: the credential's only tenant is meant then.
fn tenant(headers: &HeaderMap) -> Result<&str, Error> {
    let mut values = headers.get_all(metadata::TENANT).iter();
    let Some(value) = values.next() else { return Ok("") };
    let text = value.to_str().map_err(|_| Error::TenantMalformed)?;
    if values.next().is_some() || text.len() > LONGEST_TENANT { Err(Error::TenantMalformed) } else { Ok(text) }
}

fn key(credential: &str, tenant: &str) -> [u8; 32] {
    // The length in front keeps (a, bc) and (ab, c) apart.
    let mut hash = Sha256::new();
    hash.update((credential.len() as u64).to_be_bytes());
    hash.update(credential);
    hash.update(tenant);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(rows: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in rows {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn only_one_bearer_is_a_credential() {
        assert_eq!(credential(&headers(&[("authorization", "Bearer abc")])).unwrap(), "abc");
        assert_eq!(credential(&headers(&[("authorization", "bearer  abc ")])).unwrap(), "abc");
        for rows in [
            &[("authorization", "Basic abc")][..],
            &[("authorization", "Bearer ")],
            &[("authorization", "abc")],
            &[("authorization", "Bearer a"), ("authorization", "Bearer b")],
        ] {
            assert!(matches!(credential(&headers(rows)), Err(Error::CredentialMalformed)), "{rows:?}");
        }
        assert!(matches!(credential(&headers(&[])), Err(Error::CredentialMissing)));
    }

    #[test]
    fn internal_headers_of_a_client_never_pass() {
        let caller =
            Caller { assertion: HeaderValue::from_static("assertion ours"), tenant: HeaderValue::from_static("acme") };
        let forwarded = caller.forwarded(&headers(&[
            ("authorization", "Bearer abc"),
            ("x-berth-caller", "assertion forged"),
            ("x-berth-action", "ForgetRun"),
            ("cookie", "a=b"),
            ("x-tenant-id", "other"),
            ("idempotency-key", "k"),
            ("traceparent", "00-1-2-01"),
        ]));
        let mut names: Vec<_> = forwarded.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["idempotency-key", "traceparent", "x-berth-caller", "x-tenant-id"]);
        assert_eq!(forwarded["x-berth-caller"], "assertion ours");
        assert_eq!(forwarded["x-tenant-id"], "acme");
    }

    #[test]
    fn keys_of_the_cache_do_not_run_together() {
        assert_ne!(key("a", "bc"), key("ab", "c"));
        assert_ne!(key("a", ""), key("a", "b"));
    }
}
