//! The facts of one run as the fake lifecycle keeps them: gapless log, de-duplication by launch and number, fences, the
//! session's states. No RPC here.

use std::time::{Duration, SystemTime};

use berth_domain::failure::Kind;
use berth_events::{Bus, Hint};
use berth_rpc::lifecycle::{
    AppendRequest, Error as ErrorText, Event, QueuedMessage, Result as RunResult, RunStateChanged, SessionWork, Usage,
    UserMessage, Work, event::Payload, queued_message, report_request::Outcome, run, turn_ended, work,
};
use berth_rpc::status::Failure;
use tonic::Status;

pub(crate) const RUN: &str = "run-1";
pub(crate) const SESSION: &str = "ses-1";
/// Times written here are those of another clock than the worker's.
const CLOCK_BEHIND: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Starting,
    Live,
    Ending,
    Idle,
    Closed,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) run: run::State,
    pub(crate) error: Option<ErrorText>,
    pub(crate) state: State,
    pub(crate) launch: i32,
    pub(crate) fence: i64,
    pub(crate) claimed: Option<work::Action>,
    pub(crate) result_due: bool,
    pub(crate) messages: Vec<QueuedMessage>,
    pub(crate) events: Vec<Event>,
    pub(crate) usage: Usage,
    pub(crate) turns: i32,
    pub(crate) result: Option<RunResult>,
    /// What every launch is told besides the above.
    pub(crate) work: SessionWork,
    pub(crate) wall_clock: Option<Duration>,
    pub(crate) reports: Vec<&'static str>,
    bus: Bus,
}

impl Ledger {
    pub(crate) fn new(bus: Bus) -> Self {
        let tools = ["read", "write", "edit", "bash"].map(str::to_owned).to_vec();
        let work = SessionWork {
            harness: "native".into(),
            model: "m".into(),
            tools,
            max_turns: 50,
            workdir: "/workspace/x".into(),
            ..SessionWork::default()
        };
        Self {
            run: run::State::Provisioning,
            error: None,
            state: State::Idle,
            launch: 0,
            fence: 0,
            claimed: None,
            result_due: false,
            messages: Vec::new(),
            events: Vec::new(),
            usage: Usage::default(),
            turns: 0,
            result: None,
            work,
            wall_clock: None,
            reports: Vec::new(),
            bus,
        }
    }

    pub(crate) fn last(&self) -> i64 {
        self.events.len() as i64
    }

    pub(crate) fn queue(&mut self, message_id: &str, text: &str) {
        if self.messages.iter().any(|message| message.message_id == message_id) {
            return;
        }
        let state = queued_message::State::Queued.into();
        self.messages.push(QueuedMessage { message_id: message_id.into(), state, text: text.into() });
        self.write(Payload::UserMessage(UserMessage {
            message_id: message_id.into(),
            text: text.into(),
            principal: "ada".into(),
        }));
        if self.state == State::Idle {
            self.state = State::Starting;
        }
        self.recompute();
    }

    /// Cancel as lifecycle does it: the session is closed and the claim ended.
    pub(crate) fn cancel(&mut self) {
        self.close(run::State::Cancelled, None);
    }

    /// The worker died: its claim is over, what it had not finished is done again.
    pub(crate) fn expire(&mut self) {
        self.fence += 1;
        if self.claimed.take() == Some(work::Action::Drive) {
            self.end_launch();
        }
        self.recompute();
    }

    pub(crate) fn next_work(&mut self) -> Option<Work> {
        if self.claimed.is_some() {
            return None;
        }
        let action = match self.state {
            State::Starting => work::Action::Launch,
            State::Live => work::Action::Drive,
            State::Ending if self.result_due => work::Action::Collect,
            State::Ending => work::Action::Park,
            State::Idle | State::Closed => return None,
        };
        if action == work::Action::Launch {
            self.launch += 1;
        }
        self.fence += 1;
        self.claimed = Some(action);
        let open = self.messages.iter().filter(|message| is_open(message)).cloned().collect();
        let wall_clock = self.wall_clock.filter(|_| action == work::Action::Drive);
        let session = SessionWork {
            launch: self.launch,
            usage: Some(self.usage),
            turns_used: self.turns,
            messages: open,
            last_sequence: self.last(),
            wall_clock_deadline: self.wall_clock.map(|left| (SystemTime::now() - CLOCK_BEHIND + left).into()),
            ..self.work.clone()
        };
        Some(Work {
            row_id: SESSION.into(),
            run_id: RUN.into(),
            tenant: "default".into(),
            fence: self.fence,
            action: action.into(),
            time_left: Some(berth_rpc::duration_to_proto(wall_clock.unwrap_or(Duration::from_secs(3600)))),
            traceparent: String::new(),
            detail: Some(work::Detail::Session(session)),
        })
    }

