//! Rows and triggers to try on each other: every reachable shape of a lease and of a session, by name.

use berth_domain::failure::{FailureClass, FailureReason};
use berth_domain::id::{LeaseId, MessageId, RunId, SessionId, WorkerId};
use berth_domain::lease::{self, Action, Cause, Identity, Lease, Observed, Outcome, ProviderTraits, Trigger};
use berth_domain::policy::Policy;
use berth_domain::session::{self, Context, Harness, LaunchPlan, LeaseView, MessageKind, NewMessage, Session};
use berth_domain::step::Step;
use berth_domain::time::Time;
use std::time::Duration;
use uuid::Uuid;

pub(crate) const NOW: Time = Time(1_000_000_000_000_000);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn worker() -> WorkerId {
    WorkerId::parse("w1").expect("worker")
}

pub(crate) fn traits(can_lookup_key: bool) -> ProviderTraits {
    ProviderTraits { provider: "local".to_owned(), can_lookup_key, create_horizon: MINUTE }
}

pub(crate) fn identity() -> Identity {
    Identity {
        sandbox_id: "sb".to_owned(),
        sandbox_url: String::new(),
        scope: "scope".to_owned(),
        provider: "local".to_owned(),
        provider_deadline: None,
    }
}

pub(crate) fn acquire(can_lookup_key: bool) -> Lease {
    let (id, run) = (LeaseId::new(Uuid::from_u128(1)), RunId::new(Uuid::from_u128(2)));
    Lease::acquire(id, run, &traits(can_lookup_key), &Policy::default(), NOW)
}

/// Applies a trigger that must change the lease.
pub(crate) fn moved(lease: &Lease, trigger: &Trigger, now: Time) -> Lease {
    match lease::next(lease, trigger, &Policy::default(), now) {
        Step::Changed(next, _) => next,
        other => panic!("{} {}: {other:?}", lease.state.as_str(), trigger.name()),
    }
}

pub(crate) fn claimed(lease: &Lease, action: Action, now: Time) -> Lease {
    moved(lease, &Trigger::Claim { worker: worker(), action }, now)
}

pub(crate) fn reported(lease: &Lease, outcome: Outcome, now: Time) -> Lease {
    moved(lease, &Trigger::Report { fence: lease.fence, outcome }, now)
}

pub(crate) fn unwanted(lease: &Lease, now: Time) -> Lease {
    moved(lease, &Trigger::Unwanted(Cause::Cancelled), now)
}

pub(crate) fn unknown() -> Outcome {
    Outcome::Unknown { text: "cut".to_owned(), scope: None }
}

pub(crate) fn absent() -> Outcome {
    Outcome::Absent { key_absent: true, scope: "scope".to_owned(), how: "read".to_owned(), last_seen: None }
}

pub(crate) fn failed(class: FailureClass) -> Outcome {
    Outcome::TeardownFailed { class, text: "no".to_owned(), retry_after: None }
}

pub(crate) fn ready_lease() -> Lease {
    let made = reported(&claimed(&acquire(true), Action::Allocate, NOW), Outcome::Created(identity()), NOW);
    reported(&claimed(&made, Action::Bootstrap, NOW), Outcome::Bootstrapped { workdir: "/w".to_owned() }, NOW)
}

