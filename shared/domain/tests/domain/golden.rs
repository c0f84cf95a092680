//! The tables as implemented, printed and compared with `golden/transitions.txt` (`UPDATE_EXPECT=1` rewrites it), and what must hold for every pair.

use super::rows;
use berth_domain::failure::FailureReason;
use berth_domain::lease::{self, Cause, Desired, Lease};
use berth_domain::policy::Policy;
use berth_domain::run::{self, OnSandboxLoss, Outcome, Run};
use berth_domain::session::{self, Harness, LeaseView, Session};
use berth_domain::step::Step;
use berth_domain::time::Time;
use expect_test::expect_file;
use std::fmt::Write;

const LATER: Time = Time(rows::NOW.0 + 120 * 1_000_000);
const MUCH_LATER: Time = Time(rows::NOW.0 + 20 * 60 * 1_000_000);

#[test]
fn the_tables_are_as_committed() {
    let mut text = String::from(
        "# Written by the tests of berth-domain: UPDATE_EXPECT=1. Reasons of ignored pairs are left out.\n",
    );
    lease_table(&mut text);
    session_table(&mut text, "Session, one-shot, claude_code", Harness::ClaudeCode, LeaseView::Ready, false);
    session_table(&mut text, "Session, conversation, native", Harness::Native, LeaseView::Ready, true);
    session_table(
        &mut text,
        "Session, one-shot, claude_code, lease gone",
        Harness::ClaudeCode,
        LeaseView::Gone(FailureReason::LeaseExpired),
        false,
    );
    run_table(&mut text);
    expect_file!["../../golden/transitions.txt"].assert_eq(&text);
}

fn at(name: &str) -> Time {
    if name == "deadline" { MUCH_LATER } else { LATER }
}

fn lease_table(text: &mut String) {
    let policy = Policy::default();
    text.push_str("\n# Lease\n");
    for (name, lease) in rows::leases() {
        let mut ignored = vec![];
        for (trigger_name, trigger) in rows::lease_triggers(lease.fence) {
            match lease::next(&lease, &trigger, &policy, at(&trigger_name)) {
                Step::Changed(next, effects) => {
                    let _ = writeln!(text, "{name} | {trigger_name} -> {}", describe_lease(&next, &effects));
                }
                Step::Ignored(_) | Step::Refused(_) => ignored.push(trigger_name),
            }
        }
        let _ = writeln!(text, "{name} | ignores: {}", ignored.join(", "));
    }
}

fn describe_lease(lease: &Lease, effects: &[lease::Effect]) -> String {
    let mut line = format!("{} {}", lease.state.as_str(), lease.desired.as_str());
    if lease.in_doubt {
        line.push_str(" in doubt");
    }
    if let Some(receipt) = &lease.receipt {
        let _ = write!(line, " ({})", receipt.kind.as_str());
    }
    match (&lease.claim, lease.next_action) {
        (Some(claim), _) => {
            let _ = write!(line, ", claimed {}", claim.action.as_str());
        }
        (None, Some((action, _))) => {
            let _ = write!(line, ", next {}", action.as_str());
        }
        (None, None) => {}
    }
    for effect in effects {
        match effect {
            lease::Effect::FailRun { reason, .. } => {
                let _ = write!(line, "; run FAILED({reason})");
            }
            lease::Effect::QuotaFreed => line.push_str("; quota freed"),
            lease::Effect::ReadSoon => line.push_str("; read by id"),
        }
    }
    line
}

fn session_table(text: &mut String, title: &str, harness: Harness, lease: LeaseView, conversation: bool) {
    let policy = Policy::default();
    let mut context = rows::context(&policy, lease);
    context.conversation = conversation;
    let _ = writeln!(text, "\n# {title}");
    for (name, session) in rows::sessions(harness) {
        let mut ignored = vec![];
        let mut refused = vec![];
        for (trigger_name, trigger) in rows::session_triggers(&session) {
            match session::next(&session, &trigger, &context, at(&trigger_name)) {
                Step::Changed(next, effects) => {
                    let _ = writeln!(text, "{name} | {trigger_name} -> {}", describe_session(&next, &effects));
                }
                Step::Ignored(_) => ignored.push(trigger_name),
                Step::Refused(refusal) => refused.push(format!("{trigger_name} ({})", refusal.reason())),
            }
        }
        if !refused.is_empty() {
            let _ = writeln!(text, "{name} | refuses: {}", refused.join(", "));
        }
        let _ = writeln!(text, "{name} | ignores: {}", ignored.join(", "));
    }
}

