//! How one service calls another: a channel whose calls carry the service's own key and the current trace context.
//! In one process the channel runs over an in-memory pipe; the code on both sides is the same.

use std::time::Duration;

use http::{HeaderValue, Request, Response, header::AUTHORIZATION};
use hyper_util::rt::TokioIo;
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::sync::CancellationToken;
use tonic::{
    body::Body,
    codegen::Service,
    service::Routes,
    transport::{Channel, Endpoint, Server},
};

use crate::trace;

/// Bytes buffered in each direction of an in-memory pipe.
const PIPE_BYTES: usize = 1 << 20;
/// Largest message any of Berth's services sends or takes (a 10 MiB file and its frame).
pub const MAX_MESSAGE_BYTES: usize = 12 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A client transport that authenticates the calling service. Clone it freely.
#[derive(Clone)]
pub struct ServiceChannel {
    channel: Channel,
    key: Option<HeaderValue>,
}

impl std::fmt::Debug for ServiceChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceChannel").field("authenticated", &self.key.is_some()).finish_non_exhaustive()
    }
}

impl ServiceChannel {
    /// Calls without a key of their own: they carry only what the caller puts into their metadata.
    pub fn anonymous(channel: Channel) -> Self {
        Self { channel, key: None }
    }

    /// Every call carries `authorization: Bearer <key>`, replacing any other.
    pub fn with_key(channel: Channel, key: &SecretString) -> Self {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()))
            .expect("service keys are made of URL-safe characters");
        value.set_sensitive(true);
        Self { channel, key: Some(value) }
    }
}

impl Service<Request<Body>> for ServiceChannel {
    type Response = Response<Body>;
    type Error = tonic::transport::Error;
    type Future = <Channel as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.channel, cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(key) = &self.key {
            request.headers_mut().insert(AUTHORIZATION, key.clone());
        }
        trace::inject(request.headers_mut());
        Service::call(&mut self.channel, request)
    }
}

/// Serves `routes` in this process until `shutdown` and returns a channel to them.
pub fn connect_in_process(routes: Routes, shutdown: CancellationToken) -> Channel {
    let (pipes, accept) = tokio::sync::mpsc::channel::<std::io::Result<tokio::io::DuplexStream>>(16);
    let incoming = tokio_stream::wrappers::ReceiverStream::new(accept);
    let drained = shutdown.clone();
    tokio::spawn(async move {
        let served = Server::builder()
            .layer(trace::layer())
            .add_routes(routes)
            .serve_with_incoming_shutdown(incoming, async move { drained.cancelled().await })
            .await;
        if let Err(error) = served {
            tracing::error!(%error, "in-process server ended");
        }
    });
    // The address is never resolved; it only has to be a valid URI.
    Endpoint::from_static("http://in-process.berth").connect_with_connector_lazy(tower::service_fn(
        move |_: http::Uri| {
            let pipes = pipes.clone();
            async move {
                let (client, server) = tokio::io::duplex(PIPE_BYTES);
                pipes
                    .send(Ok(server))
                    .await
                    .map_err(|_| std::io::Error::from(std::io::ErrorKind::ConnectionRefused))?;
                Ok::<_, std::io::Error>(TokioIo::new(client))
            }
        },
    ))
}

/// A channel over TCP with keep-alive; connects on first use.
///
/// # Errors
/// When `url` is not a valid URI.
pub fn connect(url: &str) -> Result<Channel, tonic::transport::Error> {
    Ok(Endpoint::from_shared(url.to_owned())?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true)
        .connect_lazy())
}