/// Every shape of a lease row; triggers are tried on it at `NOW` plus two minutes.
pub(crate) fn leases() -> Vec<(&'static str, Lease)> {
    let requested = acquire(true);
    let allocating = claimed(&requested, Action::Allocate, NOW);
    let doubt = reported(&allocating, unknown(), NOW);
    let again = claimed(&doubt, Action::Allocate, NOW.plus(MINUTE));
    let allocated = reported(&allocating, Outcome::Created(identity()), NOW);
    let bootstrapping = claimed(&allocated, Action::Bootstrap, NOW);
    let ready = ready_lease();
    let expired = Lease {
        touched_at: Time(0),
        expires_at: Time(0),
        next_action: Some((Action::Release, Time(0))),
        ..ready.clone()
    };
    let gone = Trigger::Gone { scope: "scope".to_owned(), how: "404".to_owned() };
    let lost = moved(&ready, &gone, NOW);
    let releasing = claimed(&unwanted(&ready, NOW), Action::Release, NOW);
    let waiting = reported(&releasing, Outcome::Accepted, NOW);
    let hour = Lease { release_since: Some(Time(0)), ..releasing.clone() };
    let doubtful = claimed(&unwanted(&doubt, NOW), Action::Release, NOW);
    let settled = Lease { settle_at: Some(NOW), ..doubtful.clone() };
    let blind = Lease { can_lookup_key: false, ..doubtful.clone() };
    let stuck = reported(&releasing, failed(FailureClass::Unauthorized), NOW);
    let due = Lease { due_at: NOW, next_action: Some((Action::Release, NOW)), ..stuck.clone() };
    let retrying = claimed(&due, Action::Release, NOW);
    let released = reported(&releasing, absent(), NOW);
    vec![
        ("REQUESTED", requested),
        ("ALLOCATING claimed", allocating.clone()),
        ("ALLOCATING in doubt", doubt.clone()),
        ("ALLOCATING in doubt, claimed", again.clone()),
        ("ALLOCATING claimed, unwanted", unwanted(&allocating, NOW)),
        ("ALLOCATING in doubt, unwanted", unwanted(&doubt, NOW)),
        ("ALLOCATING in doubt, claimed, unwanted", unwanted(&again, NOW.plus(MINUTE))),
        ("ALLOCATED", allocated.clone()),
        ("ALLOCATED claimed", bootstrapping.clone()),
        ("ALLOCATED unwanted", unwanted(&allocated, NOW)),
        ("ALLOCATED claimed, unwanted", unwanted(&bootstrapping, NOW)),
        ("READY", ready.clone()),
        ("READY expired", expired),
        ("READY unwanted", unwanted(&ready, NOW)),
        ("READY unwanted, over 1 h", Lease { unwanted: Some((Cause::Cancelled, Time(0))), ..unwanted(&ready, NOW) }),
        ("LOST", lost),
        ("LOST claimed for BOOTSTRAP", moved(&bootstrapping, &gone, NOW)),
        ("RELEASING", waiting.clone()),
        ("RELEASING, over 1 h", Lease { release_since: Some(Time(0)), ..waiting }),
        ("RELEASING claimed", releasing),
        ("RELEASING claimed, over 1 h", hour),
        ("RELEASING in doubt, claimed too early", doubtful),
        ("RELEASING in doubt, claimed after it settled", settled),
        ("RELEASING in doubt, no lookup", blind),
        ("RELEASE_FAILED", stuck),
        ("RELEASE_FAILED claimed", retrying),
        ("RELEASED", released),
    ]
}

