//! The domain of Berth: identifiers, callers, failure kinds, and the three machines (lease, session, run) as pure functions.
//!
//! No I/O, no async, no clock, no randomness: time and fresh ids are parameters. Every service stands on this crate; it stands on none.
//! The tables are in `docs/machines.md`, printed from this code into `golden/transitions.txt`.

pub mod aggregate;
pub mod caller;
pub mod failure;
pub mod id;
pub mod lease;
pub mod policy;
pub mod run;
pub mod session;
pub mod step;
pub mod time;
