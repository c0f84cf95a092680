//! The settings of a run that the machines judge by: limits on attempts and time. Stored with the run, so that a change of defaults never moves a running deadline.

use crate::time::Backoff;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Limits of one run. All durations are total times unless they say otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Policy {
    /// A lease without a beat for this long expires.
    pub idle_timeout: Duration,
    /// A lease older than this expires, beats or not.
    pub max_lifetime: Duration,
    /// How long a COMPLETED run keeps its sandbox.
    pub linger: Duration,
    /// How long a lease may wait for its first worker.
    pub requested: Duration,
    /// How many ALLOCATE attempts there are …
    pub allocate_attempts: u32,
    /// … within this time.
    pub allocate_window: Duration,
    /// How long one ALLOCATE attempt may take.
    pub allocate_call: Duration,
    /// How long preparing a sandbox may take, attempts included.
    pub bootstrap: Duration,
    /// How long a session may be STARTING.
    pub launch: Duration,
    /// How many launches may pass without a single event.
    pub launch_attempts: u32,
    /// How long one PARK or COLLECT claim may take.
    pub park: Duration,
    /// How many PARK or COLLECT claims may pass before the session goes on without.
    pub park_attempts: u32,
    /// Without a sign of life for this long a runner is checked.
    pub liveness: Duration,
    /// How long a run may work.
    pub wall_clock: Duration,
    /// How long a run may be PROVISIONING.
    pub provisioning: Duration,
    /// How long a run may be RECOVERING.
    pub recovering: Duration,
    /// How long one RELEASE claim may take.
    pub release_call: Duration,
    /// How long RELEASING retries fast; also the age from which Forget is allowed.
    pub teardown: Duration,
    /// How long a worker lives after its last sign.
    pub alive: Duration,
    /// Between ALLOCATE, BOOTSTRAP, LAUNCH, CHECK, COLLECT and PARK attempts.
    pub retry: Backoff,
    /// Between RELEASE attempts inside `teardown`.
    pub release_retry: Backoff,
    /// Between RELEASE attempts after it, for ever.
    pub slow_retry: Backoff,
}

/// The same thing under the name the settings use.
pub type Limits = Policy;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

impl Default for Policy {
    fn default() -> Self {
        Self {
            idle_timeout: MINUTE * 30,
            max_lifetime: HOUR * 24,
            linger: MINUTE * 15,
            requested: MINUTE * 5,
            allocate_attempts: 5,
            allocate_window: MINUTE * 10,
            allocate_call: MINUTE * 2,
            bootstrap: MINUTE * 15,
            launch: MINUTE * 5,
            launch_attempts: 3,
            park: MINUTE * 2,
            park_attempts: 3,
            liveness: SECOND * 60,
            wall_clock: HOUR * 2,
            provisioning: MINUTE * 30,
            recovering: MINUTE * 15,
            release_call: MINUTE * 2,
            teardown: HOUR,
            alive: SECOND * 4,
            retry: Backoff { first: SECOND, cap: MINUTE },
            release_retry: Backoff { first: SECOND, cap: MINUTE * 5 },
            slow_retry: Backoff { first: MINUTE * 15, cap: HOUR * 6 },
        }
    }
}
