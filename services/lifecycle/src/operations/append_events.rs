//! Append: a launch adds to its run's log. De-duplicated by the launch's own numbers, judged in the transaction that writes:
//! claim, launch and state of the session; messages and turns move with the event that says so.

use std::time::Duration;

use berth_domain::{
    aggregate::Trigger,
    failure::FailureReason,
    id::{MessageId, SessionId},
    run::Activity,
    session::{self, MessageState, State},
    time::Time,
};
use berth_rpc::{
    lifecycle::{self as proto, event::Payload, turn_ended},
    time_from_proto,
};
use prost::Message as _;
use uuid::Uuid;

use crate::{
    Lifecycle,
    authenticate::Admitted,
    error::Error,
    from_proto, guard,
    store::{Append, Appended, Changes, Decision, Loaded, LogHead, NewEvent, Progress},
};

const MAX_EVENTS: usize = 256;
const MAX_BYTES: usize = 4 << 20;
/// A sign of life is not written more often than this: it would rewrite run, lease and session with every delta.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_secs(5);
/// An event's own time is believed this far from ours.
const CLOCK_SKEW: Duration = Duration::from_secs(24 * 3600);

/// Appends what is new of the batch.
///
/// # Errors
/// ABORTED (STALE_FENCE, STALE_LAUNCH); FAILED_PRECONDITION (SEQUENCE_GAP, metadata `expected`); INVALID_ARGUMENT.
pub(crate) async fn append_events(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::AppendRequest,
) -> Result<proto::AppendResponse, Error> {
    call.service()?;
    let append = parse(request)?;
    let appended = app.store.append(append, judge).await?;
    Ok(proto::AppendResponse {
        last_sequence: i64::try_from(appended.last_sequence).unwrap_or(i64::MAX),
        queued_messages: i32::try_from(appended.queued_messages).unwrap_or(i32::MAX),
    })
}

fn parse(request: proto::AppendRequest) -> Result<Append, Error> {
    let run_id = guard::run_id(&request.run_id)?;
    let session_id = SessionId::parse(&request.session_id).map_err(|_| Error::stale_launch())?;
    let fence = u64::try_from(request.fence).map_err(|_| Error::stale_fence())?;
    let launch = u32::try_from(request.launch).ok().filter(|launch| *launch > 0).ok_or(Error::stale_launch())?;
    let bytes: usize = request.events.iter().map(proto::Event::encoded_len).sum();
    if request.events.len() > MAX_EVENTS || bytes > MAX_BYTES {
        let message = "a batch is at most 256 events and 4 MiB";
        return Err(Error::invalid("events", "BATCH_TOO_LARGE", message));
    }
    let mut events: Vec<NewEvent> = Vec::with_capacity(request.events.len());
    for event in request.events {
        let event = parse_event(event, launch)?;
        if events.last().is_some_and(|before| before.launch_sequence + 1 != event.launch_sequence) {
            let message = "the events of a batch are numbered without gap";
            return Err(Error::invalid("events", "BATCH_NOT_CONSECUTIVE", message));
        }
        events.push(event);
    }
    Ok(Append { run_id, session_id, fence, launch, events })
}

fn parse_event(event: proto::Event, launch: u32) -> Result<NewEvent, Error> {
    let launch_sequence = u64::try_from(event.launch_sequence).ok().filter(|sequence| *sequence > 0);
    let launch_sequence = launch_sequence
        .ok_or_else(|| Error::invalid("events", "EVENT_NUMBER_INVALID", "a launch numbers its events from 1"))?;
    let payload = match event.payload {
        // These are lifecycle's own to write.
        Some(Payload::UserMessage(_) | Payload::RunStateChanged(_)) | None => {
            let message = "an event needs a payload that a launch may write";
            return Err(Error::invalid("events", "EVENT_PAYLOAD_INVALID", message));
        }
        Some(payload) => payload,
    };
    // Zero until the transaction's own clock is known.
    let at = event.time.as_ref().map_or(Time(0), time_from_proto);
    Ok(NewEvent { launch, launch_sequence, at, payload })
}

/// One append against the log as it is.
fn judge(head: &LogHead<'_>, append: &Append) -> Result<Decision<Appended>, Error> {
    let session = &head.loaded.aggregate.session;
    if session.id != append.session_id || session.launch != append.launch {
        return Err(Error::stale_launch());
    }
    if session.fence != append.fence || session.claim.is_none() {
        return Err(Error::stale_fence());
    }
    if session.state != State::Live {
        return Err(Error::stale_launch());
    }
    let expected = head.launch_sequence + 1;
    if append.events.first().is_some_and(|first| first.launch_sequence > expected) {
        return Err(Error::SequenceGap { expected });
    }
    let mut changes = Changes { actor: "sessions".to_owned(), ..Changes::default() };
    let new = append.events.iter().filter(|event| event.launch_sequence >= expected);
    let now = head.loaded.now;
    changes.events = new.map(|event| NewEvent { at: believed(event.at, now), ..event.clone() }).collect();
    let last_sequence = match head.logged_as {
        Some(logged) => logged,
        None => head.loaded.record.last_seq + changes.events.len() as u64,
    };
    if !changes.events.is_empty() {
        follow(head.loaded, &mut changes, append.launch)?;
    }
    let messages = &head.loaded.after(&changes).session.messages;
    let queued = messages.iter().filter(|message| message.state == MessageState::Queued).count();
    let queued_messages = u32::try_from(queued).unwrap_or(u32::MAX);
    Ok(Decision::changed(Appended { last_sequence, queued_messages }, changes))
}

