//! Where a secret may be used: `host` (any port of it) or `host:port`. Written one way only, so that equal text means equal
//! place: lower case, no trailing dot, IPv6 in brackets.
//!
//! Must not live here: which secret is for what.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::{Host, Url};

const MAX_LEN: usize = 260;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    host: String,
    port: u16,
}

impl Place {
    /// Where a request to this URL goes; None when the URL names no single host.
    pub(crate) fn of_url(url: &Url) -> Option<Self> {
        let host = match url.host()? {
            Host::Domain(name) => Host::Domain(name.trim_end_matches('.').to_ascii_lowercase()),
            Host::Ipv4(address) => Host::Ipv4(address),
            Host::Ipv6(address) => Host::Ipv6(address),
        };
        // No wildcards or other patterns: a binding names one place.
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if matches!(&host, Host::Domain(name) if name.is_empty() || !name.bytes().all(plain)) {
            return None;
        }
        match url.port_or_known_default()? {
            0 => None,
            port => Some(Self { host: host.to_string(), port }),
        }
    }

    /// From `host` (then its https port) or `host:port`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let stray = |b: u8| matches!(b, b'/' | b'@' | b'?' | b'#' | b'\\' | b'%') || b <= b' ';
        if text.len() > MAX_LEN || text.bytes().any(stray) || text.ends_with(':') {
            return None;
        }
        Self::of_url(&Url::parse(&format!("https://{text}")).ok()?)
    }

    /// Whether a secret bound to these hosts may be sent here.
    pub(crate) fn is_bound(&self, hosts: &[String]) -> bool {
        let exact = format!("{}:{}", self.host, self.port);
        hosts.iter().any(|bound| *bound == self.host || *bound == exact)
    }
}

/// The one way to write a binding; None when it is not `host` or `host:port`.
pub(crate) fn parse(text: &str) -> Option<String> {
    let Place { host, port } = Place::parse(text)?;
    let address_ends = text.rfind(']').unwrap_or_default();
    let names_port = text[address_ends..].contains(':');
    Some(if names_port { format!("{host}:{port}") } else { host })
}

/// Whether the host is one that only this machine or network reaches: a private, loopback or otherwise special address, or
/// a name that can only mean one. Names that resolve to such an address are the broker's to refuse when it connects.
pub(crate) fn is_private(host: &Host<&str>) -> bool {
    match host {
        Host::Ipv4(address) => is_private_address(IpAddr::V4(*address)),
        Host::Ipv6(address) => is_private_address(IpAddr::V6(*address)),
        Host::Domain(name) => {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            let private_suffix = [".localhost", ".local", ".internal", ".lan", ".home.arpa"];
            !name.contains('.') || private_suffix.iter().any(|suffix| name.ends_with(suffix))
        }
    }
}

fn is_private_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_special_v4(address),
        IpAddr::V6(address) => {
            let segments = address.segments();
            embedded_v4(address).is_some_and(is_special_v4)
                || address.is_loopback()
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_unique_local()
                || address.is_unicast_link_local()
                || segments[..2] == [0x2001, 0x0db8]
                || segments[0] == 0xfec0
        }
    }
}

fn is_special_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (b == 18 || b == 19))
}

/// IPv4 inside IPv6: mapped, compatible, NAT64 and 6to4.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match s {
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] if high != 0 => Some(v4(high, low)),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_places_are_written_alike() {
        for (text, expected) in [
            ("github.com", Some("github.com")),
            ("GitHub.com.", Some("github.com")),
            ("github.com:443", Some("github.com:443")),
            ("github.com:8443", Some("github.com:8443")),
            ("127.0.0.1:3000", Some("127.0.0.1:3000")),
            ("[::1]:80", Some("[::1]:80")),
            ("[0::1]", Some("[::1]")),
            ("", None),
            (".", None),
            ("::1", None),
            ("a b", None),
            ("https://github.com", None),
            ("user@github.com", None),
            ("github.com/path", None),
            ("github.com:", None),
            ("github.com:0", None),
            ("github.com:99999", None),
            ("*.github.com", None),
            ("a\nb", None),
        ] {
            assert_eq!(parse(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn case_a11_a_binding_covers_its_host_or_its_port_only() {
        let bound = |url: &str, host: &str| {
            let place = Place::of_url(&Url::parse(url).unwrap()).unwrap();
            place.is_bound(&[parse(host).unwrap()])
        };
        assert!(bound("https://GITHUB.com/a/b", "github.com"));
        assert!(bound("https://github.com/a/b", "github.com:443"));
        assert!(bound("http://127.0.0.1:3000/a", "127.0.0.1"));
        assert!(bound("http://127.0.0.1:3000/a", "127.0.0.1:3000"));
        assert!(!bound("http://127.0.0.1:3000/a", "127.0.0.1:443"));
        assert!(!bound("http://127.0.0.1:3001/a", "127.0.0.1:3000"));
        assert!(!bound("https://github.com.evil.example/a", "github.com"));
        assert!(!bound("https://sub.github.com/a", "github.com"));
        assert!(!Place::parse("api.anthropic.com").unwrap().is_bound(&[]));
    }

    #[test]
    fn private_places_are_recognised_in_every_spelling() {
        let private = |text: &str| is_private(&Url::parse(text).unwrap().host().unwrap());
        for text in [
            "https://127.0.0.1/x",
            "https://0x7f.1/x",
            "https://2130706433/x",
            "https://10.1.2.3/x",
            "https://172.16.0.1/x",
            "https://192.168.1.1/x",
            "https://169.254.169.254/x",
            "https://100.64.0.1/x",
            "https://0.0.0.0/x",
            "https://[::1]/x",
            "https://[::ffff:127.0.0.1]/x",
            "https://[64:ff9b::7f00:1]/x",
            "https://[fd00::1]/x",
            "https://[fe80::1]/x",
            "https://localhost/x",
            "https://LOCALHOST./x",
            "https://git.localhost/x",
            "https://db/x",
            "https://metadata.google.internal/x",
        ] {
            assert!(private(text), "{text}");
        }
        for text in ["https://github.com/x", "https://1.1.1.1/x", "https://[2606:4700::1111]/x"] {
            assert!(!private(text), "{text}");
        }
    }
}
