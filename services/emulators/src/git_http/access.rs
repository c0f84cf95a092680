//! Who may do what: a pure decision on the configuration, the endpoint and the credential that came.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Uri};
use serde::Serialize;

use super::GitHttpConfig;
use super::endpoint::{Endpoint, Service};
use crate::Fingerprint;

/// The user name that goes with a token.
pub const TOKEN_USER: &str = "x-access-token";

/// Which repositories need the token for reading. Pushing always does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Private {
    /// Everything is public.
    None,
    /// Nothing is public.
    All,
    /// Those at these paths below the root, such as `team/demo.git`.
    Only(BTreeSet<String>),
}

/// How the server behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Like a git host.
    Honest,
    /// Asks for a token for everything and takes any: a host the secret is not bound to.
    AsksForToken,
    /// Sends every request it would serve to the same path at this origin (302).
    RedirectsTo(String),
}

/// The credential of a request; only the expected user name is shown, everything else is reduced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GitCredential {
    /// `x-access-token`, or the fingerprint of another user name (some clients put the token there).
    pub user: String,
    /// Of the password; of the whole header value when it is not Basic.
    pub sha256: Fingerprint,
}

impl GitCredential {
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get("authorization")?;
        let basic = value.to_str().ok().and_then(|value| {
            let (scheme, encoded) = value.split_once(' ')?;
            let decoded = STANDARD.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
            let text = String::from_utf8(decoded).ok()?;
            let (user, password) = text.split_once(':')?;
            Some((user.to_owned(), password.to_owned()))
        });
        Some(match basic {
            Some((user, password)) if user == TOKEN_USER => Self { user, sha256: Fingerprint::of(&password) },
            Some((user, password)) => {
                Self { user: Fingerprint::of(&user).as_str().to_owned(), sha256: Fingerprint::of(&password) }
            }
            None => Self { user: String::new(), sha256: Fingerprint::of(&String::from_utf8_lossy(value.as_bytes())) },
        })
    }
}

/// What is done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Run git; `user` is set when the client proved who it is.
    Serve { user: Option<&'static str> },
    /// 401 with `WWW-Authenticate`.
    Challenge,
    /// 403: pushing to a server that has no token.
    Forbid,
    /// 302 to this URL.
    Redirect(String),
}

pub(super) fn decide(
    config: &GitHttpConfig,
    endpoint: &Endpoint,
    uri: &Uri,
    credential: Option<&GitCredential>,
) -> Decision {
    if config.behaviour == Behaviour::AsksForToken {
        return if credential.is_some() { Decision::Serve { user: Some(TOKEN_USER) } } else { Decision::Challenge };
    }
    let is_private = match &config.private {
        Private::None => false,
        Private::All => true,
        Private::Only(repositories) => repositories.contains(&endpoint.repository),
    };
    let is_known = match (&config.token, credential) {
        (Some(token), Some(credential)) => credential.user == TOKEN_USER && credential.sha256 == *token,
        _ => false,
    };
    let is_push = endpoint.service == Service::Write;
    // A credential that came and is wrong is refused even where none was needed, as git hosts do.
    if !is_known && (is_private || is_push || credential.is_some()) {
        let nobody_may = config.token.is_none() && is_push && credential.is_none();
        return if nobody_may { Decision::Forbid } else { Decision::Challenge };
    }
    match &config.behaviour {
        Behaviour::RedirectsTo(origin) => Decision::Redirect(redirected(origin, uri)),
        Behaviour::Honest | Behaviour::AsksForToken => Decision::Serve { user: is_known.then_some(TOKEN_USER) },
    }
}

fn redirected(origin: &str, uri: &Uri) -> String {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    format!("{}{path}", origin.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Method};

    fn headers(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_str(value).unwrap());
        headers
    }

    fn basic(user: &str, password: &str) -> Option<GitCredential> {
        GitCredential::of(&headers(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))))
    }

    #[test]
    fn a_credential_is_reduced_wherever_the_secret_sits() {
        for value in ["Bearer canary", "Basic canary", "canary"] {
            let shown = format!("{:?}", GitCredential::of(&headers(value)));
            assert!(!shown.contains("canary"), "{shown}");
        }
        for credential in [basic(TOKEN_USER, "canary"), basic("canary", ""), basic("canary", "canary")] {
            let shown = format!("{credential:?}");
            assert!(!shown.contains("canary"), "{shown}");
        }
    }

    #[test]
    fn decisions() {
        let read = "/demo.git/info/refs?service=git-upload-pack";
        let push = "/demo.git/info/refs?service=git-receive-pack";
        let right = || basic(TOKEN_USER, "right");
        let wrong = || basic(TOKEN_USER, "wrong");
        let served = Decision::Serve { user: Some(TOKEN_USER) };
        let open = Decision::Serve { user: None };
        let only = Private::Only(BTreeSet::from(["demo.git".to_owned()]));
        let others = Private::Only(BTreeSet::from(["other.git".to_owned()]));
        let moved = || Behaviour::RedirectsTo("http://b:1/".to_owned());
        let cases = [
            (Private::None, Behaviour::Honest, read, None, open.clone()),
            (Private::None, Behaviour::Honest, read, right(), served.clone()),
            (Private::None, Behaviour::Honest, read, wrong(), Decision::Challenge),
            (Private::None, Behaviour::Honest, push, None, Decision::Challenge),
            (Private::None, Behaviour::Honest, push, right(), served.clone()),
            (Private::All, Behaviour::Honest, read, None, Decision::Challenge),
            (Private::All, Behaviour::Honest, read, basic("someone", "right"), Decision::Challenge),
            (Private::All, Behaviour::Honest, read, right(), served.clone()),
            (only, Behaviour::Honest, read, None, Decision::Challenge),
            (others, Behaviour::Honest, read, None, open),
            (Private::None, Behaviour::AsksForToken, read, None, Decision::Challenge),
            (Private::None, Behaviour::AsksForToken, push, wrong(), served),
            (Private::None, moved(), read, None, Decision::Redirect(format!("http://b:1{read}"))),
            (Private::All, moved(), read, None, Decision::Challenge),
            (Private::All, moved(), read, right(), Decision::Redirect(format!("http://b:1{read}"))),
        ];
        for (private, behaviour, uri, credential, expected) in cases {
            let shown = format!("{private:?} {behaviour:?} {uri} {credential:?}");
            let mut config = GitHttpConfig::new("/nowhere");
            config.token = Some(Fingerprint::of("right"));
            config.private = private;
            config.behaviour = behaviour;
            let uri: Uri = uri.parse().unwrap();
            let endpoint = Endpoint::parse(&Method::GET, &uri).unwrap();
            assert_eq!(decide(&config, &endpoint, &uri, credential.as_ref()), expected, "{shown}");
        }
        let uri: Uri = push.parse().unwrap();
        let endpoint = Endpoint::parse(&Method::GET, &uri).unwrap();
        assert_eq!(decide(&GitHttpConfig::new("/nowhere"), &endpoint, &uri, None), Decision::Forbid);
    }
}
