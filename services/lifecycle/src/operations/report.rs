//! Report: what a worker learned by its action. Applies it through the machine, spends the fence, keeps the reply for a
//! resend and may hand over the row's next action, all in one transaction. A stale fence is recorded and changes nothing.

use berth_domain::{
    aggregate::Trigger,
    failure::{FailureClass, FailureReason},
    id::{LeaseId, WorkerId},
    lease, session,
    time::Time,
};
use berth_rpc::{
    duration_from_proto, duration_to_proto,
    lifecycle::{self as proto, report_request::Outcome},
};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::{
    Lifecycle,
    assignment::assign,
    authenticate::Admitted,
    error::Error,
    from_proto, guard,
    policy::Service,
    store::{Changes, Decision, Loaded, Progress, Spent, audit::AuditEntry},
};

/// Longest diff and text that are stored with the result.
const MAX_RESULT_BYTES: usize = 3 << 20;

/// A report whose form is right.
struct Report {
    request: proto::ReportRequest,
    outcome: Outcome,
    worker: WorkerId,
    fence: u64,
    hash: Vec<u8>,
    service: Service,
}

/// Applies the outcome.
///
/// # Errors
/// ABORTED (STALE_FENCE); INVALID_ARGUMENT (OUTCOME_MISMATCH and others); PERMISSION_DENIED (QUEUE_FORBIDDEN) for the other
/// service's rows; NOT_FOUND.
pub(crate) async fn report(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::ReportRequest,
) -> Result<proto::ReportResponse, Error> {
    let run_id = guard::run_id(&request.run_id)?;
    let report = parse(call.service()?, request)?;
    let outcome = app.store.transact(&run_id, |loaded| decide(app, loaded, &report)).await?;
    let mut response = outcome?;
    if let Some(next) = &mut response.next {
        app.fill_texts(next).await;
    }
    Ok(response)
}

fn parse(service: Service, request: proto::ReportRequest) -> Result<Report, Error> {
    let outcome = request
        .outcome
        .clone()
        .ok_or_else(|| Error::invalid("outcome", "OUTCOME_MISSING", "an outcome is required"))?;
    let worker = WorkerId::parse(&request.worker_id)
        .map_err(|_| Error::invalid("worker_id", "WORKER_ID_INVALID", "a worker id is [a-z0-9-]{1,64}"))?;
    if let Outcome::Collected(result) = &outcome
        && result.encoded_len() > MAX_RESULT_BYTES
    {
        return Err(Error::invalid("collected", "RESULT_TOO_LARGE", "a result is at most 3 MiB"));
    }
    let hash = Sha256::digest(request.encode_to_vec()).to_vec();
    let fence = u64::try_from(request.fence).map_err(|_| Error::stale_fence())?;
    Ok(Report { outcome, worker, fence, hash, service, request })
}

/// The inner error is committed with its audit line; the outer one changes nothing.
type Outcomes = Result<proto::ReportResponse, Error>;

fn decide(app: &Lifecycle, loaded: &Loaded, report: &Report) -> Result<Decision<Outcomes>, Error> {
    let row_id = report.request.row_id.as_str();
    guard::own_row(report.service, row_id)?;
    let spent = loaded.spent.iter().find(|spent| spent.row_id == row_id && spent.fence == report.fence);
    if let Some(spent) = spent
        && spent.request_hash == report.hash
    {
        return Ok(Decision::unchanged(Ok(stored_reply(loaded, spent)?)));
    }
    if !holds(loaded, report) {
        return Ok(stale(loaded, report));
    }
    let mut changes = Changes { actor: report.worker.to_string(), ..Changes::default() };
    let applied = match LeaseId::parse(row_id) {
        Ok(lease_id) => apply_to_lease(app, loaded, &mut changes, (&lease_id, report))?,
        Err(_) => apply_to_session(loaded, &mut changes, report)?,
    };
    if !applied {
        let message = "the outcome does not answer the claimed action";
        return Err(Error::invalid("outcome", "OUTCOME_MISMATCH", message));
    }
    let next = if report.request.take_next {
        assign(loaded, &mut changes, (row_id, &report.worker), app.store.deployment_hash())?
    } else {
        None
    };
    let response = proto::ReportResponse { next };
    changes.spent = Some(Spent {
        row_id: row_id.to_owned(),
        fence: report.fence,
        request_hash: report.hash.clone(),
        reply: response.encode_to_vec(),
    });
    Ok(Decision::changed(Ok(response), changes))
}

