//! One state of the model: the rows, and everything outside of the database that a rule must survive.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use berth_domain::aggregate::{Aggregate, CreateSpec, Note, Trigger, create};
use berth_domain::id::{LeaseId, TenantId, WorkerId};
use berth_domain::lease::{
    self, Desired, Lease, Outcome as LeaseOutcome, ProviderTraits, ReceiptKind, State as LeaseState,
};
use berth_domain::policy::Policy;
use berth_domain::run::{OnSandboxLoss, State as RunState};
use berth_domain::session::{self, Harness, State as SessionState, Trigger as SessionTrigger};
use berth_domain::time::Time;
use uuid::Uuid;

use super::Setup;
use super::rules::Answer;

/// The model's only present.
pub(crate) const NOW: Time = Time(1_000_000_000_000_000);
/// Long ago: every limit has passed since.
pub(crate) const OLD: Time = Time(NOW.0 - 90 * 24 * 3600 * 1_000_000);
/// Before that.
pub(crate) const OLDER: Time = Time(OLD.0 - 1_000_000);

/// A sandbox at the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Sandbox {
    /// Generation of the lease it was made for.
    pub(crate) lease: u32,
    /// Which key it was made under; always 0 with one key per lease.
    pub(crate) key: u8,
    pub(crate) id: u8,
}

/// A create call that was cut off from its worker and may still land.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Flight {
    pub(crate) lease: u32,
    pub(crate) key: u8,
}

/// What a worker does under a claim; `lease` 0 is the session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Job {
    pub(crate) lease: u32,
    pub(crate) fence: u64,
    pub(crate) phase: Phase,
}

/// How far the worker is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Claimed,
    /// The create call is on its way, under this key.
    Creating(u8),
    LeaseDone(LeaseOutcome),
    SessionDone(session::Outcome),
}

/// A message that may arrive late, or a second time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mail {
    Lease { lease: u32, fence: u64, outcome: LeaseOutcome },
    Session { fence: u64, outcome: session::Outcome },
    End { launch: u32 },
}

/// A runner process in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Runner {
    pub(crate) launch: u32,
    /// Generation of the lease whose sandbox it runs in.
    pub(crate) lease: u32,
    /// The harness runs: the first append was answered OK.
    pub(crate) harness: bool,
    /// Messages written to it, by ordinal.
    pub(crate) inbox: Vec<u32>,
    /// Posted `accepted`, not handed on yet.
    pub(crate) handing: Option<u32>,
    /// The turn in flight.
    pub(crate) turn: Option<u32>,
}

/// One state of the model.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) rows: Aggregate,
    pub(crate) jobs: Vec<Job>,
    pub(crate) alive: Vec<Sandbox>,
    pub(crate) flights: Vec<Flight>,
    pub(crate) made: u8,
    pub(crate) mail: Vec<Mail>,
    /// Start calls of launches that have not landed: launch and first message.
    pub(crate) starts: Vec<(u32, Option<u32>)>,
    pub(crate) runners: Vec<Runner>,
    /// Ordinals of the messages the agent really saw.
    pub(crate) seen: Vec<u32>,
    /// Generation of the lease in which the last turn ended.
    pub(crate) worked_in: u32,
    /// What the result says: the generation it was collected in, or 0 for "could not be collected".
    pub(crate) result: Option<u32>,
    pub(crate) faults: u8,
    pub(crate) sends: u8,
    pub(crate) resets: u8,
    /// Something that must never be done was done.
    pub(crate) wrong: Option<&'static str>,
}

impl World {
    pub(crate) fn new(setup: &Setup) -> Self {
        let policy = Policy { allocate_attempts: 2, launch_attempts: 2, park_attempts: 2, ..Policy::default() };
        let spec = CreateSpec {
            tenant: TenantId::parse("t").expect("tenant"),
            provider: ProviderTraits {
                provider: "p".to_owned(),
                can_lookup_key: setup.lookup,
                create_horizon: Duration::from_secs(60),
            },
            harness: Harness::ClaudeCode,
            conversation: setup.conversation,
            on_sandbox_loss: if setup.recreate { OnSandboxLoss::Recreate } else { OnSandboxLoss::Fail },
            prompt: String::new(),
            policy,
        };
        let mut id = 0;
        let (rows, _, _) = create(spec, NOW, &mut || {
            id += 1;
            Uuid::from_u128(id)
        });
        Self {
            rows,
            jobs: vec![],
            alive: vec![],
            flights: vec![],
            made: 0,
            mail: vec![],
            starts: vec![],
            runners: vec![],
            seen: vec![],
            worked_in: 0,
            result: None,
            faults: setup.faults,
            sends: setup.sends,
            resets: setup.resets,
            wrong: None,
        }
    }

