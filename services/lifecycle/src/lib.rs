//! Lifecycle: the one service that remembers. Every durable fact of Berth is in its database; it calls no other service,
//! the others ask it for work.
//!
//! Here: wiring only. `service.rs` translates, `operations/` decide, `store/` remembers.

mod admission;
mod assignment;
mod authenticate;
mod config;
mod error;
mod from_proto;
mod guard;
mod hosts;
mod log_page;
mod operations;
mod page_token;
mod policy;
mod service;
pub mod store;
mod to_proto;
mod vault;

use std::sync::Arc;

use authenticate::Authenticator;
use berth_domain::caller::Role;
use berth_events::Bus;
use policy::{Policy, Service};
use secrecy::{ExposeSecret as _, SecretString};
use store::{
    Store,
    keys::{Holder, NewCredential},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use vault::Vault;

pub use authenticate::Admitted;
pub use config::Config;
pub use error::Error;
pub use vault::{MasterKey, VaultError, new_api_key};

/// The tenant of the bootstrap administrator and of service keys.
const DEFAULT_TENANT: &str = "default";

/// Everything an operation works with.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    pub(crate) store: Store,
    pub(crate) policy: Arc<Policy>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) authenticator: Authenticator,
    pub(crate) config: Arc<Config>,
    /// Ends long polls and streams.
    pub(crate) shutdown: CancellationToken,
}

/// Lifecycle cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The database.
    #[error("the database cannot be opened")]
    Store(#[from] store::StoreError),
    /// The built-in policies.
    #[error("the built-in policies are not valid")]
    Policy(#[source] policy::PolicyError),
    /// The configuration.
    #[error("{0}")]
    Config(String),
}

/// A running lifecycle.
pub struct Started {
    /// All its gRPC services, each behind the admission layer.
    pub routes: tonic::service::Routes,
    /// The store, for whoever assembles the deployment (health, the deployment's id).
    pub store: Store,
    /// Ends soon after the token given to [`start`] was cancelled.
    pub background: JoinHandle<()>,
}

/// Opens the store, registers the configured keys, starts the background task and returns the services. Hints go over `bus`.
///
/// # Errors
/// [`StartError`].
pub async fn start(config: Config, bus: Bus, shutdown: CancellationToken) -> Result<Started, StartError> {
    let app = Lifecycle::open(config, bus, shutdown).await?;
    let background = tokio::spawn(operations::expire_due::run(app.clone()));
    Ok(Started { store: app.store.clone(), routes: service::routes(app), background })
}

impl Lifecycle {
    async fn open(config: Config, bus: Bus, shutdown: CancellationToken) -> Result<Self, StartError> {
        if config.master_keys.is_empty() {
            return Err(StartError::Config("at least one master key is needed".to_owned()));
        }
        if hosts::Place::parse(&config.model_host).is_none() {
            return Err(StartError::Config("the model host is not host or host:port".to_owned()));
        }
        let store = Store::open(&config.database, config.clock.clone(), bus).await?;
        let policy = Arc::new(Policy::built_in().map_err(StartError::Policy)?);
        let vault = Arc::new(Vault::new(config.master_keys.clone()));
        let authenticator = Authenticator::new(store.clone(), Arc::clone(&policy));
        let app = Self { store, policy, vault, authenticator, config: Arc::new(config), shutdown };
        app.register_configured_keys().await?;
        app.check_master_keys().await?;
        Ok(app)
    }

    /// A secret whose master key is gone cannot be used; said at once, not when a run needs it. Everything else works.
    async fn check_master_keys(&self) -> Result<(), StartError> {
        for key_id in self.store.master_keys_in_use().await? {
            if !self.vault.knows(&key_id) {
                tracing::error!(key_id, "secrets are sealed under a master key that is not configured");
            }
        }
        Ok(())
    }

    async fn register_configured_keys(&self) -> Result<(), StartError> {
        if let Some(key) = &self.config.admin_key {
            let holder = Holder::Caller { principal: "admin".to_owned(), role: Role::Admin };
            self.configure_key("key-bootstrap-admin", key, &holder).await?;
        }
        for (name, key) in &self.config.service_keys {
            let service = Service::parse(name)
                .ok_or_else(|| StartError::Config(format!("a key is configured for {name}, which is no service")))?;
            let key_id = format!("key-service-{}", service.as_str());
            self.configure_key(&key_id, key, &Holder::Service(service.as_str().to_owned())).await?;
        }
        Ok(())
    }

    async fn configure_key(&self, key_id: &str, key: &SecretString, holder: &Holder) -> Result<(), StartError> {
        let key_hash = vault::hash_api_key(key.expose_secret());
        let tenant = DEFAULT_TENANT;
        let credential = NewCredential { key_id, key_hash, tenant, holder, created_by: "configuration" };
        self.store.configure_key(&credential).await.map_err(|error| {
            if error.is_constraint() {
                StartError::Config(format!("the key configured as {key_id} is another credential's already"))
            } else {
                StartError::Store(error)
            }
        })
    }
}
