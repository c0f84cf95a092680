//! Cases from the field that are decided here, each by its id.

use super::rows::{self, MINUTE, NOW, absent, acquire, claimed, failed, ready_lease, reported, unknown, unwanted};
use berth_domain::aggregate::{Aggregate, Applied, CreateSpec, Note, Transition, Trigger, apply, create, due};
use berth_domain::failure::{FailureClass, FailureReason};
use berth_domain::id::TenantId;
use berth_domain::lease::{self, Action, Beat, Lease, Observed, Outcome, ReceiptKind, State};
use berth_domain::policy::Policy;
use berth_domain::run::{self, OnSandboxLoss};
use berth_domain::session::{self, Harness, LeaseView};
use berth_domain::step::{Refusal, Step};
use berth_domain::time::Time;
use std::time::Duration;
use uuid::Uuid;

fn new_run(conversation: bool) -> Aggregate {
    let spec = CreateSpec {
        tenant: TenantId::parse("t").expect("tenant"),
        provider: rows::traits(true),
        harness: Harness::Native,
        conversation,
        on_sandbox_loss: OnSandboxLoss::Fail,
        prompt: "secret prompt".to_owned(),
        policy: Policy::default(),
    };
    let mut id = 100;
    create(spec, NOW, &mut || {
        id += 1;
        Uuid::from_u128(id)
    })
    .0
}

fn try_apply(rows: &Aggregate, trigger: Trigger, now: Time) -> Applied {
    let mut id = 1000 + rows.leases.len() as u128;
    apply(rows, &trigger, now, &mut || {
        id += 1;
        Uuid::from_u128(id)
    })
}

fn changed(rows: &Aggregate, trigger: Trigger, now: Time) -> (Aggregate, Vec<Transition>, Vec<Note>) {
    match try_apply(rows, trigger, now) {
        Applied::Changed { next, transitions, notes } => (*next, transitions, notes),
        other => panic!("{other:?}"),
    }
}

fn lease_does(rows: &Aggregate, trigger: lease::Trigger, now: Time) -> Aggregate {
    changed(rows, Trigger::Lease(rows.leases[0].id.clone(), trigger), now).0
}

fn lease_reports(rows: &Aggregate, outcome: Outcome, now: Time) -> Aggregate {
    lease_does(rows, lease::Trigger::Report { fence: rows.leases[0].fence, outcome }, now)
}

fn lease_claims(rows: &Aggregate, action: Action, now: Time) -> Aggregate {
    lease_does(rows, lease::Trigger::Claim { worker: rows::worker(), action }, now)
}

fn session_does(rows: &Aggregate, trigger: session::Trigger) -> Aggregate {
    changed(rows, Trigger::Session(trigger), NOW).0
}

fn session_reports(rows: &Aggregate, outcome: session::Outcome) -> Aggregate {
    session_does(rows, rows::session_report(&rows.session, outcome))
}

fn ready_run(conversation: bool) -> Aggregate {
    let rows = lease_claims(&new_run(conversation), Action::Allocate, NOW);
    let rows = lease_claims(&lease_reports(&rows, Outcome::Created(rows::identity()), NOW), Action::Bootstrap, NOW);
    lease_reports(&rows, Outcome::Bootstrapped { workdir: "/w".to_owned() }, NOW)
}

fn running_run(conversation: bool) -> Aggregate {
    let rows = session_does(&ready_run(conversation), rows::session_claim(session::Action::Launch));
    let rows = session_reports(&rows, session::Outcome::Launched);
    let rows = session_does(&rows, rows::session_claim(session::Action::Drive));
    let uuid = rows.session.messages[0].uuid;
    session_does(&rows, session::Trigger::Accepted { launch: 1, uuid })
}

