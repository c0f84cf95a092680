//! Sessions: the conversation of a run with its agent. A worker drives the native loop; three RPCs send messages in and
//! numbered events out. Nothing durable is here: lifecycle's log is the conversation, and any replica goes on with it.

mod claims;
mod config;
mod error;
mod native;
mod operations;
mod service;
mod start;
mod upstream;
mod worker;

pub use config::{Config, ModelCallLimits, RetryLimits, StreamLimits};
pub use start::{StartError, Started, start};
