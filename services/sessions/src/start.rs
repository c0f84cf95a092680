//! Assembles the service: its RPCs, its worker, and what a wrong configuration is answered with.

use std::sync::Arc;

use berth_events::Bus;
use berth_rpc::sessions::session_service_server::SessionServiceServer;
use berth_serve::peer::{MAX_MESSAGE_BYTES, ServiceChannel};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use uuid::Uuid;

use crate::claims::Claims;
use crate::config::Config;
use crate::native::ModelApi;
use crate::service::Sessions;
use crate::upstream::Upstream;
use crate::worker::Worker;

/// A running service.
#[derive(Debug)]
pub struct Started {
    /// SessionService.
    pub routes: Routes,
    /// Ends after shutdown, when the work in flight was handed back.
    pub worker: JoinHandle<()>,
}

/// What the service cannot start with.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Not `http(s)://host[:port][/path]`, or with credentials in it.
    #[error("the model base URL must be http or https, with a host and without credentials")]
    ModelBaseUrl,
    /// The HTTP client for the model API could not be made.
    #[error("the model API client could not be made")]
    ModelClient(#[source] reqwest::Error),
}

/// Starts the worker and returns the RPCs. Both channels carry the key of service `sessions`. Needs a rustls crypto provider
/// installed as the process default.
///
/// # Errors
/// When the configuration cannot work.
pub fn start(
    config: Config,
    lifecycle: ServiceChannel,
    broker: ServiceChannel,
    bus: Bus,
    shutdown: CancellationToken,
) -> Result<Started, StartError> {
    let api = ModelApi::new(&config)?;
    let config = Arc::new(config);
    let upstream = Upstream::new(lifecycle, broker);
    let claims = Claims::new(format!("sessions-{}", Uuid::now_v7().simple()));
    let worker = Worker { config: config.clone(), upstream: upstream.clone(), api, claims, shutdown: shutdown.clone() };
    let service = SessionServiceServer::new(Sessions { config, upstream, bus, shutdown })
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    Ok(Started { routes: Routes::new(service), worker: tokio::spawn(worker.run()) })
}
