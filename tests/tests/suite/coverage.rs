//! Every fault from the field that is in scope, and every behaviour of the systems Berth descends from, has a test that names
//! it. `docs/origins.md` says which test shows which behaviour.

use std::collections::BTreeSet;

use super::tidy;

/// cases.md ids in scope of what is built.
const CASES: &str = "L05 L06 L08 L15 L18 D02 D03 D05 D06 D07 D08 D09 D11 S01 S03 S06 S07 S08 S09 S11 E01 E04 E07 E09 \
                     A01 A04 A06 A07 A09 A11 N01 N02 N03 N04 N05 N06";

#[test]
fn every_case_in_scope_has_a_test_that_names_it() {
    let names = test_names();
    let missing: Vec<_> = CASES
        .split_whitespace()
        .filter(|id| !names.iter().any(|name| name.contains(&format!("case_{}", id.to_lowercase()))))
        .collect();
    assert!(missing.is_empty(), "no test names {missing:?}");
}

#[test]
fn every_row_of_the_origins_names_tests_that_exist() {
    let names = test_names();
    let table = std::fs::read_to_string(tidy::root().join("docs/origins.md")).expect("docs/origins.md");
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| T")).collect();
    assert!(rows.len() >= 19, "{} rows", rows.len());
    for row in rows {
        let tests: Vec<_> = row.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "no test in: {row}");
        for test in tests {
            assert!(names.contains(test), "{test} does not exist: {row}");
        }
    }
}

/// Names of all functions marked as tests, by any of the test attributes.
fn test_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_, text) in tidy::rust_files() {
        let (mut marked, mut listed) = (false, false);
        for line in text.lines().map(str::trim) {
            // Tests that run on SQLite and Postgres are listed for a macro.
            if line.starts_with("on_both_engines!(") {
                listed = true;
            } else if listed && line == ");" {
                listed = false;
            } else if listed {
                names.insert(line.trim_end_matches(',').to_owned());
            }
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                marked = true;
            } else if let Some(rest) = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "))
                && marked
            {
                names.insert(rest.split(['(', '<']).next().unwrap_or_default().to_owned());
                marked = false;
            }
        }
    }
    names
}
