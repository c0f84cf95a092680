//! The layer around every service of this crate: verifies the call before any handler sees it and hands the proof on in the
//! request's extensions. A handler without the proof answers UNAUTHENTICATED, so that a server mounted without the layer
//! serves nothing.
//!
//! Must not live here: how a credential is verified (see `authenticate`).

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Request, Response};
use tonic::{Status, body::Body, codegen::Service, metadata::MetadataMap, server::NamedService};
use tower::Layer;

use crate::{
    authenticate::{Admitted, Authenticator},
    error::Error,
};

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    authenticator: Authenticator,
}

impl Admission {
    /// Verifies with `authenticator`.
    pub(crate) fn new(authenticator: Authenticator) -> Self {
        Self { authenticator }
    }
}

impl<S> Layer<S> for Admission {
    type Service = Admit<S>;

    fn layer(&self, inner: S) -> Admit<S> {
        Admit { inner, authenticator: self.authenticator.clone() }
    }
}

/// See [`Admission`].
#[derive(Clone, Debug)]
pub(crate) struct Admit<S> {
    inner: S,
    authenticator: Authenticator,
}

impl<S: NamedService> NamedService for Admit<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Admit<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // The instance that was polled ready goes into the future; a fresh clone takes its place.
        let fresh = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, fresh);
        let authenticator = self.authenticator.clone();
        Box::pin(async move {
            let metadata = MetadataMap::from_headers(request.headers().clone());
            match authenticator.admit(request.uri().path(), &metadata).await {
                Ok(admitted) => {
                    request.extensions_mut().insert(admitted);
                    ready.call(request).await
                }
                Err(error) => {
                    if let Error::Refused(denial) = &error {
                        authenticator.record_denial(denial).await;
                    }
                    Ok(Status::from(error).into_http())
                }
            }
        })
    }
}

/// The proof the layer left in a request.
///
/// # Errors
/// Unauthenticated when the layer is missing.
pub(crate) fn admitted<T>(request: &tonic::Request<T>) -> Result<Admitted, Error> {
    request
        .extensions()
        .get::<Admitted>()
        .cloned()
        .ok_or(Error::Unauthenticated { reason: "CREDENTIAL_MISSING", message: "the call was not verified" })
}