/// Every kind of trigger for a lease with this fence.
pub(crate) fn lease_triggers(fence: u64) -> Vec<(String, Trigger)> {
    let text = || "text".to_owned();
    let seen = |key_absent, scope: &str| Outcome::Absent {
        key_absent,
        scope: scope.to_owned(),
        how: "read".to_owned(),
        last_seen: None,
    };
    let outcomes = vec![
        ("CredentialsMissing", Outcome::CredentialsMissing { text: text() }),
        ("Created", Outcome::Created(identity())),
        ("Adopted", Outcome::Adopted(identity())),
        ("Refused", Outcome::Refused { class: FailureClass::Rejected, text: text() }),
        ("NotMade", Outcome::NotMade { text: text(), retry_after: None }),
        ("Unknown", unknown()),
        ("Bootstrapped", Outcome::Bootstrapped { workdir: "/w".to_owned() }),
        ("BootstrapFailed", Outcome::BootstrapFailed { reason: FailureReason::CloneFailed, text: text() }),
        ("BootstrapRetry", Outcome::BootstrapRetry { text: text(), retry_after: None }),
        ("Gone in the report", Outcome::Gone { scope: "scope".to_owned(), how: text() }),
        ("Absent", absent()),
        ("Absent by id only", seen(false, "scope")),
        ("Absent in another scope", seen(true, "other")),
        ("Accepted", Outcome::Accepted),
        ("StillThere", Outcome::StillThere),
        ("TeardownFailed(503)", failed(FailureClass::Unavailable)),
        ("TeardownFailed(401)", failed(FailureClass::Unauthorized)),
        ("TeardownFailed(identity differs)", failed(FailureClass::IdentityDiffers)),
    ];
    let mut all: Vec<(String, Trigger)> =
        outcomes.into_iter().map(|(name, outcome)| (name.to_owned(), Trigger::Report { fence, outcome })).collect();
    for action in Action::ALL {
        all.push((format!("Claim({})", action.as_str()), Trigger::Claim { worker: worker(), action: *action }));
    }
    let others = [
        ("Created, stale fence", Trigger::Report { fence: fence + 1, outcome: Outcome::Created(identity()) }),
        ("claim expired", Trigger::ClaimExpired { fence, claim_end: NOW.plus(MINUTE) }),
        ("claim expires later", Trigger::ClaimExpired { fence, claim_end: NOW.plus(MINUTE * 60) }),
        ("desired RELEASED", Trigger::Unwanted(Cause::Cancelled)),
        ("deadline", Trigger::Deadline),
        ("Gone", Trigger::Gone { scope: "scope".to_owned(), how: "404".to_owned() }),
        ("Gone in another scope", Trigger::Gone { scope: "other".to_owned(), how: "404".to_owned() }),
        ("Missing", Trigger::Missing { how: "502 of a beat".to_owned() }),
        ("Beat", Trigger::Beat { observed: Observed::Running, at: NOW.plus(MINUTE), touch: true }),
        ("outage over", Trigger::Outage { away: MINUTE }),
        ("Retry", Trigger::Retry),
        ("Forget", Trigger::Forget { reason: "gone".to_owned(), by: "admin".to_owned() }),
    ];
    all.extend(others.into_iter().map(|(name, trigger)| (name.to_owned(), trigger)));
    all
}

pub(crate) const FIRST: Uuid = Uuid::from_u128(7);

pub(crate) fn message(number: u128) -> NewMessage {
    let uuid = Uuid::from_u128(number);
    NewMessage { id: MessageId::new(uuid), kind: MessageKind::Prompt, text: "do it".to_owned(), uuid }
}

pub(crate) fn context(policy: &Policy, lease: LeaseView) -> Context<'_> {
    Context { lease, conversation: false, recreate: false, ended: None, wall_clock_deadline: None, policy }
}

pub(crate) fn went(session: &Session, trigger: &session::Trigger, context: &Context<'_>) -> Session {
    match session::next(session, trigger, context, NOW) {
        Step::Changed(next, _) => next,
        other => panic!("{} {}: {other:?}", session.state.as_str(), trigger.name()),
    }
}

pub(crate) fn session_claim(action: session::Action) -> session::Trigger {
    let plan = (action == session::Action::Launch)
        .then(|| LaunchPlan { first_seq: 1, bearer_sha256: Some("hash".to_owned()) });
    session::Trigger::Claim { worker: worker(), action, plan }
}

pub(crate) fn session_report(session: &Session, outcome: session::Outcome) -> session::Trigger {
    session::Trigger::Report { fence: session.fence, outcome }
}

