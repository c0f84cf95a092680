//! The address of a repository, parsed once: what git is given, what the egress proxy must allow, and whether a secret
//! bound to some hosts may be used for it.

use std::net::IpAddr;

use url::{Host, Url};

use crate::provider::EgressRule;

/// Longest accepted address, in bytes.
const MAX: usize = 2048;

/// Why an address is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RepoUrlError {
    /// Not a URL, or one with parts a repository address must not have.
    #[error("not a plain https address of a repository")]
    Malformed,
    /// A scheme that is not allowed.
    #[error("only https addresses are allowed (http on private addresses where the configuration says so)")]
    Scheme,
    /// It would carry a credential.
    #[error("a repository address must not hold a user name or password")]
    Credentials,
}

/// An https address (or http, where private repositories are allowed) without credentials, query or fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RepoUrl {
    url: Url,
    host: String,
    port: u16,
}

impl RepoUrl {
    /// Checks everything that git or the proxy rely on. `allow_private` admits plain http.
    ///
    /// # Errors
    /// See [`RepoUrlError`].
    pub(crate) fn parse(text: &str, allow_private: bool) -> Result<Self, RepoUrlError> {
        let plain = |c: char| !c.is_control() && !c.is_whitespace() && c != '\\';
        if text.len() > MAX || !text.chars().all(plain) {
            return Err(RepoUrlError::Malformed);
        }
        let url = Url::parse(text).map_err(|_| RepoUrlError::Malformed)?;
        match url.scheme() {
            "https" => {}
            "http" if allow_private => {}
            _ => return Err(RepoUrlError::Scheme),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(RepoUrlError::Credentials);
        }
        if url.query().is_some() || url.fragment().is_some() || url.path().trim_matches('/').is_empty() {
            return Err(RepoUrlError::Malformed);
        }
        let host = match url.host() {
            Some(Host::Domain(name)) => name.trim_end_matches('.').to_owned(),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Ipv6(address)) => address.to_string(),
            None => return Err(RepoUrlError::Malformed),
        };
        let port = url.port_or_known_default().ok_or(RepoUrlError::Malformed)?;
        Ok(Self { url, host, port })
    }

    /// The address as git gets it.
    pub(crate) fn as_str(&self) -> &str {
        self.url.as_str()
    }

    /// Scheme and authority exactly as git prints them in a credential prompt.
    pub(crate) fn origin(&self) -> String {
        self.prompt_origin("")
    }

    /// The same with a user name.
    pub(crate) fn prompt_origin(&self, user: &str) -> String {
        let at = if user.is_empty() { "" } else { "@" };
        let port = self.url.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}://{user}{at}{}{port}", self.url.scheme(), self.url.host_str().unwrap_or_default())
    }

    /// The value of `GIT_ALLOW_PROTOCOL`.
    pub(crate) fn protocols(&self) -> &'static str {
        if self.url.scheme() == "http" { "http" } else { "https" }
    }

    /// What the sandbox's proxy must let through.
    pub(crate) fn egress(&self, allow_private: bool) -> EgressRule {
        EgressRule { host: self.host.clone(), port: self.port, allow_private }
    }

    /// Whether a secret bound to `hosts` (`host` or `host:port`) may be sent here. Over plain http a bare host binds only
    /// loopback and private addresses, so that no token meant for https crosses a network in the clear.
    pub(crate) fn is_bound_to(&self, hosts: &[String]) -> bool {
        let with_port = match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        };
        let bare_counts = self.url.scheme() == "https" || is_private(&self.host);
        hosts.iter().any(|bound| {
            let bound = bound.trim_end_matches('.').to_ascii_lowercase();
            bound == with_port || (bare_counts && bound.trim_matches(['[', ']']) == self.host)
        })
    }

    /// The folder a clone gets when none is asked for: the last segment without `.git`, reduced to plain characters.
    pub(crate) fn folder(&self) -> String {
        let last = self.url.path().trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
        let name: String = last.strip_suffix(".git").unwrap_or(last).chars().take(64).map(plain).collect();
        match name.trim_start_matches(['.', '-']) {
            "" => "repository".to_owned(),
            name => name.to_owned(),
        }
    }
}

fn is_private(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_private() || address.is_link_local(),
        Ok(IpAddr::V6(address)) => address.is_loopback() || address.is_unique_local(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_a06_hostile_addresses_are_refused() {
        for text in [
            "",
            "--upload-pack=touch /tmp/x",
            "ext::sh -c touch% /tmp/x",
            "file:///etc",
            "ssh://git@host/x",
            "git@github.com:x/y.git",
            "https://user:pw@github.com/x",
            "https://user@github.com/x",
            "https://github.com/x?y=1",
            "https://github.com/x#y",
            "https://github.com/",
            "https://github.com/x\ny",
            "https://github.com\\@evil.example/x",
            "https://git hub.com/x",
            "http://127.0.0.1/x",
        ] {
            assert!(RepoUrl::parse(text, false).is_err(), "{text}");
        }
        assert!(RepoUrl::parse("http://127.0.0.1:8080/x.git", true).is_ok());
        assert!(RepoUrl::parse("file:///etc", true).is_err());
    }

    #[test]
    fn case_a11_only_bound_hosts_count() {
        let check = |url: &str, hosts: &[&str]| {
            let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
            RepoUrl::parse(url, true).unwrap().is_bound_to(&hosts)
        };
        assert!(check("https://github.com/a/b", &["github.com"]));
        assert!(check("https://GitHub.com:443/a/b", &["github.com:443"]));
        assert!(check("http://127.0.0.1:81/a", &["127.0.0.1:81"]));
        assert!(check("http://127.0.0.1:81/a", &["127.0.0.1"]));
        assert!(!check("https://github.com.evil.example/a", &["github.com"]));
        assert!(!check("https://evil.example/github.com", &["github.com"]));
        assert!(!check("https://github.com:444/a", &["github.com:443"]));
        assert!(!check("http://github.com/a", &["github.com"]), "never in the clear");
        assert!(!check("https://github.com/a", &[]));
        assert!(!check("https://sub.github.com/a", &["github.com"]));
    }

    #[test]
    fn folders_are_plain_names() {
        let folder = |text: &str| RepoUrl::parse(text, false).unwrap().folder();
        assert_eq!(folder("https://h/a/repo.git"), "repo");
        assert_eq!(folder("https://h/a/repo/"), "repo");
        assert_eq!(folder("https://h/a/.git"), "repository");
        assert_eq!(folder("https://h/a/-rf"), "rf");
        assert_eq!(folder("https://h/a/%24(id)"), "24-id-");
        assert_eq!(folder("https://h/a/..%2f..%2fetc"), "2f..-2fetc");
    }

    #[test]
    fn prompts_name_the_origin_as_git_does() {
        let url = RepoUrl::parse("https://Example.com:443/x", false).unwrap();
        assert_eq!(url.origin(), "https://example.com");
        let url = RepoUrl::parse("http://[::1]:8080/x", true).unwrap();
        assert_eq!(url.prompt_origin("u"), "http://u@[::1]:8080");
        assert_eq!(url.egress(true).host, "::1");
    }
}
