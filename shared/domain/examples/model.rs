//! Explores the model outside of the test run: `cargo run -p berth-domain --example model -- [--full] [--switches]`.

#[path = "../tests/domain/model/mod.rs"]
mod model;
#[path = "../tests/domain/setups.rs"]
mod setups;

use std::time::Duration;

use model::Found;
use model::rules::Rules;

fn main() {
    let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
    if asked("--switches") {
        for (part, name, rules) in Rules::each() {
            match setups::violation(part, rules) {
                Some((setup, found)) => print(&format!("without \"{name}\", {setup}"), found),
                None => println!("without \"{name}\": nothing found, known: {}", setups::REDUNDANT.contains(&name)),
            }
        }
        return;
    }
    let full = asked("--full");
    let patience = Duration::from_secs(if full { 7200 } else { 60 });
    let chosen = if full { setups::full() } else { setups::bounded() };
    let mut states = 0;
    for setup in chosen {
        let name = setup.name;
        let found = setup.explore(patience);
        states += found.states;
        print(name, found);
    }
    println!("{states} states in all");
}

fn print(name: &str, found: Found) {
    println!("{name}: {} states, depth {}, {:.1} s", found.states, found.depth, found.seconds);
    if let Some((property, steps)) = found.violation {
        println!("  violated: {property}");
        steps.iter().for_each(|step| println!("    {step}"));
    }
}
