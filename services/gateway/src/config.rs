//! Settings of the gateway. Built by hand; the environment is read elsewhere.

use std::{net::SocketAddr, time::Duration};

/// Everything the gateway can be told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 picks a free one.
    pub listen: SocketAddr,
    /// The URL clients use, for the OpenAPI document; none: relative paths.
    pub public_url: Option<String>,
    /// Origins whose pages may call REST and gRPC-Web from a browser; empty: none but the gateway's own.
    pub allowed_origins: Vec<String>,
    /// Bounds of everything a client can ask for.
    pub limits: Limits,
}

impl Config {
    /// The defaults on a given address.
    pub fn new(listen: SocketAddr) -> Self {
        Self { listen, public_url: None, allowed_origins: Vec::new(), limits: Limits::default() }
    }
}

/// Bounds and timeouts.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Open connections; further ones wait in the listen queue.
    pub max_connections: usize,
    /// Concurrent HTTP/2 streams of one connection.
    pub max_streams: u32,
    /// Time for a connection's first bytes, and for the head of each HTTP/1 request. Idle HTTP/1 connections end after it.
    pub header_timeout: Duration,
    /// Largest JSON body, bytes.
    pub max_body_bytes: usize,
    /// Time in which a JSON body must have arrived.
    pub body_timeout: Duration,
    /// Largest gRPC message in either direction, bytes.
    pub max_message_bytes: usize,
    /// Deadline of a unary call that brings none.
    pub unary_timeout: Duration,
    /// Time lifecycle has for verifying a credential or registering a key.
    pub identity_timeout: Duration,
    /// How long a verified credential is believed; a revocation takes effect after this at the latest. At most a second.
    pub identity_ttl: Duration,
    /// Verified credentials kept.
    pub identity_entries: u64,
    /// How often each upstream is probed.
    pub probe_interval: Duration,
    /// Time open calls have to finish at shutdown.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 4096,
            max_streams: 256,
            header_timeout: Duration::from_secs(30),
            max_body_bytes: 4 << 20,
            body_timeout: Duration::from_secs(30),
            max_message_bytes: berth_serve::peer::MAX_MESSAGE_BYTES,
            unary_timeout: Duration::from_secs(30),
            identity_timeout: Duration::from_secs(5),
            identity_ttl: Duration::from_secs(1),
            identity_entries: 10_000,
            probe_interval: Duration::from_secs(2),
            drain: Duration::from_secs(5),
        }
    }
}
