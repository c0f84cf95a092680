//! Keys of a deployment on disk: generated once with mode 0600, read back at every start.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use rand::RngCore as _;
use secrecy::{ExposeSecret as _, SecretString};

use crate::settings::KeySource;

/// Largest key file that is read.
const MAX_KEY_FILE: u64 = 4096;

/// A key and, when it was generated just now, the file it was written to.
pub(crate) struct LoadedKey {
    pub(crate) value: SecretString,
    pub(crate) generated_at: Option<PathBuf>,
}

/// The key of `source`, or of `<data_dir>/<name>`, which is made if it does not exist.
pub(crate) fn load(source: &KeySource, data_dir: &Path, name: &str) -> anyhow::Result<LoadedKey> {
    match source {
        KeySource::Given(value) => Ok(LoadedKey { value: value.clone(), generated_at: None }),
        KeySource::File(path) => Ok(LoadedKey { value: read(path)?, generated_at: None }),
        KeySource::Generate => generate_or_read(&data_dir.join(name)),
    }
}

/// A fresh key with 256 bits of randomness.
pub(crate) fn random_key(prefix: &str) -> SecretString {
    let mut bytes = [0u8; 32];
    rand::rng().fill_bytes(&mut bytes);
    format!("{prefix}{}", B64.encode(bytes)).into()
}

fn generate_or_read(path: &Path) -> anyhow::Result<LoadedKey> {
    let prefix = if path.file_name().is_some_and(|n| n == "admin.key") { "berth_" } else { "" };
    let key = random_key(prefix);
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            writeln!(file, "{}", key.expose_secret())
                .and_then(|()| file.sync_all())
                .with_context(|| format!("cannot write {}", path.display()))?;
            Ok(LoadedKey { value: key, generated_at: Some(path.to_owned()) })
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok(LoadedKey { value: read(path)?, generated_at: None })
        }
        Err(error) => Err(error).with_context(|| format!("cannot create {}", path.display())),
    }
}

fn read(path: &Path) -> anyhow::Result<SecretString> {
    let metadata = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    if metadata.len() > MAX_KEY_FILE {
        bail!("{} is too large for a key", path.display());
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "key file is readable by others");
    }
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = text.trim();
    if text.is_empty() {
        bail!("{} is empty", path.display());
    }
    Ok(text.to_owned().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_key_is_private_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let first = load(&KeySource::Generate, dir.path(), "admin.key").unwrap();
        let path = first.generated_at.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = load(&KeySource::Generate, dir.path(), "admin.key").unwrap();
        assert!(second.generated_at.is_none());
        assert_eq!(first.value.expose_secret(), second.value.expose_secret());
    }
}
