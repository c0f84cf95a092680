//! StreamEvents: subscribe, replay, join by sequence. No gap, no duplicate, ever (law 4: the bus only hints, the log decides).
//!
//! One task per stream reads and follows; a bounded buffer lies between it and the reader. A reader that lets the buffer
//! stand full is told `lagged` with its cursor and the stream ends; so is one whose forwarded credential ran out, and everyone
//! at shutdown.

use std::pin::Pin;

use berth_events::{Hint, Received, Subscription};
use berth_rpc::lifecycle::{Event, ReadRequest, ReadResponse, event::Payload, run};
use berth_rpc::metadata::ForwardedCaller;
use berth_rpc::sessions::{KeepAlive, Lagged, StreamEventsRequest, StreamEventsResponse, stream_events_response::Item};
use futures::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};

use super::{caller, invalid, read_log};
use crate::error::Error;
use crate::service::Sessions;

const ACTION: &str = "StreamEvents";
const PAGE: i32 = 1000;

/// What the transport sends.
pub(crate) type EventStream = Pin<Box<dyn Stream<Item = Result<StreamEventsResponse, Status>> + Send>>;

pub(crate) async fn stream_events(
    sessions: &Sessions,
    request: Request<StreamEventsRequest>,
) -> Result<EventStream, Error> {
    let caller = caller(request.metadata())?;
    let StreamEventsRequest { run_id, after_sequence } = request.into_inner();
    if run_id.is_empty() {
        return Err(invalid("run_id", "RUN_ID_MISSING", "run_id is required"));
    }
    if after_sequence < 0 {
        return Err(invalid("after_sequence", "CURSOR_INVALID", "after_sequence must not be negative"));
    }
    // Subscribed before the first read: what is appended in between is in one of the two.
    let hints = sessions.bus.subscribe();
    let (items, buffered) = mpsc::channel(sessions.config.streams.buffer.max(1));
    let mut follower = Follower { sessions: sessions.clone(), caller, run_id, cursor: after_sequence, items };
    let first = follower.read().await?;
    if after_sequence > first.last_sequence {
        let head = first.last_sequence;
        return Err(invalid("after_sequence", "CURSOR_AHEAD", format!("the log's newest number is {head}")));
    }
    let last_words = tokio::spawn(async move { follower.follow(hints, first).await.err() });
    let end =
        futures::stream::once(last_words).filter_map(|ended| async { ended.ok().flatten().and_then(End::last_item) });
    Ok(Box::pin(ReceiverStream::new(buffered).map(Ok).chain(end)))
}

/// Why a stream ends before the log does.
enum End {
    /// The reader is gone.
    Unread,
    /// Reconnect with this cursor.
    Lagged(i64),
    /// The log can no longer be read for this caller.
    Failed(Error),
}

impl End {
    fn last_item(self) -> Option<Result<StreamEventsResponse, Status>> {
        match self {
            End::Unread => None,
            End::Lagged(after_sequence) => Some(Ok(item(Item::Lagged(Lagged { after_sequence })))),
            End::Failed(error) => Some(Err(error.into())),
        }
    }
}

struct Follower {
    sessions: Sessions,
    caller: ForwardedCaller,
    run_id: String,
    /// The last number handed on.
    cursor: i64,
    items: mpsc::Sender<StreamEventsResponse>,
}

impl Follower {
    /// `Ok` after the terminal event.
    async fn follow(&mut self, mut hints: Subscription, first: ReadResponse) -> Result<(), End> {
        if self.catch_up(first).await? {
            return Ok(());
        }
        let limits = self.sessions.config.streams.clone();
        let mut poll = tokio::time::interval_at(Instant::now() + limits.poll, limits.poll);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut quiet_until = Instant::now() + limits.keep_alive;
        let mut bus_open = true;
        loop {
            let before = self.cursor;
            let read = tokio::select! {
                () = self.items.closed() => return Err(End::Unread),
                () = self.sessions.shutdown.cancelled() => return Err(End::Lagged(self.cursor)),
                received = hints.next(), if bus_open => match received {
                    Received::Hint(hint) => self.heard(&hint).await?,
                    Received::Lagged(_) => true,
                    Received::Closed => { bus_open = false; false }
                },
                _ = poll.tick() => true,
                () = tokio::time::sleep_until(quiet_until) => {
                    self.hand_on(Item::KeepAlive(KeepAlive {})).await?;
                    quiet_until = Instant::now() + limits.keep_alive;
                    false
                }
            };
            if read {
                let page = self.read_again().await?;
                if self.catch_up(page).await? {
                    return Ok(());
                }
            }
            if self.cursor != before {
                quiet_until = Instant::now() + limits.keep_alive;
            }
        }
    }

    /// Takes a hint; true when the log must be read.
    async fn heard(&mut self, hint: &Hint) -> Result<bool, End> {
        let Hint::Event(event) = hint else { return Ok(false) };
        if event.run_id != self.run_id || event.sequence <= self.cursor {
            return Ok(false);
        }
        if event.sequence > self.cursor + 1 {
            return Ok(true);
        }
        let settles = settles(event);
        self.pass(event.as_ref().clone()).await?;
        // Whether a settled state was the last word is the log's to say.
        Ok(settles)
    }