    pub(crate) fn lease(&self, generation: u32) -> &Lease {
        &self.rows.leases[generation as usize - 1]
    }

    pub(crate) fn lease_mut(&mut self, generation: u32) -> &mut Lease {
        &mut self.rows.leases[generation as usize - 1]
    }

    pub(crate) fn lease_id(&self, generation: u32) -> LeaseId {
        self.lease(generation).id.clone()
    }

    /// The live fence of a row, if it is claimed; 0 is the session.
    pub(crate) fn live_fence(&self, lease: u32) -> Option<u64> {
        if lease == 0 {
            self.rows.session.claim.as_ref().map(|_| self.rows.session.fence)
        } else {
            self.lease(lease).claim.as_ref().map(|_| self.lease(lease).fence)
        }
    }

    pub(crate) fn idle_worker(&self) -> WorkerId {
        let name = if self.jobs.len().is_multiple_of(2) { "w1" } else { "w2" };
        WorkerId::parse(name).expect("worker")
    }

    pub(crate) fn recorded(&self, generation: u32) -> Option<u8> {
        self.lease(generation).identity.as_ref().and_then(|identity| identity.sandbox_id.parse().ok())
    }

    /// What notes tell the result.
    pub(crate) fn note(&mut self, notes: &[Note]) {
        if notes.iter().any(|note| matches!(note, Note::CollectFailed { .. })) {
            self.result = Some(0);
        }
    }

    /// Things no single state shows: judged where they happen.
    pub(crate) fn watch(&mut self, before: &Aggregate, trigger: &Trigger, answer: Answer) {
        let settled = |state: RunState| state.is_settled();
        if before.run.state == RunState::Deleted && self.rows.run.state != RunState::Deleted {
            self.wrong = Some("DELETED was left");
        }
        let absorbed =
            |(old, new): (&Lease, &Lease)| old.is_terminal() && (new.state != old.state || new.receipt != old.receipt);
        if before.leases.iter().zip(&self.rows.leases).any(absorbed) {
            self.wrong = Some("RELEASED was left");
        }
        if before.session.state == SessionState::Closed && self.rows.session.state != SessionState::Closed {
            self.wrong = Some("CLOSED was left");
        }
        if before.run.state == RunState::Waiting && self.rows.run.state == RunState::Failed {
            self.wrong = Some("a waiting run failed");
        }
        if settled(before.run.state) && self.rows.run.state == RunState::Failed && before.run.state != RunState::Failed
        {
            self.wrong = Some("a settled run failed");
        }
        let ended = matches!(trigger, Trigger::Session(SessionTrigger::End { .. })) && answer == Answer::Applied;
        let launch = before.session.launch;
        if ended && self.runners.iter().any(|runner| runner.launch == launch) {
            self.wrong = Some("a living launch was taken for ended");
        }
        let desire_fence = before.leases.iter().zip(&self.rows.leases).any(|(old, new)| new.fence < old.fence);
        if desire_fence {
            self.wrong = Some("a fence went back");
        }
        if self.rows.run.state == RunState::Completed
            && before.run.state != RunState::Completed
            && self.result.is_none()
        {
            self.wrong = Some("COMPLETED without a result");
        }
        if self.rows.run.state == RunState::Completed
            && self.result.is_some_and(|from| from != 0 && from != self.worked_in)
        {
            self.wrong = Some("COMPLETED with a false result");
        }
        for (old, new) in before.session.messages.iter().zip(&self.rows.session.messages) {
            let done = old.state != session::MessageState::Done && new.state == session::MessageState::Done;
            if done && new.kind != session::MessageKind::Continue && !self.seen.contains(&new.ordinal) {
                self.wrong = Some("a message is DONE that the agent never saw");
            }
        }
    }

    /// RELEASED only with a receipt, and the receipt (unless forgotten) is true: nothing lives and nothing can land any more.
    pub(crate) fn receipts_are_true(&self) -> bool {
        let deleted_whole = self.rows.run.state != RunState::Deleted || self.rows.leases.iter().all(Lease::is_terminal);
        deleted_whole
            && self.rows.leases.iter().all(|lease| match (&lease.receipt, lease.is_terminal()) {
                (None, terminal) => !terminal,
                (Some(_), false) => false,
                (Some(receipt), true) => receipt.kind == ReceiptKind::Forgotten || !self.may_live(lease.generation),
            })
    }