    pub(crate) fn report(&mut self, fence: i64, outcome: Outcome) -> Result<(), Status> {
        if fence != self.fence || self.claimed.is_none() {
            return Err(Failure::new(Kind::Conflict, "STALE_FENCE", "the fence is spent").into());
        }
        self.fence += 1;
        self.claimed = None;
        match outcome {
            Outcome::Launched(_) => {
                self.reports.push("launched");
                self.state = State::Live;
            }
            Outcome::Ended(ended) => {
                self.reports.push("ended");
                match ended.failure {
                    Some(error) => self.close(run::State::Failed, Some(error)),
                    None => self.end_launch(),
                }
            }
            Outcome::Collected(result) => {
                self.reports.push("collected");
                let text = self.events.iter().rev().find_map(|event| match &event.payload {
                    Some(Payload::TurnEnded(ended)) => Some(ended.text.clone()),
                    _ => None,
                });
                self.result = Some(RunResult { text: text.unwrap_or_default(), ..result });
                self.result_due = false;
            }
            Outcome::CollectFailed(failure) => {
                self.reports.push("collect_failed");
                let collect_error = Some(ErrorText { reason: failure.reason, message: failure.message });
                self.result = Some(RunResult { collect_error, ..RunResult::default() });
                self.result_due = false;
            }
            Outcome::Parked(_) => {
                self.reports.push("parked");
                self.state = State::Idle;
            }
            other => panic!("not an outcome of a session: {other:?}"),
        }
        self.recompute();
        Ok(())
    }

    pub(crate) fn append(&mut self, request: AppendRequest) -> Result<(), Status> {
        if request.launch != self.launch || request.fence != self.fence || self.state != State::Live {
            return Err(Failure::new(Kind::Conflict, "STALE_LAUNCH", "not the live launch").into());
        }
        assert!(request.events.len() <= 256, "an append holds at most 256 events");
        for event in request.events {
            let launch = i64::from(request.launch);
            let known = self.events.iter().filter(|known| known.launch == launch).count() as i64;
            if event.launch_sequence <= known {
                continue;
            }
            if event.launch_sequence != known + 1 {
                let gap =
                    Failure::new(Kind::IllegalState, "SEQUENCE_GAP", "gap").with("expected", (known + 1).to_string());
                return Err(gap.into());
            }
            let payload = event.payload.clone().expect("events have a payload");
            self.put(launch, event.launch_sequence, payload.clone());
            self.applied(payload);
        }
        Ok(())
    }

    pub(crate) fn queued(&self) -> Vec<QueuedMessage> {
        let queued = self.messages.iter().filter(|message| message.state() == queued_message::State::Queued);
        queued.map(|message| QueuedMessage { text: String::new(), ..message.clone() }).collect()
    }

    fn applied(&mut self, payload: Payload) {
        match payload {
            Payload::MessageAccepted(accepted) => self.set(&accepted.message_id, queued_message::State::Accepted),
            Payload::AssistantMessage(reply) => {
                let usage = reply.usage.expect("replies carry their usage");
                self.usage.input_tokens += usage.input_tokens;
                self.usage.output_tokens += usage.output_tokens;
                self.usage.model_calls += usage.model_calls;
                self.turns += 1;
            }
            Payload::TurnEnded(ended) if ended.outcome() == turn_ended::Outcome::Failed => {
                self.close(run::State::Failed, ended.error);
            }
            Payload::TurnEnded(ended) => {
                ended.message_ids.iter().for_each(|id| self.set(id, queued_message::State::Done));
                if !self.messages.iter().any(is_open) {
                    // As lifecycle does it: the end of a one-shot's last turn ends the claim too.
                    self.fence += 1;
                    self.claimed = None;
                    self.state = State::Ending;
                    self.result_due = true;
                }
            }
            _ => {}
        }
    }

    fn end_launch(&mut self) {
        for message in &mut self.messages {
            if message.state() == queued_message::State::Accepted {
                message.set_state(queued_message::State::Queued);
            }
        }
        self.state = State::Ending;
    }

    fn recompute(&mut self) {
        let open = self.messages.iter().any(is_open);
        if self.state == State::Ending && open && self.claimed.is_none() {
            self.state = State::Starting;
        }
        let next = match self.state {
            State::Closed => self.run,
            _ if open || self.result_due => run::State::Running,
            _ => run::State::Completed,
        };
        self.turn_to(next, None);
    }

    fn close(&mut self, next: run::State, error: Option<ErrorText>) {
        self.state = State::Closed;
        self.fence += 1;
        self.claimed = None;
        self.result_due = false;
        for message in &mut self.messages {
            if is_open(message) {
                message.set_state(queued_message::State::Failed);
            }
        }
        self.turn_to(next, error);
    }

    fn turn_to(&mut self, next: run::State, error: Option<ErrorText>) {
        if next == self.run {
            return;
        }
        let from = std::mem::replace(&mut self.run, next);
        self.error.clone_from(&error);
        self.write(Payload::RunStateChanged(RunStateChanged { from: from.into(), to: next.into(), error }));
    }

    fn set(&mut self, id: &str, state: queued_message::State) {
        if let Some(message) = self.messages.iter_mut().find(|message| message.message_id == id) {
            message.set_state(state);
        }
    }

    /// An event of lifecycle itself.
    pub(crate) fn write(&mut self, payload: Payload) {
        self.put(0, 0, payload);
    }

    fn put(&mut self, launch: i64, launch_sequence: i64, payload: Payload) {
        let event = Event {
            run_id: RUN.into(),
            sequence: self.last() + 1,
            launch,
            launch_sequence,
            time: None,
            payload: Some(payload),
        };
        self.events.push(event.clone());
        self.bus.publish(Hint::Event(Box::new(event)));
    }
}

fn is_open(message: &QueuedMessage) -> bool {
    !matches!(message.state(), queued_message::State::Done | queued_message::State::Failed)
}
