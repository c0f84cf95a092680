//! The demo's repository with its seeded bug, and the script of the model that fixes it.

mod seed;

pub use seed::{SeedError, Seeded, seed_demo_repository};

use crate::model_api::Script;

/// What the demo asks of the agent; the script answers any prompt.
pub const DEMO_PROMPT: &str =
    "The test of this repository (sh test.sh) fails. Find out why, fix the code, and show that the test passes.";

/// The scripted model's part in the demo: read, test, edit, test again, done.
///
/// # Panics
/// Never: the script is part of the program, and a test reads it.
pub fn demo_script() -> Script {
    Script::parse(include_str!("script.json")).expect("the built-in script is valid")
}
