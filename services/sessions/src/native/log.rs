//! The loop's pen: appends events under its launch and fence, and reads what others wrote. An append is repeated until it is
//! answered (lifecycle de-duplicates by number) and is never given up while the claim lives; what it announces happens after it.

use std::collections::VecDeque;
use std::time::Duration;

use berth_rpc::lifecycle::{AppendRequest, Event, ReplayRequest, event::Payload, log_service_client::LogServiceClient};
use berth_rpc::status::Failure;
use berth_serve::peer::ServiceChannel;
use prost::Message as _;
use tonic::{Code, Status};

use super::Stop;
use crate::upstream::{CALL_TIMEOUT, within, worth_retrying};

/// Events in one append.
const MAX_BATCH: usize = 256;
/// Bytes in one append; the service takes 4 MiB.
const MAX_BATCH_BYTES: usize = 7 << 19;
const PAGE: i32 = 1000;
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Under which claim the loop writes and acts.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) run_id: String,
    pub(crate) session_id: String,
    pub(crate) fence: i64,
    pub(crate) launch: i32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pen {
    log: LogServiceClient<ServiceChannel>,
    hold: Hold,
    /// Number of the next event of this launch.
    next: i64,
    /// Numbered, not yet known to be in the log.
    unanswered: VecDeque<Event>,
    /// Every event up to this number of the log is known here.
    cursor: i64,
    /// Others wrote, or messages wait: the log must be read.
    behind: bool,
    /// The attempt whose text is shown and not yet whole or void.
    showing: Option<i32>,
}

impl Pen {
    pub(crate) fn new(log: LogServiceClient<ServiceChannel>, hold: Hold) -> Self {
        Self { log, hold, next: 1, unanswered: VecDeque::new(), cursor: 0, behind: true, showing: None }
    }

    /// Whether the log may hold something this loop has not read.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind
    }

    /// Appends, and whatever an earlier, dropped append left unanswered before it.
    pub(crate) async fn append(&mut self, payloads: Vec<Payload>) -> Result<(), Stop> {
        for payload in payloads {
            match &payload {
                Payload::AssistantDelta(delta) => self.showing = Some(delta.attempt),
                Payload::AssistantMessage(_) | Payload::AttemptVoided(_) => self.showing = None,
                _ => {}
            }
            let (launch, launch_sequence) = (i64::from(self.hold.launch), self.next);
            self.next += 1;
            self.unanswered.push_back(Event { launch, launch_sequence, payload: Some(payload), ..Event::default() });
        }
        while !self.unanswered.is_empty() {
            self.send_batch().await?;
        }
        Ok(())
    }

    async fn send_batch(&mut self) -> Result<(), Stop> {
        let mut bytes = 0;
        let events: Vec<Event> = self
            .unanswered
            .iter()
            .take(MAX_BATCH)
            .take_while(|event| {
                bytes += event.encoded_len();
                bytes <= MAX_BATCH_BYTES
            })
            .cloned()
            .collect();
        if events.is_empty() {
            return Err(Stop::Broken("an event is too large for the log".into()));
        }
        let count = events.len();
        let Hold { run_id, session_id, fence, launch } = self.hold.clone();
        let request = AppendRequest { run_id, session_id, fence, launch, events };
        let log = &self.log;
        let answer = persist(|| async { within(CALL_TIMEOUT, log.clone().append(request.clone())).await }).await?;
        self.unanswered.drain(..count);
        // Ours directly after what is known: nobody else wrote in between.
        let unbroken = answer.last_sequence == self.cursor + count as i64;
        if unbroken {
            self.cursor = answer.last_sequence;
        }
        self.behind |= !unbroken || answer.queued_messages > 0;
        Ok(())
    }

    /// The next page of events after the known ones, in order. A log may be far larger than the conversation in it: the
    /// caller folds each page and drops it, until the log is not behind any more.
    pub(crate) async fn read_page(&mut self) -> Result<Vec<Event>, Stop> {
        let Hold { run_id, session_id, fence, .. } = self.hold.clone();
        let request = ReplayRequest { run_id, session_id, fence, after_sequence: self.cursor, limit: PAGE };
        let log = &self.log;
        let page = persist(|| async { within(CALL_TIMEOUT, log.clone().replay(request.clone())).await }).await?;
        let Some(last) = page.events.last() else {
            self.behind = false;
            return Ok(Vec::new());
        };
        if last.sequence <= self.cursor {
            return Err(Stop::Broken("the log was read out of order".into()));
        }
        self.cursor = last.sequence;
        self.behind = self.cursor < page.last_sequence;
        Ok(page.events)
    }

    /// The log holds something new, as was told by other means.
    pub(crate) fn fall_behind(&mut self) {
        self.behind = true;
    }

    /// The attempt whose text was shown and will not become whole, once the call is over.
    pub(crate) fn showing(&self) -> Option<i32> {
        self.showing
    }

    /// Goes on after what this launch wrote already.
    pub(crate) fn resume_after(&mut self, launch_sequence: i64) {
        self.next = self.next.max(launch_sequence + 1);
    }
}

/// Repeats a call that was not answered until it is; the claim's end drops the whole loop.
async fn persist<T, F, Answer>(call: F) -> Result<T, Stop>
where
    F: Fn() -> Answer,
    Answer: Future<Output = Result<T, Status>>,
{
    let mut wait = FIRST_WAIT;
    loop {
        match call().await {
            Ok(answer) => return Ok(answer),
            Err(status) if worth_retrying(&status) => {
                tracing::warn!(code = ?status.code(), "log not reached, trying again");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
            Err(status) => return Err(refused(&status)),
        }
    }
}

fn refused(status: &Status) -> Stop {
    let failure = Failure::from_status(status);
    match status.code() {
        Code::Aborted | Code::NotFound => Stop::Lost,
        _ => Stop::Broken(format!("the log refused: {}", failure.reason)),
    }
}
