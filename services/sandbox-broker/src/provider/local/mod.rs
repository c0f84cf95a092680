//! The `local` provider: sandboxes of this host, by `berth-sandbox`. The sandbox's id is the lease's key; the account
//! scope is this host and sandbox root, so that absence seen from another host proves nothing.

mod exec;
mod keys;
mod scope;

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use berth_domain::lease::ProviderTraits;
use berth_sandbox::{
    EgressGuard, ErrorKind, Found, InitCommand, Missing, Observed, ReadOnlyBind, SandboxConfig, SandboxError,
    SandboxLimits, Sandboxes, Spec,
};

use super::{
    Class, CreateOutcome, CreateSpec, DeadlineEffect, Declaration, Destroyed, Egress, EgressRule, Exec, Health,
    Identity, Lookup, Observation, ObservedState, Provider, ProviderFailure, Renewal, SecretChannel,
};

/// Name of this provider.
pub const NAME: &str = "local";
/// How late a create may still take effect after its caller is gone: the init of a sandbox whose maker died before it said
/// "go" ends by itself at once, so this only covers a stalled machine.
pub const CREATE_HORIZON: Duration = Duration::from_secs(5);

/// What lifecycle must know of this provider to judge its leases.
pub fn traits() -> ProviderTraits {
    ProviderTraits { provider: NAME.to_owned(), can_lookup_key: true, create_horizon: CREATE_HORIZON }
}

/// Settings of the local provider.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// Holds one folder per sandbox; made when absent.
    pub root: PathBuf,
    /// The program that becomes a sandbox's first process.
    pub init: InitCommand,
    /// What the kernel may lack without this provider refusing to make sandboxes.
    pub allow: BTreeSet<Missing>,
    /// Kernel features not to be used although present.
    pub unavailable: BTreeSet<Missing>,
    /// Host paths shown read-only in every sandbox.
    pub read_only_binds: Vec<ReadOnlyBind>,
    /// Limits of every sandbox.
    pub limits: SandboxLimits,
    /// Most sandboxes at one time.
    pub max_sandboxes: u32,
}

impl LocalConfig {
    /// Default limits, nothing allowed to be missing.
    pub fn new(root: impl Into<PathBuf>, init: InitCommand) -> Self {
        Self {
            root: root.into(),
            init,
            allow: BTreeSet::new(),
            unavailable: BTreeSet::new(),
            read_only_binds: Vec::new(),
            limits: SandboxLimits::default(),
            max_sandboxes: 32,
        }
    }
}

/// See the module's header. Cheap to clone.
#[derive(Clone)]
pub struct Local {
    inner: Arc<Inner>,
}

struct Inner {
    sandboxes: Sandboxes,
    declaration: Declaration,
    limits: SandboxLimits,
    host: String,
    rules: scope::RuleFiles,
    locks: keys::KeyLocks,
    /// The open way out of every sandbox this process serves.
    guards: Mutex<HashMap<String, EgressGuard>>,
}

