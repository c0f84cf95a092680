//! The all-in-one binary. Only this file reads the environment (through clap).

mod cli;
mod demo;
mod emulate;
mod keys;
mod keys_file;
mod serve;
mod settings;

use std::process::ExitCode;

fn main() -> ExitCode {
    // The init of a local sandbox is this same binary; it must run before any thread exists.
    if std::env::args_os().nth(1).is_some_and(|arg| arg == "sandbox-init") {
        berth_sandbox::init::run(std::env::args_os().skip(2));
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    match cli::parse().and_then(cli::run) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("berth: {error:#}");
            ExitCode::FAILURE
        }
    }
}
