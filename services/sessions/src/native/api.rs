//! The Anthropic Messages API over HTTP: one streamed call at a time. Nothing is retried here; every failure is classified.
//! The key goes to the configured host only: redirects are not followed and no other address is ever asked.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use jiff::fmt::rfc2822;
use reqwest::header::{HeaderMap, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;
use url::Url;

use super::reply::{Assembly, Broken, Reply, Step};
use super::retry::{Advice, retryable};
use crate::config::Config;
use crate::start::StartError;

const VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");
/// Longest line of a stream; one event is one line.
const MAX_LINE_BYTES: usize = 4 << 20;
/// Bytes of an error body that are looked at.
const MAX_ERROR_BYTES: usize = 64 << 10;
/// Bytes of an error text that are passed on.
const MAX_ERROR_TEXT: usize = 500;

/// The API at one address. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ModelApi {
    client: reqwest::Client,
    endpoint: Url,
    response_bytes: usize,
}

/// Why a call brought no complete reply.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{cause}: {message}")]
pub(crate) struct CallFailure {
    pub(crate) cause: Cause,
    pub(crate) advice: Advice,
    /// For people; without the key.
    pub(crate) message: String,
}

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// An HTTP status.
    Status(u16),
    /// An error event after the 200.
    InStream,
    /// No connection, no answer in time, or an answer that broke off.
    Cut,
    /// An answer we cannot read.
    Malformed,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cause::Status(status) => write!(f, "model API answered {status}"),
            Cause::InStream => f.write_str("model API reported an error in its stream"),
            Cause::Cut => f.write_str("model API did not answer completely"),
            Cause::Malformed => f.write_str("model API answered in an unknown form"),
        }
    }
}

