//! The gateway over real sockets, its upstreams faked by their generated traits.

#[path = "gateway/fakes.rs"]
mod fakes;
#[path = "gateway/grpc.rs"]
mod grpc;
#[path = "gateway/harness.rs"]
mod harness;
#[path = "gateway/pages.rs"]
mod pages;
#[path = "gateway/rest_errors.rs"]
mod rest_errors;
#[path = "gateway/rest_routes.rs"]
mod rest_routes;
#[path = "gateway/sse.rs"]
mod sse;
#[path = "gateway/wire.rs"]
mod wire;
