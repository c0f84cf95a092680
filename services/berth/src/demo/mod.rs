//! `berth demo`: the main job, end to end, on this machine. Everything it shows it learned over the public API.

mod progress;
mod stage;

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, bail};
use berth_rpc::{
    broker,
    lifecycle::{
        self as pb, run::State, run_service_client::RunServiceClient, secret_service_client::SecretServiceClient,
    },
    sessions::{StreamEventsRequest, session_service_client::SessionServiceClient, stream_events_response::Item},
    status::Failure,
};
use berth_serve::{
    peer::{self, ServiceChannel},
    shutdown,
};
use clap::Args;
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::sync::CancellationToken;

use progress::Progress;
use stage::Stage;

/// How long the whole run may take with the scripted model, and how long deletion may take.
const DELETION_DEADLINE: Duration = Duration::from_secs(60);

#[derive(Args)]
pub(crate) struct Options {
    /// Use the real model of this name (needs ANTHROPIC_API_KEY); without it a scripted model plays the agent
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Key of the real model
    #[arg(long, env = "ANTHROPIC_API_KEY", hide = true, hide_env_values = true)]
    anthropic_api_key: Option<String>,
    /// Base URL of the real model's API
    #[arg(long, env = "BERTH_ANTHROPIC_BASE_URL", hide = true, default_value = "https://api.anthropic.com")]
    anthropic_base_url: String,
    /// What the local provider may do without, as BERTH_LOCAL_ALLOW
    #[arg(long, env = "BERTH_LOCAL_ALLOW", value_delimiter = ',', value_name = "NAME,…")]
    local_allow: Vec<String>,
    /// Log filter; the demo is quiet by default
    #[arg(long, env = "BERTH_LOG", value_name = "FILTER", default_value = "error")]
    log: String,
}

/// Runs the demo; Ctrl-C cancels and deletes the run before it leaves.
pub(crate) async fn command(options: Options) -> anyhow::Result<ExitCode> {
    let real = match (&options.model, &options.anthropic_api_key) {
        (Some(model), Some(key)) => Some((model.clone(), SecretString::from(key.clone()))),
        (Some(_), None) => bail!("--model needs ANTHROPIC_API_KEY"),
        (None, _) => None,
    };
    match &real {
        Some((model, _)) => println!("Berth demo with the real model {model}."),
        None => println!("Berth demo. No model was named: a SCRIPTED model plays the agent; everything else is real."),
    }
    // From here on a signal never ends the process by itself: whatever was made is taken down first.
    let interrupted = interruption()?;
    let stage = Stage::build(&options, real.as_ref()).await?;
    println!("  API         http://{}  (gRPC, REST)", stage.api());
    println!("  repository  {}  (a real git server; `divide` returns a * b)", stage.repo_url());
    println!("  sandboxes   {}\n", stage.sandbox_root().display());

    let client = Client::connect(&stage)?;
    let outcome = client.show(&stage, real.map(|(model, _)| model), &interrupted).await;
    let left = stage.strike().await?;
    if let Err(error) = outcome {
        bail!("{error:#}");
    }
    if left > 0 {
        bail!("{left} sandboxes were left behind");
    }
    println!("\nThe sandbox folder is empty, no process is left. Done.");
    Ok(ExitCode::SUCCESS)
}

/// Cancelled by the first SIGINT, SIGTERM or SIGHUP.
fn interruption() -> anyhow::Result<CancellationToken> {
    let token = CancellationToken::new();
    let cancelled = token.clone();
    let signal = shutdown::signalled();
    tokio::spawn(async move {
        match signal.await {
            Ok(()) => cancelled.cancel(),
            Err(error) => tracing::error!(%error, "signals cannot be handled"),
        }
    });
    Ok(token)
}

struct Client {
    runs: RunServiceClient<ServiceChannel>,
    sessions: SessionServiceClient<ServiceChannel>,
    secrets: SecretServiceClient<ServiceChannel>,
    providers: broker::provider_service_client::ProviderServiceClient<ServiceChannel>,
}

impl Client {
    fn connect(stage: &Stage) -> anyhow::Result<Self> {
        let channel = peer::connect(&format!("http://{}", stage.api())).context("the API has no usable address")?;
        let channel = ServiceChannel::with_key(channel, stage.admin_key());
        Ok(Self {
            runs: RunServiceClient::new(channel.clone()).max_decoding_message_size(peer::MAX_MESSAGE_BYTES),
            sessions: SessionServiceClient::new(channel.clone()).max_decoding_message_size(peer::MAX_MESSAGE_BYTES),
            secrets: SecretServiceClient::new(channel.clone()),
            providers: broker::provider_service_client::ProviderServiceClient::new(channel),
        })
    }

