//! The vault: envelope encryption of tenant secrets, and the making and hashing of API keys.
//!
//! Every secret value has its own random data key; the value is sealed under the data key, the data key under a master key
//! (XChaCha20-Poly1305 both times). Tenant and name are associated data of both, so that a row copied to another tenant or
//! name does not open. Several master keys may be configured: the first seals, all open (rotation by id).
//!
//! Must not live here: SQL, and who may see a secret.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use chacha20poly1305::{
    KeyInit as _, XChaCha20Poly1305, XNonce,
    aead::{Aead as _, Payload},
};
use rand::RngCore as _;
use secrecy::{ExposeSecret as _, SecretBox, SecretString};
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize as _, Zeroizing};

/// Bytes of a master key and of a data key.
const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
/// Separates this use of the cipher from any later one.
const CONTEXT: &[u8] = b"berth secret 1";
const API_KEY_PREFIX: &str = "berth_";

/// Why a secret cannot be sealed or opened. Says nothing about the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    /// No master key is configured, so nothing can be sealed.
    #[error("no master key is configured")]
    NoMasterKey,
    /// The secret was sealed under a master key that is not configured now.
    #[error("the secret was sealed under master key {0}, which is not configured")]
    UnknownMasterKey(String),
    /// The row was damaged, or belongs to another tenant or name.
    #[error("the sealed secret does not open")]
    Broken,
    /// The text given for a master key is not 32 bytes in base64 or hexadecimal.
    #[error("a master key is 32 bytes in base64 or 64 hexadecimal digits")]
    MalformedMasterKey,
}

/// A key that wraps data keys. Its id is a fingerprint of the key itself: two different keys never share one by mistake.
pub struct MasterKey {
    id: String,
    key: SecretBox<[u8; KEY_BYTES]>,
}

impl std::fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MasterKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Clone for MasterKey {
    fn clone(&self) -> Self {
        Self::new(*self.key.expose_secret())
    }
}

impl MasterKey {
    /// From 32 random bytes.
    pub fn new(mut key: [u8; KEY_BYTES]) -> Self {
        let fingerprint = Sha256::new().chain_update(b"berth master key 1").chain_update(key).finalize();
        let mut boxed = Box::new([0; KEY_BYTES]);
        boxed.copy_from_slice(&key);
        key.zeroize();
        Self { id: hex::encode(&fingerprint[..8]), key: SecretBox::new(boxed) }
    }

    /// From the text of a setting or key file: base64 (either alphabet, padded or not) or hexadecimal; space around it is ignored.
    ///
    /// # Errors
    /// [`VaultError::MalformedMasterKey`].
    pub fn parse(text: &SecretString) -> Result<Self, VaultError> {
        let text = text.expose_secret().trim();
        let bytes = Zeroizing::new(if text.len() == 2 * KEY_BYTES {
            hex::decode(text).map_err(|_| VaultError::MalformedMasterKey)?
        } else {
            let plain = Zeroizing::new(text.trim_end_matches('=').replace('+', "-").replace('/', "_"));
            B64.decode(plain.as_bytes()).map_err(|_| VaultError::MalformedMasterKey)?
        });
        let key = <[u8; KEY_BYTES]>::try_from(bytes.as_slice()).map_err(|_| VaultError::MalformedMasterKey)?;
        Ok(Self::new(key))
    }

    /// The fingerprint stored with every secret sealed under this key: 16 hexadecimal digits.
    pub fn id(&self) -> &str {
        &self.id
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(self.key.expose_secret().into())
    }
}

/// A secret as the store keeps it. Useless without the master key.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Which master key wrapped the data key.
    pub key_id: String,
    /// Nonce and sealed data key.
    pub wrapped_key: Vec<u8>,
    /// Nonce and sealed value.
    pub ciphertext: Vec<u8>,
}

impl std::fmt::Debug for Sealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealed").field("key_id", &self.key_id).finish_non_exhaustive()
    }
}

/// Seals and opens secrets.
#[derive(Debug)]
pub(crate) struct Vault {
    /// The first seals; all open.
    keys: Vec<MasterKey>,
}

