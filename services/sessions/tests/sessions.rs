//! The sessions service against in-memory neighbours: lifecycle and broker implement the generated traits with the real rules
//! of log and claims, the model API is the emulator over a real socket.

#[path = "sessions/broker.rs"]
mod broker;
#[path = "sessions/cancel.rs"]
mod cancel;
#[path = "sessions/crash.rs"]
mod crash;
#[path = "sessions/events.rs"]
mod events;
#[path = "sessions/faults.rs"]
mod faults;
#[path = "sessions/ledger.rs"]
mod ledger;
#[path = "sessions/lifecycle.rs"]
mod lifecycle;
#[path = "sessions/messages.rs"]
mod messages;
#[path = "sessions/steer.rs"]
mod steer;
#[path = "sessions/turn.rs"]
mod turn;
#[path = "sessions/world.rs"]
mod world;
