//! ListEvents: one page of the log.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as B64;
use berth_rpc::lifecycle::ReadRequest;
use berth_rpc::sessions::{ListEventsRequest, ListEventsResponse};
use tonic::Request;

use super::{caller, invalid, read_log};
use crate::error::Error;
use crate::service::Sessions;

const DEFAULT_PAGE: i32 = 200;
const LARGEST_PAGE: i32 = 1000;

pub(crate) async fn list_events(
    sessions: &Sessions,
    request: Request<ListEventsRequest>,
) -> Result<ListEventsResponse, Error> {
    let caller = caller(request.metadata())?;
    let list = request.into_inner();
    let (after_sequence, limit) = (cursor(&list)?, page_size(list.page_size)?);
    let read = ReadRequest { run_id: list.run_id.clone(), after_sequence, limit };
    let page = read_log(&sessions.upstream, &caller, "ListEvents", read).await?;
    let next_page_token = match page.events.last() {
        Some(last) if last.sequence < page.last_sequence => page_token(&list.run_id, last.sequence),
        Some(_) | None => String::new(),
    };
    Ok(ListEventsResponse { events: page.events, next_page_token, last_sequence: page.last_sequence })
}

fn page_size(asked: i32) -> Result<i32, Error> {
    match asked {
        0 => Ok(DEFAULT_PAGE),
        1.. => Ok(asked.min(LARGEST_PAGE)),
        _ => Err(invalid("page_size", "PAGE_SIZE_INVALID", "page_size must not be negative")),
    }
}

fn cursor(list: &ListEventsRequest) -> Result<i64, Error> {
    if list.run_id.is_empty() {
        return Err(invalid("run_id", "RUN_ID_MISSING", "run_id is required"));
    }
    if list.after_sequence < 0 {
        return Err(invalid("after_sequence", "CURSOR_INVALID", "after_sequence must not be negative"));
    }
    match (list.page_token.as_str(), list.after_sequence) {
        ("", after) => Ok(after),
        (token, 0) => read_token(&list.run_id, token)
            .ok_or_else(|| invalid("page_token", "PAGE_TOKEN_INVALID", "page_token is not one of this list's")),
        (_, _) => Err(invalid("page_token", "PAGE_TOKEN_INVALID", "give page_token or after_sequence, not both")),
    }
}

/// Bound to the run, so that a token of another list is refused.
fn page_token(run_id: &str, after_sequence: i64) -> String {
    B64.encode(format!("1:{run_id}:{after_sequence}"))
}

fn read_token(run_id: &str, token: &str) -> Option<i64> {
    let text = String::from_utf8(B64.decode(token).ok()?).ok()?;
    let after = text.strip_prefix("1:")?.strip_prefix(run_id)?.strip_prefix(':')?;
    after.parse().ok().filter(|after| *after >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_belong_to_their_run() {
        let token = page_token("run-1", 42);
        assert_eq!(read_token("run-1", &token), Some(42));
        assert_eq!(read_token("run-2", &token), None);
        assert_eq!(read_token("run-1", "nonsense!"), None);
        assert_eq!(read_token("run-1", &page_token("run-1", -1)), None);
    }

    #[test]
    fn page_sizes_are_bounded() {
        assert_eq!(page_size(0).unwrap(), DEFAULT_PAGE);
        assert_eq!(page_size(5000).unwrap(), LARGEST_PAGE);
        assert!(page_size(-1).is_err());
    }
}
