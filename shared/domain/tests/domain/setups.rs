//! The explorations: which part is looked at step by step, and what may go wrong in it.

use super::model::rules::{Part, Rules};
use super::model::{Faults, Found, Setup};
use std::time::Duration;

const NONE: Faults = Faults {
    cut: false,
    refuse: false,
    crash: false,
    resend: false,
    lose: false,
    teardown: false,
    time: false,
    bootstrap: false,
    kill: false,
    release: false,
};

const PLAIN: Setup = Setup {
    name: "plain",
    rules: Rules::ON,
    lookup: true,
    conversation: false,
    recreate: false,
    fine_leases: false,
    fine_session: false,
    faults: 0,
    can: NONE,
    sends: 0,
    resets: 0,
    states: 0,
};

/// Lease workers and provider step by step.
pub(crate) const LEASE: Setup =
    Setup { name: "lease", fine_leases: true, faults: 3, can: Faults { kill: false, ..Faults::ALL }, ..PLAIN };

/// The same where a lost sandbox is replaced.
pub(crate) const RECREATE: Setup = Setup {
    name: "lease, recreate",
    recreate: true,
    conversation: true,
    fine_leases: true,
    faults: 2,
    resets: 1,
    can: Faults { kill: false, ..Faults::ALL },
    sends: 1,
    ..PLAIN
};

/// A provider that cannot look up keys; nothing is cut, so that nothing may get stuck.
pub(crate) const BLIND: Setup = Setup {
    name: "no lookup",
    lookup: false,
    fine_leases: true,
    faults: 2,
    can: Faults { lose: true, resend: true, teardown: true, time: true, bootstrap: true, ..NONE },
    ..PLAIN
};

/// Session workers and the agent step by step, one-shot.
pub(crate) const SESSION: Setup = Setup {
    name: "session",
    fine_session: true,
    faults: 2,
    sends: 1,
    can: Faults { kill: true, crash: true, resend: true, lose: true, ..NONE },
    ..PLAIN
};

/// The same as a conversation.
pub(crate) const CONVERSATION: Setup = Setup { name: "conversation", conversation: true, resets: 1, ..SESSION };

/// The same where a lost sandbox is replaced.
pub(crate) const SESSION_RECREATE: Setup =
    Setup { name: "session, recreate", recreate: true, can: Faults { time: true, ..SESSION.can }, ..SESSION };

/// What the test run explores: all short histories, with fewer faults where there are many.
pub(crate) fn bounded() -> Vec<Setup> {
    let short = |setup: Setup| Setup { faults: 1, states: 20_000, ..setup };
    let two = Setup { faults: 2, ..LEASE };
    vec![two, short(RECREATE), BLIND, short(SESSION), short(CONVERSATION), short(SESSION_RECREATE)]
}

/// All of it, and everything step by step together.
pub(crate) fn full() -> Vec<Setup> {
    let both = Setup {
        name: "everything",
        fine_leases: true,
        fine_session: true,
        faults: 1,
        sends: 1,
        resets: 1,
        conversation: true,
        recreate: true,
        can: Faults::ALL,
        ..PLAIN
    };
    let one_shot = Setup { name: "everything, one-shot", conversation: false, resets: 0, ..both.clone() };
    vec![LEASE, RECREATE, BLIND, SESSION, CONVERSATION, SESSION_RECREATE, one_shot, both]
}

/// Rules whose absence is not noticed.
pub(crate) const REDUNDANT: &[&str] = &[];

/// Looks for a violation under `rules`: first where it is likely, briefly; then everywhere.
pub(crate) fn violation(part: Part, rules: Rules) -> Option<(&'static str, Found)> {
    let one = |setup: Setup| Setup { faults: 1, ..setup };
    let leases = vec![Setup { faults: 2, ..LEASE }, BLIND, LEASE];
    let session = vec![one(CONVERSATION), one(SESSION), one(SESSION_RECREATE)];
    let both = vec![one(RECREATE), RECREATE];
    let order = match part {
        Part::Leases => [leases, both, session],
        Part::Session => [session, both, leases],
        Part::OneShot => [vec![one(SESSION), one(SESSION_RECREATE)], both, leases],
        Part::Both => [both, session, leases],
    };
    [4, 20].into_iter().find_map(|seconds| {
        order.iter().flatten().find_map(|setup| {
            let found = Setup { rules, ..setup.clone() }.explore(Duration::from_secs(seconds));
            found.violation.is_some().then_some((setup.name, found))
        })
    })
}
