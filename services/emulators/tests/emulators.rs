//! The emulators over real sockets, used as their clients use them: HTTP, server-sent events and the git binary.

#[path = "emulators/demo.rs"]
mod demo;
#[path = "emulators/faults.rs"]
mod faults;
#[path = "emulators/git_clients.rs"]
mod git_clients;
#[path = "emulators/model_api.rs"]
mod model_api;
#[path = "emulators/world.rs"]
mod world;