/// The worker's claim on the row under this fence is live.
fn holds(loaded: &Loaded, report: &Report) -> bool {
    let aggregate = &loaded.aggregate;
    match LeaseId::parse(&report.request.row_id) {
        Ok(lease_id) => aggregate.lease(&lease_id).is_some_and(|lease| {
            let claim = lease.claim.as_ref();
            lease.fence == report.fence && claim.is_some_and(|claim| claim.worker == report.worker)
        }),
        Err(_) => {
            let session = &aggregate.session;
            let claim = session.claim.as_ref();
            session.id.as_str() == report.request.row_id
                && session.fence == report.fence
                && claim.is_some_and(|claim| claim.worker == report.worker)
        }
    }
}

/// ABORTED, recorded: what came too late may explain a sandbox that the sweep finds.
fn stale(loaded: &Loaded, report: &Report) -> Decision<Outcomes> {
    let entry = AuditEntry {
        tenant: loaded.aggregate.run.tenant.to_string(),
        actor: report.worker.to_string(),
        action: "Report".to_owned(),
        resource: report.request.row_id.chars().take(128).collect(),
        decision: "IGNORED".to_owned(),
        policies: String::new(),
        detail: format!(
            "stale fence {} of {}: {}",
            report.fence,
            report.service.as_str(),
            outcome_detail(&report.outcome)
        ),
    };
    Decision::unchanged(Err(Error::stale_fence())).audited(entry)
}

fn outcome_detail(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Created(made) | Outcome::Adopted(made) => {
            let id = made.identity.as_ref().map(|identity| identity.sandbox_id.as_str()).unwrap_or_default();
            format!("a sandbox was made: {}", from_proto::cut(id, 256))
        }
        Outcome::Refused(_) => "Refused".to_owned(),
        Outcome::Unknown(_) => "Unknown".to_owned(),
        Outcome::CredentialsMissing(_) => "CredentialsMissing".to_owned(),
        Outcome::Bootstrapped(_) => "Bootstrapped".to_owned(),
        Outcome::BootstrapFailed(_) => "BootstrapFailed".to_owned(),
        Outcome::Gone(_) => "Gone".to_owned(),
        Outcome::Absent(_) => "Absent".to_owned(),
        Outcome::StillThere(_) => "StillThere".to_owned(),
        Outcome::ReleaseFailed(_) => "ReleaseFailed".to_owned(),
        Outcome::Launched(_) => "Launched".to_owned(),
        Outcome::LaunchFailed(_) => "LaunchFailed".to_owned(),
        Outcome::Ended(_) => "Ended".to_owned(),
        Outcome::Collected(_) => "Collected".to_owned(),
        Outcome::CollectFailed(_) => "CollectFailed".to_owned(),
        Outcome::Parked(_) => "Parked".to_owned(),
    }
}

/// The reply of the first time. A next action that has ended since is not handed out again, and its time has gone on.
fn stored_reply(loaded: &Loaded, spent: &Spent) -> Result<proto::ReportResponse, Error> {
    let mut reply = proto::ReportResponse::decode(spent.reply.as_slice())
        .map_err(|_| Error::Internal("a stored reply cannot be decoded".to_owned()))?;
    let held = |next: &proto::Work| deadline_of(loaded, &next.row_id, next.fence.unsigned_abs());
    reply.next = reply.next.take().and_then(|next| {
        let deadline = held(&next)?;
        let claimed_for = next.time_left.as_ref().map(duration_from_proto).unwrap_or_default();
        let time_left = Some(duration_to_proto(deadline.since(loaded.now).min(claimed_for)));
        Some(proto::Work { time_left, ..next })
    });
    Ok(reply)
}

