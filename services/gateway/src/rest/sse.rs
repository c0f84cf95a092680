//! A server stream as server-sent events. StreamEvents: `id` is the sequence, `event` the payload's name, `data` the event;
//! a watch: `id` is the change's number. Keep-alives are comments; a reader that fell behind gets `lagged`, a failure after
//! the start gets `error` with the JSON error body; then the stream ends.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::StreamBody;
use prost_reflect::{DynamicMessage, FieldDescriptor, OneofDescriptor, ReflectMessage as _, Value};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming, body::Body};

use super::{call, json, refusal};
use crate::{error::Error, observe::Observation, rpcs::Rpc};

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
/// How long the first item is waited for, so that a refusal that comes as one is still an HTTP error.
const FIRST_ITEM: Duration = Duration::from_millis(100);
/// Number of an item, the first of these fields it has.
const IDS: [&str; 2] = ["sequence", "change_seq"];

/// The stream of an answer that has begun.
pub(crate) struct Events {
    stream: Streaming<DynamicMessage>,
    first: Option<Option<DynamicMessage>>,
    rpc: std::sync::Arc<Rpc>,
}

/// One thing to write, and whether it is the last.
struct Chunk {
    text: String,
    last: bool,
}

impl Events {
    /// Looks at the first item if it is there soon.
    ///
    /// # Errors
    /// The upstream's refusal when that is all it sent.
    pub(crate) async fn begin(mut stream: Streaming<DynamicMessage>, rpc: std::sync::Arc<Rpc>) -> Result<Self, Status> {
        let first = match tokio::time::timeout(FIRST_ITEM, stream.message()).await {
            Ok(item) => Some(item.map_err(|status| call::told(status, &rpc))?),
            Err(_) => None,
        };
        Ok(Self { stream, first, rpc })
    }

    /// The answer; it ends with the upstream, with the client, or with the gateway.
    pub(crate) fn into_response(self, stop: CancellationToken, observation: Observation) -> Response<Body> {
        let chunks = stream::unfold(Some((self, observation)), move |state| {
            let stop = stop.clone();
            async move {
                let (mut events, mut observation) = state?;
                let chunk = tokio::select! {
                    chunk = events.next() => chunk,
                    () = stop.cancelled() => Err(Error::Stopping.into()),
                };
                let (chunk, code) = match chunk {
                    Ok(chunk) => (chunk, tonic::Code::Ok),
                    Err(status) => (failed(&status), status.code()),
                };
                if chunk.last {
                    observation.ended(code);
                }
                let rest = (!chunk.last).then_some((events, observation));
                Some((Ok::<_, Infallible>(Frame::data(Bytes::from(chunk.text))), rest))
            }
        });
        let mut response = Response::new(Body::new(StreamBody::new(chunks.boxed())));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, EVENT_STREAM);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        // Proxies of the nginx kind would hold events back.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    async fn next(&mut self) -> Result<Chunk, Status> {
        let item = match self.first.take() {
            Some(item) => item,
            None => self.stream.message().await.map_err(|status| call::told(status, &self.rpc))?,
        };
        match item {
            Some(item) => chunk(&item).map_err(|_| Error::UpstreamBroken.into()),
            None => Ok(Chunk { text: ": end\n\n".to_owned(), last: true }),
        }
    }
}

fn failed(status: &Status) -> Chunk {
    Chunk { text: event(None, "error", &refusal::of_status(status).to_string()), last: true }
}

fn chunk(item: &DynamicMessage) -> Result<Chunk, serde_json::Error> {
    let wrapper = item.descriptor().oneofs().find(|oneof| !oneof.is_synthetic() && oneof.name() == "item");
    let Some(case) = wrapper.and_then(|oneof| set(item, &oneof)) else {
        return Ok(Chunk { text: plain(item)?, last: false });
    };
    match case.name() {
        "keep_alive" => Ok(Chunk { text: ": keep-alive\n\n".to_owned(), last: false }),
        name => {
            let value = item.get_field(&case);
            let text = match value.as_message() {
                Some(message) if name == "lagged" => event(None, name, &json::to_text(message)?),
                Some(message) => plain(message)?,
                None => event(None, name, &json!({}).to_string()),
            };
            Ok(Chunk { text, last: name == "lagged" })
        }
    }
}

/// An item by itself: named by its payload if it has one, else by its type.
fn plain(message: &DynamicMessage) -> Result<String, serde_json::Error> {
    let descriptor = message.descriptor();
    let payload = descriptor.oneofs().find(|oneof| oneof.name() == "payload").and_then(|oneof| set(message, &oneof));
    let name = payload.map_or_else(|| descriptor.name().to_lowercase(), |case| case.name().to_owned());
    Ok(event(id(message), &name, &json::to_text(message)?))
}

fn set(message: &DynamicMessage, oneof: &OneofDescriptor) -> Option<FieldDescriptor> {
    oneof.fields().find(|field| message.has_field(field))
}

fn id(message: &DynamicMessage) -> Option<i64> {
    let field = IDS.into_iter().find_map(|name| message.get_field_by_name(name))?;
    match field.as_ref() {
        Value::I64(number) => Some(*number),
        _ => None,
    }
}

/// `data` is JSON text and thus one line.
fn event(id: Option<i64>, name: &str, data: &str) -> String {
    let id = id.map_or_else(String::new, |id| format!("id: {id}\n"));
    format!("{id}event: {name}\ndata: {data}\n\n")
}

#[cfg(test)]
mod tests {
    use berth_rpc::{lifecycle as pb, sessions};

    use super::*;

    fn dynamic(name: &str, message: &impl prost::Message) -> DynamicMessage {
        let descriptor = berth_rpc::pool().get_message_by_name(name).unwrap();
        DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).unwrap()
    }

    fn written(item: sessions::stream_events_response::Item) -> Chunk {
        let response = sessions::StreamEventsResponse { item: Some(item) };
        chunk(&dynamic("berth.sessions.v1.StreamEventsResponse", &response)).unwrap()
    }

    #[test]
    fn an_event_carries_its_number_and_its_name() {
        use sessions::stream_events_response::Item;
        let notice = pb::Notice { code: "RETRY".into(), text: "two\nlines".into() };
        let event = pb::Event { sequence: 7, payload: Some(pb::event::Payload::Notice(notice)), ..Default::default() };
        let chunk = written(Item::Event(event));
        let text = chunk.text;
        assert!(text.starts_with("id: 7\nevent: notice\ndata: {"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(!chunk.last);
        assert_eq!(written(Item::KeepAlive(sessions::KeepAlive {})).text, ": keep-alive\n\n");
        let lagged = written(Item::Lagged(sessions::Lagged { after_sequence: 3 }));
        assert_eq!(lagged.text, "event: lagged\ndata: {\"after_sequence\":\"3\"}\n\n");
        assert!(lagged.last);
    }

    #[test]
    fn a_watched_run_is_numbered_by_its_changes() {
        let run = pb::Run { change_seq: 12, ..Default::default() };
        let text = chunk(&dynamic("berth.lifecycle.v1.Run", &run)).unwrap().text;
        assert!(text.starts_with("id: 12\nevent: run\ndata: {"), "{text}");
    }
}
