//! Transport of SessionService: one line per RPC.

use std::sync::Arc;

use berth_events::Bus;
use berth_rpc::sessions::{
    ListEventsRequest, ListEventsResponse, SendMessageRequest, SendMessageResponse, StreamEventsRequest,
    session_service_server::SessionService,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::config::Config;
use crate::operations::{list_events, send_message, stream_events};
use crate::upstream::Upstream;

/// The service; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    pub(crate) config: Arc<Config>,
    pub(crate) upstream: Upstream,
    pub(crate) bus: Bus,
    pub(crate) shutdown: CancellationToken,
}

#[tonic::async_trait]
impl SessionService for Sessions {
    type StreamEventsStream = stream_events::EventStream;

    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        Ok(Response::new(send_message::send_message(self, request).await?))
    }

    async fn stream_events(
        &self,
        request: Request<StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        Ok(Response::new(stream_events::stream_events(self, request).await?))
    }

    async fn list_events(&self, request: Request<ListEventsRequest>) -> Result<Response<ListEventsResponse>, Status> {
        Ok(Response::new(list_events::list_events(self, request).await?))
    }
}
