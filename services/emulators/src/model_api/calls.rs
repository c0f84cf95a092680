//! One logged request, as `GET /__emulator/calls` shows it. No credential enters it other than as a fingerprint.

use std::collections::BTreeMap;

use http::HeaderMap;
use http::request::Parts;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::Fingerprint;
use crate::call_log::MAX_BYTES;

/// Headers that may be shown: those a test asks about, never one that may carry a secret.
const SHOWN: [&str; 8] =
    ["accept", "anthropic-beta", "anthropic-version", "content-type", "host", "traceparent", "user-agent", "x-app"];
/// Headers shown by prefix.
const SHOWN_PREFIXES: [&str; 2] = ["x-claude-code-", "x-stainless-"];
/// Longest header value kept, in bytes.
const MAX_HEADER: usize = 1024;

/// A request received and what became of it.
#[derive(Debug, Serialize)]
pub(super) struct Call {
    /// 1 for the first request since the start.
    pub(super) serial: u64,
    pub(super) request_id: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: Option<String>,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) credential: Option<Credential>,
    pub(super) model: Option<String>,
    pub(super) stream: Option<bool>,
    /// How many messages the request held.
    pub(super) message_count: Option<usize>,
    /// Index of the conversation and turn that answered.
    pub(super) conversation: Option<usize>,
    pub(super) turn: Option<usize>,
    /// The kind of fault that was played, if any.
    pub(super) fault: Option<&'static str>,
    /// The status answered.
    pub(super) status: u16,
    pub(super) body_bytes: usize,
    /// As received; a string when it was not JSON.
    pub(super) body: Box<RawValue>,
}

/// Which credential came, in which header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Credential {
    pub(super) header: &'static str,
    pub(super) sha256: Fingerprint,
}

impl Credential {
    /// The credential of a request; with both headers, `x-api-key` counts.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
        let key = text("x-api-key").filter(|key| !key.is_empty());
        if let Some(key) = key {
            return Some(Self { header: "x-api-key", sha256: Fingerprint::of(key) });
        }
        let (scheme, token) = text("authorization")?.split_once(' ')?;
        let token = token.trim();
        let is_bearer = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty();
        is_bearer.then(|| Self { header: "authorization", sha256: Fingerprint::of(token) })
    }
}

impl Call {
    /// The call before anything is known of its outcome.
    pub(super) fn received(serial: u64, request_id: &str, parts: &Parts, body: &[u8]) -> Self {
        Self {
            serial,
            request_id: request_id.to_owned(),
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().map(str::to_owned),
            headers: shown_headers(&parts.headers),
            credential: Credential::of(&parts.headers),
            model: None,
            stream: None,
            message_count: None,
            conversation: None,
            turn: None,
            fault: None,
            status: 200,
            body_bytes: body.len(),
            body: kept_body(body),
        }
    }

    /// What the call weighs in the log.
    pub(super) fn weight(&self) -> usize {
        self.body.get().len()
    }
}

fn shown_headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let shown = |name: &str| SHOWN.contains(&name) || SHOWN_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    headers
        .iter()
        .filter(|(name, value)| shown(name.as_str()) && value.len() <= MAX_HEADER)
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}

fn kept_body(body: &[u8]) -> Box<RawValue> {
    if body.is_empty() {
        return RawValue::NULL.to_owned();
    }
    if body.len() > MAX_BYTES / 2 {
        return as_json_text(&format!("(body of {} bytes not kept)", body.len()));
    }
    serde_json::from_slice(body).unwrap_or_else(|_| as_json_text(&String::from_utf8_lossy(body)))
}

fn as_json_text(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}
