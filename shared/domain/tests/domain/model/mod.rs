//! The stateright model: one run with its leases and session, two workers, a provider and an agent, every rule a switch of the model.
//!
//! The rows are moved by the production `apply`; the model adds what is outside of it: workers that crash or act late, replies that get lost or
//! come twice, creates that land late, a vendor that loses sandboxes or refuses to destroy them, runners that die. Time is abstract: `now` never moves;
//! "time passes" is an action that ages one column. `rules.rs` perturbs calls for rules that are off, `drain.rs` judges whether everything can still end.

pub(crate) mod agent;
pub(crate) mod cloud;
pub(crate) mod drain;
pub(crate) mod moves;
pub(crate) mod rules;
pub(crate) mod world;

use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use moves::Move;
use rules::Rules;
use world::World;

/// What may happen in one exploration.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) name: &'static str,
    pub(crate) rules: Rules,
    /// The provider finds sandboxes by key.
    pub(crate) lookup: bool,
    pub(crate) conversation: bool,
    pub(crate) recreate: bool,
    /// Claim, work and report of leases are separate steps, with everything that can come between.
    pub(crate) fine_leases: bool,
    /// The same for sessions and the agent.
    pub(crate) fine_session: bool,
    /// How many things may go wrong in one history.
    pub(crate) faults: u8,
    /// Which things may go wrong.
    pub(crate) can: Faults,
    /// Messages a client sends after the first.
    pub(crate) sends: u8,
    /// Resets a client makes.
    pub(crate) resets: u8,
    /// Stop after so many states, shortest histories first; 0: no bound.
    pub(crate) states: usize,
}

/// The things that may go wrong, each costing one of `Setup::faults`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) cut: bool,
    pub(crate) refuse: bool,
    pub(crate) crash: bool,
    pub(crate) resend: bool,
    pub(crate) lose: bool,
    pub(crate) teardown: bool,
    pub(crate) time: bool,
    pub(crate) bootstrap: bool,
    pub(crate) kill: bool,
    pub(crate) release: bool,
}

impl Faults {
    pub(crate) const ALL: Faults = Faults {
        cut: true,
        refuse: true,
        crash: true,
        resend: true,
        lose: true,
        teardown: true,
        time: true,
        bootstrap: true,
        kill: true,
        release: true,
    };
}

/// What an exploration found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) seconds: f32,
    /// Property and shortest history of the first violation.
    pub(crate) violation: Option<(String, Vec<String>)>,
}

/// The model: a setup, and the states already known to be able to end.
pub(crate) struct Machine {
    pub(crate) setup: Setup,
    pub(crate) ends: Mutex<HashSet<u64>>,
}

impl Setup {
    /// Explores the setup, breadth first, until a violation or the end.
    pub(crate) fn explore(&self, patience: Duration) -> Found {
        let started = Instant::now();
        let machine = Machine { setup: self.clone(), ends: Mutex::new(HashSet::new()) };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut builder = machine.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures).timeout(patience);
        if self.states > 0 {
            builder = builder.target_state_count(self.states);
        }
        let checker = builder.spawn_bfs().join();
        let violation = checker.discoveries().into_iter().next().map(|(property, path)| {
            let last = path.last_state().clone();
            let mut steps: Vec<String> = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
            steps.push(last.to_string());
            if property == "everything ends" {
                steps
                    .extend(drain::schedule(&Machine { setup: self.clone(), ends: Mutex::new(HashSet::new()) }, &last));
            }
            (property.to_owned(), steps)
        });
        Found {
            states: checker.unique_state_count(),
            depth: checker.max_depth(),
            seconds: started.elapsed().as_secs_f32(),
            violation,
        }
    }
}

impl Model for Machine {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.setup)]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        if world.wrong.is_none() {
            moves::enabled(&self.setup, world, moves);
        }
    }

    fn next_state(&self, world: &World, action: Move) -> Option<World> {
        moves::make(&self.setup, world, &action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a receipt is true", |_, world: &World| world.receipts_are_true()),
            Property::always("every row has an action, an owner or a deadline", |_, world: &World| {
                world.nothing_is_orphaned()
            }),
            Property::always("rows agree", |_, world: &World| world.rows_agree()),
            Property::always("nothing wrong was done", |_, world: &World| world.wrong.is_none()),
            Property::always("everything ends", drain::ends),
        ]
    }
}