fn describe_session(session: &Session, effects: &[session::Effect]) -> String {
    let mut line = format!("{} n={}", session.state.as_str(), session.launch);
    for message in &session.messages {
        let _ = write!(line, " {:?}", message.state);
    }
    for (flag, word) in
        [(session.turn, "turn"), (session.result_due, "result due"), (session.terminal_held, "terminal")]
    {
        if flag {
            let _ = write!(line, " [{word}]");
        }
    }
    match (&session.claim, session.next_action) {
        (Some(claim), _) => {
            let _ = write!(line, ", claimed {}", claim.action.as_str());
        }
        (None, Some((action, _))) => {
            let _ = write!(line, ", next {}", action.as_str());
        }
        (None, None) => {}
    }
    for effect in effects {
        let _ = write!(line, "; {effect:?}");
    }
    line
}

fn blank_run(state: run::State, conversation: bool) -> Run {
    Run {
        id: berth_domain::id::RunId::new(uuid::Uuid::from_u128(2)),
        tenant: berth_domain::id::TenantId::parse("t").expect("tenant"),
        state,
        activity: None,
        conversation,
        on_sandbox_loss: OnSandboxLoss::Fail,
        cancel_asked: false,
        deletion_asked: false,
        outcome: None,
        created_at: rows::NOW,
        state_since: rows::NOW,
        deadline: None,
        wall_clock_deadline: None,
        linger: rows::MINUTE,
        settled_at: None,
        policy: Policy::default(),
    }
}

fn run_table(text: &mut String) {
    text.push_str("\n# Run: derive(run, leases, session)\n");
    let lease = |name: &str| {
        rows::leases().into_iter().find(|(known, _)| *known == name).map(|(_, lease)| lease).expect("a named lease")
    };
    let session = |name: &str| {
        rows::sessions(Harness::Native)
            .into_iter()
            .find(|(known, _)| *known == name)
            .map(|(_, session)| session)
            .expect("a named session")
    };
    let recovering = Lease { recovery: true, ..lease("REQUESTED") };
    let stored = [
        ("", false, false, None),
        ("cancel asked", true, false, None),
        ("failure stored", false, false, Some(FailureReason::ModelError)),
        ("deletion asked", true, true, None),
    ];
    let sets: Vec<(&str, Vec<Lease>)> = vec![
        ("ALLOCATING", vec![lease("ALLOCATING claimed")]),
        ("READY", vec![lease("READY")]),
        ("RELEASED", vec![lease("RELEASED")]),
        ("RELEASING", vec![lease("RELEASING")]),
        ("RELEASE_FAILED", vec![lease("RELEASE_FAILED")]),
        ("LOST, replacement REQUESTED", vec![lease("LOST"), recovering]),
        ("RELEASE_FAILED, RELEASED", vec![lease("RELEASE_FAILED"), lease("RELEASED")]),
        ("RELEASE_FAILED, RELEASING", vec![lease("RELEASE_FAILED"), lease("RELEASING")]),
    ];
    for (leases_name, leases) in &sets {
        for (work_name, session) in [("work", session("PENDING")), ("no work", session("IDLE"))] {
            for (stored_name, cancel, deletion, failure) in &stored {
                let states: Vec<String> = [
                    (run::State::Running, false),
                    (run::State::Running, true),
                    (run::State::Failed, false),
                    (run::State::Deleted, false),
                ]
                .into_iter()
                .map(|(state, conversation)| {
                    let outcome = failure.map(|reason| Outcome::Failed { reason, text: String::new() });
                    let run = Run {
                        cancel_asked: *cancel,
                        deletion_asked: *deletion,
                        outcome,
                        ..blank_run(state, conversation)
                    };
                    run::derive(&run, leases, &session).as_str().to_owned()
                })
                .collect();
                let _ = writeln!(
                    text,
                    "[{leases_name}] {work_name} {stored_name} | one-shot {} | conversation {} | was FAILED {} | was DELETED {}",
                    states[0], states[1], states[2], states[3]
                );
            }
        }
    }
}