#[test]
fn a_one_shot_runs_completes_and_is_deleted() {
    let rows = running_run(false);
    assert_eq!(rows.run.state, run::State::Running);
    let rows = session_does(&rows, session::Trigger::TurnEnded { launch: 1, done: vec![] });
    assert_eq!(
        (rows.run.state, rows.session.state),
        (run::State::Running, session::State::Ending),
        "the result is still due"
    );
    let rows = session_reports(
        &session_does(&rows, rows::session_claim(session::Action::Collect)),
        session::Outcome::Collected,
    );
    assert_eq!(rows.run.state, run::State::Completed);
    let rows =
        session_reports(&session_does(&rows, rows::session_claim(session::Action::Park)), session::Outcome::Parked);
    let (rows, transitions, _) = changed(&rows, Trigger::Delete, NOW);
    assert_eq!((rows.run.state, rows.session.state), (run::State::Deleting, session::State::Closed));
    assert!(transitions.iter().all(|transition| transition.cause == "DeleteRun"));
    let rows = lease_claims(&rows, Action::Release, NOW);
    let fence = rows.leases[0].fence;
    let id = rows.leases[0].id.clone();
    let (rows, _, notes) =
        changed(&rows, Trigger::Lease(id.clone(), lease::Trigger::Report { fence, outcome: absent() }), NOW);
    assert_eq!(rows.run.state, run::State::Deleted);
    assert_eq!(notes, vec![Note::QuotaFreed(id), Note::Erase]);
    assert!(rows.session.messages.iter().all(|message| message.text.is_empty()));
    assert_eq!(try_apply(&rows, Trigger::Delete, NOW), Applied::Ignored("deleted already"));
    assert_eq!(try_apply(&rows, Trigger::Cancel, NOW), Applied::Refused(Refusal::NotFound));
    assert_eq!(due(&rows, NOW), None);
}

#[test]
fn case_d06_no_failed_teardown_finishes_a_record() {
    let releasing = claimed(&unwanted(&ready_lease(), NOW), Action::Release, NOW);
    let late = Lease { release_since: Some(Time(0)), ..releasing.clone() };
    for class in FailureClass::ALL {
        for row in [&releasing, &late] {
            let next = reported(row, failed(*class), NOW);
            assert!(next.receipt.is_none() && !next.is_terminal(), "{class}");
            assert!(
                next.next_action.is_some_and(|(action, at)| action == Action::Release && at > NOW),
                "{class}: retried for ever"
            );
        }
        let expected = if class.is_transient() || *class == FailureClass::Absent {
            State::Releasing
        } else {
            State::ReleaseFailed
        };
        assert_eq!(reported(&releasing, failed(*class), NOW).state, expected, "{class}");
        assert_eq!(reported(&late, failed(*class), NOW).state, State::ReleaseFailed, "{class}: after an hour");
    }
}

#[test]
fn case_d07_cancel_before_create_is_deleted_directly() {
    let (rows, ..) = changed(&new_run(false), Trigger::Cancel, NOW);
    assert_eq!((rows.run.state, rows.leases[0].state), (run::State::Cancelled, State::Released));
    let receipt = rows.leases[0].receipt.as_ref().expect("a receipt");
    assert_eq!(receipt.kind, ReceiptKind::NeverCreated);
    let (rows, ..) = changed(&rows, Trigger::Delete, NOW);
    assert_eq!(rows.run.state, run::State::Deleted, "at once: no provider call was ever made");
}

