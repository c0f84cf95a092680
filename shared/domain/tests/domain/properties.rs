//! Random triggers through `apply`: whatever comes in whatever order, these hold after every step.

use super::rows;
use berth_domain::aggregate::{Aggregate, Applied, CreateSpec, Trigger, apply, create, due};
use berth_domain::id::TenantId;
use berth_domain::lease::{self, Desired, Lease};
use berth_domain::policy::Policy;
use berth_domain::run::{self, OnSandboxLoss};
use berth_domain::session::{self, Harness};
use berth_domain::time::Time;
use proptest::prelude::*;
use std::time::Duration;
use uuid::Uuid;

#[derive(Clone, Debug)]
enum Pick {
    Client(u8),
    Lease { which: usize, trigger: usize },
    Claim,
    Session(usize),
    SessionClaim,
    Message(u8),
    Wait(u32),
}

fn pick() -> impl Strategy<Value = Pick> {
    prop_oneof![
        1 => (0..6u8).prop_map(Pick::Client),
        6 => (0..3usize, 0..64usize).prop_map(|(which, trigger)| Pick::Lease { which, trigger }),
        6 => Just(Pick::Claim),
        6 => (0..64usize).prop_map(Pick::Session),
        6 => Just(Pick::SessionClaim),
        1 => any::<u8>().prop_map(Pick::Message),
        4 => (0..7200u32).prop_map(Pick::Wait),
    ]
}

struct Play {
    rows: Aggregate,
    now: Time,
    ids: u128,
}

impl Play {
    fn new(conversation: bool, recreate: bool, native: bool, lookup: bool) -> Self {
        let spec = CreateSpec {
            tenant: TenantId::parse("t").expect("tenant"),
            provider: rows::traits(lookup),
            harness: if native { Harness::Native } else { Harness::Acp },
            conversation,
            on_sandbox_loss: if recreate { OnSandboxLoss::Recreate } else { OnSandboxLoss::Fail },
            prompt: "p".to_owned(),
            policy: Policy::default(),
        };
        let mut ids = 100;
        let (rows, ..) = create(spec, rows::NOW, &mut || {
            ids += 1;
            Uuid::from_u128(ids)
        });
        Self { rows, now: rows::NOW, ids }
    }

    fn trigger(&mut self, pick: &Pick) -> Trigger {
        let current = self.rows.leases.len() - 1;
        match pick {
            Pick::Client(0) => Trigger::Cancel,
            Pick::Client(1) => Trigger::Delete,
            Pick::Client(2) => Trigger::RetryDeletion,
            Pick::Client(3) => Trigger::Forget { reason: "r".to_owned(), by: "a".to_owned() },
            Pick::Client(4) => Trigger::ReleaseLease(self.rows.leases[current].id.clone()),
            Pick::Client(_) => Trigger::Session(session::Trigger::Reset),
            Pick::Lease { which, trigger } => {
                let lease = &self.rows.leases[which % (current + 1)];
                let all = rows::lease_triggers(lease.fence);
                Trigger::Lease(lease.id.clone(), all[trigger % all.len()].1.clone())
            }
            Pick::Claim => {
                let lease = self
                    .rows
                    .leases
                    .iter()
                    .find(|lease| lease.next_action.is_some())
                    .unwrap_or(&self.rows.leases[current]);
                let (action, at) = lease.next_action.unwrap_or((lease::Action::Release, self.now));
                self.now = self.now.max(at.min(self.now.plus(Duration::from_secs(60))));
                Trigger::Lease(lease.id.clone(), lease::Trigger::Claim { worker: rows::worker(), action })
            }
            Pick::Session(trigger) => {
                let all = rows::session_triggers(&self.rows.session);
                Trigger::Session(all[trigger % all.len()].1.clone())
            }
            Pick::SessionClaim => {
                let (action, at) = self.rows.session.next_action.unwrap_or((session::Action::Launch, self.now));
                self.now = self.now.max(at.min(self.now.plus(Duration::from_secs(60))));
                Trigger::Session(rows::session_claim(action))
            }
            Pick::Message(number) => Trigger::Session(session::Trigger::Send {
                message: rows::message(9000 + u128::from(*number)),
                new_sandbox: number % 2 == 0,
            }),
            Pick::Wait(seconds) => {
                self.now = self.now.plus(Duration::from_secs(u64::from(*seconds)));
                Trigger::Tick
            }
        }
    }

    fn apply(&mut self, trigger: &Trigger) -> Result<bool, TestCaseError> {
        let ids = &mut self.ids;
        let applied = apply(&self.rows, trigger, self.now, &mut || {
            *ids += 1;
            Uuid::from_u128(*ids)
        });
        let Applied::Changed { next, transitions, .. } = applied else { return Ok(false) };
        check(&self.rows, trigger, &next, self.now)?;
        for transition in &transitions {
            prop_assert_ne!(&transition.from, &transition.to);
        }
        self.rows = *next;
        Ok(true)
    }
}

