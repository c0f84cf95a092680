//! The time rule of a lease: when it expires, and what a heartbeat may do about it.
//!
//! What it does *not* guarantee: that the sandbox stops at `expires_at`. From then on it is released, which takes its own time.

use super::{Desired, Lease, State};
use crate::time::Time;
use std::time::Duration;

/// The moment from which on the lease is expired: idle for too long or too old, whichever comes first. A beat moves the first, never the second.
pub fn expires_at(created_at: Time, max_lifetime: Duration, touched_at: Time, idle_timeout: Duration) -> Time {
    created_at.plus(max_lifetime).min(touched_at.plus(idle_timeout))
}

/// What the lease row says to a heartbeat, before any provider is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Go on and ask the provider.
    Allowed,
    /// `now ≥ expires_at`, or it is no longer wanted.
    RefusedExpired,
    /// Not READY yet.
    NotRunning,
    /// The sandbox is lost or gone.
    LeaseLost,
}

/// Judges a heartbeat at `now`; equality with `expires_at` is too late.
pub fn beat(lease: &Lease, now: Time) -> Beat {
    match (lease.state, lease.desired) {
        (State::Requested | State::Allocating | State::Allocated, Desired::Held) => Beat::NotRunning,
        (State::Ready, Desired::Held) if now < lease.expires_at => Beat::Allowed,
        (State::Requested | State::Allocating | State::Allocated, Desired::Released)
        | (State::Ready, Desired::Held | Desired::Released) => Beat::RefusedExpired,
        (
            State::Releasing | State::ReleaseFailed | State::Lost | State::Released,
            Desired::Held | Desired::Released,
        ) => Beat::LeaseLost,
    }
}
