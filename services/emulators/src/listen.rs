//! Serving a router on a listener until told to stop, with a bounded goodbye.

use std::future::Future;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// How long open connections may take to finish once shutdown began; a stalled reply must not hold the process.
const GOODBYE: Duration = Duration::from_secs(2);

/// Serves until `shutdown` resolves, then lets requests in flight finish for at most [`GOODBYE`].
pub(crate) async fn serve_router(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (began, stopping) = oneshot::channel();
    // Nagle's algorithm would hold small SSE events back.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let server = axum::serve(listener, router).with_graceful_shutdown(async move {
        shutdown.await;
        let _ = began.send(());
    });
    tokio::select! {
        ended = server => ended,
        () = async {
            let _ = stopping.await;
            tokio::time::sleep(GOODBYE).await;
        } => Ok(()),
    }
}
