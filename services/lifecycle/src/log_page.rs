//! A piece of the log as Read and Replay answer it.

use berth_rpc::lifecycle as proto;

use crate::{
    error::Error,
    store::{PAGE_EVENTS, Page},
    to_proto,
};

const DEFAULT_LIMIT: u32 = 200;

/// A cursor and a limit as they were given.
///
/// # Errors
/// INVALID_ARGUMENT (CURSOR_INVALID, LIMIT_INVALID).
pub(crate) fn range(after: i64, limit: i32) -> Result<(u64, u32), Error> {
    let after = u64::try_from(after)
        .map_err(|_| Error::invalid("after_sequence", "CURSOR_INVALID", "a cursor is 0 or an event's number"))?;
    match u32::try_from(limit) {
        Ok(0) => Ok((after, DEFAULT_LIMIT)),
        Ok(limit) if limit <= PAGE_EVENTS => Ok((after, limit)),
        Ok(_) | Err(_) => Err(Error::invalid("limit", "LIMIT_INVALID", "a limit is 0 to 1000")),
    }
}

/// A page as the contract has it.
pub(crate) fn response(page: Page) -> proto::ReadResponse {
    proto::ReadResponse {
        events: page.events,
        last_sequence: i64::try_from(page.last_sequence).unwrap_or(i64::MAX),
        run_state: to_proto::state(page.state).into(),
    }
}
