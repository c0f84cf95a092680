//! ListTransitions: the timeline of a run, readable after deletion.

use berth_rpc::lifecycle as proto;

use crate::{Lifecycle, authenticate::Admitted, error::Error, guard, page_token, to_proto};

const DEFAULT_PAGE: u32 = 200;
const MAX_PAGE: u32 = 500;

/// One page, oldest first.
///
/// # Errors
/// NOT_FOUND; INVALID_ARGUMENT (PAGE_TOKEN_INVALID, PAGE_SIZE_OUT_OF_RANGE).
pub(crate) async fn list_transitions(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::ListTransitionsRequest,
) -> Result<proto::ListTransitionsResponse, Error> {
    let run_id = guard::run_id(&request.run_id)?;
    app.find(call, &run_id).await?;
    let page_size = page_token::page_size(request.page_size, DEFAULT_PAGE, MAX_PAGE)?;
    let binding = ["ListTransitions", call.caller()?.tenant.as_str(), run_id.as_str()];
    let after = match page_token::decode(&request.page_token, &binding)? {
        Some(cursor) => cursor.parse().map_err(|_| page_token::invalid())?,
        None => 0,
    };
    let mut stored = app.store.transitions_after(&run_id, after, page_size + 1).await?;
    let more = stored.len() > page_size as usize;
    stored.truncate(page_size as usize);
    let next_page_token = match stored.last() {
        Some(last) if more => page_token::encode(&binding, &last.sequence.to_string()),
        Some(_) | None => String::new(),
    };
    Ok(proto::ListTransitionsResponse {
        transitions: stored.iter().map(to_proto::transition).collect(),
        next_page_token,
    })
}
