//! Calls an upstream with messages known only by descriptor.

use std::{error::Error as _, sync::Arc};

use berth_serve::peer::ServiceChannel;
use bytes::{Buf as _, BufMut as _};
use http::HeaderMap;
use prost::Message as _;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use tonic::{
    Extensions, Request, Status, Streaming,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    metadata::MetadataMap,
};

use crate::{Gateway, authenticate::Caller, error::Error, forward::UPSTREAM_GRACE, rpcs::Rpc};

/// Headers that describe the REST body, not the call.
const NOT_FORWARDED: [&str; 5] = ["content-type", "te", "grpc-encoding", "grpc-accept-encoding", "grpc-timeout"];

/// One request of one caller to one RPC.
pub(crate) struct Call<'a> {
    pub(crate) gateway: &'a Gateway,
    pub(crate) rpc: &'a Arc<Rpc>,
    pub(crate) caller: &'a Caller,
    pub(crate) headers: &'a HeaderMap,
}

impl Call<'_> {
    /// The answer of a unary RPC.
    pub(crate) async fn unary(self, message: DynamicMessage) -> Result<DynamicMessage, Status> {
        let timeout = self.gateway.config.limits.unary_timeout;
        let mut request = self.request(message);
        request.set_timeout(timeout + UPSTREAM_GRACE);
        let mut client = self.client();
        let answer = async {
            client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
            client.unary(request, self.rpc.path.clone(), self.codec()).await
        };
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(told(status, self.rpc)),
            Err(_) => Err(Error::DeadlineExceeded.into()),
        }
    }

    /// The stream of a server-streaming RPC. Dropping it cancels the upstream.
    pub(crate) async fn stream(self, message: DynamicMessage) -> Result<Streaming<DynamicMessage>, Status> {
        let mut client = self.client();
        let request = self.request(message);
        let answer = async {
            client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
            client.server_streaming(request, self.rpc.path.clone(), self.codec()).await
        };
        // Only the beginning is bounded; the stream itself lasts.
        match tokio::time::timeout(self.gateway.config.limits.unary_timeout, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(told(status, self.rpc)),
            Err(_) => Err(Error::DeadlineExceeded.into()),
        }
    }

    fn client(&self) -> Grpc<ServiceChannel> {
        let limit = self.gateway.config.limits.max_message_bytes;
        Grpc::new(self.gateway.upstreams.channel(self.rpc.upstream).clone()).max_decoding_message_size(limit)
    }

    fn request(&self, message: DynamicMessage) -> Request<DynamicMessage> {
        let mut headers = self.caller.forwarded(self.headers);
        for name in NOT_FORWARDED {
            headers.remove(name);
        }
        Request::from_parts(MetadataMap::from_headers(headers), Extensions::new(), message)
    }

    fn codec(&self) -> DynamicCodec {
        DynamicCodec { answer: self.rpc.method.output() }
    }
}

/// What the client is told: an upstream's own words as they are, the transport's only in the log.
pub(crate) fn told(status: Status, rpc: &Rpc) -> Status {
    match status.source() {
        None => status,
        Some(cause) => Error::of_transport(cause, rpc.upstream.name()).into(),
    }
}

/// Encodes and decodes by descriptor.
struct DynamicCodec {
    answer: MessageDescriptor,
}

impl Codec for DynamicCodec {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = DynamicEncoder;
    type Decoder = DynamicDecoder;

    fn encoder(&mut self) -> DynamicEncoder {
        DynamicEncoder
    }

    fn decoder(&mut self) -> DynamicDecoder {
        DynamicDecoder { answer: self.answer.clone() }
    }
}

struct DynamicEncoder;

impl Encoder for DynamicEncoder {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(&mut self, message: DynamicMessage, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&message.encode_to_vec());
        Ok(())
    }
}

struct DynamicDecoder {
    answer: MessageDescriptor,
}

impl Decoder for DynamicDecoder {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let message = DynamicMessage::decode(self.answer.clone(), bytes.copy_to_bytes(bytes.remaining()));
        message.map(Some).map_err(|_| Error::UpstreamBroken.into())
    }
}
