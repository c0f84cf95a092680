//! Tells the protocols of the one port apart: gRPC and gRPC-Web by content type, the gateway's own pages by path, all else
//! is REST. Browsers of allowed origins get their CORS headers here.

use std::{
    convert::Infallible,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, Response, Uri, header};
use hyper::body::Incoming;
use tonic::body::Body;
use tonic_web::{GrpcWebLayer, GrpcWebService};
use tower::{Layer as _, Service, ServiceExt as _, util::Either};
use tower_http::cors::{AllowHeaders, AllowMethods, AllowOrigin, Cors, CorsLayer};

use crate::{StartError, forward::Forward, pages::Pages, rest::Rest};

/// How long a browser may remember a preflight.
const PREFLIGHT_AGE: Duration = Duration::from_secs(3600);
/// What a page may read beside the simple headers: gRPC-Web's trailers-only answers, and when to retry.
const EXPOSED: [HeaderName; 4] = [
    HeaderName::from_static("grpc-status"),
    HeaderName::from_static("grpc-message"),
    HeaderName::from_static("grpc-status-details-bin"),
    header::RETRY_AFTER,
];

/// The service of every connection.
#[derive(Clone)]
pub(crate) struct Front {
    service: Either<Cors<Entry>, Entry>,
}

/// The protocols behind it.
#[derive(Clone)]
struct Entry {
    grpc: GrpcWebService<Forward>,
    rest: Rest,
    pages: Pages,
}

impl Front {
    pub(crate) fn new(grpc: Forward, rest: Rest, pages: Pages, origins: &[String]) -> Result<Self, StartError> {
        let entry = Entry { grpc: GrpcWebLayer::new().layer(grpc), rest, pages };
        if origins.is_empty() {
            return Ok(Self { service: Either::Right(entry) });
        }
        let origins = origins.iter().map(|text| origin(text)).collect::<Result<Vec<_>, _>>()?;
        let cors = CorsLayer::new()
            .allow_origin(AllowOrigin::list(origins))
            .allow_methods(AllowMethods::mirror_request())
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(EXPOSED)
            .max_age(PREFLIGHT_AGE);
        Ok(Self { service: Either::Left(cors.layer(entry)) })
    }
}

/// An origin as browsers send it.
fn origin(text: &str) -> Result<HeaderValue, StartError> {
    let refused = || StartError::Origin(text.to_owned());
    let uri: Uri = text.parse().map_err(|_| refused())?;
    let whole = matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some() && uri.path() == "/";
    if !whole || text.ends_with('/') {
        return Err(refused());
    }
    HeaderValue::from_str(text).map_err(|_| refused())
}

impl hyper::service::Service<Request<Incoming>> for Front {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        Box::pin(self.service.clone().oneshot(request))
    }
}

impl Service<Request<Incoming>> for Entry {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        if is_grpc(&request) {
            return Box::pin(self.grpc.call(request));
        }
        let request = request.map(Body::new);
        let (rest, pages) = (self.rest.clone(), self.pages.clone());
        Box::pin(async move {
            Ok(match pages.answer(&request) {
                Some(response) => response,
                None => rest.answer(request).await,
            })
        })
    }
}

/// `application/grpc`, `application/grpc+proto`, `application/grpc-web…`.
fn is_grpc(request: &Request<Incoming>) -> bool {
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|text| text.starts_with("application/grpc"))
}
