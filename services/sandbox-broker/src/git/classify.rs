//! What a failed transfer means: by exit status and by git's own untranslated messages (LC_ALL=C), which have been stable
//! for many versions. What is not recognised is CLONE_FAILED, never a guess.

use crate::{
    provider::{Class, ProviderFailure},
    redact::Redactor,
    sandbox::Finished,
};

/// Text for people, at most.
const MESSAGE_BYTES: usize = 600;

/// The outcome of one failed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server wants a credential we do not have, or refused ours.
    AuthRefused,
    /// There is no such repository (or it may not be seen).
    NotFound,
    /// No route, no answer, an error of the server, or a redirect.
    Unreachable,
    /// Our own proxy refuses the address.
    AddressRefused,
    /// There is no such ref.
    RefNotFound,
    /// It took too long.
    Timeout,
    /// Anything else.
    Other,
}

impl Fault {
    /// From the command's end and its error output.
    pub(crate) fn of(finished: &Finished) -> Self {
        let text = finished.stderr.as_str();
        let says = |phrases: &[&str]| phrases.iter().any(|phrase| text.contains(phrase));
        if finished.exit.timed_out {
            return Fault::Timeout;
        }
        if says(&["CONNECT tunnel failed, response 403", "HTTP code 403 from proxy"]) {
            return Fault::AddressRefused;
        }
        if says(&[
            "Authentication failed for",
            "could not read Username",
            "could not read Password",
            "returned error: 401",
            "returned error: 403",
        ]) {
            return Fault::AuthRefused;
        }
        if says(&["returned error: 404", "returned error: 410"])
            || (text.contains("fatal: repository '") && text.contains("' not found"))
        {
            return Fault::NotFound;
        }
        if says(&["couldn't find remote ref", "not our ref"]) {
            return Fault::RefNotFound;
        }
        if says(&["unable to access", "RPC failed", "early EOF", "the remote end hung up", "unexpected disconnect"]) {
            return Fault::Unreachable;
        }
        Fault::Other
    }

    /// Stable name.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Fault::AuthRefused => "REPO_AUTH_REFUSED",
            Fault::NotFound => "REPO_NOT_FOUND",
            Fault::Unreachable => "REPO_UNREACHABLE",
            Fault::AddressRefused => "REPO_ADDRESS_REFUSED",
            Fault::RefNotFound => "REF_NOT_FOUND",
            Fault::Timeout => "CLONE_TIMEOUT",
            Fault::Other => "CLONE_FAILED",
        }
    }

    /// Whether trying again soon may help.
    pub(crate) fn is_transient(self) -> bool {
        match self {
            Fault::Unreachable => true,
            Fault::AuthRefused
            | Fault::NotFound
            | Fault::AddressRefused
            | Fault::RefNotFound
            | Fault::Timeout
            | Fault::Other => false,
        }
    }

    /// The failure with git's own last words, redacted.
    pub(crate) fn failure(self, finished: &Finished, redactor: &Redactor) -> ProviderFailure {
        let class = if self.is_transient() { Class::Transient } else { Class::Permanent };
        ProviderFailure::new(class, self.reason(), last_words(&finished.stderr, redactor))
    }
}

/// The lines git marks as errors, or else the last line; redacted and bounded.
pub(crate) fn last_words(stderr: &str, redactor: &Redactor) -> String {
    let marked = |line: &&str| ["fatal:", "error:", "remote:"].iter().any(|mark| line.starts_with(mark));
    let mut lines: Vec<&str> = stderr.lines().filter(marked).collect();
    if lines.is_empty() {
        lines.extend(stderr.lines().rev().find(|line| !line.trim().is_empty()));
    }
    let mut text = redactor.redact(&lines.join("; "));
    text.retain(|c| !c.is_control());
    let end = (0..=MESSAGE_BYTES.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.truncate(end);
    if text.is_empty() { "git gave no reason".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;
    use crate::provider::ExitReport;

    fn failed(stderr: &str) -> Finished {
        Finished {
            exit: ExitReport { code: 128, ..ExitReport::default() },
            stderr: stderr.to_owned(),
            ..Finished::default()
        }
    }

    #[test]
    fn gits_messages_are_told_apart() {
        for (text, fault) in [
            ("fatal: Authentication failed for 'https://h/x/'", Fault::AuthRefused),
            ("fatal: could not read Username for 'https://h': terminal prompts disabled", Fault::AuthRefused),
            ("fatal: unable to access 'https://h/x/': The requested URL returned error: 403", Fault::AuthRefused),
            ("fatal: repository 'https://h/x/' not found", Fault::NotFound),
            ("fatal: unable to access 'https://h/x/': The requested URL returned error: 302", Fault::Unreachable),
            ("fatal: unable to access 'https://h/x/': The requested URL returned error: 503", Fault::Unreachable),
            ("fatal: unable to access 'https://h/x/': Could not resolve host: h", Fault::Unreachable),
            ("fatal: unable to access 'https://h/x/': CONNECT tunnel failed, response 403", Fault::AddressRefused),
            ("fatal: couldn't find remote ref refs/pull/9/head", Fault::RefNotFound),
            ("error: remote unpack failed", Fault::Other),
        ] {
            assert_eq!(Fault::of(&failed(text)), fault, "{text}");
        }
    }

    #[test]
    fn case_a08_last_words_are_redacted_and_bounded() {
        let redactor = Redactor::of(&SecretString::from("ghp_canary_value"));
        let noise =
            format!("Cloning into 'x'...\nremote: bad token ghp_canary_value\u{7}\nfatal: {}\n", "é".repeat(1000));
        let words = last_words(&noise, &redactor);
        assert!(words.starts_with("remote: bad token [redacted]; fatal: é"), "{words}");
        assert!(words.len() <= MESSAGE_BYTES && !words.contains('\u{7}'));
    }
}
