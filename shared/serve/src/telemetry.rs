//! Logs, traces and metrics of a process. Logs go to stderr; traces go to an OTLP collector when one is configured; metrics
//! are always there for `/metrics` and go to the collector too.

use opentelemetry::{KeyValue, global, trace::TracerProvider as _};
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::{
    Resource, metrics::SdkMeterProvider, propagation::TraceContextPropagator, trace::SdkTracerProvider,
};
use prometheus::{Encoder as _, Registry, TextEncoder};
use tracing_subscriber::{EnvFilter, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// How a process reports on itself.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// `service.name`.
    pub service: String,
    /// OTLP/gRPC endpoint; none: nothing is exported.
    pub otlp_endpoint: Option<String>,
    /// tracing-subscriber filter; empty: `info`.
    pub filter: String,
    /// One JSON object per line instead of text.
    pub json: bool,
}

/// Telemetry that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter does not parse.
    #[error("log filter is not valid")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// The exporter could not be built.
    #[error("otlp exporter could not be built")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
    /// The metrics bridge could not be registered.
    #[error("metrics exporter could not be built")]
    Metrics(String),
    /// A subscriber was already installed.
    #[error("telemetry is already set up in this process")]
    Installed(#[from] tracing_subscriber::util::TryInitError),
}

/// Keeps exporters alive; flush with [`Telemetry::shutdown`].
#[derive(Debug)]
pub struct Telemetry {
    tracer: Option<SdkTracerProvider>,
    meter: SdkMeterProvider,
    registry: Registry,
}

/// Sets up the process. Call once, inside a tokio runtime.
///
/// # Errors
/// See [`Error`].
pub fn init(config: &Config) -> Result<Telemetry, Error> {
    global::set_text_map_propagator(TraceContextPropagator::new());
    let resource = Resource::builder().with_attribute(KeyValue::new("service.name", config.service.clone())).build();

    let registry = Registry::new();
    let prometheus = opentelemetry_prometheus::exporter()
        .with_registry(registry.clone())
        .build()
        .map_err(|error| Error::Metrics(error.to_string()))?;
    let mut meter = SdkMeterProvider::builder().with_resource(resource.clone()).with_reader(prometheus);

    // Spans exist without a collector too, so that runs carry a trace id; they are then dropped on the spot.
    let mut tracer = SdkTracerProvider::builder().with_resource(resource);
    if let Some(endpoint) = &config.otlp_endpoint {
        let spans = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
        tracer = tracer.with_batch_exporter(spans);
        let metrics = opentelemetry_otlp::MetricExporter::builder().with_tonic().with_endpoint(endpoint).build()?;
        meter = meter.with_periodic_exporter(metrics);
    }
    let (tracer, meter) = (tracer.build(), meter.build());
    global::set_meter_provider(meter.clone());

    let filter = EnvFilter::try_new(if config.filter.is_empty() { "info" } else { &config.filter })?;
    let otel = tracing_opentelemetry::layer().with_tracer(tracer.tracer("berth"));
    let layers = tracing_subscriber::registry().with(filter).with(otel);
    let output = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    if config.json {
        layers.with(output.json()).try_init()?;
    } else {
        layers.with(output).try_init()?;
    }
    Ok(Telemetry { tracer: Some(tracer), meter, registry })
}

impl Telemetry {
    /// Metrics in the Prometheus text format.
    pub fn metrics(&self) -> MetricsText {
        MetricsText { registry: self.registry.clone() }
    }

    /// Flushes what is queued.
    pub fn shutdown(&mut self) {
        if let Some(tracer) = self.tracer.take()
            && let Err(error) = tracer.shutdown()
        {
            tracing::debug!(%error, "traces were not flushed");
        }
        let _ = self.meter.shutdown();
    }
}

/// Renders `/metrics`.
#[derive(Clone, Debug)]
pub struct MetricsText {
    registry: Registry,
}

impl MetricsText {
    /// An empty page, for tests without telemetry.
    pub fn empty() -> Self {
        Self { registry: Registry::new() }
    }

    /// The page.
    pub fn render(&self) -> String {
        let mut page = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut page) {
            tracing::warn!(%error, "metrics could not be rendered");
        }
        String::from_utf8(page).unwrap_or_default()
    }
}
