//! Takes secrets out of texts by value: whatever a tool or server printed, no form of the secret it was given gets
//! through. Forms known: as it is, percent-encoded, JSON-escaped, and base64 at any alignment (both alphabets).

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::{ExposeSecret as _, SecretString};
use zeroize::Zeroizing;

/// What stands where a secret was.
const MARK: &str = "[redacted]";
/// Shorter forms would hit ordinary words.
const SHORTEST: usize = 4;

/// Redacts the secrets it was made with. Empty: passes every text on.
#[derive(Default)]
pub(crate) struct Redactor {
    forms: Vec<Zeroizing<String>>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor").field("forms", &self.forms.len()).finish()
    }
}

impl Redactor {
    /// Knows every form of one secret.
    pub(crate) fn of(secret: &SecretString) -> Self {
        let value = secret.expose_secret();
        let mut forms = vec![
            value.to_owned(),
            utf8_percent_encode(value, NON_ALPHANUMERIC).to_string(),
            serde_json::Value::from(value).to_string().trim_matches('"').to_owned(),
        ];
        for alignment in 0..3 {
            forms.extend(base64_core(value.as_bytes(), alignment));
        }
        forms.retain(|form| form.len() >= SHORTEST);
        // The longest first: a form may contain another.
        forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
        forms.dedup();
        Self { forms: forms.into_iter().map(Zeroizing::new).collect() }
    }

    /// The text without the secret.
    pub(crate) fn redact(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for form in &self.forms {
            if clean.contains(form.as_str()) {
                clean = clean.replace(form.as_str(), MARK);
            }
        }
        clean
    }
}

/// The part of the base64 text that depends on the secret alone, when `alignment` unknown bytes precede it.
fn base64_core(value: &[u8], alignment: usize) -> Vec<String> {
    let mut padded = vec![0u8; alignment];
    padded.extend_from_slice(value);
    let first = (alignment * 8).div_ceil(6);
    let whole = padded.len() * 8 / 6;
    [STANDARD_NO_PAD.encode(&padded), URL_SAFE_NO_PAD.encode(&padded)]
        .into_iter()
        .filter_map(|text| text.get(first..whole.min(text.len())).map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn every_form_is_taken_out() {
        let secret = "ghp_ca/na+ry~42\"x";
        let redactor = Redactor::of(&SecretString::from(secret));
        let mut texts = vec![
            format!("fatal: {secret} refused"),
            format!("https://x:{}@host", utf8_percent_encode(secret, NON_ALPHANUMERIC)),
            serde_json::json!({ "token": secret }).to_string(),
        ];
        for prefix in ["", "x", "xy", "x-access-token:", "user:"] {
            texts.push(format!("Basic {}", STANDARD.encode(format!("{prefix}{secret}"))));
        }
        for text in texts {
            let clean = redactor.redact(&text);
            assert!(clean.contains(MARK), "{text} -> {clean}");
            assert!(!clean.contains("ca/na") && !clean.contains("ca%2Fna"), "{clean}");
        }
    }

    #[test]
    fn nothing_known_changes_nothing() {
        assert_eq!(Redactor::default().redact("fatal: not found"), "fatal: not found");
    }
}
