//! Explores the model outside of the test run: `cargo run -p berth-domain --example model -- [--full [--minutes N]] [--switches]`.

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
    let patience = Duration::from_secs(60 * minutes());
    let chosen = if full { setups::full() } else { setups::bounded() };
    let mut states = 0;
    for setup in chosen {
        let found = setup.explore(patience);
        states += found.states;
        let whole = if setup.states == 0 && found.seconds < patience.as_secs_f32() {
            "all of "
        } else {
            "the shortest histories of "
        };
        print(&format!("{whole}{}", setup.name), found);
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

/// How long one exploration may take; 60 unless told.
fn minutes() -> u64 {
    let told = std::env::args().skip_while(|argument| argument != "--minutes").nth(1);
    told.and_then(|number| number.parse().ok()).unwrap_or(60)
}
