//! QueueMessage: a steer or a follow-up enters the session's queue and the log, in one transaction.

use berth_domain::{
    aggregate::Trigger,
    id::MessageId,
    session::{self, MessageKind, NewMessage},
};
use berth_rpc::lifecycle as proto;
use uuid::Uuid;

use crate::{
    Lifecycle,
    authenticate::Admitted,
    error::Error,
    guard,
    store::{Changes, Decision, NewEvent},
    to_proto,
};

const MAX_TEXT_BYTES: usize = 1 << 20;
/// Messages of one session that may wait.
const MAX_WAITING: usize = 100;
/// Their texts together.
const MAX_WAITING_BYTES: u64 = 8 << 20;

/// Queued once per message id.
///
/// # Errors
/// FAILED_PRECONDITION (SANDBOX_RELEASED, RUN_SETTLED); RESOURCE_EXHAUSTED (QUEUE_FULL); NOT_FOUND; denied;
/// ALREADY_EXISTS (MESSAGE_ID_REUSED) for a known id with another text; INVALID_ARGUMENT (MESSAGE_TEXT_INVALID,
/// MESSAGE_ID_INVALID).
pub(crate) async fn queue_message(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::QueueMessageRequest,
) -> Result<proto::QueueMessageResponse, Error> {
    let run_id = guard::run_id(&request.run_id)?;
    let text = text(&request.text)?;
    let id = message_id(&request.message_id)?;
    let (known, loaded) = app
        .store
        .transact_run(&run_id, |loaded| {
            app.allow(call, loaded)?;
            guard::not_deleted(loaded)?;
            let session = &loaded.aggregate.session;
            let known = session.messages.iter().any(|message| message.id == id);
            let waiting = session.messages.iter().filter(|message| message.is_open()).count();
            let bytes = loaded.open_bytes + text.len() as u64;
            if !known && (waiting >= MAX_WAITING || bytes > MAX_WAITING_BYTES) {
                let message = "at most 100 messages and 8 MiB of text may wait".to_owned();
                return Err(Error::Exhausted { reason: "QUEUE_FULL", message });
            }
            let kind = if session.unfinished() { MessageKind::Steer } else { MessageKind::Prompt };
            let message = NewMessage { id: id.clone(), kind, text: text.to_owned(), uuid: Uuid::now_v7() };
            let mut changes = Changes { actor: call.actor(), ..Changes::default() };
            let send = session::Trigger::Send { message, new_sandbox: false };
            if loaded.apply(&mut changes, &Trigger::Session(send))? {
                changes.events.push(user_message(&id, text, &call.actor(), loaded.now));
            }
            Ok(Decision::changed(known, changes))
        })
        .await?;
    let message_id = id.to_string();
    // Nothing was changed for a known id, and a text never changes.
    if known && app.store.message_text(&run_id, &message_id).await?.is_some_and(|stored| stored != text) {
        let message = "this message id was used for another text".to_owned();
        return Err(Error::Exists { reason: "MESSAGE_ID_REUSED", message });
    }
    Ok(proto::QueueMessageResponse { message_id, run: Some(to_proto::run(&loaded)) })
}

fn user_message(id: &MessageId, text: &str, principal: &str, at: berth_domain::time::Time) -> NewEvent {
    let message =
        proto::UserMessage { message_id: id.to_string(), text: text.to_owned(), principal: principal.to_owned() };
    NewEvent { launch: 0, launch_sequence: 0, at, payload: proto::event::Payload::UserMessage(message) }
}

fn text(text: &str) -> Result<&str, Error> {
    if text.trim().is_empty() || text.len() > MAX_TEXT_BYTES || text.contains('\0') {
        let message = "a message is 1 byte to 1 MiB of text";
        return Err(Error::invalid("text", "MESSAGE_TEXT_INVALID", message));
    }
    Ok(text)
}

/// A UUID in any of its forms, or one of our own ids; empty: a new one.
fn message_id(text: &str) -> Result<MessageId, Error> {
    if text.is_empty() {
        return Ok(MessageId::new(Uuid::now_v7()));
    }
    let bare = text.strip_prefix("msg-").unwrap_or(text);
    Uuid::parse_str(bare)
        .map(MessageId::new)
        .map_err(|_| Error::invalid("message_id", "MESSAGE_ID_INVALID", "a message id is a UUID"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_id_is_the_same_in_every_form() {
        let uuid = Uuid::now_v7();
        let canonical = MessageId::new(uuid);
        for form in
            [uuid.to_string(), uuid.simple().to_string(), canonical.to_string(), uuid.to_string().to_uppercase()]
        {
            assert_eq!(message_id(&form).unwrap(), canonical, "{form}");
        }
        assert!(message_id("msg-1; drop table").is_err());
    }
}
