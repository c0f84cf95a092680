//! Extend: keeps a worker alive and tells it, fence by fence, what it still holds.

use std::{collections::HashMap, time::Duration};

use berth_domain::{
    aggregate::Trigger,
    id::{LeaseId, RunId},
    lease::{self, Desired},
    session,
    time::Time,
};
use berth_rpc::{duration_to_proto, lifecycle as proto};
use proto::extend_response::{Answer, answer::Status};

use crate::{
    Lifecycle,
    authenticate::Admitted,
    error::Error,
    guard,
    store::{Changes, Decision, HeldRow},
};

const MAX_HELD: usize = 256;
/// A row claimed this long ago that its living worker does not name was lost with the reply of the claim.
const UNNAMED_FOR: Duration = Duration::from_secs(10);

/// HELD, DESIRE_CHANGED or GONE per fence. A claim of this worker that it has not named for ten seconds is ended: the
/// answer that carried it never arrived. Rows of the other service are GONE.
///
/// # Errors
/// INVALID_ARGUMENT.
pub(crate) async fn extend(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::ExtendRequest,
) -> Result<proto::ExtendResponse, Error> {
    let service = call.service()?;
    if request.held.len() > MAX_HELD {
        return Err(Error::invalid("held", "HELD_TOO_MANY", "at most 256 fences at once"));
    }
    let alive = app.config.limits.alive;
    let (rows, now) = app.store.extend_worker((&request.worker_id, service.as_str()), alive).await?;
    let own = rows.into_iter().filter(|row| guard::own_row(service, row_id(row)).is_ok());
    let rows: HashMap<String, HeldRow> = own.map(|row| (row_id(&row).to_owned(), row)).collect();
    let answers = request.held.iter().map(|held| answer(held, rows.get(&held.row_id), now)).collect();
    for row in rows.values() {
        if !request.held.iter().any(|held| held.row_id == row_id(row)) && now.since(claimed_at(row)) >= UNNAMED_FOR {
            // The answers must arrive whatever becomes of this.
            if let Err(error) = end_unnamed(app, row).await {
                tracing::warn!(row_id = row_id(row), error = &error as &dyn std::error::Error, "claim not ended");
            }
        }
    }
    Ok(proto::ExtendResponse { answers, alive_for: Some(duration_to_proto(alive)) })
}

fn answer(held: &proto::extend_request::Held, row: Option<&HeldRow>, now: Time) -> Answer {
    let fence = held.fence.unsigned_abs();
    let (status, waiting) = match row {
        Some(HeldRow::Lease(lease)) if lease.fence == fence => match &lease.claim {
            Some(claim) if claim.deadline <= now => (Status::Gone, &[][..]),
            // A RELEASE is what is wanted then; the others are wanted no more.
            Some(claim) if lease.desired == Desired::Released && claim.action != lease::Action::Release => {
                (Status::DesireChanged, &[][..])
            }
            Some(_) => (Status::Held, &[][..]),
            None => (Status::Gone, &[][..]),
        },
        Some(HeldRow::Session(session, waiting)) if session.fence == fence => match &session.claim {
            Some(claim) if claim.deadline <= now => (Status::Gone, &[][..]),
            Some(claim) if claim.action == session::Action::Drive => (Status::Held, waiting.as_slice()),
            Some(_) => (Status::Held, &[][..]),
            None => (Status::Gone, &[][..]),
        },
        Some(HeldRow::Lease(_) | HeldRow::Session(..)) | None => (Status::Gone, &[][..]),
    };
    let queued = |id: &String| proto::QueuedMessage {
        message_id: id.clone(),
        state: proto::queued_message::State::Queued.into(),
        text: String::new(),
    };
    Answer {
        row_id: held.row_id.clone(),
        fence: held.fence,
        status: status.into(),
        messages: waiting.iter().map(queued).collect(),
    }
}

async fn end_unnamed(app: &Lifecycle, row: &HeldRow) -> Result<(), Error> {
    tracing::warn!(row_id = row_id(row), "a claim its worker does not know of is ended");
    let trigger = |now: Time| match row {
        HeldRow::Lease(lease) => {
            let expired = lease::Trigger::ClaimExpired { fence: lease.fence, claim_end: now };
            Trigger::Lease(LeaseId::clone(&lease.id), expired)
        }
        HeldRow::Session(session, _) => {
            Trigger::Session(session::Trigger::ClaimExpired { fence: session.fence, claim_end: now })
        }
    };
    app.store
        .expire(run_of(row), |loaded, _| {
            let mut changes = Changes::default();
            match loaded.apply(&mut changes, &trigger(loaded.now)) {
                // Somebody else ended it meanwhile.
                Ok(_) | Err(Error::Stale { .. }) => Ok(Decision::changed((), changes)),
                Err(error) => Err(error),
            }
        })
        .await?;
    Ok(())
}

fn row_id(row: &HeldRow) -> &str {
    match row {
        HeldRow::Lease(lease) => lease.id.as_str(),
        HeldRow::Session(session, _) => session.id.as_str(),
    }
}

fn run_of(row: &HeldRow) -> &RunId {
    match row {
        HeldRow::Lease(lease) => &lease.run,
        HeldRow::Session(session, _) => &session.run,
    }
}

fn claimed_at(row: &HeldRow) -> Time {
    let at = match row {
        HeldRow::Lease(lease) => lease.claim.as_ref().map(|claim| claim.claimed_at),
        HeldRow::Session(session, _) => session.claim.as_ref().map(|claim| claim.claimed_at),
    };
    // Without a claim there is nothing to end.
    at.unwrap_or(Time(i64::MAX))
}
