//! Settings of lifecycle. Filled in by whoever assembles the deployment; nothing here reads the environment.

use std::{collections::BTreeMap, fmt, time::Duration};

use berth_domain::{lease::ProviderTraits, policy::Limits};
use secrecy::SecretString;

use crate::{
    store::{Clock, Database},
    vault::MasterKey,
};

/// Settings of lifecycle.
#[derive(Clone)]
pub struct Config {
    /// Where facts are kept.
    pub database: Database,
    /// Seals secrets; the first seals, all open. At least one.
    pub master_keys: Vec<MasterKey>,
    /// Administrator of tenant `default`, registered at start.
    pub admin_key: Option<SecretString>,
    /// Keys of services by name, registered at start.
    pub service_keys: BTreeMap<String, SecretString>,
    /// Host (`host` or `host:port`) of the model API; the default host of `anthropic_api_key`.
    pub model_host: String,
    /// Repositories on private addresses and over plain http are accepted.
    pub allow_private_repos: bool,
    /// What is offered, and what lifecycle must know of it.
    pub providers: Vec<ProviderTraits>,
    /// Providers whose sandboxes only the broker that made them can reach.
    pub host_bound_providers: Vec<String>,
    /// Used when a request names none.
    pub default_model: Option<String>,
    /// Runs need a stored model key.
    pub model_key_required: bool,
    /// What runs are judged by.
    pub limits: Limits,
    /// How often deadlines and lapsed claims are looked for.
    pub expire_every: Duration,
    /// How often waiters look again without a hint.
    pub poll_every: Duration,
    /// What is added to the engine's clock; tests set it forward.
    pub clock: Clock,
}

impl Config {
    /// The defaults over this database; offers no provider.
    pub fn new(database: Database, master_key: MasterKey) -> Self {
        Self {
            database,
            master_keys: vec![master_key],
            admin_key: None,
            service_keys: BTreeMap::new(),
            model_host: "api.anthropic.com".to_owned(),
            allow_private_repos: false,
            providers: Vec::new(),
            host_bound_providers: vec!["local".to_owned(), "ssh".to_owned()],
            default_model: None,
            model_key_required: true,
            limits: Limits::default(),
            expire_every: Duration::from_secs(1),
            poll_every: Duration::from_secs(1),
            clock: Clock::default(),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("providers", &self.providers)
            .field("default_model", &self.default_model)
            .field("allow_private_repos", &self.allow_private_repos)
            .field("services", &self.service_keys.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