    /// Hands on everything the log holds after the cursor; true when the run is settled and the log exhausted.
    async fn catch_up(&mut self, mut page: ReadResponse) -> Result<bool, End> {
        loop {
            let state = page.run_state();
            let (head, empty) = (page.last_sequence, page.events.is_empty());
            for event in page.events {
                if event.sequence <= self.cursor {
                    continue;
                }
                if event.sequence != self.cursor + 1 {
                    return Err(End::Failed(Error::LogGap { after_sequence: self.cursor }));
                }
                self.pass(event).await?;
            }
            if self.cursor >= head {
                return Ok(is_settled(state));
            }
            if empty {
                return Err(End::Failed(Error::LogGap { after_sequence: self.cursor }));
            }
            page = self.read_again().await?;
        }
    }

    async fn pass(&mut self, event: Event) -> Result<(), End> {
        let sequence = event.sequence;
        self.hand_on(Item::Event(event)).await?;
        self.cursor = sequence;
        Ok(())
    }

    async fn hand_on(&self, next: Item) -> Result<(), End> {
        match self.items.send_timeout(item(next), self.sessions.config.streams.stall).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                tracing::info!(run_id = %self.run_id, after_sequence = self.cursor, "reader too slow, cut off");
                Err(End::Lagged(self.cursor))
            }
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(End::Unread),
        }
    }

    async fn read(&self) -> Result<ReadResponse, Error> {
        let read = ReadRequest { run_id: self.run_id.clone(), after_sequence: self.cursor, limit: PAGE };
        read_log(&self.sessions.upstream, &self.caller, ACTION, read).await
    }

    /// Later reads wait out a short absence of lifecycle, and a credential that ran out asks the reader to come back.
    async fn read_again(&self) -> Result<ReadResponse, End> {
        let retry = self.sessions.config.streams.poll;
        let give_up = Instant::now() + self.sessions.config.streams.stall;
        loop {
            match self.read().await {
                Ok(page) => return Ok(page),
                Err(Error::Lifecycle(status)) if status.code() == Code::Unauthenticated => {
                    return Err(End::Lagged(self.cursor));
                }
                Err(Error::Lifecycle(status))
                    if crate::upstream::worth_retrying(&status) && Instant::now() < give_up =>
                {
                    tokio::select! {
                        () = self.items.closed() => return Err(End::Unread),
                        () = tokio::time::sleep(retry) => {}
                    }
                }
                Err(error) => return Err(End::Failed(error)),
            }
        }
    }
}

fn item(item: Item) -> StreamEventsResponse {
    StreamEventsResponse { item: Some(item) }
}

/// The agent has nothing more to say in these states.
fn is_settled(state: run::State) -> bool {
    match state {
        run::State::Completed
        | run::State::Failed
        | run::State::Cancelled
        | run::State::Deleting
        | run::State::DeletionFailed
        | run::State::Deleted => true,
        run::State::Unspecified
        | run::State::Provisioning
        | run::State::Running
        | run::State::Waiting
        | run::State::Recovering => false,
    }
}

fn settles(event: &Event) -> bool {
    matches!(&event.payload, Some(Payload::RunStateChanged(change)) if is_settled(change.to()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use berth_events::Bus;
    use berth_serve::peer::{ServiceChannel, connect};
    use tokio_util::sync::CancellationToken;
    use tonic::metadata::MetadataMap;

    use super::*;
    use crate::config::Config;
    use crate::upstream::Upstream;

    /// Nobody listens there: a call that should not be made fails.
    const NOWHERE: &str = "http://127.0.0.1:1";

    fn follower(items: mpsc::Sender<StreamEventsResponse>) -> Follower {
        let mut config = Config::new(NOWHERE.parse().unwrap());
        config.streams.stall = Duration::from_millis(1);
        let channel = || ServiceChannel::anonymous(connect(NOWHERE).unwrap());
        let sessions = Sessions {
            config: Arc::new(config),
            upstream: Upstream::new(channel(), channel()),
            bus: Bus::in_process(),
            shutdown: CancellationToken::new(),
        };
        let mut metadata = MetadataMap::new();
        metadata.insert("authorization", "Bearer k".parse().unwrap());
        let caller = ForwardedCaller::from_metadata(&metadata).unwrap();
        Follower { sessions, caller, run_id: "run-1".into(), cursor: 0, items }
    }

    fn page(sequences: &[i64], last_sequence: i64) -> ReadResponse {
        let events = sequences.iter().map(|sequence| Event { sequence: *sequence, ..Event::default() }).collect();
        ReadResponse { events, last_sequence, run_state: run::State::Running.into() }
    }

    #[tokio::test]
    async fn case_e09_a_reader_that_does_not_read_is_told_where_to_go_on() {
        let (items, mut unread) = mpsc::channel(2);
        let mut follower = follower(items);
        let hints = follower.sessions.bus.subscribe();
        let Err(end) = follower.follow(hints, page(&[1, 2, 3, 4], 4)).await else { panic!("nobody read") };
        assert!(matches!(end.last_item(), Some(Ok(last)) if last == item(Item::Lagged(Lagged { after_sequence: 2 }))));
        // What was buffered before is still handed out, so that the cursor fits.
        for expected in 1..=2 {
            let Some(Item::Event(event)) = unread.recv().await.unwrap().item else { panic!("expected an event") };
            assert_eq!(event.sequence, expected);
        }
    }

    #[tokio::test]
    async fn a_gap_in_the_log_itself_is_never_passed_on() {
        let (items, _unread) = mpsc::channel(8);
        let mut follower = follower(items);
        let end = follower.catch_up(page(&[1, 3], 3)).await;
        assert!(matches!(end, Err(End::Failed(Error::LogGap { after_sequence: 1 }))));
    }
}
