//! sandbox-broker: makes, prepares, serves and releases sandboxes through provider adapters. It asks lifecycle for work and
//! remembers nothing itself: killed at any instruction, it loses nothing.
//!
//! Must not live here: lease rules (shared/domain), isolation (shared/sandbox), authorization (lifecycle decides).

mod actions;
mod claims;
pub mod config;
mod error;
mod from_proto;
mod git;
mod held;
mod lifecycle;
mod operations;
mod paths;
pub mod provider;
mod redact;
mod sandbox;
mod service;
mod task;
mod to_proto;
mod worker;

use std::{collections::BTreeSet, sync::Arc};

use berth_rpc::broker::{provider_service_server::ProviderServiceServer, sandbox_service_server::SandboxServiceServer};
use berth_serve::peer::{MAX_MESSAGE_BYTES, ServiceChannel};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

pub use config::{Config, Timeouts};
pub use provider::local::{LocalConfig, traits as local_traits};

use crate::{
    actions::Context,
    lifecycle::Lifecycle,
    provider::{Provider, ProviderFailure, local::Local, registry::Registry},
    service::Service,
    worker::Worker,
};

/// Why the broker cannot start. All problems of the configuration are named at once.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Entries of an allow-list.
    #[error("not host:port: {}", .0.join(", "))]
    Egress(Vec<String>),
    /// The local provider.
    #[error("local provider: {0}")]
    Local(#[source] ProviderFailure),
}

/// A running broker.
pub struct Broker {
    /// SandboxService and ProviderService.
    pub routes: Routes,
    /// Ends after shutdown, when running actions have finished or were cut.
    pub worker: JoinHandle<()>,
}

/// Opens the providers, takes up surviving sandboxes, and starts claiming work. `lifecycle` carries the broker's own key.
///
/// # Errors
/// See [`StartError`]. A kernel that offers too little is no error: the local provider then refuses, and says so in
/// ListProviders.
pub async fn start(
    config: Config,
    lifecycle: ServiceChannel,
    shutdown: CancellationToken,
) -> Result<Broker, StartError> {
    let egress = egress_rules(&config)?;
    let mut providers: Vec<Arc<dyn Provider>> = Vec::new();
    if let Some(local) = config.local {
        providers.push(Arc::new(Local::open(local).await.map_err(StartError::Local)?));
    }
    let context = Context {
        registry: Registry::new(providers),
        lifecycle: Lifecycle::new(lifecycle, config.timeouts.call),
        timeouts: config.timeouts,
        allow_private_repos: config.allow_private_repos,
        egress: Arc::new(egress),
    };
    take_up_survivors(&context.registry).await;
    let service = Service { context: context.clone(), running: operations::exec::Running::default() };
    let worker = Worker::new(context, config.endpoint, config.slots_per_provider, shutdown);
    let sandboxes = SandboxServiceServer::new(service.clone())
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    Ok(Broker {
        routes: Routes::new(sandboxes).add_service(ProviderServiceServer::new(service)),
        worker: tokio::spawn(worker.run()),
    })
}

fn egress_rules(config: &Config) -> Result<BTreeSet<provider::EgressRule>, StartError> {
    let registries = config.package_registries.iter().map(|text| config::egress_rule(text, false));
    // What the operator names may be inside the operator's own network.
    let added = config.egress_allow.iter().map(|text| config::egress_rule(text, true));
    let (mut rules, mut wrong) = (BTreeSet::new(), Vec::new());
    for rule in registries.chain(added) {
        match rule {
            Ok(rule) => {
                rules.insert(rule);
            }
            Err(config::InvalidRule(text)) => wrong.push(text),
        }
    }
    if wrong.is_empty() { Ok(rules) } else { Err(StartError::Egress(wrong)) }
}

/// Sandboxes that outlived an earlier process get their way out back. Whether they are still wanted is written in their
/// lease: those that are not are released by the work it queues.
async fn take_up_survivors(registry: &Registry) {
    for provider in registry.iter() {
        let Some(egress) = provider.egress() else { continue };
        let provider = provider.declaration().name;
        match egress.rebind_survivors().await {
            Ok(keys) if keys.is_empty() => {}
            Ok(keys) => {
                tracing::info!(provider, sandboxes = keys.len(), ?keys, "sandboxes of an earlier process found")
            }
            Err(failure) => tracing::error!(provider, %failure, "surviving sandboxes could not be taken up"),
        }
    }
}