/// Every shape of a one-shot's session row.
pub(crate) fn sessions(harness: Harness) -> Vec<(&'static str, Session)> {
    let policy = Policy { liveness: Duration::ZERO, ..Policy::default() };
    let ready = context(&policy, LeaseView::Ready);
    let pending = Session::open(
        SessionId::new(Uuid::from_u128(3)),
        RunId::new(Uuid::from_u128(2)),
        harness,
        message(7),
        &policy,
        NOW,
    );
    let starting = went(&pending, &session::Trigger::LeaseReady, &ready);
    let launching = went(&starting, &session_claim(session::Action::Launch), &ready);
    let silent = Session { claim: None, launches_without_event: 3, ..launching.clone() };
    let live = went(&launching, &session_report(&launching, session::Outcome::Launched), &ready);
    let turn = went(&live, &session::Trigger::Accepted { launch: 1, uuid: FIRST }, &ready);
    let watch = if harness == Harness::Native { session::Action::Drive } else { session::Action::Check };
    let ending = went(&turn, &session::Trigger::TurnEnded { launch: 1, done: vec![] }, &ready);
    let collecting = went(&ending, &session_claim(session::Action::Collect), &ready);
    let collected = went(&collecting, &session_report(&collecting, session::Outcome::Collected), &ready);
    let parking = went(&collected, &session_claim(session::Action::Park), &ready);
    let more = went(&parking, &session::Trigger::Send { message: message(8), new_sandbox: false }, &ready);
    let idle = went(&parking, &session_report(&parking, session::Outcome::Parked), &ready);
    vec![
        ("PENDING", pending.clone()),
        ("STARTING", starting),
        ("STARTING claimed", launching),
        ("STARTING, three silent launches", silent),
        ("LIVE", live),
        ("LIVE in a turn", turn.clone()),
        ("LIVE in a turn, claimed", went(&turn, &session_claim(watch), &ready)),
        ("ENDING, result due", ending),
        ("ENDING, collecting", collecting),
        ("ENDING", collected.clone()),
        ("ENDING, terminal held", Session { terminal_held: true, ..collected }),
        ("ENDING, parking", parking),
        ("ENDING, parking, message waits", more),
        ("IDLE", idle.clone()),
        ("IDLE, terminal held", Session { terminal_held: true, ..idle }),
        ("CLOSED", went(&pending, &session::Trigger::RunEnded { reason: FailureReason::Cancelled }, &ready)),
    ]
}

/// Every kind of trigger for this session.
pub(crate) fn session_triggers(session: &Session) -> Vec<(String, session::Trigger)> {
    use session::{Outcome as O, Trigger as T};
    let text = || "text".to_owned();
    let launch = session.launch;
    let outcomes = vec![
        O::Launched,
        O::LaunchFailed { reason: FailureReason::LaunchFailed, text: text() },
        O::LaunchUnknown { text: text(), retry_after: None },
        O::DriveEnded,
        O::Alive,
        O::NoRunner,
        O::CheckUnknown { text: text() },
        O::Collected,
        O::CollectFailed { reason: FailureReason::PushRefused, text: text() },
        O::Parked,
        O::ParkAborted,
        O::Retry { text: text(), retry_after: None },
    ];
    let mut all: Vec<(String, T)> =
        outcomes.into_iter().map(|outcome| (outcome.name().to_owned(), session_report(session, outcome))).collect();
    all.extend(
        session::Action::ALL.iter().map(|action| (format!("Claim({})", action.as_str()), session_claim(*action))),
    );
    let others = vec![
        ("Launched, stale fence", T::Report { fence: session.fence + 1, outcome: O::Launched }),
        ("claim expired", T::ClaimExpired { fence: session.fence, claim_end: NOW }),
        ("deadline", T::Deadline),
        ("Delivered(n)", T::Delivered { launch, uuid: FIRST }),
        ("Accepted(n)", T::Accepted { launch, uuid: FIRST }),
        ("AlreadyHeld(n)", T::AlreadyHeld { launch, uuid: FIRST }),
        ("TurnEnded(n)", T::TurnEnded { launch, done: vec![FIRST] }),
        ("SignOfLife(n)", T::SignOfLife { launch, activity: None, native_id: None }),
        ("Failed(n)", T::Failed { launch, reason: FailureReason::BudgetTurns, text: text() }),
        ("End(n)", T::End { launch }),
        ("End(k)", T::End { launch: launch + 1 }),
        ("Accepted(k)", T::Accepted { launch: launch + 1, uuid: FIRST }),
        ("SendMessage", T::Send { message: message(9), new_sandbox: false }),
        ("SendMessage(new_sandbox)", T::Send { message: message(9), new_sandbox: true }),
        ("Reset", T::Reset),
        ("TerminalHeld", T::TerminalHeld),
        ("TerminalReleased", T::TerminalReleased),
        ("lease READY", T::LeaseReady),
        ("lease gone", T::LeaseGone { reason: FailureReason::SandboxLost }),
        ("run ended", T::RunEnded { reason: FailureReason::Cancelled }),
        ("recompute", T::Settle),
    ];
    all.extend(others.into_iter().map(|(name, trigger)| (name.to_owned(), trigger)));
    all
}
