//! The key with which this gateway vouches for callers: generated at start, registered with lifecycle until it answers and
//! again now and then, so that a lifecycle that forgot it learns it anew. The private half never leaves this process.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_rpc::lifecycle::{
    AuthenticateResponse, RegisterAssertionKeyRequest, identity_service_client::IdentityServiceClient,
};
use berth_serve::{
    assertion::{self, Claims, SigningKey},
    peer::ServiceChannel,
};
use http::HeaderValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::Error;

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(2);
/// How often the key is registered again.
const REFRESH: Duration = Duration::from_secs(60);
/// How long a call waits for the first registration.
const PATIENCE: Duration = Duration::from_secs(2);

/// Mints caller assertions.
#[derive(Clone)]
pub(crate) struct Signer {
    key: Arc<SigningKey>,
    key_id: String,
    registered: watch::Receiver<bool>,
}

/// Keeps the key registered; run it as a task.
pub(crate) struct Registration {
    request: RegisterAssertionKeyRequest,
    registered: watch::Sender<bool>,
    timeout: Duration,
}

/// A fresh key and the task that registers it.
pub(crate) fn generate(timeout: Duration) -> (Signer, Registration) {
    let key = assertion::generate();
    let key_id = format!("gwk-{}", uuid::Uuid::now_v7().simple());
    let (sender, registered) = watch::channel(false);
    let public_key = key.verifying_key().to_bytes().to_vec();
    let request = RegisterAssertionKeyRequest { key_id: key_id.clone(), public_key };
    (Signer { key: Arc::new(key), key_id, registered }, Registration { request, registered: sender, timeout })
}

impl Signer {
    pub(crate) fn is_registered(&self) -> bool {
        *self.registered.borrow()
    }

    /// Waits a little for the first registration.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        let mut registered = self.registered.clone();
        match tokio::time::timeout(PATIENCE, registered.wait_for(|registered| *registered)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Error::Stopping),
            Err(_) => Err(Error::Starting),
        }
    }

    /// The `x-berth-caller` value for a verified caller.
    pub(crate) fn mint(&self, verified: AuthenticateResponse) -> HeaderValue {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
        let claims = Claims {
            kid: self.key_id.clone(),
            aud: verified.audience,
            tenant: verified.tenant,
            principal: verified.principal,
            credential: verified.credential_id,
            iat: now,
            exp: now + assertion::LIFETIME.as_secs() as i64,
        };
        let token = assertion::mint(&self.key, &claims);
        let mut value =
            HeaderValue::try_from(format!("assertion {token}")).expect("an assertion is made of URL-safe characters");
        value.set_sensitive(true);
        value
    }
}

impl Registration {
    pub(crate) async fn run(self, lifecycle: ServiceChannel, shutdown: CancellationToken) {
        let mut client = IdentityServiceClient::new(lifecycle);
        let mut retry = FIRST_RETRY;
        loop {
            let answer = tokio::select! {
                () = shutdown.cancelled() => return,
                answer = self.register(&mut client) => answer,
            };
            let pause = match answer {
                Ok(()) => {
                    if !self.registered.send_replace(true) {
                        tracing::info!(key_id = self.request.key_id, "assertion key registered");
                    }
                    retry = FIRST_RETRY;
                    REFRESH
                }
                Err(status) => {
                    tracing::debug!(code = ?status.code(), error = status.message(), "assertion key not registered yet");
                    retry = (retry * 2).min(LONGEST_RETRY);
                    retry
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn register(&self, client: &mut IdentityServiceClient<ServiceChannel>) -> Result<(), tonic::Status> {
        let call = client.register_assertion_key(self.request.clone());
        match tokio::time::timeout(self.timeout, call).await {
            Ok(answer) => answer.map(drop),
            Err(_) => Err(Error::DeadlineExceeded.into()),
        }
    }
}