    pub(crate) fn may_live(&self, generation: u32) -> bool {
        let creating = |job: &Job| job.lease == generation && matches!(job.phase, Phase::Creating(_));
        self.alive.iter().any(|sandbox| sandbox.lease == generation)
            || self.flights.iter().any(|flight| flight.lease == generation)
            || self.jobs.iter().any(creating)
    }

    pub(crate) fn nothing_is_orphaned(&self) -> bool {
        let lease = |lease: &Lease| lease.is_terminal() || lease.claim.is_some() || lease.next_action.is_some();
        let session = &self.rows.session;
        let current = self.rows.current();
        let held = current.is_some_and(|lease| lease.desired == Desired::Held && !lease.is_terminal());
        let session_owned = match session.state {
            SessionState::Closed | SessionState::Idle => true,
            SessionState::Pending => held,
            SessionState::Starting | SessionState::Live | SessionState::Ending => {
                session.claim.is_some() || session.next_action.is_some()
            }
        };
        let unproven = self.rows.leases.iter().any(|lease| !lease.is_terminal());
        let run = &self.rows.run;
        let run_owned = match run.state {
            RunState::Provisioning | RunState::Running | RunState::Recovering => run.deadline.is_some(),
            RunState::Deleting | RunState::DeletionFailed => unproven,
            RunState::Waiting | RunState::Completed | RunState::Failed | RunState::Cancelled | RunState::Deleted => {
                true
            }
        };
        self.rows.leases.iter().all(lease) && session_owned && run_owned
    }

    /// What must hold between the rows after every transaction.
    pub(crate) fn rows_agree(&self) -> bool {
        let rows = &self.rows;
        let held = rows.leases.iter().filter(|lease| lease.desired == Desired::Held).count();
        let ended = !matches!(
            rows.run.state,
            RunState::Provisioning | RunState::Running | RunState::Waiting | RunState::Recovering | RunState::Completed
        );
        let in_sandbox =
            matches!(rows.session.state, SessionState::Starting | SessionState::Live | SessionState::Ending);
        let usable =
            rows.current().is_some_and(|lease| lease.state == LeaseState::Ready && lease.desired == Desired::Held);
        let harnesses = self.runners.iter().filter(|runner| runner.harness).count();
        held <= 1
            && (!ended || held == 0)
            && (!ended || rows.session.state == SessionState::Closed)
            && (!in_sandbox || usable)
            && harnesses <= 1
    }

    /// Two states that differ only in counters nobody compares are one.
    pub(crate) fn canonical(&mut self) {
        for lease in &mut self.rows.leases {
            lease.due_at = NOW;
            lease.failure = None;
            lease.bootstrap_attempt = 0;
            lease.release_attempt = 0;
            lease.observed_at = None;
            lease.settle_at = lease.settle_at.map(|at| if at > NOW { NOW.plus(Duration::from_secs(60)) } else { OLD });
            lease.next_action = lease::next_action(lease);
        }
        let session = &mut self.rows.session;
        session.due_at = NOW;
        session.last_sign_of_life = NOW;
        session.next_action = session::next_action(session);
        self.rows.run.activity = None;
        let generations = self.rows.leases.len() as u32;
        for lease in 0..=generations {
            self.compress_fences(lease);
        }
        self.compress_launches();
        self.alive.sort_unstable();
        self.flights.sort_unstable();
        self.seen.sort_unstable();
    }

    fn compress_fences(&mut self, lease: u32) {
        let mut used: Vec<u64> = vec![if lease == 0 { self.rows.session.fence } else { self.lease(lease).fence }];
        used.extend(self.jobs.iter().filter(|job| job.lease == lease).map(|job| job.fence));
        used.extend(self.mail.iter().filter_map(|mail| match mail {
            Mail::Lease { lease: of, fence, .. } if *of == lease => Some(*fence),
            Mail::Session { fence, .. } if lease == 0 => Some(*fence),
            Mail::Lease { .. } | Mail::Session { .. } | Mail::End { .. } => None,
        }));
        used.sort_unstable();
        used.dedup();
        let rank = |fence: u64| used.iter().position(|used| *used == fence).unwrap_or_default() as u64;
        if lease == 0 {
            self.rows.session.fence = rank(self.rows.session.fence);
        } else {
            self.lease_mut(lease).fence = rank(self.lease(lease).fence);
        }
        for job in self.jobs.iter_mut().filter(|job| job.lease == lease) {
            job.fence = rank(job.fence);
        }
        for mail in &mut self.mail {
            match mail {
                Mail::Lease { lease: of, fence, .. } if *of == lease => *fence = rank(*fence),
                Mail::Session { fence, .. } if lease == 0 => *fence = rank(*fence),
                Mail::Lease { .. } | Mail::Session { .. } | Mail::End { .. } => {}
            }
        }
    }

