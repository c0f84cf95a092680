//! Counts and times every call, by route and code. A route is an RPC or a path template, never a raw path, so that the
//! number of series stays bounded.

use std::{sync::Arc, time::Instant};

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Histogram},
};

/// The route of requests that matched none.
pub(crate) const UNMATCHED: &str = "unmatched";
const BUCKETS_S: [f64; 14] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0];

/// The gateway's instruments.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: Counter<u64>,
    duration: Histogram<f64>,
}

impl Metrics {
    pub(crate) fn new() -> Arc<Self> {
        let meter = global::meter("berth.gateway");
        let requests = meter.u64_counter("berth.gateway.requests").with_description("requests answered").build();
        let duration = meter
            .f64_histogram("berth.gateway.request.duration")
            .with_unit("s")
            .with_description("time until the last byte of the answer")
            .with_boundaries(BUCKETS_S.to_vec())
            .build();
        Arc::new(Self { requests, duration })
    }

    /// Starts the clock of one call.
    pub(crate) fn begin(self: &Arc<Self>, protocol: &'static str, route: &str) -> Observation {
        Observation {
            metrics: self.clone(),
            protocol,
            route: route.to_owned(),
            begun: Instant::now(),
            // What is true of a call nobody waited for to the end.
            code: "CANCELLED",
        }
    }
}

/// One call being timed; recorded when dropped.
#[derive(Debug)]
pub(crate) struct Observation {
    metrics: Arc<Metrics>,
    protocol: &'static str,
    route: String,
    begun: Instant,
    code: &'static str,
}

impl Observation {
    /// The call's outcome; without it the client went away.
    pub(crate) fn ended(&mut self, code: tonic::Code) {
        self.code = berth_rpc::status::code_name(code);
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let labels = [
            KeyValue::new("protocol", self.protocol),
            KeyValue::new("route", std::mem::take(&mut self.route)),
            KeyValue::new("code", self.code),
        ];
        self.metrics.requests.add(1, &labels);
        self.metrics.duration.record(self.begun.elapsed().as_secs_f64(), &labels);
    }
}