fn check(before: &Aggregate, trigger: &Trigger, after: &Aggregate, now: Time) -> Result<(), TestCaseError> {
    prop_assert!(
        after.leases.iter().filter(|lease| lease.desired == Desired::Held).count() <= 1,
        "at most one HELD lease"
    );
    for lease in &after.leases {
        prop_assert_eq!(lease.receipt.is_some(), lease.is_terminal(), "RELEASED means a receipt");
        prop_assert!(
            lease.is_terminal() || lease.claim.is_some() || lease.next_action.is_some(),
            "a lease nobody acts on"
        );
    }
    prop_assert!(
        after.run.state != run::State::Deleted || after.leases.iter().all(Lease::is_terminal),
        "DELETED without a receipt"
    );
    prop_assert!(before.run.state != run::State::Deleted || after.run == before.run, "DELETED absorbs");
    for (old, new) in before.leases.iter().zip(&after.leases) {
        // Only the erasure of the whole run still takes what was said of a failure; its reason stays.
        let erased = before.run.state != run::State::Deleted && after.run.state == run::State::Deleted;
        let failure = old.failure.clone().map(|(reason, text)| (reason, if erased { String::new() } else { text }));
        let kept = Lease { failure, ..old.clone() };
        prop_assert!(!old.is_terminal() || kept == *new, "RELEASED absorbs");
        prop_assert!(new.fence >= old.fence, "a lease's fence went back");
        let asks =
            matches!(trigger, Trigger::Cancel | Trigger::Delete | Trigger::ReleaseLease(_) | Trigger::RetryDeletion);
        prop_assert!(!asks || new.fence == old.fence, "a desire change touched the fence");
        prop_assert!(!old.in_doubt || new.in_doubt, "doubt is sticky");
    }
    let (old, new) = (&before.session, &after.session);
    prop_assert!(old.state != session::State::Closed || new.state == session::State::Closed, "CLOSED absorbs");
    prop_assert!(new.fence >= old.fence && new.launch >= old.launch, "a session's fence or launch went back");
    let held = after.current().is_some_and(|lease| lease.desired == Desired::Held);
    let owned = match new.state {
        session::State::Pending => held,
        session::State::Starting | session::State::Live | session::State::Ending => {
            held && (new.claim.is_some() || new.next_action.is_some())
        }
        session::State::Idle | session::State::Closed => new.claim.is_none(),
    };
    prop_assert!(owned, "a session nobody acts on: {:?}", new.state);
    let timed = match after.run.state {
        run::State::Provisioning | run::State::Running | run::State::Recovering => {
            after.run.deadline.is_some() && due(after, now).is_some()
        }
        run::State::Waiting
        | run::State::Completed
        | run::State::Failed
        | run::State::Cancelled
        | run::State::Deleting
        | run::State::DeletionFailed
        | run::State::Deleted => true,
    };
    prop_assert!(timed, "an active run without deadline");
    prop_assert_eq!(run::derive(&after.run, &after.leases, new), after.run.state, "the run is what its rows say");
    let again = apply(
        after,
        &Trigger::Lease(berth_domain::id::LeaseId::new(Uuid::from_u128(0)), lease::Trigger::Retry),
        now,
        &mut || Uuid::nil(),
    );
    prop_assert_eq!(again, Applied::Refused(berth_domain::step::Refusal::NotFound));
    Ok(())
}

/// Honest workers and a working provider from now on.
fn finish(play: &mut Play) -> Result<(), TestCaseError> {
    play.apply(&Trigger::Cancel)?;
    play.apply(&Trigger::Delete)?;
    for _ in 0..200 {
        if play.rows.run.state == run::State::Deleted {
            return Ok(());
        }
        play.now = play.now.plus(Duration::from_secs(6 * 3600));
        play.apply(&Trigger::Tick)?;
        let Some(index) = play.rows.leases.iter().position(|lease| !lease.is_terminal()) else { continue };
        let id = play.rows.leases[index].id.clone();
        let claim = lease::Trigger::Claim { worker: rows::worker(), action: lease::Action::Release };
        play.apply(&Trigger::Lease(id.clone(), claim))?;
        let fence = play.rows.leases[index].fence;
        play.apply(&Trigger::Lease(id, lease::Trigger::Report { fence, outcome: rows::absent() }))?;
    }
    prop_assert!(false, "never DELETED: {:?}", play.rows);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_invariants_hold_and_delete_ends(
        (conversation, recreate, native) in any::<(bool, bool, bool)>(),
        picks in prop::collection::vec(pick(), 1..60),
    ) {
        let mut play = Play::new(conversation, recreate, native, true);
        for pick in &picks {
            let trigger = play.trigger(pick);
            play.apply(&trigger)?;
        }
        finish(&mut play)?;
    }

    #[test]
    fn tick_at_due_always_does_something(picks in prop::collection::vec(pick(), 1..40)) {
        let mut play = Play::new(true, true, true, true);
        for pick in &picks {
            let trigger = play.trigger(pick);
            play.apply(&trigger)?;
            if let Some(at) = due(&play.rows, play.now) {
                play.now = at;
                prop_assert!(play.apply(&Trigger::Tick)?, "due, but nothing to do: {:?}", play.rows);
            }
        }
    }
}
