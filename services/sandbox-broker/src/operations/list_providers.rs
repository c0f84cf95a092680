//! ListProviders: what this broker offers. Lifecycle decides whether the caller may see it.

use berth_rpc::{broker as api, metadata::ForwardedCaller};
use tokio::time::timeout;
use tonic::metadata::MetadataMap;

use crate::{actions::Context, error::Error, provider::Health, to_proto};

pub(crate) async fn list_providers(
    context: &Context,
    metadata: &MetadataMap,
) -> Result<api::ListProvidersResponse, Error> {
    let caller = ForwardedCaller::from_metadata(metadata).ok_or(Error::CredentialMissing)?;
    context.lifecycle.check_access(&caller, "ListProviders").await.map_err(Error::Lifecycle)?;
    let limit = context.timeouts.observe;
    let mut providers = Vec::new();
    for provider in context.registry.iter() {
        let silent = || Health::Degraded("did not answer in time".to_owned());
        let mut health = timeout(limit, provider.health()).await.unwrap_or_else(|_| silent());
        let live = match timeout(limit, provider.live_sandboxes()).await {
            Ok(Ok(live)) => live,
            Ok(Err(failure)) => {
                health = Health::Degraded(failure.to_string());
                0
            }
            Err(_) => {
                health = silent();
                0
            }
        };
        providers.push(to_proto::provider(provider.as_ref(), health, live));
    }
    Ok(api::ListProvidersResponse { providers })
}
