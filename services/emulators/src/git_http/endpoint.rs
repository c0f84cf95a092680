//! The smart-HTTP endpoints, parsed from method, path and query. Anything else is not found.

use http::{Method, Uri};

/// Deepest repository path, in segments.
const MAX_SEGMENTS: usize = 4;

/// A request that git's smart protocol knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// The repository as asked for, without a leading slash, always ending in `.git`.
    pub(super) repository: String,
    /// The rest of the path, such as `info/refs`.
    pub(super) action: &'static str,
    pub(super) service: Service,
}

/// What the client wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// Clone and fetch.
    Read,
    /// Push.
    Write,
}

impl Endpoint {
    pub(super) fn parse(method: &Method, uri: &Uri) -> Option<Self> {
        let path = uri.path().strip_prefix('/')?;
        let (repository, action, service) = if method == Method::GET {
            let service = match uri.query()? {
                "service=git-upload-pack" => Service::Read,
                "service=git-receive-pack" => Service::Write,
                _ => return None,
            };
            (path.strip_suffix("/info/refs")?, "info/refs", service)
        } else if method != Method::POST {
            return None;
        } else if let Some(repository) = path.strip_suffix("/git-upload-pack") {
            (repository, "git-upload-pack", Service::Read)
        } else {
            (path.strip_suffix("/git-receive-pack")?, "git-receive-pack", Service::Write)
        };
        Some(Self { repository: repository_path(repository)?, action, service })
    }
}

/// The path of a repository below the root: a few plain names, with `.git` added where it is missing.
fn repository_path(path: &str) -> Option<String> {
    let plain = |segment: &str| {
        !segment.is_empty()
            && segment.len() <= 100
            && !segment.starts_with(['.', '-'])
            && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let is_plain = path.split('/').count() <= MAX_SEGMENTS && path.split('/').all(plain);
    is_plain.then(|| if path.ends_with(".git") { path.to_owned() } else { format!("{path}.git") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &Method, uri: &str) -> Option<(String, &'static str, Service)> {
        Endpoint::parse(method, &uri.parse().unwrap())
            .map(|endpoint| (endpoint.repository, endpoint.action, endpoint.service))
    }

    #[test]
    fn knows_the_smart_endpoints_and_nothing_else() {
        let (get, post) = (Method::GET, Method::POST);
        let refs = "/team/demo.git/info/refs?service=git-upload-pack";
        assert_eq!(parse(&get, refs), Some(("team/demo.git".into(), "info/refs", Service::Read)));
        let push = "/demo/info/refs?service=git-receive-pack";
        assert_eq!(parse(&get, push), Some(("demo.git".into(), "info/refs", Service::Write)));
        let pack = "/demo.git/git-receive-pack";
        assert_eq!(parse(&post, pack), Some(("demo.git".into(), "git-receive-pack", Service::Write)));
        let strangers = [
            (&get, "/demo.git/info/refs"),
            (&get, "/demo.git/HEAD"),
            (&get, "/demo.git/objects/info/packs"),
            (&get, "/../etc/info/refs?service=git-upload-pack"),
            (&get, "/a/../b/info/refs?service=git-upload-pack"),
            (&get, "/%2e%2e/info/refs?service=git-upload-pack"),
            (&get, "//demo/info/refs?service=git-upload-pack"),
            (&get, "/.hidden/info/refs?service=git-upload-pack"),
            (&get, "/a/b/c/d/e/info/refs?service=git-upload-pack"),
            (&Method::PUT, "/demo.git/git-upload-pack"),
        ];
        for (method, uri) in strangers {
            assert_eq!(parse(method, uri), None, "{method} {uri}");
        }
    }
}
