//! What the end-to-end tests share: a `berth serve` process under test and a client of its REST API.

mod api;
mod server;
mod world;

pub use api::{Answer, Api, Sse};
pub use server::{Server, ServerOptions, berth};
pub use world::{World, eventually};
