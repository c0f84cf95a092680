//! A worker as the tests need one: claims, reports, and drives a run from one stage to the next.

use std::collections::HashMap;

use berth_rpc::lifecycle::{
    self as proto,
    event::Payload,
    report_request::Outcome,
    work::{Action, Detail},
};
use tonic::Status;

use crate::fixture::Deployment;

/// A worker of one service.
pub(crate) struct Worker<'d> {
    pub(crate) deployment: &'d Deployment,
    pub(crate) id: String,
    pub(crate) service: &'static str,
    pub(crate) localities: Vec<String>,
}

impl<'d> Worker<'d> {
    /// A worker of sandbox-broker on `host-a`.
    pub(crate) fn broker(deployment: &'d Deployment, id: &str) -> Self {
        Self { deployment, id: id.to_owned(), service: "sandbox-broker", localities: vec!["host-a".to_owned()] }
    }

    /// A worker of sessions.
    pub(crate) fn sessions(deployment: &'d Deployment, id: &str) -> Self {
        Self { deployment, id: id.to_owned(), service: "sessions", localities: Vec::new() }
    }

    /// The request for up to `slots` rows.
    pub(crate) fn request(&self, slots: i32, wait: std::time::Duration) -> proto::ClaimRequest {
        let queue = if self.service == "sessions" {
            proto::claim_request::Queue::Session
        } else {
            proto::claim_request::Queue::Lease
        };
        proto::ClaimRequest {
            queue: queue.into(),
            worker_id: self.id.clone(),
            endpoint: format!("http://{}.test", self.id),
            slots,
            provider_slots: HashMap::from([("local".to_owned(), slots)]),
            localities: self.localities.clone(),
            wait: Some(berth_rpc::duration_to_proto(wait)),
        }
    }

    /// One look at the queue.
    pub(crate) async fn look(&self, slots: i32) -> Vec<proto::Work> {
        let request = self.request(slots, std::time::Duration::ZERO);
        self.deployment.work(self.service).claim(request).await.expect("claim").into_inner().works
    }

    /// Waits for one piece of work.
    pub(crate) async fn claim(&self) -> proto::Work {
        let request = self.request(1, crate::fixture::EVENTUALLY);
        let mut works = self.deployment.work(self.service).claim(request).await.expect("claim").into_inner().works;
        assert_eq!(works.len(), 1, "work comes");
        works.remove(0)
    }

    /// Reports what came of the work and takes the row's next action.
    pub(crate) async fn report(&self, work: &proto::Work, outcome: Outcome) -> Result<Option<proto::Work>, Status> {
        let request = self.report_request(work, outcome);
        self.deployment.work(self.service).report(request).await.map(|response| response.into_inner().next)
    }

    /// What [`Worker::report`] sends.
    pub(crate) fn report_request(&self, work: &proto::Work, outcome: Outcome) -> proto::ReportRequest {
        proto::ReportRequest {
            row_id: work.row_id.clone(),
            run_id: work.run_id.clone(),
            fence: work.fence,
            worker_id: self.id.clone(),
            take_next: true,
            outcome: Some(outcome),
        }
    }

    /// Renews the worker; the answers by row.
    pub(crate) async fn extend(&self, held: &[&proto::Work]) -> Vec<proto::extend_response::Answer> {
        let held = held.iter().map(|work| proto::extend_request::Held {
            row_id: work.row_id.clone(),
            run_id: work.run_id.clone(),
            fence: work.fence,
        });
        let request = proto::ExtendRequest { worker_id: self.id.clone(), held: held.collect() };
        self.deployment.work(self.service).extend(request).await.expect("extend").into_inner().answers
    }

    /// Appends events numbered from `first` under a DRIVE claim.
    pub(crate) async fn append(
        &self,
        drive: &proto::Work,
        first: i64,
        payloads: Vec<Payload>,
    ) -> Result<proto::AppendResponse, Status> {
        let request = append_request(drive, first, payloads);
        self.deployment.session_log().append(request).await.map(tonic::Response::into_inner)
    }
}

/// What [`Worker::append`] sends.
pub(crate) fn append_request(drive: &proto::Work, first: i64, payloads: Vec<Payload>) -> proto::AppendRequest {
    let events = payloads.into_iter().zip(first..).map(|(payload, launch_sequence)| proto::Event {
        launch_sequence,
        payload: Some(payload),
        ..Default::default()
    });
    proto::AppendRequest {
        run_id: drive.run_id.clone(),
        session_id: drive.row_id.clone(),
        fence: drive.fence,
        launch: session_detail(drive).launch,
        events: events.collect(),
    }
}

/// The session's part of a piece of work.
pub(crate) fn session_detail(work: &proto::Work) -> &proto::SessionWork {
    match &work.detail {
        Some(Detail::Session(detail)) => detail,
        other => panic!("not a session's work: {other:?}"),
    }
}

/// The lease's part of a piece of work.
pub(crate) fn lease_detail(work: &proto::Work) -> &proto::LeaseWork {
    match &work.detail {
        Some(Detail::Lease(detail)) => detail,
        other => panic!("not a lease's work: {other:?}"),
    }
}