/// What the events mean for the machines, the counters and the result.
fn follow(loaded: &Loaded, changes: &mut Changes, launch: u32) -> Result<(), Error> {
    let events = changes.events.clone();
    let mut progress = loaded.record.progress.clone();
    let mut activity = None;
    let mut heard = false;
    for event in &events {
        match &event.payload {
            Payload::MessageAccepted(accepted) => {
                let uuid = uuid_of(loaded, &accepted.message_id)?;
                activity =
                    Some(if loaded.after(changes).session.turn { Activity::Steering } else { Activity::Thinking });
                heard |= loaded.apply(changes, &on_session(session::Trigger::Accepted { launch, uuid }))?;
            }
            Payload::AssistantMessage(message) => {
                activity = Some(Activity::Thinking);
                count(&mut progress, message.usage.as_ref());
            }
            Payload::TurnEnded(ended) => {
                let result = changes.result.take().or_else(|| loaded.record.result.clone()).unwrap_or_default();
                changes.result = Some(proto::Result { text: ended.text.clone(), ..result });
                heard |= turn_ended(loaded, changes, launch, ended)?;
            }
            Payload::ToolCall(_) => activity = Some(Activity::Executing),
            Payload::AssistantDelta(_) | Payload::ToolResult(_) => activity = Some(Activity::Thinking),
            Payload::AttemptVoided(_)
            | Payload::ToolOutput(_)
            | Payload::Notice(_)
            | Payload::UserMessage(_)
            | Payload::RunStateChanged(_) => {}
        }
    }
    if progress != loaded.record.progress {
        changes.progress = Some(progress);
    }
    let session = &loaded.aggregate.session;
    let news = activity.is_some() && activity != loaded.after(changes).run.activity;
    let due = session.launches_without_event > 0 || loaded.now.since(session.last_sign_of_life) >= SIGN_OF_LIFE_EVERY;
    if news || (due && !heard) {
        loaded.apply(changes, &on_session(session::Trigger::SignOfLife { launch, activity, native_id: None }))?;
    }
    Ok(())
}

fn turn_ended(loaded: &Loaded, changes: &mut Changes, launch: u32, ended: &proto::TurnEnded) -> Result<bool, Error> {
    let mut done = Vec::with_capacity(ended.message_ids.len());
    for id in &ended.message_ids {
        done.push(uuid_of(loaded, id)?);
    }
    let trigger = match ended.outcome() {
        turn_ended::Outcome::Failed => {
            let error = ended.error.clone().unwrap_or_default();
            let (reason, text) = from_proto::run_failure(&error, FailureReason::ModelError);
            session::Trigger::Failed { launch, reason, text }
        }
        // What it leaves unfinished is launched again.
        turn_ended::Outcome::Interrupted if done.is_empty() => return Ok(false),
        turn_ended::Outcome::Unspecified | turn_ended::Outcome::Finished | turn_ended::Outcome::Interrupted => {
            session::Trigger::TurnEnded { launch, done }
        }
    };
    loaded.apply(changes, &on_session(trigger))
}

fn on_session(trigger: session::Trigger) -> Trigger {
    Trigger::Session(trigger)
}

fn uuid_of(loaded: &Loaded, message_id: &str) -> Result<Uuid, Error> {
    let id = MessageId::parse(message_id).ok();
    let messages = &loaded.aggregate.session.messages;
    let known = id.and_then(|id| messages.iter().find(|message| message.id == id));
    known
        .map(|message| message.uuid)
        .ok_or_else(|| Error::invalid("events", "MESSAGE_UNKNOWN", "the session has no message of this id"))
}

/// Every complete reply of the model is a turn; tokens are summed as the model API counted them.
fn count(progress: &mut Progress, usage: Option<&proto::Usage>) {
    progress.turns = progress.turns.saturating_add(1);
    let sum = &mut progress.usage;
    sum.model_calls = sum.model_calls.saturating_add(1);
    let Some(usage) = usage else { return };
    let add = |total: &mut u64, count: i64| *total = total.saturating_add(u64::try_from(count).unwrap_or_default());
    add(&mut sum.input_tokens, usage.input_tokens);
    add(&mut sum.output_tokens, usage.output_tokens);
    add(&mut sum.cache_creation_input_tokens, usage.cache_creation_input_tokens);
    add(&mut sum.cache_read_input_tokens, usage.cache_read_input_tokens);
}

fn believed(at: Time, now: Time) -> Time {
    if now.since(at) > CLOCK_SKEW || at.since(now) > CLOCK_SKEW { now } else { at }
}
