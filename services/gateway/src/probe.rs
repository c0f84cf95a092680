//! Which upstreams answer, asked every few seconds; what grpc.health.v1 and /readyz say follows from it.

use std::time::Duration;

use berth_serve::peer::ServiceChannel;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic_health::{
    ServingStatus,
    pb::{HealthCheckRequest, health_check_response, health_client::HealthClient},
    server::HealthReporter,
};

use crate::{
    rpcs::{PUBLIC, Upstream, Upstreams},
    signer::Signer,
};

const TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between probes while something is missing.
const IMPATIENT: Duration = Duration::from_millis(200);

/// What is known about the upstreams. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Readiness {
    reachable: watch::Receiver<[bool; 3]>,
    signer: Signer,
}

impl Readiness {
    /// Whether calls can be served at all: lifecycle answers and knows our key.
    pub(crate) fn is_ready(&self) -> bool {
        self.answers(Upstream::Lifecycle) && self.signer.is_registered()
    }

    fn answers(&self, upstream: Upstream) -> bool {
        self.reachable.borrow()[upstream as usize]
    }

    /// The page /readyz shows.
    pub(crate) fn page(&self) -> Value {
        let mut missing = Vec::new();
        if !self.answers(Upstream::Lifecycle) {
            missing.push("lifecycle does not answer");
        }
        if !self.signer.is_registered() {
            missing.push("the assertion key is not registered with lifecycle");
        }
        let upstreams: serde_json::Map<_, _> =
            Upstream::ALL.iter().map(|u| (u.name().to_owned(), self.answers(*u).into())).collect();
        json!({"ready": self.is_ready(), "missing": missing, "upstreams": upstreams})
    }
}

/// The task that finds out; run it with [`Probe::run`].
pub(crate) struct Probe {
    upstreams: Upstreams,
    readiness: Readiness,
    reachable: watch::Sender<[bool; 3]>,
    reporter: HealthReporter,
    interval: Duration,
}

impl Probe {
    pub(crate) fn new(upstreams: Upstreams, signer: Signer, reporter: HealthReporter, interval: Duration) -> Self {
        let (sender, reachable) = watch::channel([false; 3]);
        Self { upstreams, readiness: Readiness { reachable, signer }, reachable: sender, reporter, interval }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    pub(crate) async fn run(self, shutdown: CancellationToken) {
        self.report().await;
        loop {
            let asked = Upstream::ALL.map(|upstream| answers(self.upstreams.channel(upstream).clone()));
            let [lifecycle, sessions, broker] = asked;
            let reachable = tokio::select! {
                () = shutdown.cancelled() => break,
                answers = async { tokio::join!(lifecycle, sessions, broker) } => answers.into(),
            };
            if self.reachable.send_replace(reachable) != reachable {
                let [lifecycle, sessions, broker] = reachable;
                tracing::info!(lifecycle, sessions, broker, "reachability of upstreams changed");
            }
            self.report().await;
            let complete = reachable == [true; 3] && self.readiness.is_ready();
            let pause = if complete { self.interval } else { self.interval.min(IMPATIENT) };
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        // Watchers learn that this gateway is going.
        self.reporter.set_service_status("", ServingStatus::NotServing).await;
        for (service, _) in PUBLIC {
            self.reporter.set_service_status(service, ServingStatus::NotServing).await;
        }
    }

    async fn report(&self) {
        let ready = self.readiness.is_ready();
        for (service, upstream) in PUBLIC {
            self.reporter.set_service_status(service, serving(ready && self.readiness.answers(upstream))).await;
        }
        let all = ready && Upstream::ALL.into_iter().all(|upstream| self.readiness.answers(upstream));
        self.reporter.set_service_status("", serving(all)).await;
    }
}

fn serving(serving: bool) -> ServingStatus {
    if serving { ServingStatus::Serving } else { ServingStatus::NotServing }
}

/// Any answer of the service itself counts, also that it has no health service.
async fn answers(channel: ServiceChannel) -> bool {
    let mut client = HealthClient::new(channel);
    let check = client.check(HealthCheckRequest { service: String::new() });
    match tokio::time::timeout(TIMEOUT, check).await {
        Ok(Ok(answer)) => answer.into_inner().status() != health_check_response::ServingStatus::NotServing,
        Ok(Err(status)) => {
            !matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown)
        }
        Err(_) => false,
    }
}