impl Local {
    /// Looks at the kernel and reads (or writes) the identity of this sandbox root.
    ///
    /// # Errors
    /// When the root cannot be used or the init program not be started. A poor kernel is no error here: `create` refuses.
    pub async fn open(config: LocalConfig) -> Result<Self, ProviderFailure> {
        let mut settings = SandboxConfig::new(&config.root, config.init);
        settings.allow = config.allow;
        settings.unavailable = config.unavailable;
        settings.read_only_binds = config.read_only_binds;
        let sandboxes = Sandboxes::new(settings).await.map_err(|error| failure(&error))?;
        let host = scope::host_name();
        let account_scope = scope::account_scope(&config.root, &host).await?;
        let declaration = Declaration {
            name: NAME,
            renewal: Renewal::LocalOnly,
            deadline_effect: DeadlineEffect::Kill,
            secret_channel: SecretChannel::CommandEnvironment,
            account_scope,
            host_bound: true,
            create_horizon: CREATE_HORIZON,
            max_sandboxes: config.max_sandboxes,
        };
        let rules = scope::RuleFiles::new(&config.root);
        let inner = Inner {
            sandboxes,
            declaration,
            limits: config.limits,
            host,
            rules,
            locks: keys::KeyLocks::default(),
            guards: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    fn identity(&self, key: &str, deadline: Option<SystemTime>) -> Identity {
        Identity {
            sandbox_id: key.to_owned(),
            sandbox_url: format!("local://{}/{key}", self.inner.host),
            account_scope: self.inner.declaration.account_scope.clone(),
            provider: NAME.to_owned(),
            provider_deadline: deadline,
        }
    }

    /// Refuses identities that are not ours to judge.
    fn check(&self, identity: &Identity) -> Result<(), ProviderFailure> {
        if identity.provider != NAME {
            return Err(ProviderFailure::new(
                Class::IdentityDiffers,
                "IDENTITY_DIFFERS",
                "the recorded sandbox is another provider's",
            ));
        }
        if identity.account_scope != self.inner.declaration.account_scope {
            return Err(ProviderFailure::new(
                Class::ScopeChanged,
                "SCOPE_CHANGED",
                "the recorded sandbox was made on another host or in another sandbox root",
            ));
        }
        Ok(())
    }

    /// Runs to its end even when the caller goes away, one at a time per key.
    async fn exclusively<T, F, W>(&self, key: &str, work: W) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
        W: FnOnce(Self, String) -> F,
    {
        let lock = self.inner.locks.of(key);
        let work = work(self.clone(), key.to_owned());
        tokio::spawn(async move {
            let _held = lock.lock_owned().await;
            work.await
        })
        .await
        .ok()
    }

    async fn make(self, key: String, spec: CreateSpec) -> CreateOutcome {
        let full = match self.live_sandboxes().await {
            Ok(live) => live >= self.inner.declaration.max_sandboxes,
            Err(failure) => return CreateOutcome::Unknown(failure),
        };
        match self.inner.sandboxes.find(&key).await {
            Ok(Some(Found { observed: Observed::Running { .. }, record, .. })) => {
                let deadline = record.and_then(|record| record.spec.deadline);
                let bound = self.bind(&key, &spec.egress).await;
                return bound
                    .map_or_else(CreateOutcome::Unknown, |()| CreateOutcome::Exists(self.identity(&key, deadline)));
            }
            Ok(Some(_)) => {
                // Half made by a create that was cut: of no use to anyone.
                if let Err(error) = self.inner.sandboxes.destroy(&key).await {
                    return CreateOutcome::Unknown(failure(&error));
                }
            }
            Ok(None) => {}
            Err(error) => return CreateOutcome::Unknown(failure(&error)),
        }
        if full {
            let message = format!("this host runs its {} sandboxes already", self.inner.declaration.max_sandboxes);
            return CreateOutcome::Refused(ProviderFailure::new(Class::Transient, "PROVIDER_FULL", message));
        }
        if !spec.image.is_empty() {
            let message = "the local provider has no images; leave sandbox_image empty";
            return CreateOutcome::Refused(ProviderFailure::new(Class::Permanent, "IMAGE_UNSUPPORTED", message));
        }
        let wanted = Spec { limits: self.inner.limits.clone(), deadline: Some(spec.deadline) };
        match self.inner.sandboxes.create(&key, &wanted).await {
            Ok(_) => {}
            Err(error) => {
                let definite = matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Invalid);
                let failure = failure(&error);
                // A failed creation cleans up after itself; seen to be so, it may simply be tried again.
                let nothing_left = matches!(self.inner.sandboxes.find(&key).await, Ok(None));
                let refused = definite || nothing_left;
                return if refused { CreateOutcome::Refused(failure) } else { CreateOutcome::Unknown(failure) };
            }
        }
        match self.bind(&key, &spec.egress).await {
            Ok(()) => CreateOutcome::Created(self.identity(&key, Some(spec.deadline))),
            Err(failure) => CreateOutcome::Unknown(failure),
        }
    }

    /// Opens the way out. The rules are kept beside the sandboxes, so that a later process opens the same.
    async fn open_way_out(&self, key: &str, rules: &BTreeSet<EgressRule>) -> Result<(), ProviderFailure> {
        let rule = |rule: &EgressRule| berth_sandbox::EgressRule {
            host: rule.host.clone(),
            port: rule.port,
            allow_private: rule.allow_private,
        };
        let guard = self
            .inner
            .sandboxes
            .egress(key, rules.iter().map(rule).collect())
            .await
            .map_err(|error| failure(&error))?;
        self.inner.guards.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), guard);
        Ok(())
    }

    async fn remove(self, key: String) -> Result<Destroyed, ProviderFailure> {
        self.inner.guards.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let there = self.inner.sandboxes.find(&key).await.map_err(|error| failure(&error))?.is_some();
        self.inner.sandboxes.destroy(&key).await.map_err(|error| failure(&error))?;
        self.inner.rules.remove(&key).await?;
        Ok(if there { Destroyed::Accepted } else { Destroyed::NothingThere })
    }
}

