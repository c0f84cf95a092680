//! The message queue of a session: QUEUED → DELIVERED → ACCEPTED → DONE, or FAILED(reason); and what a dead launch does to it.
//!
//! A message that a dead launch had accepted is sent again first, under its own uuid. If a turn follows, it had not arrived. If the harness
//! only says "completed", it had (`held`), and a "continue" with a new uuid carries the turn on; the held message is DONE when that turn ends.

use super::{Harness, Message, MessageKind, MessageState, NewMessage, Session, State};
use crate::failure::FailureReason;
use crate::id::MessageId;
use uuid::Uuid;

/// The message to deliver next: one that is sent again, then a "continue", then the oldest.
pub fn next_message(session: &Session) -> Option<&Message> {
    let queued = session.messages.iter().filter(|message| message.state == MessageState::Queued);
    queued.min_by_key(|message| (!message.resent, message.kind != MessageKind::Continue, message.ordinal))
}

/// The message that goes with launch `session.launch`, to be written together with its configuration.
pub fn launch_message(session: &Session) -> Option<&Message> {
    session.messages.iter().find(|message| session.state == State::Starting && message.state == MessageState::Delivered)
}

impl Session {
    /// The first message goes with the launch itself. Marked when the launch is claimed, not when it is reported: by then the runner may have
    /// finished it, and the next one in the queue would be taken for written. The native loop takes its messages from the queue by itself.
    pub(super) fn deliver_first(&mut self) {
        let first = next_message(self).filter(|_| self.harness != Harness::Native).map(|message| message.uuid);
        if let Some(message) = first.and_then(|uuid| self.message_mut(uuid)) {
            message.state = MessageState::Delivered;
        }
    }

    /// Appends a message; the caller has checked that its id is new.
    pub(super) fn enqueue(&mut self, new: NewMessage) {
        let ordinal = self.messages.last().map_or(1, |last| last.ordinal + 1);
        self.messages.push(Message {
            id: new.id,
            ordinal,
            kind: new.kind,
            text: new.text,
            state: MessageState::Queued,
            uuid: new.uuid,
            resent: false,
            held: false,
        });
    }

    /// Queues "continue" under a fresh uuid, unless one is waiting already.
    pub(crate) fn queue_continue(&mut self, uuid: Uuid) {
        let waiting = self
            .messages
            .iter()
            .any(|message| message.kind == MessageKind::Continue && message.is_open() && !message.held);
        if !waiting {
            self.enqueue(NewMessage {
                id: MessageId::new(uuid),
                kind: MessageKind::Continue,
                text: "continue".to_owned(),
                uuid,
            });
        }
    }

    pub(super) fn message_mut(&mut self, uuid: Uuid) -> Option<&mut Message> {
        self.messages.iter_mut().find(|message| message.uuid == uuid)
    }

    /// The launch is over: what it had not finished is to be done again. DELIVERED → QUEUED; ACCEPTED → QUEUED, first; held ones wait for a "continue".
    pub(super) fn requeue(&mut self) {
        self.turn = false;
        for message in &mut self.messages {
            match message.state {
                MessageState::Delivered => message.state = MessageState::Queued,
                MessageState::Accepted if !message.held => {
                    message.state = MessageState::Queued;
                    message.resent = true;
                }
                MessageState::Queued | MessageState::Accepted | MessageState::Done | MessageState::Failed(_) => {}
            }
        }
    }

    /// A turn ended: the named messages are DONE (all accepted ones when none is named), and every held one with them.
    pub(super) fn finish_turn(&mut self, done: &[Uuid]) {
        for message in &mut self.messages {
            let named = done.is_empty() && message.state == MessageState::Accepted || done.contains(&message.uuid);
            if message.is_open() && (named || message.held) {
                message.state = MessageState::Done;
                message.held = false;
                message.resent = false;
            }
        }
        self.turn = self.accepted();
    }

    /// Some message is with the harness and not done.
    pub(super) fn accepted(&self) -> bool {
        self.messages.iter().any(|message| message.state == MessageState::Accepted && !message.held)
    }

    /// Nothing will be done any more: every open message is FAILED, the result is not due, no turn is in flight.
    pub(super) fn fail_messages(&mut self, reason: FailureReason) {
        for message in &mut self.messages {
            if message.is_open() {
                message.state = MessageState::Failed(reason);
            }
        }
        self.turn = false;
        self.result_due = false;
    }
}