impl Vault {
    /// `keys`: the one that seals first, then those that still open older secrets.
    pub(crate) fn new(keys: Vec<MasterKey>) -> Self {
        Self { keys }
    }

    /// Whether secrets sealed under this master key can be opened.
    pub(crate) fn knows(&self, key_id: &str) -> bool {
        self.keys.iter().any(|key| key.id == key_id)
    }

    /// Seals `value` for exactly this tenant and name.
    ///
    /// # Errors
    /// [`VaultError::NoMasterKey`].
    pub(crate) fn seal(&self, tenant: &str, name: &str, value: &SecretString) -> Result<Sealed, VaultError> {
        let master = self.keys.first().ok_or(VaultError::NoMasterKey)?;
        let bound = associated_data(tenant, name);
        let mut data_key = Zeroizing::new([0; KEY_BYTES]);
        rand::rng().fill_bytes(data_key.as_mut());
        let data_cipher = XChaCha20Poly1305::new((&*data_key).into());
        Ok(Sealed {
            key_id: master.id.clone(),
            wrapped_key: encrypt(&master.cipher(), data_key.as_ref(), &bound),
            ciphertext: encrypt(&data_cipher, value.expose_secret().as_bytes(), &bound),
        })
    }

    /// Opens what was sealed for this tenant and name.
    ///
    /// # Errors
    /// [`VaultError::UnknownMasterKey`], or [`VaultError::Broken`] when anything does not match.
    pub(crate) fn open(&self, tenant: &str, name: &str, sealed: &Sealed) -> Result<SecretString, VaultError> {
        let master = self.keys.iter().find(|key| key.id == sealed.key_id);
        let master = master.ok_or_else(|| VaultError::UnknownMasterKey(sealed.key_id.clone()))?;
        let bound = associated_data(tenant, name);
        let data_key = decrypt(&master.cipher(), &sealed.wrapped_key, &bound)?;
        let data_cipher = XChaCha20Poly1305::new_from_slice(&data_key).map_err(|_| VaultError::Broken)?;
        let mut value = decrypt(&data_cipher, &sealed.ciphertext, &bound)?;
        let value = String::from_utf8(std::mem::take(&mut *value)).map_err(|_| VaultError::Broken)?;
        Ok(SecretString::from(value))
    }
}

/// A new API key: `berth_` and 32 random bytes in URL-safe base64. The only time its text exists on our side.
pub fn new_api_key() -> SecretString {
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    rand::rng().fill_bytes(bytes.as_mut());
    SecretString::from(format!("{API_KEY_PREFIX}{}", B64.encode(bytes.as_ref())))
}

