//! One request, start to end: read, log, check, choose, answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Value, json};

use super::calls::Call;
use super::choose::choose;
use super::delivery::{self, Step};
use super::error::{ApiError, error_type};
use super::reply::{self, Reply};
use super::request::{MessagesRequest, check_history};
use super::script::FaultKind;
use super::{Accept, ModelApi, stream};

/// The vendor's limit on a request.
const MAX_REQUEST_BYTES: usize = 32 * 1024 * 1024;
/// How long a client may take to send its request.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const CALLS_PATH: &str = "/__emulator/calls";
/// The message of a scripted error.
const SCRIPTED: &str = "scripted fault";

/// Where a request goes.
enum Route {
    Messages,
    CountTokens,
    Nowhere,
}

/// An answer that is not sent yet; a pause before the status line is part of it.
struct Answer {
    before: Duration,
    response: Response,
}

pub(super) async fn answer(State(api): State<Arc<ModelApi>>, request: Request) -> Response {
    if request.method() == Method::GET && request.uri().path() == CALLS_PATH {
        return list_calls(&api);
    }
    let serial = api.next_serial();
    let request_id = format!("req_emulated_{serial:06}");
    let (parts, body) = request.into_parts();
    let read = read_body(body).await;
    let bytes = read.clone().unwrap_or_default();
    let mut call = Call::received(serial, &request_id, &parts, &bytes);
    let answer = match read.and_then(|bytes| handle(&api, &parts, &bytes, &mut call)) {
        Ok(answer) => answer,
        Err(error) => {
            call.status = error.status;
            Answer { before: Duration::ZERO, response: error.response(&request_id) }
        }
    };
    tracing::debug!(request_id, status = call.status, fault = call.fault, "model call answered");
    let weight = call.weight();
    api.calls.push(call, weight);
    if !answer.before.is_zero() {
        tokio::time::sleep(answer.before).await;
    }
    let mut response = answer.response;
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert("request-id", value);
    }
    response
}

fn list_calls(api: &ModelApi) -> Response {
    let snapshot = api.calls.snapshot();
    let calls: Vec<&Call> = snapshot.calls.iter().map(AsRef::as_ref).collect();
    #[derive(serde::Serialize)]
    struct Listing<'a> {
        calls: Vec<&'a Call>,
        dropped: u64,
    }
    Json(Listing { calls, dropped: snapshot.dropped }).into_response()
}

async fn read_body(body: axum::body::Body) -> Result<Bytes, ApiError> {
    let collected = tokio::time::timeout(READ_TIMEOUT, Limited::new(body, MAX_REQUEST_BYTES).collect())
        .await
        .map_err(|_| ApiError::new(408, "the request took too long to arrive"))?;
    match collected {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(ApiError::new(413, "Request exceeds the maximum allowed number of bytes."))
        }
        Err(_) => Err(ApiError::new(400, "the request body could not be read")),
    }
}

fn handle(api: &ModelApi, parts: &Parts, body: &Bytes, call: &mut Call) -> Result<Answer, ApiError> {
    let route = route(parts);
    if matches!(route, Route::Nowhere) {
        return Err(ApiError::new(404, format!("Not found: {} {}", parts.method, parts.uri.path())));
    }
    authenticate(api, call)?;
    let request = parse(body)?;
    call.model = Some(request.model.clone());
    call.stream = request.stream;
    call.message_count = Some(request.messages.len());
    if api.config.check_history {
        check_history(&request.messages).map_err(|reason| ApiError::new(400, reason))?;
    }
    match route {
        Route::CountTokens => Ok(at_once(Json(json!({"input_tokens": reply::tokens(body.len())})).into_response())),
        _ => reply_to(api, &request, body.len(), call),
    }
}

fn route(parts: &Parts) -> Route {
    let path = parts.uri.path();
    match () {
        () if parts.method != Method::POST => Route::Nowhere,
        () if path.ends_with("/v1/messages") => Route::Messages,
        () if path.ends_with("/v1/messages/count_tokens") => Route::CountTokens,
        () => Route::Nowhere,
    }
}

