//! Callers as the access tests need them: keys of every role and tenant, clients by key, requests with metadata.

use std::path::PathBuf;

use berth_lifecycle::store::Database;
use berth_rpc::{
    lifecycle::{
        self as proto, identity_service_client::IdentityServiceClient, key_service_client::KeyServiceClient,
        log_service_client::LogServiceClient, run_service_client::RunServiceClient,
        secret_service_client::SecretServiceClient,
    },
    status,
};
use berth_serve::peer::ServiceChannel;
use secrecy::{ExposeSecret as _, SecretString};
use tonic::{Code, Request, Status};

use crate::fixture::Deployment;

/// Stands for a secret value; must never be found anywhere in the clear.
pub(crate) const CANARY: &str = "canary-5f1d7c-value";

/// RunService as some caller.
pub(crate) type Runs = RunServiceClient<ServiceChannel>;

impl Deployment {
    /// A channel with this key.
    pub(crate) fn channel_with(&self, key: &SecretString) -> ServiceChannel {
        ServiceChannel::with_key(self.channel.clone(), key)
    }

    /// RunService as the holder of this key.
    pub(crate) fn runs_as(&self, key: &SecretString) -> Runs {
        RunServiceClient::new(self.channel_with(key))
    }

    /// LogService as the holder of this key.
    pub(crate) fn log_as(&self, key: &SecretString) -> LogServiceClient<ServiceChannel> {
        LogServiceClient::new(self.channel_with(key))
    }

    /// SecretService as the holder of this key.
    pub(crate) fn secrets_as(&self, key: &SecretString) -> SecretServiceClient<ServiceChannel> {
        SecretServiceClient::new(self.channel_with(key))
    }

    /// KeyService as the holder of this key.
    pub(crate) fn keys_as(&self, key: &SecretString) -> KeyServiceClient<ServiceChannel> {
        KeyServiceClient::new(self.channel_with(key))
    }

    /// IdentityService as a service.
    pub(crate) fn identity(&self, service: &str) -> IdentityServiceClient<ServiceChannel> {
        IdentityServiceClient::new(self.service(service))
    }

    /// A new key of that role in that tenant.
    pub(crate) async fn key(&self, tenant: &str, role: &str) -> SecretString {
        self.new_key(tenant, role).await.1
    }

    /// Its id and text.
    pub(crate) async fn new_key(&self, tenant: &str, role: &str) -> (String, SecretString) {
        let request = proto::CreateKeyRequest {
            tenant: tenant.to_owned(),
            principal: format!("{role}-1"),
            role: role.to_owned(),
            service: String::new(),
        };
        let made = self.keys_as(&self.admin_key).create_key(request).await.expect("a key").into_inner();
        (made.key.expect("described").key_id, SecretString::from(made.value))
    }

    /// Puts a secret of tenant `default`.
    pub(crate) async fn put(&self, name: &str, value: &str, hosts: &[&str]) -> Result<proto::Secret, Status> {
        let request = secret(name, value, hosts);
        self.secrets_as(&self.admin_key).put_secret(request).await.map(tonic::Response::into_inner)
    }

    /// Every file of a SQLite database.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let Database::Sqlite(path) = &self.config.database else { panic!("not on SQLite") };
        let folder = path.parent().expect("in a folder");
        std::fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path()).collect()
    }
}

/// A secret for the caller's own tenant.
pub(crate) fn secret(name: &str, value: &str, hosts: &[&str]) -> proto::PutSecretRequest {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    proto::PutSecretRequest { tenant: String::new(), name: name.to_owned(), value: value.to_owned(), hosts }
}

/// A request with metadata.
pub(crate) fn with<T>(message: T, metadata: &[(&'static str, &str)]) -> Request<T> {
    let mut request = Request::new(message);
    for (name, value) in metadata {
        request.metadata_mut().insert(*name, value.parse().expect("metadata"));
    }
    request
}

/// `x-berth-caller` for a key passed on.
pub(crate) fn bearer(key: &SecretString) -> String {
    format!("bearer {}", key.expose_secret())
}

/// Code and stable reason of a refusal.
pub(crate) fn refusal<T: std::fmt::Debug>(outcome: Result<T, Status>) -> (Code, String) {
    let status = outcome.expect_err("this is refused");
    (status.code(), status::reason(&status).unwrap_or_default())
}

/// The state's name.
pub(crate) fn state(run: &proto::Run) -> &'static str {
    run.state().as_str_name()
}

/// Asks for a run by id.
pub(crate) async fn get(runs: &mut Runs, run_id: &str) -> Result<proto::Run, Status> {
    let request = proto::GetRunRequest { run_id: run_id.to_owned() };
    runs.get_run(request).await.map(tonic::Response::into_inner)
}
