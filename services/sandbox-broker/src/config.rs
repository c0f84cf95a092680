//! Settings of the broker. Built by whoever assembles it; nothing here reads the environment.

use std::time::Duration;

use crate::{
    git::clone::GitLimits,
    provider::{EgressRule, local::LocalConfig},
};

/// Public package registries every sandbox may reach: crates.io, PyPI, npm, Go, Debian, RubyGems, Maven Central.
pub const PACKAGE_REGISTRIES: [&str; 18] = [
    "crates.io:443",
    "index.crates.io:443",
    "static.crates.io:443",
    "pypi.org:443",
    "files.pythonhosted.org:443",
    "registry.npmjs.org:443",
    "registry.yarnpkg.com:443",
    "proxy.golang.org:443",
    "sum.golang.org:443",
    "deb.debian.org:80",
    "deb.debian.org:443",
    "security.debian.org:80",
    "security.debian.org:443",
    "rubygems.org:443",
    "index.rubygems.org:443",
    "repo.maven.apache.org:443",
    "repo1.maven.org:443",
    "static.rust-lang.org:443",
];

/// See the fields.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where callers reach this broker for host-bound leases; empty in one process.
    pub endpoint: String,
    /// The local provider, if it is offered.
    pub local: Option<LocalConfig>,
    /// Actions in flight per provider.
    pub slots_per_provider: u32,
    /// Repositories over plain http and on private addresses are allowed.
    pub allow_private_repos: bool,
    /// `host:port` every sandbox may reach beside its repository.
    pub package_registries: Vec<String>,
    /// What the configuration adds, `host:port`; an entry may name a private address.
    pub egress_allow: Vec<String>,
    /// Bounds of every outside call.
    pub timeouts: Timeouts,
}

impl Config {
    /// The defaults with one local provider.
    pub fn new(local: LocalConfig) -> Self {
        Self {
            endpoint: String::new(),
            local: Some(local),
            slots_per_provider: 16,
            allow_private_repos: false,
            package_registries: PACKAGE_REGISTRIES.map(str::to_owned).into(),
            egress_allow: Vec::new(),
            timeouts: Timeouts::default(),
        }
    }
}

/// All waits of the broker.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Long poll of a claim; at most 30 s.
    pub claim_wait: Duration,
    /// A unary call to lifecycle.
    pub call: Duration,
    /// One create call.
    pub create: Duration,
    /// One destroy call.
    pub destroy: Duration,
    /// One look.
    pub observe: Duration,
    /// Looks at a sandbox that should be gone (after an accepted destroy, after a broken command) before it is believed
    /// to be still there.
    pub absence_looks: u32,
    /// Wait between looks.
    pub look_delay: Duration,
    /// Tries until a new sandbox runs its first command.
    pub readiness_tries: u32,
    /// Wait between those tries.
    pub readiness_delay: Duration,
    /// One transfer of git.
    pub transfer: Duration,
    /// Any other step of git, and file access.
    pub step: Duration,
    /// Transfers tried when the repository is unreachable.
    pub transfer_tries: u32,
    /// Wait between them.
    pub transfer_delay: Duration,
    /// An exec that names no timeout.
    pub exec_default: Duration,
    /// The longest timeout an exec may ask for.
    pub exec_max: Duration,
    /// How often a quiet exec says that it is alive.
    pub keepalive: Duration,
    /// How often a running exec has its caller's claim checked again.
    pub fence_check: Duration,
    /// How long running actions may take to finish at shutdown.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            claim_wait: s(20),
            call: s(10),
            create: s(60),
            destroy: s(60),
            observe: s(15),
            absence_looks: 5,
            look_delay: Duration::from_millis(500),
            readiness_tries: 20,
            readiness_delay: Duration::from_millis(250),
            transfer: s(600),
            step: s(60),
            transfer_tries: 3,
            transfer_delay: s(2),
            exec_default: s(600),
            exec_max: s(24 * 3600),
            keepalive: s(15),
            fence_check: s(5),
            drain: s(8),
        }
    }
}

impl Timeouts {
    /// Those of git.
    pub(crate) fn git(&self) -> GitLimits {
        GitLimits {
            transfer: self.transfer,
            step: self.step,
            attempts: self.transfer_tries,
            delay: self.transfer_delay,
        }
    }
}

/// An entry of an allow-list that is not `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not host:port")]
pub struct InvalidRule(pub String);

/// Parses `host:port`; IPv6 addresses stand in brackets.
///
/// # Errors
/// See [`InvalidRule`].
pub fn egress_rule(text: &str, allow_private: bool) -> Result<EgressRule, InvalidRule> {
    let invalid = || InvalidRule(text.to_owned());
    let (host, port) = text.trim().rsplit_once(':').ok_or_else(invalid)?;
    let port: u16 = port.parse().map_err(|_| invalid())?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_ascii_lowercase();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '_');
    if host.is_empty() || port == 0 || !host.chars().all(plain) {
        return Err(invalid());
    }
    Ok(EgressRule { host, port, allow_private })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_exact() {
        assert!(PACKAGE_REGISTRIES.iter().all(|text| egress_rule(text, false).is_ok()));
        assert_eq!(egress_rule("[::1]:80", true).unwrap().host, "::1");
        for bad in ["", "host", "host:", "host:0", "host:99999", "*:443", "a b:1", "https://h:1"] {
            assert!(egress_rule(bad, false).is_err(), "{bad}");
        }
    }
}
