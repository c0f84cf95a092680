//! The command line.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use anyhow::bail;
use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, parser::ValueSource};

use crate::{demo, emulate, keys, serve, settings::Settings};

/// Control plane for coding-agent runs in remote sandboxes.
#[derive(Parser)]
#[command(name = "berth", version, max_term_width = 120)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all four services in this process
    Serve(Box<Settings>),
    /// Watch an agent fix a failing test in a real repository inside a real sandbox, in a temporary folder
    Demo(demo::Options),
    /// Run an offline stand-in for a remote API
    #[command(subcommand)]
    Emulate(Emulate),
    /// Create, list and revoke API keys of a running server
    Keys(keys::Options),
}

#[derive(Subcommand)]
enum Emulate {
    /// The Anthropic Messages API, playing a script
    Model {
        /// Where to listen
        #[arg(long, value_name = "ADDR:PORT")]
        listen: SocketAddr,
        /// JSON script: {"conversations":[{"when":{"prompt_contains":"…"},"turns":[{"text":"…","tools":[…],"fault":{…}}]}]}
        #[arg(long, value_name = "FILE")]
        script: PathBuf,
    },
}

/// Settings that hold a secret: a command line can be read by everyone on the machine.
const SECRET_ARGUMENTS: [&str; 4] = ["master_key", "api_key", "database_url", "anthropic_api_key"];

/// Reads the command line; secrets are refused there.
pub(crate) fn parse() -> anyhow::Result<Cli> {
    let matches = Cli::command().get_matches();
    refuse_secrets(&matches)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.exit())
}

fn refuse_secrets(matches: &ArgMatches) -> anyhow::Result<()> {
    for name in SECRET_ARGUMENTS {
        // Not every command knows every setting.
        let Ok(Some(value)) = matches.try_get_one::<String>(name) else { continue };
        // A SQLite file is no secret.
        let secret = name != "database_url" || !value.starts_with("sqlite:");
        if secret && matches.value_source(name) == Some(ValueSource::CommandLine) {
            bail!(
                "a secret on the command line is visible to every user of this machine: give it by environment, file or setting"
            );
        }
    }
    matches.subcommand().map_or(Ok(()), |(_, inner)| refuse_secrets(inner))
}

/// Runs the chosen command to its end.
pub(crate) fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let code = runtime.block_on(async {
        match cli.command {
            Command::Serve(settings) => serve::command(*settings).await.map(|()| ExitCode::SUCCESS),
            Command::Demo(options) => demo::command(options).await,
            Command::Emulate(Emulate::Model { listen, script }) => {
                emulate::model(listen, &script).await.map(|()| ExitCode::SUCCESS)
            }
            Command::Keys(options) => keys::command(options).await.map(|()| ExitCode::SUCCESS),
        }
    });
    // A blocking read that never ends (a stuck name lookup) must not hold the exit.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_refused_on_the_command_line() {
        let accepted =
            |line: &[&str]| refuse_secrets(&Cli::command().try_get_matches_from(line).expect("parses")).is_ok();
        assert!(accepted(&["berth", "serve", "--listen", "127.0.0.1:1"]));
        assert!(accepted(&["berth", "serve", "--database-url", "sqlite:x"]));
        assert!(!accepted(&["berth", "serve", "--database-url", "postgres://u:p@h/d"]));
        assert!(!accepted(&["berth", "serve", "--master-key", "k"]));
        assert!(!accepted(&["berth", "serve", "--api-key", "k"]));
        assert!(!accepted(&["berth", "keys", "--api-key", "k", "list"]));
    }
}
