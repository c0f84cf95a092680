//! The model in the test run: with every rule on nothing is found, with each off something is.

use super::model::rules::Rules;
use super::setups;
use std::time::Duration;

#[test]
fn with_every_rule_on_nothing_is_found() {
    let mut states = 0;
    for setup in setups::bounded() {
        let found = setup.explore(Duration::from_secs(60));
        println!("{}: {} states, depth {}, {:.1} s", setup.name, found.states, found.depth, found.seconds);
        assert!(found.violation.is_none(), "{}: {:#?}", setup.name, found.violation);
        states += found.states;
    }
    println!("{states} states explored");
}

#[test]
fn the_full_run_covers_the_bounded_one() {
    let full: Vec<&str> = setups::full().iter().map(|setup| setup.name).collect();
    assert!(setups::bounded().iter().all(|setup| full.contains(&setup.name)), "{full:?}");
}

#[test]
fn with_any_rule_off_a_violation_is_found() {
    let mut silent = vec![];
    for (part, name, rules) in Rules::each() {
        match setups::violation(part, rules) {
            Some((setup, found)) => println!(
                "without \"{name}\": {setup}, {} states: {:?}",
                found.states,
                found.violation.map(|(property, _)| property)
            ),
            None => silent.push(name),
        }
    }
    assert_eq!(silent, setups::REDUNDANT, "rules whose absence is not noticed");
}
