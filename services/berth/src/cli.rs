//! The command line.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

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
