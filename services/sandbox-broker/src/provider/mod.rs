//! The port: what the broker asks of whoever makes sandboxes. Grown with its callers; an adapter implements what its
//! vendor can do, and the registry derives the public feature list from that, so the list cannot lie.
//!
//! *key*: the allocation key of a lease, the same on every attempt. *scope*: the account an identity was made in; only a
//! look under the same scope proves absence. No proto type and no lease rule lives here.

mod exec;
pub mod local;
mod outcome;
pub mod registry;

pub use exec::{ExecError, ExecItem, ExecSpec, ExitReport, Process, ProcessSink, process};
pub use outcome::{Class, CreateOutcome, Destroyed, Observation, ObservedState, ProviderFailure};

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;

/// What is durable about one sandbox at its provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The provider's own id.
    pub sandbox_id: String,
    /// Where it answers; names the vendor's host for remote providers.
    pub sandbox_url: String,
    /// The account (or host) it was made in.
    pub account_scope: String,
    /// The provider really used.
    pub provider: String,
    /// When the provider ends it on its own.
    pub provider_deadline: Option<SystemTime>,
}

/// What a sandbox is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateSpec {
    /// Empty: the provider's default image.
    pub image: String,
    /// The provider ends the sandbox here at the latest.
    pub deadline: SystemTime,
    /// Hosts it may reach from the start.
    pub egress: BTreeSet<EgressRule>,
}

/// One host and port a sandbox may reach.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct EgressRule {
    /// Exact host name or address.
    pub host: String,
    /// Exact port.
    pub port: u16,
    /// Whether the name may resolve to a loopback or private address.
    pub allow_private: bool,
}

/// How the provider's own clock is told that a sandbox is still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// There is nothing to renew but our own lease.
    LocalOnly,
}

/// What happens at the provider's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineEffect {
    /// The sandbox is gone.
    Kill,
    /// The sandbox is paused and may cost on.
    Suspend,
    /// The sandbox is stopped and kept.
    Stop,
    /// The provider has no deadline.
    None,
}

/// How a secret reaches one process without passing a command line or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretChannel {
    /// The environment of that one command.
    CommandEnvironment,
}

/// What an adapter declares about itself.
#[derive(Clone, Debug)]
pub struct Declaration {
    /// Name by which runs ask for it.
    pub name: &'static str,
    /// See [`Renewal`].
    pub renewal: Renewal,
    /// See [`DeadlineEffect`].
    pub deadline_effect: DeadlineEffect,
    /// See [`SecretChannel`].
    pub secret_channel: SecretChannel,
    /// The account (for a host-bound provider: the host) that every identity made now belongs to.
    pub account_scope: String,
    /// Its sandboxes can only be reached from here.
    pub host_bound: bool,
    /// How long after a cut create call the sandbox may still appear.
    pub create_horizon: Duration,
    /// Most sandboxes at one time.
    pub max_sandboxes: u32,
}

/// How well the provider is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Makes sandboxes; a remark on what it does without, if anything.
    Healthy(String),
    /// Offered, but something is wrong.
    Degraded(String),
    /// Refuses to make sandboxes, and why.
    Unavailable(String),
}

/// One maker of sandboxes. Every call may be cut by dropping it; a cut call has an unknown outcome.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// Constants of this adapter.
    fn declaration(&self) -> &Declaration;

    /// A cheap look at whether `create` would work.
    async fn health(&self) -> Health;

    /// Sandboxes alive under this account, as far as the provider can say.
    async fn live_sandboxes(&self) -> Result<u32, ProviderFailure>;

    /// Makes the sandbox of `key`.
    async fn create(&self, key: &str, spec: &CreateSpec) -> CreateOutcome;

    /// A control-plane read of the durable id. Never wakes or changes anything.
    async fn observe(&self, identity: &Identity) -> Result<Observation, ProviderFailure>;

    /// Destroys the recorded sandbox (if one is recorded) and whatever is found under the key. Idempotent; a sandbox that
    /// is already gone is no failure. Success means accepted: absence is for [`Provider::observe`] and
    /// [`Lookup::find_by_lease`] to prove.
    async fn destroy(&self, identity: Option<&Identity>, key: &str) -> Result<Destroyed, ProviderFailure>;

    /// Finding a sandbox by the lease's key; without it a cut create can never be proven absent.
    fn lookup(&self) -> Option<&dyn Lookup> {
        None
    }

    /// Running commands.
    fn exec(&self) -> Option<&dyn Exec> {
        None
    }

    /// Restricting what a sandbox reaches.
    fn egress(&self) -> Option<&dyn Egress> {
        None
    }
}

/// See [`Provider::lookup`].
#[async_trait]
pub trait Lookup: Send + Sync {
    /// The sandbox under `key`, if there is one in any state.
    async fn find_by_lease(&self, key: &str) -> Result<Option<Identity>, ProviderFailure>;
}

/// See [`Provider::exec`].
#[async_trait]
pub trait Exec: Send + Sync {
    /// Starts one command. Dropping the process kills its whole group.
    async fn start(&self, identity: &Identity, spec: ExecSpec) -> Result<Process, ExecError>;

    /// Ends every process of the sandbox, but not the sandbox.
    async fn kill_all(&self, identity: &Identity) -> Result<(), ExecError>;
}

/// See [`Provider::egress`].
#[async_trait]
pub trait Egress: Send + Sync {
    /// Opens the way out of a sandbox by these rules, in place of any before. A create does so itself; one that was cut may
    /// have left a sandbox without.
    async fn bind(&self, key: &str, rules: &BTreeSet<EgressRule>) -> Result<(), ProviderFailure>;

    /// Takes up the rules of sandboxes that outlived an earlier broker process; returns their keys.
    async fn rebind_survivors(&self) -> Result<Vec<String>, ProviderFailure>;
}
