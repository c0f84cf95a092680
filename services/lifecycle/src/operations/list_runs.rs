//! ListRuns: a tenant's runs, newest first, in pages bounded by number and size.

use berth_domain::{id::RunId, run::State};
use berth_rpc::lifecycle as proto;
use prost::Message as _;

use crate::{
    Lifecycle, authenticate::Admitted, error::Error, page_token, policy::Resource, store::RunFilter, to_proto,
};

const DEFAULT_PAGE: u32 = 50;
const MAX_PAGE: u32 = 200;
/// A page ends early when its runs (prompts, diffs) exceed this.
const PAGE_BYTES: usize = 4 << 20;
/// Runs read at once, so that a page of large runs is not held in memory whole.
const CHUNK: u32 = 20;

/// One page.
///
/// # Errors
/// Denied; INVALID_ARGUMENT (PAGE_TOKEN_INVALID, PAGE_SIZE_OUT_OF_RANGE, STATE_INVALID).
pub(crate) async fn list_runs(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::ListRunsRequest,
) -> Result<proto::ListRunsResponse, Error> {
    let tenant = &call.caller()?.tenant;
    app.policy.authorize(call.subject(), call.action(), Resource::Tenant(tenant))?;
    let page_size = page_token::page_size(request.page_size, DEFAULT_PAGE, MAX_PAGE)?;
    let state = state(request.state)?;
    let binding = ["ListRuns", tenant.as_str(), state.map_or("", State::as_str)];
    let cursor = page_token::decode(&request.page_token, &binding)?;
    let mut before = cursor.map(|cursor| RunId::parse(&cursor)).transpose().map_err(|_| page_token::invalid())?;
    let filter = RunFilter { tenant: tenant.to_string(), state };

    let mut runs: Vec<proto::Run> = Vec::new();
    let mut bytes = 0;
    let more = loop {
        // One more than fits tells whether there is a next page.
        let wanted = (page_size + 1 - runs.len() as u32).min(CHUNK);
        let chunk = app.store.list_runs(&filter, before.as_ref(), wanted).await?;
        let exhausted = (chunk.len() as u32) < wanted;
        let mut full = false;
        for loaded in chunk {
            let run = to_proto::run(&loaded);
            let size = run.encoded_len();
            full = runs.len() as u32 == page_size || (!runs.is_empty() && bytes + size > PAGE_BYTES);
            if full {
                break;
            }
            bytes += size;
            before = Some(loaded.run_id().clone());
            runs.push(run);
        }
        if full || exhausted {
            break full;
        }
    };
    let next_page_token = match before {
        Some(last) if more => page_token::encode(&binding, last.as_str()),
        Some(_) | None => String::new(),
    };
    Ok(proto::ListRunsResponse { runs, next_page_token })
}

/// The state asked for. DELETED runs are never listed.
fn state(asked: i32) -> Result<Option<State>, Error> {
    let wrong = || Error::invalid("state", "STATE_INVALID", "there is no such state of a run");
    match proto::run::State::try_from(asked).map_err(|_| wrong())? {
        proto::run::State::Unspecified => Ok(None),
        state => State::parse(state.as_str_name()).map(Some).ok_or_else(wrong),
    }
}