#[test]
fn case_d08_never_started_in_doubt_and_made_are_different() {
    let allocating = claimed(&acquire(true), Action::Allocate, NOW);
    let never = reported(&unwanted(&allocating, NOW), Outcome::CredentialsMissing { text: "no key".to_owned() }, NOW);
    assert_eq!(never.receipt.as_ref().map(|receipt| receipt.kind), Some(ReceiptKind::NeverCreated));

    let doubt = unwanted(&reported(&allocating, unknown(), NOW), NOW);
    let early = reported(&claimed(&doubt, Action::Release, NOW), absent(), NOW.plus(MINUTE * 2));
    assert_eq!(
        (early.state, early.next_action),
        (State::Releasing, Some((Action::Release, NOW.plus(MINUTE)))),
        "absence seen before the doubt settled is no receipt, whenever it is reported"
    );
    let late = reported(&claimed(&early, Action::Release, NOW.plus(MINUTE)), absent(), NOW.plus(MINUTE));
    assert_eq!(
        late.receipt.as_ref().map(|receipt| receipt.kind),
        Some(ReceiptKind::ObservedAbsent),
        "deleted without ever having had an id"
    );

    let blind = reported(&claimed(&Lease { can_lookup_key: false, ..doubt }, Action::Release, NOW), absent(), NOW);
    assert_eq!(
        (blind.state, blind.failure.map(|(class, _)| class)),
        (State::ReleaseFailed, Some("NO_LOOKUP".to_owned()))
    );

    let made = reported(&unwanted(&allocating, NOW), Outcome::Created(rows::identity()), NOW);
    assert_eq!(
        (made.state, made.identity),
        (State::Releasing, Some(rows::identity())),
        "the identity is stored although nobody wants it any more"
    );
}

#[test]
fn case_l12_age_alone_never_qualifies() {
    let ready = ready_lease();
    let policy = Policy::default();
    let mut now = NOW;
    let mut row = ready.clone();
    for _ in 0..40 {
        now = now.plus(MINUTE * 29);
        assert_eq!(lease::beat(&row, now), Beat::Allowed);
        row = rows::moved(&row, &lease::Trigger::Beat { observed: Observed::Running, at: now, touch: true }, now);
        let take =
            lease::next(&row, &lease::Trigger::Claim { worker: rows::worker(), action: Action::Release }, &policy, now);
        assert_eq!(take, Step::Ignored("that action is not due"), "old, but in use and within its lifetime");
    }
    for how in ["inventory", "502 of a beat"] {
        let missing = rows::moved(&ready, &lease::Trigger::Missing { how: how.to_owned() }, NOW);
        assert_eq!(
            (missing.state, missing.desired, missing.observed),
            (State::Ready, lease::Desired::Held, Observed::Unknown)
        );
    }
}

#[test]
fn case_h01_a_beat_at_expiry_is_refused_and_never_moves_the_cap() {
    let ready = ready_lease();
    let at = ready.expires_at;
    assert_eq!(at, NOW.plus(MINUTE * 30));
    let beat = |row: &Lease, now: Time| {
        lease::next(
            row,
            &lease::Trigger::Beat { observed: Observed::Running, at: now, touch: true },
            &Policy::default(),
            now,
        )
    };
    for late in [at, Time(at.0 + 1), at.plus(MINUTE)] {
        assert_eq!(lease::beat(&ready, late), Beat::RefusedExpired);
        assert_eq!(beat(&ready, late), Step::Ignored("expired"));
    }
    let just = Time(at.0 - 1);
    assert_eq!(lease::beat(&ready, just), Beat::Allowed);
    let touched =
        rows::moved(&ready, &lease::Trigger::Beat { observed: Observed::Running, at: just, touch: true }, just);
    assert_eq!(touched.expires_at, just.plus(MINUTE * 30));
    let day = Duration::from_secs(24 * 3600);
    assert_eq!(lease::expires_at(NOW, day, NOW.plus(day), MINUTE), NOW.plus(day), "the hard deadline stands");
    let future = rows::moved(
        &ready,
        &lease::Trigger::Beat { observed: Observed::Running, at: NOW.plus(day), touch: true },
        just,
    );
    assert_eq!(future.touched_at, just, "a beat from the future counts as now");
}