impl ModelApi {
    pub(crate) fn new(config: &Config) -> Result<Self, StartError> {
        let limits = &config.model_call;
        let builder = reqwest::Client::builder()
            .user_agent(concat!("berth/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(limits.connect)
            .read_timeout(limits.idle)
            .timeout(limits.total);
        let builder = match &config.model_proxy {
            Some(proxy) => builder.proxy(reqwest::Proxy::all(proxy.as_str()).map_err(StartError::ModelClient)?),
            None => builder.no_proxy(),
        };
        let client = builder.build().map_err(StartError::ModelClient)?;
        Ok(Self { client, endpoint: endpoint(&config.model_base_url)?, response_bytes: limits.response_bytes })
    }

    /// Whether a secret bound to `hosts` may be sent to this API: `host` binds every port of it, `host:port` that one. The
    /// rule by which lifecycle admits a run.
    pub(crate) fn is_bound_host(&self, hosts: &[String]) -> bool {
        let (Some(host), Some(port)) = (self.endpoint.host_str(), self.endpoint.port_or_known_default()) else {
            return false;
        };
        let host = host.trim_end_matches('.');
        let exact = format!("{host}:{port}");
        hosts.iter().any(|bound| bound.eq_ignore_ascii_case(&exact) || bound.eq_ignore_ascii_case(host))
    }

    /// The API's host, for messages to people.
    pub(crate) fn host(&self) -> String {
        let host = self.endpoint.host_str().unwrap_or_default();
        self.endpoint.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    /// Starts a call; the reply comes through the stream.
    pub(crate) async fn open(&self, key: &SecretString, body: Bytes) -> Result<ReplyStream, CallFailure> {
        let mut credential = HeaderValue::from_str(key.expose_secret()).map_err(|_| CallFailure {
            message: "the model key is not a header value".into(),
            ..failure(Cause::Status(401))
        })?;
        credential.set_sensitive(true);
        let request = self
            .client
            .post(self.endpoint.clone())
            .header("x-api-key", credential)
            .header("anthropic-version", VERSION)
            .header("content-type", HeaderValue::from_static("application/json"))
            .body(body);
        let response = request.send().await.map_err(cut)?;
        let request_id = response.headers().get("request-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
        tracing::debug!(status = response.status().as_u16(), request_id, "model API answered");
        if response.status() != reqwest::StatusCode::OK {
            return Err(refusal(response, key).await);
        }
        Ok(ReplyStream {
            lines: lines(response, self.response_bytes),
            data: String::new(),
            assembly: Some(Assembly::default()),
            key: key.clone(),
        })
    }
}

fn endpoint(base: &Url) -> Result<Url, StartError> {
    let plain = matches!(base.scheme(), "http" | "https")
        && base.has_host()
        && base.username().is_empty()
        && base.password().is_none()
        && base.fragment().is_none();
    if !plain {
        return Err(StartError::ModelBaseUrl);
    }
    let mut endpoint = base.clone();
    endpoint.set_path(&format!("{}/v1/messages", base.path().trim_end_matches('/')));
    Ok(endpoint)
}

/// What came next.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Text of the reply.
    Text(String),
    /// The whole reply.
    Done(Reply),
}

type Lines = BoxStream<'static, Result<String, LinesCodecError>>;

/// A reply as it arrives. Dropping it ends the call.
pub(crate) struct ReplyStream {
    lines: Lines,
    /// `data` lines of the event being read.
    data: String,
    assembly: Option<Assembly>,
    key: SecretString,
}

impl ReplyStream {
    /// The next text, or the reply. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Progress, CallFailure> {
        loop {
            let line = match self.lines.next().await {
                None => return Err(CallFailure { message: "the stream ended early".into(), ..failure(Cause::Cut) }),
                Some(Err(error)) => return Err(broken_lines(&error)),
                Some(Ok(line)) => line,
            };
            if let Some(data) = line.strip_prefix("data:") {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(data.strip_prefix(' ').unwrap_or(data));
                if self.data.len() > MAX_LINE_BYTES {
                    return Err(failure(Cause::Malformed));
                }
                continue;
            }
            if !line.is_empty() || self.data.is_empty() {
                continue;
            }
            let data = std::mem::take(&mut self.data);
            let assembly = self.assembly.get_or_insert_default();
            match assembly.take(&data).map_err(|broken| in_stream(broken, &self.key))? {
                Step::Quiet => {}
                Step::Text(text) => return Ok(Progress::Text(text)),
                Step::Stop => return Ok(Progress::Done(self.assembly.take().unwrap_or_default().finish())),
            }
        }
    }
}

/// The body's lines, cut off after `limit` bytes.
fn lines(response: reqwest::Response, limit: usize) -> Lines {
    let bytes = response.bytes_stream().scan(0_usize, move |read, chunk| {
        let chunk = chunk.map_err(std::io::Error::other).and_then(|chunk| {
            *read += chunk.len();
            if *read > limit { Err(std::io::Error::from(std::io::ErrorKind::FileTooLarge)) } else { Ok(chunk) }
        });
        std::future::ready(Some(chunk))
    });
    FramedRead::new(StreamReader::new(bytes), LinesCodec::new_with_max_length(MAX_LINE_BYTES)).boxed()
}

fn failure(cause: Cause) -> CallFailure {
    let retry = match cause {
        Cause::Status(status) => retryable(status),
        Cause::Cut => true,
        Cause::InStream | Cause::Malformed => false,
    };
    CallFailure { cause, advice: Advice { retry, after: None }, message: String::new() }
}

fn cut(error: reqwest::Error) -> CallFailure {
    let message = match () {
        () if error.is_connect() => "could not connect",
        () if error.is_timeout() => "no answer in time",
        () => "the connection broke",
    };
    tracing::debug!(error = %error.without_url(), "model call cut");
    CallFailure { message: message.into(), ..failure(Cause::Cut) }
}

fn broken_lines(error: &LinesCodecError) -> CallFailure {
    match error {
        LinesCodecError::MaxLineLengthExceeded => {
            CallFailure { message: "a line is too long".into(), ..failure(Cause::Malformed) }
        }
        LinesCodecError::Io(io) if io.kind() == std::io::ErrorKind::FileTooLarge => {
            CallFailure { message: "the answer is too large".into(), ..failure(Cause::Malformed) }
        }
        LinesCodecError::Io(io) if io.kind() == std::io::ErrorKind::InvalidData => failure(Cause::Malformed),
        LinesCodecError::Io(_) => CallFailure { message: "the connection broke".into(), ..failure(Cause::Cut) },
    }
}

fn in_stream(broken: Broken, key: &SecretString) -> CallFailure {
    match broken {
        Broken::Error { kind, message } => {
            let retry =
                matches!(kind.as_str(), "overloaded_error" | "api_error" | "rate_limit_error" | "timeout_error");
            let advice = Advice { retry, after: None };
            CallFailure { cause: Cause::InStream, advice, message: presentable(&format!("{kind}: {message}"), key) }
        }
        Broken::Malformed | Broken::TooLarge => {
            CallFailure { message: broken.to_string(), ..failure(Cause::Malformed) }
        }
    }
}

async fn refusal(response: reqwest::Response, key: &SecretString) -> CallFailure {
    let status = response.status().as_u16();
    let should_retry = match response.headers().get("x-should-retry").map(HeaderValue::as_bytes) {
        Some(b"true") => true,
        Some(b"false") => false,
        _ => retryable(status),
    };
    let advice = Advice { retry: should_retry, after: retry_after(response.headers(), SystemTime::now()) };
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ERROR_BYTES {
            break;
        }
    }
    let message = match serde_json::from_slice::<Value>(&body) {
        Ok(error) => {
            let part = |name: &str| error["error"][name].as_str().unwrap_or_default().to_owned();
            presentable(&format!("{}: {}", part("type"), part("message")), key)
        }
        Err(_) => "no error body".to_owned(),
    };
    CallFailure { cause: Cause::Status(status), advice, message }
}

/// The vendor's words, bounded, and without the key should it be among them.
fn presentable(text: &str, key: &SecretString) -> String {
    let clean = text.replace(key.expose_secret(), "[redacted]").replace(|c: char| c.is_control(), " ");
    clean[..clean.floor_char_boundary(MAX_ERROR_TEXT)].to_owned()
}

/// `retry-after-ms`, else `retry-after` in seconds or as a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(ms) = text("retry-after-ms").and_then(|ms| ms.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(ms / 1000.0).ok();
    }
    let after = text("retry-after")?;
    if let Ok(seconds) = after.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = rfc2822::parse(after).ok()?;
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(date.timestamp().as_second()).ok()?);
    Some(then.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (reqwest::header::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn case_n03_retry_after_in_every_form() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let after = |pairs: &[(&'static str, &str)]| retry_after(&headers(pairs), now);
        assert_eq!(after(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(after(&[("retry-after", "7"), ("retry-after-ms", "250")]), Some(Duration::from_millis(250)));
        assert_eq!(after(&[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")]), Some(Duration::from_secs(7)));
        assert_eq!(after(&[("retry-after", "Sun, 06 Nov 1994 08:49:00 GMT")]), Some(Duration::ZERO));
        assert_eq!(after(&[("retry-after", "-3")]), None);
        assert_eq!(after(&[("retry-after", "soon")]), None);
        assert_eq!(after(&[]), None);
    }

    #[test]
    fn base_urls_keep_their_path_and_query() {
        let at = |base: &str| endpoint(&Url::parse(base).unwrap()).map(String::from);
        assert_eq!(at("https://api.anthropic.com").unwrap(), "https://api.anthropic.com/v1/messages");
        assert_eq!(
            at("http://127.0.0.1:9/some/path/?beta=true").unwrap(),
            "http://127.0.0.1:9/some/path/v1/messages?beta=true"
        );
        assert!(at("https://user:pass@host/").is_err());
        assert!(at("file:///etc/passwd").is_err());
    }

    #[test]
    fn case_a11_a_key_goes_to_its_hosts_only() {
        let api = |base: &str| ModelApi {
            client: reqwest::Client::builder().build().unwrap(),
            endpoint: endpoint(&Url::parse(base).unwrap()).unwrap(),
            response_bytes: 1,
        };
        let _ = rustls::crypto::ring::default_provider().install_default();
        let hosts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let vendor = api("https://api.anthropic.com");
        assert!(vendor.is_bound_host(&hosts(&["other", "API.anthropic.com"])));
        assert!(vendor.is_bound_host(&hosts(&["api.anthropic.com:443"])));
        assert!(!vendor.is_bound_host(&hosts(&[
            "anthropic.com",
            "api.anthropic.com.evil.test",
            "api.anthropic.com:80"
        ])));
        assert!(!vendor.is_bound_host(&[]));
        assert!(api("https://api.anthropic.com.").is_bound_host(&hosts(&["api.anthropic.com"])));
        let local = api("http://127.0.0.1:9001");
        assert!(local.is_bound_host(&hosts(&["127.0.0.1"])), "a bare host binds every port of it");
        assert!(local.is_bound_host(&hosts(&["127.0.0.1:9001"])));
        assert!(!local.is_bound_host(&hosts(&["127.0.0.1:9002"])));
        let other = api("http://[0::1]:9001");
        assert!(other.is_bound_host(&hosts(&["[::1]"])) && other.is_bound_host(&hosts(&["[::1]:9001"])));
        assert!(!other.is_bound_host(&hosts(&["[::1]:443"])));
    }

    #[test]
    fn case_a08_the_key_is_cut_out_of_the_vendors_words() {
        let key = SecretString::from("sk-canary");
        assert_eq!(presentable("bad key sk-canary\n!", &key), "bad key [redacted] !");
    }
}
