//! Caller assertions: what the gateway signs after it verified a credential, what broker and sessions pass on, and what
//! lifecycle verifies. `base64url(claims JSON) "." base64url(Ed25519 signature over the first part)`.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use ed25519_dalek::{Signature, Signer as _, VerifyingKey};
use serde::{Deserialize, Serialize};

pub use ed25519_dalek::SigningKey;

/// How long an assertion is good for.
pub const LIFETIME: Duration = Duration::from_secs(60);
/// Tolerated difference between two services' clocks.
const SKEW_S: i64 = 5;
/// Longest token that is looked at.
const MAX_LEN: usize = 4096;

/// What the gateway vouches for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Id of the gateway's registered key.
    pub kid: String,
    /// The deployment's id.
    pub aud: String,
    /// Tenant the caller acts for.
    pub tenant: String,
    /// Who.
    pub principal: String,
    /// Id of the credential that was verified; its revocation ends the assertion.
    pub credential: String,
    /// Seconds since the epoch.
    pub iat: i64,
    /// Seconds since the epoch.
    pub exp: i64,
}

/// Why an assertion is refused. One text for all: the sender learns nothing.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refused {
    /// Not of our form, or the signature does not fit.
    #[error("assertion is malformed or not signed by the named key")]
    Invalid,
    /// Too old, or not yet valid.
    #[error("assertion is outside its time")]
    Expired,
    /// Made for another deployment.
    #[error("assertion is for another audience")]
    Audience,
}

/// A fresh signing key of a gateway.
pub fn generate() -> SigningKey {
    let mut seed = [0u8; 32];
    rand::RngCore::fill_bytes(&mut rand::rng(), &mut seed);
    SigningKey::from_bytes(&seed)
}

/// Signs the claims.
pub fn mint(key: &SigningKey, claims: &Claims) -> String {
    let body = B64.encode(serde_json::to_vec(claims).expect("claims are plain strings and numbers"));
    let signature = key.sign(body.as_bytes());
    format!("{body}.{}", B64.encode(signature.to_bytes()))
}

/// The key id a token names, before anything is verified: to find the public key.
pub fn key_id(token: &str) -> Option<String> {
    parse(token).map(|(claims, ..)| claims.kid)
}

/// Verifies signature, audience and time (`now_s`: seconds since the epoch).
///
/// # Errors
/// `Refused` says which check failed; callers answer all alike.
pub fn verify(token: &str, public_key: &[u8; 32], audience: &str, now_s: i64) -> Result<Claims, Refused> {
    verify_within(token, public_key, audience, now_s, Duration::ZERO)
}

/// The same for a token whose time may have ended up to `grace` ago: for a stream that goes on after it was opened in time.
///
/// # Errors
/// See [`verify`].
pub fn verify_within(
    token: &str,
    public_key: &[u8; 32],
    audience: &str,
    now_s: i64,
    grace: Duration,
) -> Result<Claims, Refused> {
    let (claims, body, signature) = parse(token).ok_or(Refused::Invalid)?;
    let key = VerifyingKey::from_bytes(public_key).map_err(|_| Refused::Invalid)?;
    key.verify_strict(body.as_bytes(), &signature).map_err(|_| Refused::Invalid)?;
    if claims.aud != audience {
        return Err(Refused::Audience);
    }
    let lifetime = LIFETIME.as_secs() as i64;
    let end = claims.exp.saturating_add(SKEW_S).saturating_add(grace.as_secs() as i64);
    let short = claims.exp.saturating_sub(claims.iat) <= lifetime;
    let in_time = claims.iat <= now_s + SKEW_S && now_s <= end && short;
    if in_time { Ok(claims) } else { Err(Refused::Expired) }
}

fn parse(token: &str) -> Option<(Claims, &str, Signature)> {
    if token.len() > MAX_LEN {
        return None;
    }
    let (body, signature) = token.split_once('.')?;
    let claims = serde_json::from_slice(&B64.decode(body).ok()?).ok()?;
    let signature = Signature::from_slice(&B64.decode(signature).ok()?).ok()?;
    Some((claims, body, signature))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        Claims {
            kid: "k1".into(),
            aud: "dep".into(),
            tenant: "default".into(),
            principal: "ada".into(),
            credential: "key-1".into(),
            iat: 1000,
            exp: 1060,
        }
    }

    #[test]
    fn a_minted_assertion_verifies_only_as_it_was_made() {
        let key = generate();
        let public = key.verifying_key().to_bytes();
        let token = mint(&key, &claims());
        assert_eq!(key_id(&token).as_deref(), Some("k1"));
        assert_eq!(verify(&token, &public, "dep", 1030), Ok(claims()));
        assert_eq!(verify(&token, &public, "other", 1030), Err(Refused::Audience));
        assert_eq!(verify(&token, &public, "dep", 1066), Err(Refused::Expired));
        assert_eq!(verify(&token, &public, "dep", 990), Err(Refused::Expired));
        let grace = Duration::from_secs(100);
        assert_eq!(verify_within(&token, &public, "dep", 1160, grace), Ok(claims()));
        assert_eq!(verify_within(&token, &public, "dep", 1166, grace), Err(Refused::Expired));
        let foreign = generate().verifying_key().to_bytes();
        assert_eq!(verify(&token, &foreign, "dep", 1030), Err(Refused::Invalid));
        let forged = mint(&key, &Claims { tenant: "other".into(), ..claims() });
        let mixed = format!("{}.{}", forged.split_once('.').unwrap().0, token.split_once('.').unwrap().1);
        assert_eq!(verify(&mixed, &public, "dep", 1030), Err(Refused::Invalid));
        let long = mint(&key, &Claims { exp: 9000, ..claims() });
        assert_eq!(verify(&long, &public, "dep", 1030), Err(Refused::Expired));
    }

    #[test]
    fn rubbish_is_refused() {
        for token in ["", ".", "a.b", "e30.e30", &"x".repeat(MAX_LEN + 1)] {
            assert_eq!(verify(token, &[0; 32], "dep", 0), Err(Refused::Invalid), "{token:.20}");
        }
    }
}
