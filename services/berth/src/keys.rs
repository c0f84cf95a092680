//! `berth keys`: manages API keys of a running server through its public API.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use berth_rpc::{lifecycle as pb, lifecycle::key_service_client::KeyServiceClient, status::Failure};
use berth_serve::peer::{self, ServiceChannel};
use clap::{Args, Subcommand};
use secrecy::SecretString;

use crate::{keys_file, settings::KeySource};

#[derive(Args)]
pub(crate) struct Options {
    /// The server
    #[arg(long, env = "BERTH_URL", default_value = "http://127.0.0.1:7420", value_name = "URL", global = true)]
    url: String,
    /// An administrator's API key [default: the one in <data-dir>/admin.key]
    #[arg(long, env = "BERTH_API_KEY", hide_env_values = true, value_name = "KEY", global = true)]
    api_key: Option<String>,
    /// File holding the administrator's API key
    #[arg(long, env = "BERTH_API_KEY_FILE", value_name = "FILE", global = true)]
    api_key_file: Option<PathBuf>,
    /// Data folder of the server, to find its admin.key
    #[arg(long, env = "BERTH_DATA_DIR", default_value = ".berth", value_name = "DIR", global = true)]
    data_dir: PathBuf,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a key; its text is printed once
    Create {
        /// Who uses it
        #[arg(long, required_unless_present = "service")]
        principal: Option<String>,
        /// admin, operator, member or viewer
        #[arg(long, default_value = "member")]
        role: String,
        /// Make a service key instead: gateway, sandbox-broker or sessions
        #[arg(long, conflicts_with = "principal")]
        service: Option<String>,
    },
    /// List keys, revoked ones included
    List,
    /// Revoke a key at once
    Revoke { key_id: String },
}

/// Runs one `berth keys` command.
pub(crate) async fn command(options: Options) -> anyhow::Result<()> {
    let key = admin_key(&options)?;
    let channel = peer::connect(&options.url).with_context(|| format!("`{}` is not a URL", options.url))?;
    let mut client = KeyServiceClient::new(ServiceChannel::with_key(channel, &key));
    match options.action {
        Action::Create { principal, role, service } => {
            let service = service.unwrap_or_default();
            let role = if service.is_empty() { role } else { String::new() };
            let request =
                pb::CreateKeyRequest { tenant: String::new(), principal: principal.unwrap_or_default(), role, service };
            let made = client.create_key(request).await.map_err(readable)?.into_inner();
            if let Some(key) = made.key {
                eprintln!("key id: {}", key.key_id);
            }
            println!("{}", made.value);
        }
        Action::List => {
            let keys = client.list_keys(pb::ListKeysRequest {}).await.map_err(readable)?.into_inner().keys;
            println!("{:<38} {:<10} {:<20} {:<14} state", "key id", "tenant", "principal", "role");
            for key in keys {
                let role = if key.service.is_empty() { key.role } else { format!("service {}", key.service) };
                let state = if key.revoke_time.is_some() { "revoked" } else { "live" };
                println!("{:<38} {:<10} {:<20} {:<14} {state}", key.key_id, key.tenant, key.principal, role);
            }
        }
        Action::Revoke { key_id } => {
            client.revoke_key(pb::RevokeKeyRequest { key_id: key_id.clone() }).await.map_err(readable)?;
            println!("revoked {key_id}");
        }
    }
    Ok(())
}

fn admin_key(options: &Options) -> anyhow::Result<SecretString> {
    let source = match (&options.api_key, &options.api_key_file) {
        (Some(key), _) => KeySource::Given(key.clone().into()),
        (None, Some(path)) => KeySource::File(path.clone()),
        (None, None) => {
            let path = options.data_dir.join("admin.key");
            if !path.exists() {
                bail!("no API key: set BERTH_API_KEY or BERTH_API_KEY_FILE, or name the server's --data-dir");
            }
            KeySource::File(path)
        }
    };
    Ok(keys_file::load(&source, &options.data_dir, "admin.key")?.value)
}

fn readable(status: tonic::Status) -> anyhow::Error {
    let failure = Failure::from_status(&status);
    anyhow::anyhow!("{} ({})", failure.message, failure.reason)
}
