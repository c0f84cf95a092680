//! The allow-list: exact hosts and ports, no patterns.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// One permitted destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressRule {
    /// Host name or address, compared exactly (letter case and a final dot aside).
    pub host: String,
    /// Port.
    pub port: u16,
    /// Whether the host may be, or resolve to, an address that is not public.
    pub allow_private: bool,
}

/// Rules in comparable form.
#[derive(Debug)]
pub(crate) struct Rules(Vec<EgressRule>);

impl Rules {
    pub(crate) fn new(rules: Vec<EgressRule>) -> Self {
        let plain = |rule: EgressRule| EgressRule { host: plain(&rule.host), ..rule };
        Self(rules.into_iter().map(plain).collect())
    }

    /// Whether the destination is permitted; the answer says whether it may be private.
    pub(crate) fn find(&self, host: &str, port: u16) -> Option<bool> {
        let host = plain(host);
        let fitting = self.0.iter().filter(|rule| rule.port == port && rule.host == host);
        fitting.map(|rule| rule.allow_private).reduce(|one, other| one || other)
    }
}

/// Lower case, no final dot, no brackets, addresses in their canonical form.
pub(crate) fn plain(host: &str) -> String {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => bare.strip_suffix('.').unwrap_or(bare).to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_destinations_are_found() {
        let rule = |host: &str, port, allow_private| EgressRule { host: host.to_owned(), port, allow_private };
        let rules =
            Rules::new(vec![rule("GitHub.com", 443, false), rule("::1", 80, true), rule("10.0.0.1", 8080, true)]);
        for (host, port, expected) in [
            ("github.com", 443, Some(false)),
            ("GITHUB.COM.", 443, Some(false)),
            ("github.com", 80, None),
            ("api.github.com", 443, None),
            ("github.com.evil.example", 443, None),
            ("evilgithub.com", 443, None),
            ("[::1]", 80, Some(true)),
            ("0:0:0:0:0:0:0:1", 80, Some(true)),
            ("10.0.0.1", 8080, Some(true)),
            ("10.0.0.01", 8080, None),
        ] {
            assert_eq!(rules.find(host, port), expected, "{host}:{port}");
        }
    }
}
