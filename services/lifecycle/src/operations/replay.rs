//! Replay: the log for the holder of a session's claim: how a native loop finds its conversation again.

use berth_rpc::lifecycle as proto;

use crate::{Lifecycle, authenticate::Admitted, error::Error, guard, log_page};

/// As Read, without a caller: the live fence is the permission.
///
/// # Errors
/// ABORTED (STALE_FENCE); NOT_FOUND; INVALID_ARGUMENT.
pub(crate) async fn replay(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::ReplayRequest,
) -> Result<proto::ReadResponse, Error> {
    call.service()?;
    let run_id = guard::run_id(&request.run_id)?;
    let (after, limit) = log_page::range(request.after_sequence, request.limit)?;
    let loaded = app.store.read(&run_id).await?.ok_or(Error::run_not_found())?;
    let session = &loaded.aggregate.session;
    let same = session.id.as_str() == request.session_id && u64::try_from(request.fence) == Ok(session.fence);
    if !same || session.claim.is_none() {
        return Err(Error::stale_fence());
    }
    let page = app.store.events_after(&run_id, after, limit).await?.ok_or(Error::run_not_found())?;
    Ok(log_page::response(page))
}
