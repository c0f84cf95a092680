//! SendMessage: steers a running agent or follows up. Lifecycle queues it; the loop picks it up between tool calls.

use berth_domain::id::MessageId;
use berth_rpc::lifecycle::{QueueMessageRequest, run};
use berth_rpc::sessions::{SendMessageRequest, SendMessageResponse};
use tonic::Request;
use uuid::Uuid;

use super::{caller, invalid};
use crate::error::{Error, MAX_TEXT_BYTES};
use crate::service::Sessions;
use crate::upstream::{CALL_TIMEOUT, within};

pub(crate) async fn send_message(
    sessions: &Sessions,
    request: Request<SendMessageRequest>,
) -> Result<SendMessageResponse, Error> {
    let caller = caller(request.metadata())?;
    let message = request.into_inner();
    check(&message)?;
    let mut queue = Request::new(QueueMessageRequest {
        run_id: message.run_id,
        message_id: message.message_id,
        text: message.text,
    });
    caller.apply(queue.metadata_mut(), "SendMessage");
    let answer =
        within(CALL_TIMEOUT, sessions.upstream.log.clone().queue_message(queue)).await.map_err(Error::Lifecycle)?;
    let run_state = answer.run.map_or(run::State::Unspecified, |run| run.state());
    Ok(SendMessageResponse { message_id: answer.message_id, run_state: run_state.into() })
}

fn check(message: &SendMessageRequest) -> Result<(), Error> {
    if message.run_id.is_empty() {
        return Err(invalid("run_id", "RUN_ID_MISSING", "run_id is required"));
    }
    if message.text.trim().is_empty() {
        return Err(invalid("text", "TEXT_EMPTY", "text must not be empty"));
    }
    if message.text.len() > MAX_TEXT_BYTES {
        return Err(invalid("text", "TEXT_TOO_LARGE", format!("text must be at most {MAX_TEXT_BYTES} bytes")));
    }
    let id = &message.message_id;
    if !id.is_empty() && MessageId::parse(id).is_err() && Uuid::try_parse(id).is_err() {
        return Err(invalid("message_id", "MESSAGE_ID_INVALID", "message_id must be a UUID, or empty"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(run_id: &str, text: String, message_id: &str) -> Option<&'static str> {
        let message = SendMessageRequest { run_id: run_id.into(), text, message_id: message_id.into() };
        match check(&message) {
            Ok(()) => None,
            Err(Error::Invalid { reason, .. }) => Some(reason),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn what_is_refused_before_lifecycle_is_asked() {
        let text = || "go on".to_owned();
        assert_eq!(refused("run-1", text(), ""), None);
        assert_eq!(refused("run-1", text(), "0193f2a0-0000-7000-8000-000000000001"), None);
        assert_eq!(refused("run-1", text(), "msg-0193f2a0000070008000000000000001"), None);
        assert_eq!(refused("run-1", "x".repeat(MAX_TEXT_BYTES), ""), None);
        assert_eq!(refused("", text(), ""), Some("RUN_ID_MISSING"));
        assert_eq!(refused("run-1", " \n".into(), ""), Some("TEXT_EMPTY"));
        assert_eq!(refused("run-1", "x".repeat(MAX_TEXT_BYTES + 1), ""), Some("TEXT_TOO_LARGE"));
        assert_eq!(refused("run-1", text(), "../../x"), Some("MESSAGE_ID_INVALID"));
    }
}
