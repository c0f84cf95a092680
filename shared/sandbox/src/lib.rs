//! Local isolation: one set of namespaces (mount, process, ipc, host name, user, network) per sandbox, from create to
//! release, with our own init as its pid 1. Every exec enters it; nothing of the host is visible inside but read-only
//! system directories; the only way out is an allow-list proxy in the broker.
//!
//! Start with [`Sandboxes`]. A program that wants to host sandboxes also has to call [`init::run`] first thing in `main`
//! when its arguments say so: the same program then is the init of a sandbox. See [`InitCommand`].
//!
//! Linux only. Nothing here knows about leases, runs or providers.

mod cgroup;
mod config;
mod control;
mod create;
mod descriptors;
mod destroy;
mod egress;
mod error;
mod exec;
pub mod init;
mod kernel;
mod key;
mod observed;
mod process;
mod protocol;
mod sandboxes;
mod state;
mod tree;

pub use config::{
    Capabilities, ExecLimits, ExecSpec, ExecUser, InitCommand, LimitsBy, Missing, ReadOnlyBind, SandboxConfig,
    SandboxLimits, Spec, UnknownMissing, inside,
};
pub use egress::{Denied, EgressCounts, EgressGuard, EgressRule};
pub use error::{ErrorKind, Result, SandboxError};
pub use exec::{ExecEvent, ExecHandle, Exit, Output};
pub use kernel::KernelReport;
pub use observed::{Found, Observed, Record, Sandbox};
pub use sandboxes::Sandboxes;
