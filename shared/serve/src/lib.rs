//! Bootstrap of a service: telemetry, the peer channel, trace layers, caller assertions, health, reflection, shutdown.
//! No business rule lives here.

pub mod assertion;
pub mod peer;
pub mod reflection;
pub mod shutdown;
pub mod telemetry;
pub mod trace;
