//! What the local provider keeps beside its sandboxes: the identity of this sandbox root, and each sandbox's egress rules,
//! so that a new broker process opens the same ways out.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use uuid::Uuid;

use crate::provider::{Class, EgressRule, ProviderFailure};

/// Not a sandbox's name: those start with a letter or digit.
const ID_FILE: &str = ".root-id";
const RULES_FOLDER: &str = ".egress";

/// This machine's name; part of the scope, so that a copied disk is another host.
pub(super) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain: String = name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).collect();
    if plain.is_empty() { "localhost".to_owned() } else { plain }
}

/// `<host>/<uuid of the sandbox root>`; the uuid is made on first use.
pub(super) async fn account_scope(root: &Path, host: &str) -> Result<String, ProviderFailure> {
    let path = root.join(ID_FILE);
    let id = match tokio::fs::read_to_string(&path).await {
        Ok(text) => Uuid::parse_str(text.trim()).map_err(|_| failed("the sandbox root's identity file is damaged"))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let id = Uuid::new_v4();
            write(&path, id.to_string().as_bytes()).await?;
            id
        }
        Err(error) => return Err(failed(&format!("the sandbox root's identity cannot be read: {error}"))),
    };
    Ok(format!("{host}/{id}"))
}

/// One file of rules per sandbox.
pub(super) struct RuleFiles {
    folder: PathBuf,
}

impl RuleFiles {
    pub(super) fn new(root: &Path) -> Self {
        Self { folder: root.join(RULES_FOLDER) }
    }

    pub(super) async fn write(&self, key: &str, rules: &BTreeSet<EgressRule>) -> Result<(), ProviderFailure> {
        tokio::fs::create_dir_all(&self.folder)
            .await
            .map_err(|error| failed(&format!("egress rules cannot be stored: {error}")))?;
        let bytes =
            serde_json::to_vec(rules).map_err(|error| failed(&format!("egress rules cannot be stored: {error}")))?;
        write(&self.path(key), &bytes).await
    }

    /// No file: no way out.
    pub(super) async fn read(&self, key: &str) -> Result<BTreeSet<EgressRule>, ProviderFailure> {
        match tokio::fs::read(self.path(key)).await {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|_| failed("stored egress rules are damaged")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(failed(&format!("egress rules cannot be read: {error}"))),
        }
    }

    pub(super) async fn remove(&self, key: &str) -> Result<(), ProviderFailure> {
        match tokio::fs::remove_file(self.path(key)).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(failed(&format!("egress rules cannot be removed: {error}"))),
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.json"))
    }
}

/// Whole or not at all, also after a crash.
async fn write(path: &Path, bytes: &[u8]) -> Result<(), ProviderFailure> {
    let failed_here = |error: io::Error| failed(&format!("{} cannot be written: {error}", path.display()));
    let beside = path.with_extension("new");
    let mut file = tokio::fs::File::create(&beside).await.map_err(failed_here)?;
    tokio::io::AsyncWriteExt::write_all(&mut file, bytes).await.map_err(failed_here)?;
    file.sync_all().await.map_err(failed_here)?;
    tokio::fs::rename(&beside, path).await.map_err(failed_here)
}

fn failed(message: &str) -> ProviderFailure {
    ProviderFailure::new(Class::Transient, "HOST_FAILED", message)
}
