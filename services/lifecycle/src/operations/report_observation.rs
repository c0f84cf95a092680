//! ReportObservation: what a broker saw of a sandbox outside any claim.

use berth_domain::{
    aggregate::Trigger,
    id::LeaseId,
    lease::{self, Observed},
};
use berth_rpc::lifecycle as proto;
use proto::report_observation_request::Observed as Seen;

use crate::{
    Lifecycle,
    authenticate::Admitted,
    error::Error,
    from_proto, guard,
    store::{Changes, Decision, Loaded},
};

/// ABSENT is applied as Gone, UNKNOWN as Missing, the rest as an observation. What is about another sandbox than the
/// recorded one changes nothing.
///
/// # Errors
/// NOT_FOUND, INVALID_ARGUMENT.
pub(crate) async fn report_observation(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::ReportObservationRequest,
) -> Result<proto::ReportObservationResponse, Error> {
    let actor = call.service()?.as_str();
    let run_id = guard::run_id(&request.run_id)?;
    let lease_id = LeaseId::parse(&request.lease_id)
        .map_err(|_| Error::NotFound { reason: "LEASE_NOT_FOUND", message: "no such lease" })?;
    if request.observed() == Seen::Unspecified {
        return Err(Error::invalid("observed", "OBSERVED_INVALID", "an observation is required"));
    }
    app.store
        .transact(&run_id, |loaded| {
            let mut changes = Changes { actor: actor.to_owned(), ..Changes::default() };
            if let Some(trigger) = trigger(loaded, &lease_id, &request)? {
                loaded.apply(&mut changes, &Trigger::Lease(lease_id.clone(), trigger))?;
            }
            Ok(Decision::changed(proto::ReportObservationResponse {}, changes))
        })
        .await
}

fn trigger(
    loaded: &Loaded,
    lease_id: &LeaseId,
    request: &proto::ReportObservationRequest,
) -> Result<Option<lease::Trigger>, Error> {
    let lease = loaded
        .aggregate
        .lease(lease_id)
        .ok_or(Error::NotFound { reason: "LEASE_NOT_FOUND", message: "no such lease" })?;
    let Some(identity) = lease.identity.as_ref().filter(|identity| identity.sandbox_id == request.sandbox_id) else {
        return Ok(None);
    };
    let how = from_proto::cut(&request.how, 4096);
    let seen = |observed| lease::Trigger::Beat { observed, at: loaded.now, touch: false };
    Ok(match request.observed() {
        Seen::Unspecified => None,
        Seen::Running => Some(seen(Observed::Running)),
        Seen::Paused => Some(seen(Observed::Paused)),
        Seen::Stopped => Some(seen(Observed::Stopped)),
        Seen::Unknown => Some(lease::Trigger::Missing { how }),
        Seen::Absent => Some(lease::Trigger::Gone { scope: identity.scope.clone(), how }),
    })
}
