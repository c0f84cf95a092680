//! The gateway: one port for gRPC, gRPC-Web and REST in front of lifecycle, sessions and the broker. It verifies nothing
//! itself and decides nothing: lifecycle verifies the credential, the gateway vouches for the answer with a signed assertion
//! and hands the call on.

mod authenticate;
mod config;
mod error;
mod forward;
mod frames;
mod front;
mod observe;
mod openapi;
mod pages;
mod probe;
mod rest;
mod rpcs;
mod server;
mod signer;

use std::{net::SocketAddr, sync::Arc};

use berth_serve::telemetry::MetricsText;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::service::{Routes, RoutesBuilder};

use crate::{
    authenticate::Authenticator, forward::Forward, front::Front, observe::Metrics, pages::Pages, probe::Probe,
    rest::Rest, rpcs::Rpcs,
};

pub use crate::{
    config::{Config, Limits},
    openapi::document as openapi_document,
    rest::RouteError,
    rpcs::Upstreams,
};

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// A descriptor set does not decode (a build fault).
    #[error("reflection could not be built")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// An HTTP annotation cannot be served (a build fault).
    #[error("the REST routes could not be built")]
    Routes(#[from] RouteError),
    /// An allowed origin is not an origin.
    #[error("{0:?} is not an origin (scheme://host[:port])")]
    Origin(String),
}

/// A running gateway.
#[derive(Debug)]
pub struct Running {
    /// The address really bound.
    pub addr: SocketAddr,
    /// Ends after shutdown, when open calls have finished or were cut.
    pub task: JoinHandle<()>,
}

/// What every call may use.
struct Gateway {
    config: Config,
    rpcs: Rpcs,
    upstreams: Upstreams,
    authenticator: Authenticator,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
}

/// Binds the port, registers the assertion key in the background and serves until `shutdown`.
///
/// # Errors
/// See [`StartError`]; an upstream that does not answer is not one, `/readyz` says so instead.
pub async fn start(
    config: Config,
    upstreams: Upstreams,
    metrics: MetricsText,
    shutdown: CancellationToken,
) -> Result<Running, StartError> {
    let listener = TcpListener::bind(config.listen).await.map_err(|error| StartError::Listen(config.listen, error))?;
    let addr = listener.local_addr().map_err(|error| StartError::Listen(config.listen, error))?;

    let limits = config.limits.clone();
    let (signer, registration) = signer::generate(limits.identity_timeout);
    let (reporter, health) = tonic_health::server::health_reporter();
    let probe = Probe::new(upstreams.clone(), signer.clone(), reporter, limits.probe_interval);
    let mut local = RoutesBuilder::default();
    local.add_service(health);
    berth_serve::reflection::add(&mut local, rpcs::PUBLIC.map(|(service, _)| service))?;

    let gateway = Arc::new(Gateway {
        authenticator: Authenticator::new(upstreams.lifecycle.clone(), signer, &limits),
        rpcs: Rpcs::from_descriptors(),
        metrics: Metrics::new(),
        shutdown: shutdown.clone(),
        upstreams,
        config,
    });
    let front = front(&gateway, local.routes(), Pages::new(&gateway.config, probe.readiness(), metrics))?;

    let lifecycle = gateway.upstreams.lifecycle.clone();
    let task = tokio::spawn(async move {
        tokio::join!(
            registration.run(lifecycle, shutdown.clone()),
            probe.run(shutdown.clone()),
            server::serve(listener, front, limits, shutdown.clone()),
        );
    });
    tracing::info!(%addr, "gateway listens");
    Ok(Running { addr, task })
}

fn front(gateway: &Arc<Gateway>, local: Routes, pages: Pages) -> Result<Front, StartError> {
    let rest = Rest::new(gateway.clone())?;
    Front::new(Forward::new(gateway.clone(), local), rest, pages, &gateway.config.allowed_origins)
}