#[test]
fn case_s05_no_relaunch_while_the_unwinding_is_open() {
    let named = rows::sessions(Harness::ClaudeCode);
    let (_, parking) =
        named.iter().find(|(name, _)| *name == "ENDING, parking, message waits").expect("a named session");
    let policy = Policy::default();
    let context = rows::context(&policy, LeaseView::Ready);
    let launch = rows::session_claim(session::Action::Launch);
    assert!(!session::next(parking, &launch, &context, NOW).is_changed());
    assert!(
        !session::next(parking, &session::Trigger::Settle, &context, NOW).is_changed(),
        "stays ENDING while PARK is under way"
    );
    let aborted = rows::went(parking, &rows::session_report(parking, session::Outcome::ParkAborted), &context);
    let starting = rows::went(&aborted, &session::Trigger::Settle, &context);
    assert!(session::next(&starting, &launch, &context, NOW).is_changed(), "the unwinding is over");

    let rows = ready_run(true);
    let (rows, ..) = changed(&rows, Trigger::ReleaseLease(rows.leases[0].id.clone()), NOW);
    let refused = try_apply(&rows, Trigger::Session(launch), NOW);
    assert!(matches!(refused, Applied::Ignored(_)), "nothing starts in a sandbox that is being released");
}

#[test]
fn case_s06_a_callback_of_an_older_attempt_changes_nothing() {
    let rows = lease_claims(&new_run(false), Action::Allocate, NOW);
    let old = rows.leases[0].fence;
    let rows = lease_does(&rows, lease::Trigger::ClaimExpired { fence: old, claim_end: NOW }, NOW);
    let rows = lease_claims(&rows, Action::Allocate, NOW.plus(MINUTE));
    let late = Trigger::Lease(
        rows.leases[0].id.clone(),
        lease::Trigger::Report { fence: old, outcome: Outcome::Created(rows::identity()) },
    );
    assert_eq!(try_apply(&rows, late, NOW.plus(MINUTE)), Applied::Refused(Refusal::StaleFence));

    let rows = session_reports(&running_run(false), session::Outcome::DriveEnded);
    assert_eq!(rows.session.state, session::State::Starting);
    let rows = session_does(&rows, rows::session_claim(session::Action::Launch));
    let rows = session_reports(&rows, session::Outcome::Launched);
    for stale in [
        session::Trigger::End { launch: 1 },
        session::Trigger::TurnEnded { launch: 1, done: vec![] },
        session::Trigger::Failed { launch: 1, reason: FailureReason::ModelError, text: String::new() },
    ] {
        assert!(matches!(try_apply(&rows, Trigger::Session(stale), NOW), Applied::Ignored(_)));
    }
}

#[test]
fn case_s11_budgets_end_the_run_with_a_reason() {
    for reason in [FailureReason::BudgetTurns, FailureReason::BudgetTokens] {
        let rows = session_does(
            &running_run(false),
            session::Trigger::Failed { launch: 1, reason, text: "used up".to_owned() },
        );
        assert_eq!(rows.run.state, run::State::Failed);
        assert!(matches!(&rows.run.outcome, Some(run::Outcome::Failed { reason: stored, .. }) if *stored == reason));
        assert_eq!((rows.session.state, rows.leases[0].desired), (session::State::Closed, lease::Desired::Released));
        assert!(rows.session.claim.is_none(), "the driver's claim is over");
    }
    let mut rows = running_run(false);
    let end = rows.run.wall_clock_deadline.expect("a budget");
    rows.leases[0].touched_at = end;
    rows.leases[0].expires_at = end.plus(MINUTE * 30);
    let (rows, ..) = changed(&rows, Trigger::Tick, end);
    assert!(
        matches!(rows.run.outcome, Some(run::Outcome::Failed { reason: FailureReason::BudgetWallClock, .. })),
        "{:?}",
        rows.run.outcome
    );
}

#[test]
fn deleting_an_active_run_is_refused_and_cancel_is_idempotent() {
    let rows = running_run(true);
    assert_eq!(try_apply(&rows, Trigger::Delete, NOW), Applied::Refused(Refusal::CancelFirst));
    let (rows, ..) = changed(&rows, Trigger::Cancel, NOW);
    assert_eq!(try_apply(&rows, Trigger::Cancel, NOW), Applied::Ignored("settled or being deleted"));
    let message = session::Trigger::Send { message: rows::message(77), new_sandbox: true };
    assert_eq!(try_apply(&rows, Trigger::Session(message), NOW), Applied::Refused(Refusal::RunEnded));
}