/// A sandbox made for this work.
pub(crate) fn created(work: &proto::Work) -> Outcome {
    let identity = proto::SandboxIdentity {
        sandbox_id: format!("sandbox-{}", lease_detail(work).key),
        sandbox_url: "local:///sandbox".to_owned(),
        account_scope: "host-a".to_owned(),
        provider: "local".to_owned(),
        provider_deadline: None,
    };
    Outcome::Created(proto::Created { identity: Some(identity) })
}

/// The folder is ready.
pub(crate) fn bootstrapped() -> Outcome {
    Outcome::Bootstrapped(proto::Bootstrapped {
        workdir: "/workspace/repo".to_owned(),
        base_commit: "c0ffee".to_owned(),
    })
}

/// Neither the id nor the key finds anything.
pub(crate) fn absent() -> Outcome {
    Outcome::Absent(proto::Absent { how: "looked by id and key".to_owned(), account_scope: "host-a".to_owned() })
}

/// A failure of a class.
pub(crate) fn failure(class: proto::provider_failure::Class, reason: &str) -> proto::ProviderFailure {
    proto::ProviderFailure { class: class.into(), reason: reason.to_owned(), message: "as the test wants".to_owned() }
}

/// A reply of the model.
pub(crate) fn assistant(text: &str, input_tokens: i64, output_tokens: i64) -> Payload {
    let usage = proto::Usage { input_tokens, output_tokens, ..Default::default() };
    Payload::AssistantMessage(proto::AssistantMessage {
        text: text.to_owned(),
        usage: Some(usage),
        ..Default::default()
    })
}

/// The message is handed to the model.
pub(crate) fn accepted(message_id: &str) -> Payload {
    Payload::MessageAccepted(proto::MessageAccepted { message_id: message_id.to_owned() })
}

/// The turn is over and answered these messages.
pub(crate) fn finished(text: &str, message_ids: &[&str]) -> Payload {
    Payload::TurnEnded(proto::TurnEnded {
        outcome: proto::turn_ended::Outcome::Finished.into(),
        text: text.to_owned(),
        error: None,
        message_ids: message_ids.iter().map(|id| (*id).to_owned()).collect(),
    })
}

/// Something of no consequence.
pub(crate) fn notice(text: &str) -> Payload {
    Payload::Notice(proto::Notice { code: "TEST".to_owned(), text: text.to_owned() })
}

/// Allocates and bootstraps the one run that wants it.
pub(crate) async fn provision(broker: &Worker<'_>) {
    let allocate = broker.claim().await;
    assert_eq!(allocate.action(), Action::Allocate);
    let bootstrap = broker.report(&allocate, created(&allocate)).await.expect("reported").expect("bootstrap follows");
    assert_eq!(bootstrap.action(), Action::Bootstrap);
    broker.report(&bootstrap, bootstrapped()).await.expect("reported");
}

/// Provisions the one run that wants it and launches its session; the DRIVE work.
pub(crate) async fn start_driving(broker: &Worker<'_>, sessions: &Worker<'_>) -> proto::Work {
    provision(broker).await;
    launch(sessions).await
}

/// Launches the one session that wants it; the DRIVE work.
pub(crate) async fn launch(sessions: &Worker<'_>) -> proto::Work {
    let launch = sessions.claim().await;
    launched(sessions, &launch).await
}

/// Ends the drive in good order with work left; the DRIVE work of the launch that follows.
pub(crate) async fn relaunch(sessions: &Worker<'_>, drive: &proto::Work) -> proto::Work {
    let ended = Outcome::Ended(proto::Ended { failure: None });
    let launch = sessions.report(drive, ended).await.expect("reported").expect("the next launch is handed over");
    launched(sessions, &launch).await
}

async fn launched(sessions: &Worker<'_>, launch: &proto::Work) -> proto::Work {
    assert_eq!(launch.action(), Action::Launch);
    let drive = sessions.report(launch, Outcome::Launched(proto::Launched {})).await.expect("reported");
    let drive = drive.expect("drive follows");
    assert_eq!(drive.action(), Action::Drive);
    drive
}

/// Ends the turn of a driven one-shot, collects and parks; the run is COMPLETED then.
pub(crate) async fn complete(sessions: &Worker<'_>, drive: &proto::Work) {
    let prompt = session_detail(drive).messages[0].message_id.clone();
    let turn = vec![accepted(&prompt), assistant("done", 10, 5), finished("done", &[&prompt])];
    sessions.append(drive, 1, turn).await.expect("appended");
    let collect = sessions.claim().await;
    assert_eq!(collect.action(), Action::Collect);
    let result = proto::Result {
        head_commit: "beef".to_owned(),
        base_commit: "c0ffee".to_owned(),
        diff: "--- a\n+++ b\n".to_owned(),
        ..Default::default()
    };
    let park = sessions.report(&collect, Outcome::Collected(result)).await.expect("reported").expect("park follows");
    assert_eq!(park.action(), Action::Park);
    sessions.report(&park, Outcome::Parked(proto::Parked {})).await.expect("reported");
}
