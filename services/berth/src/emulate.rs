//! `berth emulate`: offline stand-ins.

use std::{fs, net::SocketAddr, path::Path};

use anyhow::Context as _;
use berth_emulators::model_api::{self, Script};
use berth_serve::shutdown;
use tokio::net::TcpListener;

/// Largest script that is read.
const MAX_SCRIPT: u64 = 16 << 20;

/// Plays a script as the Anthropic Messages API until SIGTERM or SIGINT.
pub(crate) async fn model(listen: SocketAddr, script: &Path) -> anyhow::Result<()> {
    let size = fs::metadata(script).with_context(|| format!("cannot read {}", script.display()))?.len();
    anyhow::ensure!(size <= MAX_SCRIPT, "{} is larger than 16 MiB", script.display());
    let text = fs::read_to_string(script).with_context(|| format!("cannot read {}", script.display()))?;
    let script = Script::parse(&text).with_context(|| format!("{} is not a script", script.display()))?;
    let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
    eprintln!("model emulator listens on http://{}", listener.local_addr()?);
    let stopped = async {
        // Without handlers the default action of the signal ends the process, which is as good here.
        let _ = shutdown::signalled().await;
    };
    model_api::serve(listener, script, stopped).await.context("the server failed")
}