#[async_trait]
impl Provider for Local {
    fn declaration(&self) -> &Declaration {
        &self.inner.declaration
    }

    async fn health(&self) -> Health {
        if let Err(error) = self.inner.sandboxes.ready() {
            return Health::Unavailable(error.to_string());
        }
        Health::Healthy(self.inner.sandboxes.probe().details.join("; "))
    }

    async fn live_sandboxes(&self) -> Result<u32, ProviderFailure> {
        let all = self.inner.sandboxes.list().await.map_err(|error| failure(&error))?;
        let running = all.iter().filter(|found| matches!(found.observed, Observed::Running { .. })).count();
        Ok(u32::try_from(running).unwrap_or(u32::MAX))
    }

    async fn create(&self, key: &str, spec: &CreateSpec) -> CreateOutcome {
        let spec = spec.clone();
        let made = self.exclusively(key, |this, key| this.make(key, spec)).await;
        made.unwrap_or_else(|| {
            CreateOutcome::Unknown(ProviderFailure::new(Class::Transient, "CUT", "the creation was interrupted"))
        })
    }

    async fn observe(&self, identity: &Identity) -> Result<Observation, ProviderFailure> {
        self.check(identity)?;
        let observed = self.inner.sandboxes.observe(&identity.sandbox_id).await.map_err(|error| failure(&error))?;
        let (state, how) = match observed {
            Observed::Running { .. } => (ObservedState::Running, "its first process is alive"),
            Observed::Stopped => {
                (ObservedState::Ended, "its first process is gone; directory, control group or processes remain")
            }
            Observed::Absent => (ObservedState::Absent, "no directory, no process, no control group"),
        };
        Ok(Observation { state, how: format!("{}: {how}", identity.sandbox_id) })
    }

    async fn destroy(&self, identity: Option<&Identity>, key: &str) -> Result<Destroyed, ProviderFailure> {
        if let Some(identity) = identity {
            self.check(identity)?;
            if identity.sandbox_id != key {
                return Err(ProviderFailure::new(
                    Class::IdentityDiffers,
                    "IDENTITY_DIFFERS",
                    "the recorded sandbox is not the one of this lease's key",
                ));
            }
        }
        let removed = self.exclusively(key, |this, key| this.remove(key)).await;
        removed.unwrap_or_else(|| Err(ProviderFailure::new(Class::Transient, "CUT", "the removal was interrupted")))
    }

    fn lookup(&self) -> Option<&dyn Lookup> {
        Some(self)
    }

    fn exec(&self) -> Option<&dyn Exec> {
        Some(self)
    }

    fn egress(&self) -> Option<&dyn Egress> {
        Some(self)
    }
}

#[async_trait]
impl Lookup for Local {
    async fn find_by_lease(&self, key: &str) -> Result<Option<Identity>, ProviderFailure> {
        let found = self.inner.sandboxes.find(key).await.map_err(|error| failure(&error))?;
        Ok(found.map(|found| self.identity(key, found.record.and_then(|record| record.spec.deadline))))
    }
}

#[async_trait]
impl Egress for Local {
    async fn bind(&self, key: &str, rules: &BTreeSet<EgressRule>) -> Result<(), ProviderFailure> {
        self.inner.rules.write(key, rules).await?;
        self.open_way_out(key, rules).await
    }

    async fn rebind_survivors(&self) -> Result<Vec<String>, ProviderFailure> {
        let all = self.inner.sandboxes.list().await.map_err(|error| failure(&error))?;
        let mut keys = Vec::new();
        for found in all {
            if matches!(found.observed, Observed::Running { .. }) {
                let rules = self.inner.rules.read(&found.key).await?;
                self.open_way_out(&found.key, &rules).await?;
            }
            keys.push(found.key);
        }
        Ok(keys)
    }
}

/// The class of a failure of the library.
fn failure(error: &SandboxError) -> ProviderFailure {
    let (class, reason) = match error.kind() {
        ErrorKind::Unsupported => (Class::Permanent, "KERNEL_LACKS_FEATURES"),
        ErrorKind::Invalid => (Class::Permanent, "INVALID"),
        ErrorKind::Timeout => (Class::Transient, "TIMEOUT"),
        ErrorKind::Exists | ErrorKind::NotFound | ErrorKind::NotRunning => (Class::Transient, "CHANGED_MEANWHILE"),
        ErrorKind::NotStarted | ErrorKind::Internal => (Class::Transient, "HOST_FAILED"),
    };
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        message = format!("{message}: {source}");
    }
    ProviderFailure::new(class, reason, message)
}
