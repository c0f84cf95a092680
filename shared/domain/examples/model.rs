//! Explores the model outside of the test run: `cargo run -p berth-domain --example model -- [--full]`.

#[path = "../tests/domain/model/mod.rs"]
mod model;
#[path = "../tests/domain/setups.rs"]
mod setups;

use std::time::Duration;

fn main() {
    let full = std::env::args().any(|argument| argument == "--full");
    let patience = Duration::from_secs(if full { 3600 } else { 60 });
    let chosen = if full { setups::full() } else { setups::bounded() };
    let mut states = 0;
    for setup in chosen {
        let found = setup.explore(patience);
        states += found.states;
        println!("{}: {} states, depth {}, {:.1} s", setup.name, found.states, found.depth, found.seconds);
        if let Some((property, steps)) = found.violation {
            println!("  violated: {property}");
            steps.iter().for_each(|step| println!("    {step}"));
        }
    }
    println!("{states} states in all");
}
