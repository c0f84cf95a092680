//! The name of a sandbox: also a directory name, a cgroup name and an argument of its init, hence the narrow alphabet.

use crate::error::{Result, SandboxError};

/// Longest accepted key, in bytes.
const MAX: usize = 64;

/// Accepts `[a-z0-9][a-z0-9-]{0,63}`.
pub(crate) fn check(key: &str) -> Result<()> {
    let alphabet = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if key.is_empty() || key.len() > MAX || key.starts_with('-') || !key.bytes().all(alphabet) {
        return Err(SandboxError::InvalidKey(key.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn keys_are_plain_names() {
        for good in ["a", "berth-0123456789-0198c2f1", "7", &"k".repeat(64)] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "A", "a/b", "..", "a.b", "a b", "é", "a\0", &"k".repeat(65)] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }
}