#[test]
fn a_provider_that_is_full_is_waited_for_until_the_window_ends() {
    let full = || Outcome::NotMade { text: "PROVIDER_FULL: no room".to_owned(), retry_after: None };
    let mut rows = new_run(false);
    let mut now = NOW;
    let end = NOW.plus(Policy::default().allocate_window);
    while now < end {
        rows = lease_reports(&lease_claims(&rows, Action::Allocate, now), full(), now);
        assert_eq!(rows.run.state, run::State::Provisioning, "after {} attempts", rows.leases[0].attempt);
        let (action, due_at) = rows.leases[0].next_action.expect("tried again");
        assert_eq!(action, Action::Allocate);
        assert!(due_at.since(now) <= Duration::from_secs(15) && due_at > now);
        now = due_at;
    }
    assert!(rows.leases[0].attempt > 40);
    let (failed, ..) = changed(&rows, Trigger::Tick, end);
    assert!(matches!(failed.run.outcome, Some(run::Outcome::Failed { reason: FailureReason::AllocateTimeout, .. })));
    assert_eq!(failed.leases[0].receipt.as_ref().map(|receipt| receipt.kind), Some(ReceiptKind::NeverCreated));

    // Attempts whose outcome is not known are still counted.
    let mut doubtful = acquire(true);
    for attempt in 1..=Policy::default().allocate_attempts {
        let at = NOW.plus(MINUTE * attempt);
        doubtful = reported(&claimed(&doubtful, Action::Allocate, at), unknown(), at);
    }
    assert_eq!(doubtful.state, State::Releasing);
}

#[test]
fn a_teardown_that_nobody_takes_up_is_seen_to_have_failed() {
    let hour = Policy::default().teardown;
    for claimed_once in [false, true] {
        let (rows, ..) = changed(&ready_run(true), Trigger::Cancel, NOW);
        let (mut rows, ..) = changed(&rows, Trigger::Delete, NOW);
        if claimed_once {
            rows = lease_reports(&lease_claims(&rows, Action::Release, NOW), Outcome::Accepted, NOW);
        }
        let end = NOW.plus(hour);
        assert_eq!(due(&rows, NOW), Some(end), "looked at then");
        assert!(!matches!(try_apply(&rows, Trigger::Tick, Time(end.0 - 1)), Applied::Changed { .. }));
        let (rows, ..) = changed(&rows, Trigger::Tick, end);
        assert_eq!((rows.run.state, rows.leases[0].state), (run::State::DeletionFailed, State::ReleaseFailed));
        assert_eq!(rows.leases[0].failure.as_ref().map(|(class, _)| class.as_str()), Some("UNAVAILABLE"));
        assert!(rows.leases[0].next_action.is_some(), "a worker that comes back tries again");
        assert_eq!(due(&rows, end), None);
        let (rows, ..) = changed(&rows, Trigger::RetryDeletion, end);
        assert_eq!((rows.run.state, due(&rows, end)), (run::State::Deleting, Some(end.plus(hour))), "a fresh hour");
    }
}

#[test]
fn error_texts_go_with_the_deletion_and_reasons_stay() {
    let rows = lease_claims(&new_run(false), Action::Allocate, NOW);
    let text = || "canary".to_owned();
    let rows = lease_reports(&rows, Outcome::Refused { class: FailureClass::Rejected, text: text() }, NOW);
    assert!(format!("{rows:?}").contains("canary"));
    let (rows, ..) = changed(&rows, Trigger::Delete, NOW);
    assert_eq!(rows.run.state, run::State::Deleted);
    assert!(!format!("{rows:?}").contains("canary"));
    assert!(matches!(rows.run.outcome, Some(run::Outcome::Failed { reason: FailureReason::AllocateRefused, .. })));
    assert!(rows.leases[0].failure.is_some());
}
