//! Rules about the tree that we care about are executable: sizes, edges between crates, no silenced code.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

pub(super) fn rust_files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for top in ["shared", "services", "tests"] {
        collect(&root().join(top), &mut files);
    }
    assert!(files.len() > 100, "the walk found the sources");
    files
}

fn collect(folder: &Path, into: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap().filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            into.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn no_file_is_over_500_lines_and_mains_are_short() {
    for (name, text) in rust_files() {
        let lines = text.lines().count();
        assert!(lines <= 500, "{name} has {lines} lines: split it by concern");
        if name.ends_with("src/main.rs") {
            assert!(lines <= 30, "{name} has {lines} lines");
        }
    }
}

#[test]
fn every_source_file_says_what_lives_there() {
    for (name, text) in rust_files() {
        assert!(text.starts_with("//!") || name.ends_with("build.rs"), "{name} has no module header");
    }
}

#[test]
fn nothing_is_unfinished_or_silenced() {
    // Spelled in halves so that this file does not find itself.
    let words = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("allow(dead", "_code)"),
        concat!("#[ign", "ore"),
        concat!("Status::unimpl", "emented"),
        concat!("dbg", "!("),
    ];
    for (name, text) in rust_files() {
        for word in words {
            assert!(!text.contains(word), "{name} contains {word}");
        }
    }
}

#[test]
fn files_are_not_named_after_nothing() {
    for (name, _) in rust_files() {
        let stem = Path::new(&name).file_stem().unwrap().to_str().unwrap();
        assert!(!["util", "utils", "helper", "helpers", "common", "manager", "base", "misc"].contains(&stem), "{name}");
    }
}

#[test]
fn the_environment_is_read_in_main_only() {
    for (name, text) in rust_files() {
        let exempt = name.ends_with("main.rs")
            || name.contains("/tests/")
            || name.ends_with("/tests.rs")
            || name.starts_with("tests/")
            || name.ends_with("build.rs");
        if !exempt {
            for word in ["env::var(", "env::var_os(", "env::vars("] {
                // Tests inside a source file may read the test server's address.
                let code = text.split("#[cfg(test)]").next().unwrap();
                assert!(!code.contains(word), "{name} reads the environment");
            }
        }
    }
}

#[test]
fn crates_depend_only_downwards() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("shared/domain", &[][..]),
        ("shared/rpc", &["berth-domain"][..]),
        ("shared/events", &["berth-rpc"]),
        ("shared/sandbox", &[]),
        ("shared/serve", &["berth-rpc", "berth-domain"]),
        ("services/lifecycle", &["berth-domain", "berth-rpc", "berth-events", "berth-serve"]),
        ("services/sandbox-broker", &["berth-domain", "berth-rpc", "berth-events", "berth-serve", "berth-sandbox"]),
        ("services/sessions", &["berth-domain", "berth-rpc", "berth-events", "berth-serve"]),
        ("services/gateway", &["berth-domain", "berth-rpc", "berth-serve"]),
        ("services/emulators", &["berth-sandbox"]),
    ]);
    for (folder, allowed) in allowed {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let production = manifest.split("[dev-dependencies]").next().unwrap();
        for line in production.lines().filter(|l| l.starts_with("berth-")) {
            let name = line.split(['.', ' ', '=']).next().unwrap();
            assert!(allowed.contains(&name), "{folder} must not depend on {name}");
        }
    }
}

#[test]
fn every_crate_inherits_lints_and_versions() {
    for group in ["shared", "services"] {
        for entry in fs::read_dir(root().join(group)).unwrap().filter_map(Result::ok) {
            let path = entry.path().join("Cargo.toml");
            let Ok(manifest) = fs::read_to_string(&path) else { continue };
            assert!(manifest.contains("[lints]\nworkspace = true"), "{} does not inherit lints", path.display());
            for line in manifest.lines().skip_while(|l| !l.starts_with("[dependencies]")) {
                assert!(
                    !line.contains("version = \""),
                    "{}: versions live in the workspace manifest: {line}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn the_top_level_is_as_agreed() {
    let agreed =
        ["Cargo.toml", "Cargo.lock", "proto", "services", "shared", "deploy", "tests", "docs", "README.md", "target"];
    for entry in fs::read_dir(root()).unwrap().filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(name.starts_with('.') || agreed.contains(&name.as_str()), "{name} does not belong at the top level");
    }
}

#[test]
fn log_messages_are_lower_case_without_full_stop() {
    for (name, text) in rust_files() {
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let Some(rest) = ["trace!(", "debug!(", "info!(", "warn!(", "error!("]
                .iter()
                .find_map(|m| line.strip_prefix("tracing::").unwrap_or(line).strip_prefix(m))
            else {
                continue;
            };
            let Some(message) =
                rest.trim_end_matches(");").strip_suffix('"').and_then(|r| r.rsplit_once('"')).map(|r| r.1)
            else {
                continue;
            };
            assert!(!message.ends_with('.'), "{name}:{}: {message}", number + 1);
            let first_word = message.split(' ').next().unwrap_or_default();
            let shouted = first_word.len() > 1 && first_word.chars().all(|c| c.is_uppercase() || !c.is_alphabetic());
            let capital = message.chars().next().is_some_and(char::is_uppercase);
            assert!(!capital || shouted, "{name}:{}: {message}", number + 1);
        }
    }
}
