//! The model key of a run: the tenant's own secret, else the deployment's. Held in memory for one turn, sent to its hosts only.

use berth_domain::failure::FailureReason;
use berth_rpc::lifecycle::{ResolveSecretRequest, secret_service_client::SecretServiceClient};
use berth_rpc::status;
use berth_serve::peer::ServiceChannel;
use secrecy::SecretString;
use tonic::Code;

use super::log::Hold;
use super::{Failed, Stop, api::ModelApi};
use crate::upstream::{CALL_TIMEOUT, within, worth_retrying};

/// The secret's name.
const NAME: &str = "anthropic_api_key";
const PURPOSE: &str = "MODEL";

/// Resolves the key for the session held.
pub(crate) async fn resolve(
    secrets: &SecretServiceClient<ServiceChannel>,
    own: Option<&SecretString>,
    api: &ModelApi,
    hold: &Hold,
) -> Result<Result<SecretString, Failed>, Stop> {
    let request = ResolveSecretRequest {
        name: NAME.into(),
        purpose: PURPOSE.into(),
        run_id: hold.run_id.clone(),
        row_id: hold.session_id.clone(),
        fence: hold.fence,
    };
    let missing = |text: String| Ok(Err(Failed { reason: FailureReason::ModelKeyMissing, text }));
    loop {
        let answer = within(CALL_TIMEOUT, secrets.clone().resolve_secret(request.clone())).await;
        let refusal = match answer {
            Ok(secret) if api.is_bound_host(&secret.hosts) => return Ok(Ok(SecretString::from(secret.value))),
            Ok(_) => return missing(format!("the secret {NAME} may not be used for {}", api.host())),
            Err(refusal) => refusal,
        };
        match (refusal.code(), own) {
            (Code::NotFound, Some(own)) => return Ok(Ok(own.clone())),
            (Code::NotFound, None) => return missing(format!("the tenant has no secret {NAME}")),
            (Code::Aborted, _) => return Err(Stop::Lost),
            _ if worth_retrying(&refusal) => tokio::time::sleep(std::time::Duration::from_millis(200)).await,
            _ => {
                let reason = status::reason(&refusal).unwrap_or_default();
                return missing(format!("the secret {NAME} could not be read ({reason})"));
            }
        }
    }
}
