//! A secret reduced to its SHA-256: enough to tell which credential arrived, useless to anyone who reads it.

use serde::Serialize;
use sha2::{Digest, Sha256};

/// The lower-case hex SHA-256 of a secret (64 characters).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Reduces `secret`; the text itself is not kept.
    pub fn of(secret: &str) -> Self {
        Self(hex::encode(Sha256::digest(secret.as_bytes())))
    }

    /// The hex text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
