//! Read: the log of a run after a cursor, for a caller who may see it.

use berth_rpc::lifecycle as proto;

use crate::{Lifecycle, authenticate::Admitted, error::Error, guard, log_page};

/// At most `limit` events with a number above the cursor, and at most 4 MiB of them.
///
/// # Errors
/// NOT_FOUND for unknown, foreign and DELETED runs; INVALID_ARGUMENT (CURSOR_INVALID, LIMIT_INVALID).
pub(crate) async fn read_log(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::ReadRequest,
) -> Result<proto::ReadResponse, Error> {
    let run_id = guard::run_id(&request.run_id)?;
    let loaded = app.find(call, &run_id).await?;
    guard::not_deleted(&loaded)?;
    let (after, limit) = log_page::range(request.after_sequence, request.limit)?;
    let page = app.store.events_after(&run_id, after, limit).await?.ok_or(Error::run_not_found())?;
    Ok(log_page::response(page))
}