#[test]
fn every_pair_keeps_the_lease_invariants() {
    let policy = Policy::default();
    for (name, lease) in rows::leases() {
        for (trigger_name, trigger) in rows::lease_triggers(lease.fence) {
            let Step::Changed(next, _) = lease::next(&lease, &trigger, &policy, at(&trigger_name)) else { continue };
            let pair = format!("{name} | {trigger_name}");
            assert_ne!(lease.state, lease::State::Released, "{pair}: RELEASED absorbs");
            assert_eq!(
                next.receipt.is_some(),
                next.state == lease::State::Released,
                "{pair}: RELEASED means a receipt"
            );
            assert!(next.is_terminal() || next.claim.is_some() || next.next_action.is_some(), "{pair}: nobody to act");
            assert!(next.fence >= lease.fence, "{pair}: the fence went back");
            assert!(lease.desired == Desired::Held || next.desired == Desired::Released, "{pair}: wanted again");
            assert!(!lease.in_doubt || next.in_doubt, "{pair}: the doubt was forgotten");
            assert!(lease.identity.is_none() || next.identity.is_some(), "{pair}: the identity was forgotten");
            assert_eq!(next.next_action, lease::next_action(&next), "{pair}: the stored action differs");
            let spends = matches!(
                trigger,
                lease::Trigger::Claim { .. } | lease::Trigger::Report { .. } | lease::Trigger::ClaimExpired { .. }
            );
            assert_eq!(
                spends,
                next.fence == lease.fence + 1
                    && !matches!(trigger, lease::Trigger::Deadline | lease::Trigger::Forget { .. }),
                "{pair}: R3"
            );
        }
        let Step::Changed(next, _) = lease::next(&lease, &lease::Trigger::Unwanted(Cause::Deleted), &policy, LATER)
        else {
            continue;
        };
        assert_eq!(next.fence, lease.fence, "{name}: R4");
    }
}

#[test]
fn every_pair_keeps_the_session_invariants() {
    let policy = Policy::default();
    for harness in Harness::ALL {
        for (name, session) in rows::sessions(*harness) {
            for lease in [LeaseView::Ready, LeaseView::Coming, LeaseView::Gone(FailureReason::SandboxLost)] {
                for (conversation, recreate) in [(false, false), (true, false), (true, true)] {
                    let context = session::Context { conversation, recreate, ..rows::context(&policy, lease) };
                    for (trigger_name, trigger) in rows::session_triggers(&session) {
                        let Step::Changed(next, _) = session::next(&session, &trigger, &context, at(&trigger_name))
                        else {
                            continue;
                        };
                        let pair = format!("{name} | {trigger_name} | {lease:?}");
                        assert_ne!(session.state, session::State::Closed, "{pair}: CLOSED absorbs");
                        assert!(next.fence >= session.fence, "{pair}: the fence went back");
                        assert!(next.launch >= session.launch, "{pair}: the launch went back");
                        assert!(
                            session.claim == next.claim || next.fence > session.fence,
                            "{pair}: a claim ended without its fence"
                        );
                        let rests = matches!(
                            next.state,
                            session::State::Pending | session::State::Idle | session::State::Closed
                        );
                        assert!(
                            !rests
                                || next.claim.is_none() && next.bearer_sha256.is_none()
                                || session.state == session::State::Pending,
                            "{pair}: bearer or claim survives"
                        );
                        assert!(rests || next.claim.is_some() || next.next_action.is_some(), "{pair}: nobody to act");
                        assert!(
                            next.state != session::State::Closed || !session::work(&next),
                            "{pair}: CLOSED with work"
                        );
                    }
                }
            }
        }
    }
}
