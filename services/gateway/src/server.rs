//! The listener: HTTP/1.1 and HTTP/2 (prior knowledge) on one port, told apart by the connection's first bytes. Bounded
//! connections, header timeouts, keep-alive, and a shutdown that lets open calls finish. What is served is decided elsewhere.

use std::{convert::Infallible, io::Cursor, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::Service,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::body::Body;

use crate::config::Limits;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const MAX_HEADER_BYTES: u32 = 32 << 10;
const MAX_HTTP1_HEADERS: usize = 100;
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after the system refused a connection (out of files), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until `shutdown`, then waits for open calls, at most `limits.drain`.
pub(crate) async fn serve<S>(listener: TcpListener, service: S, limits: Limits, shutdown: CancellationToken)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let graceful = GracefulShutdown::new();
    let connections = TaskTracker::new();
    // Ends what did not finish in time.
    let abort = CancellationToken::new();
    let slots = Arc::new(Semaphore::new(limits.max_connections));
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let (stream, slot) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (service, limits, watcher, abort) = (service.clone(), limits.clone(), graceful.watcher(), abort.clone());
        connections.spawn(async move {
            tokio::select! {
                () = abort.cancelled() => {}
                () = connection(stream, service, &limits, watcher) => {}
            }
            drop(slot);
        });
    }
    drop(listener);
    connections.close();
    let drained = async {
        graceful.shutdown().await;
        connections.wait().await;
    };
    if tokio::time::timeout(limits.drain, drained).await.is_err() {
        tracing::warn!(open = connections.len(), "connections cut at shutdown");
        abort.cancel();
        connections.wait().await;
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Nagle's algorithm would hold small answers back for a client's delayed acknowledgement.
    stream.set_nodelay(true)?;
    Ok((stream, slot))
}

async fn connection<S>(stream: TcpStream, service: S, limits: &Limits, watcher: Watcher)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let (mut reader, writer) = stream.into_split();
    let first = tokio::time::timeout(limits.header_timeout, first_bytes(&mut reader)).await;
    let Ok(Ok(first)) = first else { return };
    if first.is_empty() {
        return;
    }
    let is_http2 = first == HTTP2_PREFACE;
    let io = TokioIo::new(tokio::io::join(Cursor::new(first).chain(reader), writer));
    let ended = if is_http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.max_streams)
            .max_header_list_size(MAX_HEADER_BYTES)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        watcher.watch(builder.serve_connection(io, service)).await
    } else {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout).max_headers(MAX_HTTP1_HEADERS);
        watcher.watch(builder.serve_connection(io, service)).await
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended early");
    }
}

/// Reads until it is clear whether this is the HTTP/2 preface; empty when the peer left.
async fn first_bytes(reader: &mut tokio::net::tcp::OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(HTTP2_PREFACE.len());
    while bytes.len() < HTTP2_PREFACE.len() && HTTP2_PREFACE.starts_with(&bytes) {
        let mut rest = (&mut *reader).take((HTTP2_PREFACE.len() - bytes.len()) as u64);
        if rest.read_buf(&mut bytes).await? == 0 {
            break;
        }
    }
    Ok(bytes)
}