fn authenticate(api: &ModelApi, call: &Call) -> Result<(), ApiError> {
    match (&api.config.accept, &call.credential) {
        (Accept::Anyone, _) | (Accept::AnyCredential, Some(_)) => Ok(()),
        (Accept::Only(accepted), Some(credential)) if credential.sha256 == *accepted => Ok(()),
        (Accept::Only(_), Some(credential)) => Err(ApiError::new(401, format!("invalid {}", credential.header))),
        (_, None) => Err(ApiError::new(401, "x-api-key header is required")),
    }
}

fn parse(body: &Bytes) -> Result<MessagesRequest, ApiError> {
    if serde_json::from_slice::<serde::de::IgnoredAny>(body).is_err() {
        return Err(ApiError::new(400, "The request body is not valid JSON."));
    }
    let request = serde_json::from_slice::<MessagesRequest>(body);
    request.map_err(|error| ApiError::new(400, format!("request body: {error}")))
}

fn reply_to(api: &ModelApi, request: &MessagesRequest, body_bytes: usize, call: &mut Call) -> Result<Answer, ApiError> {
    if request.max_tokens.is_none_or(|limit| limit == 0) {
        return Err(ApiError::new(400, "max_tokens: a positive number is required"));
    }
    let choice = choose(&api.script, &request.messages)
        .ok_or_else(|| ApiError::new(400, "no conversation of the emulator's script matches this request"))?;
    call.conversation = Some(choice.conversation);
    call.turn = Some(choice.turn);
    let fault = api.take_fault(&choice);
    call.fault = fault.as_ref().map(fault_name);
    let reply = Reply::of(&choice, request, body_bytes, call.serial);
    let streamed = request.stream.unwrap_or(false);
    let chunks = if streamed { stream::events(&reply) } else { vec![json_bytes(&reply.message())] };
    let total: usize = chunks.iter().map(Bytes::len).sum();
    match fault {
        None if streamed => Ok(sent(streamed, delivery::whole(chunks))),
        None => Ok(at_once(Json(reply.message()).into_response())),
        Some(FaultKind::Status { status, after_bytes: Some(after_bytes), .. }) if streamed => {
            let last = stream::error_event(error_type(status), SCRIPTED);
            Ok(sent(streamed, delivery::replaced(chunks, after_bytes, last)))
        }
        Some(FaultKind::Status { status, retry_after_s, .. }) => {
            Err(ApiError { retry_after_s, ..ApiError::new(status, SCRIPTED) })
        }
        Some(FaultKind::Cut { after_bytes }) => {
            Ok(sent(streamed, delivery::cut(chunks, after_bytes.unwrap_or(total / 2))))
        }
        Some(FaultKind::Slow { delay, after_bytes: 0 }) => {
            Ok(Answer { before: delay, ..sent(streamed, delivery::whole(chunks)) })
        }
        Some(FaultKind::Slow { delay, after_bytes }) => {
            Ok(sent(streamed, delivery::paused(chunks, after_bytes, delay)))
        }
    }
}

fn fault_name(fault: &FaultKind) -> &'static str {
    match fault {
        FaultKind::Status { .. } => "status",
        FaultKind::Cut { .. } => "cut",
        FaultKind::Slow { .. } => "slow",
    }
}

fn at_once(response: Response) -> Answer {
    Answer { before: Duration::ZERO, response }
}

fn sent(streamed: bool, steps: Vec<Step>) -> Answer {
    let content_type = if streamed { "text/event-stream; charset=utf-8" } else { "application/json" };
    let headers = [("content-type", content_type), ("cache-control", "no-cache")];
    at_once((headers, delivery::body(steps)).into_response())
}

fn json_bytes(value: &Value) -> Bytes {
    Bytes::from(value.to_string())
}