/// What is stored of an API key. Keys carry 256 random bits, so a plain hash cannot be searched.
pub(crate) fn hash_api_key(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Length-prefixed, so that no two pairs of tenant and name read alike.
fn associated_data(tenant: &str, name: &str) -> Vec<u8> {
    let mut data = CONTEXT.to_vec();
    for part in [tenant, name] {
        data.extend_from_slice(&(part.len() as u64).to_be_bytes());
        data.extend_from_slice(part.as_bytes());
    }
    data
}

/// Nonce followed by ciphertext and tag. 192-bit random nonces do not repeat.
fn encrypt(cipher: &XChaCha20Poly1305, plain: &[u8], bound: &[u8]) -> Vec<u8> {
    let mut nonce = [0; NONCE_BYTES];
    rand::rng().fill_bytes(&mut nonce);
    let sealed = cipher
        .encrypt(&XNonce::from(nonce), Payload { msg: plain, aad: bound })
        .expect("secrets are far below the cipher's limit of 256 GiB");
    [nonce.as_slice(), &sealed].concat()
}

fn decrypt(cipher: &XChaCha20Poly1305, sealed: &[u8], bound: &[u8]) -> Result<Zeroizing<Vec<u8>>, VaultError> {
    let (nonce, sealed) = sealed.split_first_chunk::<NONCE_BYTES>().ok_or(VaultError::Broken)?;
    let plain = cipher.decrypt(&XNonce::from(*nonce), Payload { msg: sealed, aad: bound });
    plain.map(Zeroizing::new).map_err(|_| VaultError::Broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vault(bytes: &[u8]) -> Vault {
        Vault::new(bytes.iter().map(|byte| MasterKey::new([*byte; 32])).collect())
    }

    fn secret(text: &str) -> SecretString {
        SecretString::from(text.to_owned())
    }

    #[test]
    fn a_secret_opens_only_for_its_tenant_and_name() {
        let vault = vault(&[1]);
        let sealed = vault.seal("a", "github_token", &secret("canary")).unwrap();
        assert_eq!(vault.open("a", "github_token", &sealed).unwrap().expose_secret(), "canary");
        for (tenant, name) in [("b", "github_token"), ("a", "other"), ("agithub", "_token")] {
            assert_eq!(vault.open(tenant, name, &sealed).err(), Some(VaultError::Broken), "{tenant} {name}");
        }
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let vault = vault(&[1]);
        let sealed = vault.seal("a", "n", &secret("canary")).unwrap();
        for at in 0..sealed.ciphertext.len() {
            let mut changed = sealed.clone();
            changed.ciphertext[at] ^= 1;
            assert_eq!(vault.open("a", "n", &changed).err(), Some(VaultError::Broken));
        }
        for at in 0..sealed.wrapped_key.len() {
            let mut changed = sealed.clone();
            changed.wrapped_key[at] ^= 1;
            assert_eq!(vault.open("a", "n", &changed).err(), Some(VaultError::Broken));
        }
        let cut = Sealed { ciphertext: sealed.ciphertext[..5].to_vec(), ..sealed };
        assert_eq!(vault.open("a", "n", &cut).err(), Some(VaultError::Broken));
    }

    #[test]
    fn master_keys_rotate_by_id() {
        let old = vault(&[1]);
        let sealed = old.seal("a", "n", &secret("canary")).unwrap();
        let rotated = vault(&[2, 1]);
        assert_eq!(rotated.open("a", "n", &sealed).unwrap().expose_secret(), "canary");
        assert_ne!(rotated.seal("a", "n", &secret("canary")).unwrap().key_id, sealed.key_id);
        let dropped = vault(&[2]);
        assert_eq!(dropped.open("a", "n", &sealed).err(), Some(VaultError::UnknownMasterKey(sealed.key_id)));
        assert_eq!(vault(&[]).seal("a", "n", &secret("x")).err(), Some(VaultError::NoMasterKey));
    }

    #[test]
    fn nothing_secret_shows_in_debug_or_ciphertext() {
        let vault = vault(&[7]);
        let sealed = vault.seal("a", "n", &secret("canary-value")).unwrap();
        assert!(!sealed.ciphertext.windows(12).any(|part| part == b"canary-value"));
        let shown = format!("{vault:?} {sealed:?} {:?}", secret("canary-value"));
        assert!(!shown.contains("canary") && !shown.contains("7, 7"), "{shown}");
        let again = vault.seal("a", "n", &secret("canary-value")).unwrap();
        assert_ne!(again.ciphertext, sealed.ciphertext, "no two sealings are alike");
    }

    #[test]
    fn master_keys_are_read_from_base64_and_hexadecimal() {
        let key = MasterKey::new([251; 32]);
        let standard = base64::engine::general_purpose::STANDARD.encode([251; 32]);
        for text in [hex::encode([251; 32]), B64.encode([251; 32]), standard, format!(" {} \n", hex::encode([251; 32]))]
        {
            assert_eq!(MasterKey::parse(&secret(&text)).unwrap().id(), key.id(), "{text}");
        }
        for bad in ["", "short", &"z".repeat(64), &hex::encode([1; 31])] {
            assert_eq!(MasterKey::parse(&secret(bad)).err(), Some(VaultError::MalformedMasterKey), "{bad}");
        }
    }

    #[test]
    fn api_keys_are_long_and_distinct() {
        let (one, two) = (new_api_key(), new_api_key());
        assert_eq!(one.expose_secret().len(), API_KEY_PREFIX.len() + 43);
        assert_ne!(one.expose_secret(), two.expose_secret());
        assert_ne!(hash_api_key(one.expose_secret()), hash_api_key(two.expose_secret()));
    }
}
