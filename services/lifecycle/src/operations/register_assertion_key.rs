//! RegisterAssertionKey: a gateway tells with which key it signs from now on.

use berth_rpc::lifecycle as proto;
use ed25519_dalek::VerifyingKey;

use crate::{Lifecycle, authenticate::Admitted, error::Error};

const MAX_KEY_ID_LEN: usize = 64;

/// Stores the public key; registering the same one again is fine.
///
/// # Errors
/// INVALID_ARGUMENT (KEY_ID_INVALID, PUBLIC_KEY_INVALID), ALREADY_EXISTS (KEY_ID_TAKEN).
pub(crate) async fn register_assertion_key(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::RegisterAssertionKeyRequest,
) -> Result<proto::RegisterAssertionKeyResponse, Error> {
    let service = call.service()?;
    let key_id = request.key_id.as_str();
    if key_id.is_empty() || key_id.len() > MAX_KEY_ID_LEN || !key_id.bytes().all(|b| b.is_ascii_graphic()) {
        let message = "a key id is 1 to 64 visible ASCII characters";
        return Err(Error::invalid("key_id", "KEY_ID_INVALID", message));
    }
    let wrong = || Error::invalid("public_key", "PUBLIC_KEY_INVALID", "a public key is the 32 bytes of an Ed25519 key");
    let public_key = <[u8; 32]>::try_from(request.public_key.as_slice()).map_err(|_| wrong())?;
    // A weak key verifies signatures that nobody made.
    if VerifyingKey::from_bytes(&public_key).map_err(|_| wrong())?.is_weak() {
        return Err(wrong());
    }
    if !app.store.register_assertion_key(key_id, &public_key).await? {
        let message = "another key is registered under this id".to_owned();
        return Err(Error::Exists { reason: "KEY_ID_TAKEN", message });
    }
    tracing::info!(key_id, service = service.as_str(), "assertion key registered");
    Ok(proto::RegisterAssertionKeyResponse { audience: app.store.deployment().to_string() })
}