    /// Creates, watches and deletes the run.
    async fn show(
        mut self,
        stage: &Stage,
        model: Option<String>,
        interrupted: &CancellationToken,
    ) -> anyhow::Result<()> {
        self.check_provider().await?;
        self.secrets
            .put_secret(pb::PutSecretRequest {
                tenant: "default".into(),
                name: "anthropic_api_key".into(),
                value: stage.model_key().expose_secret().to_owned(),
                hosts: Vec::new(),
            })
            .await
            .map_err(readable)?;
        anyhow::ensure!(!interrupted.is_cancelled(), "interrupted before the run was created");
        let run = self
            .runs
            .create_run(pb::CreateRunRequest {
                prompt: berth_emulators::demo::DEMO_PROMPT.to_owned(),
                sandbox_provider: "local".into(),
                repo_url: stage.repo_url().to_owned(),
                model: model.unwrap_or_else(|| "scripted".into()),
                max_turns: 20,
                ..Default::default()
            })
            .await
            .map_err(readable)?
            .into_inner();
        println!("{}  created\n", run.run_id);

        let mut progress = Progress::default();
        let watched = tokio::select! {
            watched = self.watch(&run.run_id, &mut progress) => watched,
            () = interrupted.cancelled() => {
                println!("\ninterrupted: cancelling and deleting the run");
                let cancel = pb::CancelRunRequest { run_id: run.run_id.clone(), reason: "interrupted".into() };
                self.runs.cancel_run(cancel).await.map_err(readable)?;
                Ok(())
            }
        };
        let settled = self.get(&run.run_id).await?;
        if let Some(result) = &settled.result {
            progress.print_result(result);
        }
        if let Some(error) = &settled.error {
            println!("the run failed: {} ({})", error.message, error.reason);
        }
        self.delete(&run.run_id).await?;
        watched?;
        anyhow::ensure!(settled.state() == State::Completed, "the run ended as {}", settled.state().as_str_name());
        Ok(())
    }

    async fn check_provider(&mut self) -> anyhow::Result<()> {
        let answer = self.providers.list_providers(broker::ListProvidersRequest {}).await.map_err(readable)?;
        for provider in answer.into_inner().providers {
            if provider.name == "local" && provider.health() == broker::provider::Health::Unavailable {
                bail!("the local provider refuses to make sandboxes here: {}", provider.message);
            }
        }
        Ok(())
    }

    async fn watch(&mut self, run_id: &str, progress: &mut Progress) -> anyhow::Result<()> {
        let mut after = 0;
        loop {
            let request = StreamEventsRequest { run_id: run_id.to_owned(), after_sequence: after };
            let mut stream = self.sessions.stream_events(request).await.map_err(readable)?.into_inner();
            while let Some(item) = stream.message().await.map_err(readable)? {
                match item.item {
                    Some(Item::Event(event)) => {
                        after = event.sequence;
                        if progress.print(&event) {
                            return Ok(());
                        }
                    }
                    Some(Item::Lagged(lagged)) => after = lagged.after_sequence,
                    Some(Item::KeepAlive(_)) | None => {}
                }
            }
        }
    }

    async fn get(&mut self, run_id: &str) -> anyhow::Result<pb::Run> {
        Ok(self.runs.get_run(pb::GetRunRequest { run_id: run_id.to_owned() }).await.map_err(readable)?.into_inner())
    }

    /// Deletes the run, waits for the proof and prints it.
    async fn delete(&mut self, run_id: &str) -> anyhow::Result<()> {
        let request = pb::DeleteRunRequest { run_id: run_id.to_owned() };
        let asked = self.runs.delete_run(request).await.map_err(readable)?.into_inner();
        println!("\ndelete      {}", asked.state().as_str_name());
        let proof = async {
            loop {
                let request = pb::GetReceiptRequest { run_id: run_id.to_owned() };
                let answer = self.runs.get_receipt(request).await.map_err(readable)?.into_inner();
                if answer.complete {
                    return anyhow::Ok(answer.receipts);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let receipts =
            tokio::time::timeout(DELETION_DEADLINE, proof).await.context("deletion took over a minute")??;
        for receipt in receipts {
            println!(
                "receipt     {} {}: {}\n            seen by {}, scope {}",
                receipt.sandbox_id,
                receipt.kind().as_str_name(),
                receipt.how,
                receipt.observed_by,
                receipt.account_scope
            );
        }
        match self.runs.get_run(pb::GetRunRequest { run_id: run_id.to_owned() }).await {
            Err(status) if status.code() == tonic::Code::NotFound => println!("get         NOT_FOUND"),
            Err(status) => return Err(readable(status)),
            Ok(run) => bail!("the run is still {}", run.into_inner().state().as_str_name()),
        }
        Ok(())
    }
}

fn readable(status: tonic::Status) -> anyhow::Error {
    let failure = Failure::from_status(&status);
    anyhow::anyhow!("{} ({})", failure.message, failure.reason)
}