fn deadline_of(loaded: &Loaded, row_id: &str, fence: u64) -> Option<Time> {
    match LeaseId::parse(row_id) {
        Ok(lease_id) => {
            let lease = loaded.aggregate.lease(&lease_id).filter(|lease| lease.fence == fence)?;
            lease.claim.as_ref().map(|claim| claim.deadline)
        }
        Err(_) => {
            let session = Some(&loaded.aggregate.session).filter(|session| session.fence == fence)?;
            session.claim.as_ref().map(|claim| claim.deadline)
        }
    }
}

fn apply_to_lease(
    app: &Lifecycle,
    loaded: &Loaded,
    changes: &mut Changes,
    (lease_id, report): (&LeaseId, &Report),
) -> Result<bool, Error> {
    let Some(lease) = loaded.aggregate.lease(lease_id) else { return Ok(false) };
    let mut outcome = from_proto::lease_outcome(&report.outcome, lease)?;
    if matches!(outcome, lease::Outcome::Absent { .. }) && app.is_host_bound(lease) && lease.bound_to().is_none() {
        // Nobody knows on which host it may have been made: that this one has none proves nothing.
        let text = "the host it was asked for on is not known".to_owned();
        outcome = lease::Outcome::TeardownFailed { class: FailureClass::ScopeChanged, text, retry_after: None };
    }
    if let Outcome::Unknown(proto::Unknown { create_horizon: Some(horizon), .. }) = &report.outcome {
        widen_horizon(loaded, changes, lease_id, horizon);
    }
    if let Outcome::Bootstrapped(done) = &report.outcome {
        let base_commit = from_proto::cut(&done.base_commit, 128);
        changes.progress = Some(Progress { base_commit, ..loaded.record.progress.clone() });
    }
    let trigger = lease::Trigger::Report { fence: report.fence, outcome };
    loaded.apply(changes, &Trigger::Lease(lease_id.clone(), trigger))
}

/// The adapter may know better than the settings how late a create may still land (R7); it only ever widens.
fn widen_horizon(loaded: &Loaded, changes: &mut Changes, lease_id: &LeaseId, horizon: &prost_types::Duration) {
    let horizon = duration_from_proto(horizon).min(std::time::Duration::from_secs(24 * 3600));
    let mut next = loaded.aggregate.clone();
    for lease in next.leases.iter_mut().filter(|lease| lease.id == *lease_id) {
        lease.create_horizon = lease.create_horizon.max(horizon);
    }
    changes.next = Some(Box::new(next));
}

fn apply_to_session(loaded: &Loaded, changes: &mut Changes, report: &Report) -> Result<bool, Error> {
    match &report.outcome {
        // The run fails for it: that ends the claim too, and there is nothing left to launch again.
        Outcome::Ended(proto::Ended { failure: Some(failure) }) => {
            let session = &loaded.aggregate.session;
            if session.claim.as_ref().map(|claim| claim.action) != Some(session::Action::Drive) {
                return Ok(false);
            }
            let (reason, text) = from_proto::run_failure(failure, FailureReason::HarnessFailed);
            let failed = session::Trigger::Failed { launch: session.launch, reason, text };
            return loaded.apply(changes, &Trigger::Session(failed));
        }
        Outcome::Collected(collected) => {
            let text = loaded.record.result.as_ref().map(|result| result.text.clone()).unwrap_or_default();
            changes.result = Some(proto::Result { text, ..collected.clone() });
        }
        Outcome::Created(_)
        | Outcome::Adopted(_)
        | Outcome::Refused(_)
        | Outcome::Unknown(_)
        | Outcome::CredentialsMissing(_)
        | Outcome::Bootstrapped(_)
        | Outcome::BootstrapFailed(_)
        | Outcome::Gone(_)
        | Outcome::Absent(_)
        | Outcome::StillThere(_)
        | Outcome::ReleaseFailed(_)
        | Outcome::Launched(_)
        | Outcome::LaunchFailed(_)
        | Outcome::Ended(_)
        | Outcome::CollectFailed(_)
        | Outcome::Parked(_) => {}
    }
    let outcome = from_proto::session_outcome(&report.outcome)?;
    let trigger = session::Trigger::Report { fence: report.fence, outcome };
    loaded.apply(changes, &Trigger::Session(trigger))
}
