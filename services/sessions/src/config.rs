//! Settings of the sessions service. Built by `berth` from its own settings, and by hand in tests; nothing here reads the environment.

use std::time::Duration;

use secrecy::SecretString;
use url::Url;

/// Everything the service can be told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Base of the Anthropic Messages API, without `/v1`; a path in it is kept.
    pub model_base_url: Url,
    /// The model of runs that name none.
    pub default_model: Option<String>,
    /// The deployment's own model key, used for tenants that stored none. Belongs to the host of `model_base_url`.
    pub model_api_key: Option<SecretString>,
    /// Proxy for calls to the model API; none: direct.
    pub model_proxy: Option<Url>,
    /// `max_tokens` of every model call.
    pub max_output_tokens: u32,
    /// How many replies cut by `max_tokens` in a row are asked to go on.
    pub max_continuations: usize,
    /// Limits of one model call.
    pub model_call: ModelCallLimits,
    /// When a failed model call is made again.
    pub retry: RetryLimits,
    /// Sessions worked on at once, at most 64; 0: only the RPCs are served.
    pub slots: usize,
    /// Where other services reach this worker; empty when nobody needs to.
    pub endpoint: String,
    /// Limits of event streams.
    pub streams: StreamLimits,
}

/// Limits of one model call.
#[derive(Clone, Debug)]
pub struct ModelCallLimits {
    /// Until the connection stands.
    pub connect: Duration,
    /// Without a single byte.
    pub idle: Duration,
    /// From start to last byte.
    pub total: Duration,
    /// Bytes of an answer as they come over the wire.
    pub response_bytes: usize,
}

/// When a failed model call is made again.
#[derive(Clone, Debug)]
pub struct RetryLimits {
    /// Retries of one call, at most.
    pub retries: u32,
    /// The first wait when the answer names none; doubled each time.
    pub first: Duration,
    /// Ceiling of our own waits.
    pub cap: Duration,
    /// Longest single wait an answer may ask for; a longer one ends the turn.
    pub longest_wait: Duration,
    /// Longest sum of all waits of one call.
    pub total_wait: Duration,
}

/// Limits of event streams.
#[derive(Clone, Debug)]
pub struct StreamLimits {
    /// A keep-alive item after this long without an event.
    pub keep_alive: Duration,
    /// How often the log is read even without a hint; also how soon a revoked caller is noticed.
    pub poll: Duration,
    /// Items waiting for one reader.
    pub buffer: usize,
    /// How long a reader may let a full buffer stand before it is cut off.
    pub stall: Duration,
}

impl Config {
    /// The defaults for a model API at this address.
    pub fn new(model_base_url: Url) -> Self {
        Self {
            model_base_url,
            default_model: None,
            model_api_key: None,
            model_proxy: None,
            max_output_tokens: 8192,
            max_continuations: 3,
            model_call: ModelCallLimits::default(),
            retry: RetryLimits::default(),
            slots: 32,
            endpoint: String::new(),
            streams: StreamLimits::default(),
        }
    }
}

impl Default for ModelCallLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            idle: Duration::from_secs(90),
            total: Duration::from_secs(600),
            response_bytes: 32 << 20,
        }
    }
}

impl Default for RetryLimits {
    fn default() -> Self {
        Self {
            retries: 20,
            first: Duration::from_millis(500),
            cap: Duration::from_secs(8),
            longest_wait: Duration::from_secs(60),
            total_wait: Duration::from_secs(300),
        }
    }
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(15),
            poll: Duration::from_secs(1),
            buffer: 256,
            stall: Duration::from_secs(10),
        }
    }
}
