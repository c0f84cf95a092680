//! One request message out of path, query, body and headers.

use std::time::Duration;

use berth_rpc::metadata;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header, request::Parts};
use http_body_util::BodyExt as _;
use prost_reflect::DynamicMessage;
use serde_json::Value;
use tonic::body::Body;

use super::{json, query, refusal::Refusal, routes::Route};

const REQUEST_ID: &str = "request_id";
const LAST_EVENT_ID: &str = "last-event-id";
/// Where `Last-Event-ID` goes, by the first that the request has.
const CURSORS: [&str; 2] = ["after_sequence", "after_change_seq"];
/// How much of a body that is too large is read on, so that the client comes to read the refusal.
const MOST_DRAINED: u64 = 64 << 20;

/// The message of a call.
///
/// # Errors
/// What is wrong with the request, by field.
pub(crate) fn message(
    route: &Route,
    variables: &[(&str, String)],
    head: &Parts,
    body: &[u8],
) -> Result<DynamicMessage, Refusal> {
    let of = route.rpc.method.input();
    let query = query::parse(head.uri.query().unwrap_or(""), &of)?;
    let mut object = if route.takes_body {
        if let Some(name) = query.keys().next() {
            let text = format!("{name} belongs into the body of this route");
            return Err(Refusal::field(name, "UNKNOWN_FIELD", text));
        }
        json::normalize(json::parse(body)?, &of)?
    } else if body.iter().all(u8::is_ascii_whitespace) {
        query
    } else {
        return Err(Refusal::invalid("BODY_NOT_TAKEN", "this route takes no body"));
    };
    for (field, text) in variables {
        query::bind(&mut object, &of, field, text)?;
    }
    if of.get_field_by_name(REQUEST_ID).is_some() {
        idempotency_key(&mut object, &head.headers)?;
    }
    if route.rpc.method.is_server_streaming() {
        last_event_id(&mut object, &of, &head.headers)?;
    }
    json::to_message(object, &of)
}

/// The header and the field are one thing: either may be given, both only when equal.
fn idempotency_key(object: &mut serde_json::Map<String, Value>, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(header) = headers.get(metadata::IDEMPOTENCY_KEY) else { return Ok(()) };
    let refused = |text: &str| Refusal::field(REQUEST_ID, "IDEMPOTENCY_KEY_INVALID", text);
    let key = header.to_str().map_err(|_| refused("idempotency-key must be visible ASCII"))?;
    if headers.get_all(metadata::IDEMPOTENCY_KEY).iter().count() > 1 {
        return Err(refused("idempotency-key is given twice"));
    }
    match object.get(REQUEST_ID) {
        None | Some(Value::Null) => {}
        Some(Value::String(given)) if given.is_empty() || given == key => {}
        Some(_) => {
            return Err(Refusal::field(
                REQUEST_ID,
                "IDEMPOTENCY_KEY_MISMATCH",
                "idempotency-key and request_id are both given and differ",
            ));
        }
    }
    object.insert(REQUEST_ID.to_owned(), key.into());
    Ok(())
}

/// A reconnecting reader sends the same URL again: its header is newer than the cursor in the query.
fn last_event_id(
    object: &mut serde_json::Map<String, Value>,
    of: &prost_reflect::MessageDescriptor,
    headers: &HeaderMap,
) -> Result<(), Refusal> {
    let Some(header) = headers.get(LAST_EVENT_ID) else { return Ok(()) };
    let Some(cursor) = CURSORS.into_iter().find(|name| of.get_field_by_name(name).is_some()) else { return Ok(()) };
    let text = header.to_str().unwrap_or_default();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) || text.parse::<i64>().is_err() {
        return Err(Refusal::field(
            cursor,
            "LAST_EVENT_ID_INVALID",
            "last-event-id must be an id this stream has sent",
        ));
    }
    object.insert(cursor.to_owned(), text.into());
    Ok(())
}

/// The whole body, within its limits. What is too large is still read to its end (bounded), because most clients read no
/// answer before they have sent everything.
pub(crate) async fn body(headers: &HeaderMap, body: Body, limit: usize, timeout: Duration) -> Result<Bytes, Refusal> {
    let declared =
        headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    // A client that waits for "100 Continue" has sent nothing yet and reads the refusal at once.
    if declared.is_some_and(|length| length > limit as u64) && headers.contains_key(header::EXPECT) {
        return Err(Refusal::BodyTooLarge { limit });
    }
    tokio::time::timeout(timeout, collect(body, limit)).await.unwrap_or(Err(Refusal::BodyTimeout))
}

async fn collect(mut body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::invalid("BODY_CUT", "the body broke off"))?;
        let Some(data) = frame.data_ref() else { continue };
        if whole.len() + data.len() > limit {
            drop(whole);
            drain(body).await;
            return Err(Refusal::BodyTooLarge { limit });
        }
        whole.extend_from_slice(data);
    }
    Ok(whole.freeze())
}

/// Reads on what the client still sends, and forgets it.
async fn drain(mut body: Body) {
    let mut drained = 0;
    while let Some(Ok(frame)) = body.frame().await {
        drained += frame.data_ref().map_or(0, |data| data.len() as u64);
        if drained > MOST_DRAINED {
            break;
        }
    }
}

/// The same for a request that is refused before its body was looked at.
pub(crate) async fn discard(headers: &HeaderMap, body: Body, timeout: Duration) {
    if !headers.contains_key(header::EXPECT) {
        // A client that is slower than this may miss the refusal.
        let _ = tokio::time::timeout(timeout, drain(body)).await;
    }
}
