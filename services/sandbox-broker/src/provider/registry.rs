//! The providers of this broker by name, and what each can do. The feature list is read off the adapters themselves.

use std::{collections::BTreeMap, sync::Arc};

use super::Provider;

/// Providers by name.
#[derive(Clone, Default)]
pub struct Registry {
    providers: BTreeMap<&'static str, Arc<dyn Provider>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.providers.keys()).finish()
    }
}

impl Registry {
    /// A registry of these providers.
    pub fn new(providers: impl IntoIterator<Item = Arc<dyn Provider>>) -> Self {
        let providers = providers.into_iter().map(|provider| (provider.declaration().name, provider)).collect();
        Self { providers }
    }

    /// The provider of that name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.providers.get(name).cloned()
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Provider>> {
        self.providers.values()
    }

    /// Hosts whose bound sandboxes are reached from here.
    pub fn localities(&self) -> Vec<String> {
        let bound = self.iter().map(|provider| provider.declaration()).filter(|declaration| declaration.host_bound);
        bound.map(|declaration| declaration.account_scope.clone()).collect()
    }
}

/// What the adapter implements, in the words of the public API.
pub fn features(provider: &dyn Provider) -> Vec<&'static str> {
    // Create, observe and destroy have no switch: every adapter has them.
    let mut features = vec!["create", "observe", "destroy"];
    if provider.lookup().is_some() {
        features.push("find_by_lease");
    }
    if provider.exec().is_some() {
        // Files go through commands, so they exist exactly where commands do.
        features.extend(["exec", "stdin", "kill", "files"]);
    }
    if provider.egress().is_some() {
        features.push("egress_allow_list");
    }
    features
}