    fn compress_launches(&mut self) {
        let mut used = vec![0, self.rows.session.launch];
        used.extend(self.runners.iter().map(|runner| runner.launch));
        used.extend(self.starts.iter().map(|(launch, _)| *launch));
        used.extend(self.mail.iter().filter_map(|mail| match mail {
            Mail::End { launch } => Some(*launch),
            Mail::Lease { .. } | Mail::Session { .. } => None,
        }));
        used.sort_unstable();
        used.dedup();
        let rank = |launch: u32| used.iter().position(|used| *used == launch).unwrap_or_default() as u32;
        self.rows.session.launch = rank(self.rows.session.launch);
        self.runners.iter_mut().for_each(|runner| runner.launch = rank(runner.launch));
        self.starts.iter_mut().for_each(|start| start.0 = rank(start.0));
        for mail in &mut self.mail {
            if let Mail::End { launch } = mail {
                *launch = rank(*launch);
            }
        }
    }
}

/// The session went IDLE (or stays there) without its lease.
pub(crate) fn gone_session(before: &Aggregate, after: &Aggregate) -> bool {
    let lost = before.session.result_due
        && !after.session.result_due
        && after.current().is_some_and(|lease| lease.desired == Desired::Released);
    let waits = after.session.result_due
        && after.session.state == SessionState::Idle
        && after.current().is_some_and(|lease| lease.state == LeaseState::Ready);
    after.run.state.is_active() && waits || lost && after.session.state == SessionState::Idle
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        let key = |world: &World| {
            let mut hasher = std::hash::DefaultHasher::new();
            world.hash(&mut hasher);
            hasher.finish()
        };
        key(self) == key(other)
    }
}

impl Hash for World {
    /// Everything but the run's constants.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let run = &self.rows.run;
        (run.state, run.cancel_asked, run.deletion_asked, run.outcome.is_some()).hash(state);
        (run.state_since, run.deadline, run.wall_clock_deadline).hash(state);
        for lease in &self.rows.leases {
            (
                lease.generation,
                lease.recovery,
                lease.state,
                lease.desired,
                lease.unwanted,
                lease.observed,
                lease.in_doubt,
            )
                .hash(state);
            (
                lease.settle_at,
                lease.attempt,
                &lease.claim,
                lease.fence,
                lease.release_since,
                lease.touched_at,
                lease.state_deadline,
            )
                .hash(state);
            (
                lease.receipt.as_ref().map(|receipt| receipt.kind),
                lease.identity.as_ref().map(|identity| &identity.sandbox_id),
            )
                .hash(state);
        }
        let session = &self.rows.session;
        (
            session.state,
            session.launch,
            session.turn,
            session.result_due,
            session.renew_lease,
            session.launches_without_event,
        )
            .hash(state);
        (session.park_attempt, &session.claim, session.fence, session.state_deadline).hash(state);
        for message in &session.messages {
            (message.kind, message.state, message.resent, message.held).hash(state);
        }
        (&self.jobs, &self.alive, &self.flights, self.made, &self.mail, &self.starts, &self.runners, &self.seen)
            .hash(state);
        (self.worked_in, self.result, self.faults, self.sends, self.resets, self.wrong).hash(state);
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let leases: Vec<String> = self
            .rows
            .leases
            .iter()
            .map(|lease| {
                let doubt = if lease.in_doubt { " in doubt" } else { "" };
                format!("{} {}{doubt}", lease.state.as_str(), lease.desired.as_str())
            })
            .collect();
        let session = &self.rows.session;
        let messages: Vec<_> = session.messages.iter().map(|message| message.state).collect();
        write!(
            f,
            "=> run {} | leases {leases:?} | session {} {messages:?}",
            self.rows.run.state.as_str(),
            session.state.as_str()
        )?;
        write!(f, " | alive {:?} flights {:?} runners {:?}", self.alive, self.flights, self.runners)?;
        write!(f, " | jobs {:?} | wrong {:?}", self.jobs, self.wrong)
    }
}
