//! Page tokens: opaque, and good only for the list, tenant and filter they came from. They grant nothing: every page is
//! authorized and filtered anew.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use sha2::{Digest as _, Sha256};

use crate::error::Error;

const BINDING_BYTES: usize = 8;
const MAX_LEN: usize = 256;

/// The token for the page after `cursor` of the list that `binding` names.
pub(crate) fn encode(binding: &[&str], cursor: &str) -> String {
    B64.encode([fingerprint(binding).as_slice(), cursor.as_bytes()].concat())
}

/// The cursor in a token of this list; None for the first page (an empty token).
///
/// # Errors
/// INVALID_ARGUMENT (PAGE_TOKEN_INVALID).
pub(crate) fn decode(token: &str, binding: &[&str]) -> Result<Option<String>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    let cursor = (token.len() <= MAX_LEN).then(|| B64.decode(token).ok()).flatten().and_then(|bytes| {
        let cursor = bytes.strip_prefix(fingerprint(binding).as_slice())?;
        String::from_utf8(cursor.to_vec()).ok()
    });
    cursor.map(Some).ok_or_else(invalid)
}

/// The answer to a token that is none of ours.
pub(crate) fn invalid() -> Error {
    Error::invalid("page_token", "PAGE_TOKEN_INVALID", "the page token is not of this list; start again without one")
}

/// How many lines a page holds: `asked`, or `default` for 0.
///
/// # Errors
/// INVALID_ARGUMENT (PAGE_SIZE_OUT_OF_RANGE).
pub(crate) fn page_size(asked: i32, default: u32, max: u32) -> Result<u32, Error> {
    match u32::try_from(asked) {
        Ok(0) => Ok(default),
        Ok(size) => Ok(size.min(max)),
        Err(_) => Err(Error::invalid(
            "page_size",
            "PAGE_SIZE_OUT_OF_RANGE",
            format!("page_size is from 1 to {max}, 0: {default}"),
        )),
    }
}

fn fingerprint(binding: &[&str]) -> [u8; BINDING_BYTES] {
    let mut hash = Sha256::new();
    for part in binding {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    let mut first = [0; BINDING_BYTES];
    first.copy_from_slice(&digest[..BINDING_BYTES]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_its_own_list_only() {
        let token = encode(&["ListRuns", "a", ""], "run-1");
        assert_eq!(decode(&token, &["ListRuns", "a", ""]).unwrap().as_deref(), Some("run-1"));
        assert_eq!(decode("", &["ListRuns", "a", ""]).unwrap(), None);
        for binding in [["ListRuns", "b", ""], ["ListRuns", "a", "FAILED"], ["ListRunsa", "", ""]] {
            assert_eq!(decode(&token, &binding).unwrap_err().reason(), "PAGE_TOKEN_INVALID");
        }
        for bad in ["x", "!!!!", "AAAA", &"A".repeat(300), &token[..8]] {
            assert_eq!(decode(bad, &["ListRuns", "a", ""]).unwrap_err().reason(), "PAGE_TOKEN_INVALID", "{bad}");
        }
    }

    #[test]
    fn page_sizes_are_bounded() {
        assert_eq!(page_size(0, 50, 200).unwrap(), 50);
        assert_eq!(page_size(7, 50, 200).unwrap(), 7);
        assert_eq!(page_size(5000, 50, 200).unwrap(), 200);
        assert_eq!(page_size(-1, 50, 200).unwrap_err().reason(), "PAGE_SIZE_OUT_OF_RANGE");
    }
}
