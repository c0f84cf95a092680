//! Offline stand-ins for the outside world, so that Berth runs and is tested without it.
//!
//! Lives here: the scripted model API, the git server, and the demo's repository and script that go with them.
//! Must not live here: anything a production service needs; no service depends on this crate, only `berth` and tests do.
//! Secrets that arrive are kept as a [`Fingerprint`] only, so neither logs nor `Debug` can leak them.

mod call_log;
pub mod demo;
mod fingerprint;
pub mod git_http;
mod listen;
pub mod model_api;

pub use fingerprint::Fingerprint;
