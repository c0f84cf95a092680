//! What a repository, ref, branch and work folder may look like. Everything passed on is an argument of git later, never part
//! of a shell line; what could be read as an option or leads out of its place is refused here, before anything is made.

use url::Url;

use crate::{error::Error, hosts};

const MAX_URL_LEN: usize = 2048;
const MAX_REF_LEN: usize = 255;
const MAX_WORKDIR_LEN: usize = 512;

/// The URL to clone from, in the one way it is written (host in lower case, no default port).
///
/// # Errors
/// REPO_URL_INVALID, REPO_URL_SCHEME, REPO_URL_CREDENTIALS, REPO_URL_PRIVATE.
pub(super) fn url(text: &str, allow_private: bool) -> Result<String, Error> {
    let wrong = |message: &str| Error::invalid("repo_url", "REPO_URL_INVALID", message);
    if text.len() > MAX_URL_LEN {
        return Err(wrong("the repository URL is longer than 2048 bytes"));
    }
    // Before parsing: a URL parser drops some of these silently, and git reads a leading dash as an option.
    if text.chars().any(|c| c.is_control() || c.is_whitespace() || c == '\\') || text.starts_with('-') {
        return Err(wrong("the repository URL holds characters that no https URL has"));
    }
    let url =
        Url::parse(text).map_err(|_| wrong("the repository must be an https URL, such as https://host/owner/name"))?;
    if !matches!(url.scheme(), "https" | "http") {
        return Err(scheme_refused());
    }
    if !url.username().is_empty() || url.password().is_some() {
        let message = "credentials do not belong in the repository URL; store them as the secret github_token";
        return Err(Error::invalid("repo_url", "REPO_URL_CREDENTIALS", message));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("the repository URL must have neither query nor fragment"));
    }
    let host = url.host().ok_or_else(|| wrong("the repository URL names no host"))?;
    let private = hosts::is_private(&host);
    if private && !allow_private {
        let message =
            "the repository is on a private address, which this deployment does not allow (BERTH_ALLOW_PRIVATE_REPOS)";
        return Err(Error::invalid("repo_url", "REPO_URL_PRIVATE", message));
    }
    if url.scheme() == "http" && !private {
        return Err(scheme_refused());
    }
    if url.port() == Some(0) || url.path().trim_matches('/').is_empty() || encodes_control(url.path()) {
        return Err(wrong("the repository URL names no repository"));
    }
    Ok(url.into())
}

fn scheme_refused() -> Error {
    Error::invalid("repo_url", "REPO_URL_SCHEME", "only https repositories are cloned")
}

/// `%00` to `%1f` and `%7f`: control characters once decoded.
fn encodes_control(path: &str) -> bool {
    path.match_indices('%').any(|(at, _)| {
        path.get(at + 1..at + 3)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .is_none_or(|b| b < 0x20 || b == 0x7f)
    })
}

/// A branch, tag or commit to check out.
///
/// # Errors
/// REPO_REF_INVALID.
pub(super) fn reference(text: &str) -> Result<String, Error> {
    match name_problem(text) {
        None => Ok(text.to_owned()),
        Some(problem) => Err(Error::invalid("repo_ref", "REPO_REF_INVALID", format!("the ref {problem}"))),
    }
}

/// A branch to push to.
///
/// # Errors
/// PUSH_BRANCH_INVALID.
pub(super) fn branch(text: &str) -> Result<String, Error> {
    let problem = match text {
        "HEAD" => Some("must not be HEAD"),
        _ if text.starts_with("refs/") => Some("must be a plain branch name"),
        _ => name_problem(text),
    };
    match problem {
        None => Ok(text.to_owned()),
        Some(problem) => Err(Error::invalid("push_branch", "PUSH_BRANCH_INVALID", format!("the branch {problem}"))),
    }
}

/// git-check-ref-format's rules for a name of any depth, and no leading dash.
fn name_problem(name: &str) -> Option<&'static str> {
    if name.len() > MAX_REF_LEN {
        return Some("is longer than 255 bytes");
    }
    if name.starts_with('-') {
        return Some("must not begin with a dash");
    }
    if name.chars().any(|c| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c)) {
        return Some("holds a character that git allows in no name");
    }
    if name == "@" || name.contains("@{") || name.contains("..") || name.ends_with('.') {
        return Some("is not a name git allows");
    }
    let bad_part = |part: &str| part.is_empty() || part.starts_with('.') || part.ends_with(".lock");
    if name.split('/').any(bad_part) {
        return Some("has a part that git does not allow");
    }
    None
}

/// A folder below the sandbox's workspace.
///
/// # Errors
/// WORKDIR_INVALID.
pub(super) fn workdir(text: &str) -> Result<String, Error> {
    let wrong = |message: &str| Error::invalid("workdir", "WORKDIR_INVALID", message);
    if text.len() > MAX_WORKDIR_LEN {
        return Err(wrong("the work folder is longer than 512 bytes"));
    }
    if text.chars().any(char::is_control) || text.starts_with('-') {
        return Err(wrong("the work folder holds characters that are not allowed"));
    }
    if text.starts_with('/') {
        return Err(wrong("the work folder is relative to the sandbox's workspace"));
    }
    let folder = text.trim_end_matches('/');
    if folder.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(wrong("the work folder must stay inside the workspace"));
    }
    Ok(folder.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason<T>(result: Result<T, Error>) -> &'static str {
        result.err().map_or("OK", |error| error.reason())
    }

    #[test]
    fn case_a06_hostile_urls_are_refused_with_their_reason() {
        for (text, expected) in [
            ("https://github.com/owner/name", "OK"),
            ("https://github.com/owner/name.git", "OK"),
            ("https://git.example.org:8443/a b", "REPO_URL_INVALID"),
            ("http://github.com/owner/name", "REPO_URL_SCHEME"),
            ("ssh://git@github.com/owner/name", "REPO_URL_SCHEME"),
            ("git@github.com:owner/name", "REPO_URL_INVALID"),
            ("file:///etc", "REPO_URL_SCHEME"),
            ("git://github.com/a/b", "REPO_URL_SCHEME"),
            ("ext::sh -c id", "REPO_URL_INVALID"),
            ("ext::id", "REPO_URL_SCHEME"),
            ("--upload-pack=id", "REPO_URL_INVALID"),
            ("-https://github.com/a/b", "REPO_URL_INVALID"),
            ("https://token@github.com/a/b", "REPO_URL_CREDENTIALS"),
            ("https://x:y@github.com/a/b", "REPO_URL_CREDENTIALS"),
            ("https://github.com/a/b?x=1", "REPO_URL_INVALID"),
            ("https://github.com/a/b#main", "REPO_URL_INVALID"),
            ("https://github.com\\@evil.test/a/b", "REPO_URL_INVALID"),
            ("https://github.com/a\n/b", "REPO_URL_INVALID"),
            ("https://github.com/a%0a/b", "REPO_URL_INVALID"),
            ("https://github.com/a%zz/b", "REPO_URL_INVALID"),
            ("https://github.com/", "REPO_URL_INVALID"),
            ("https://github.com", "REPO_URL_INVALID"),
            ("https://", "REPO_URL_INVALID"),
            ("/srv/git/name", "REPO_URL_INVALID"),
            ("https://127.0.0.1/a/b", "REPO_URL_PRIVATE"),
            ("http://127.0.0.1:3000/a/b", "REPO_URL_PRIVATE"),
            ("https://localhost/a/b", "REPO_URL_PRIVATE"),
            ("https://169.254.169.254/latest", "REPO_URL_PRIVATE"),
            ("https://[::1]/a/b", "REPO_URL_PRIVATE"),
        ] {
            assert_eq!(reason(url(text, false)), expected, "{text:?}");
        }
        let long = format!("https://github.com/{}", "a".repeat(MAX_URL_LEN));
        assert_eq!(reason(url(&long, false)), "REPO_URL_INVALID");
    }

    #[test]
    fn private_repositories_need_the_setting_and_http_needs_a_private_address() {
        assert_eq!(url("http://127.0.0.1:3000/a/b", true).unwrap(), "http://127.0.0.1:3000/a/b");
        assert_eq!(url("https://10.0.0.1/a/b", true).unwrap(), "https://10.0.0.1/a/b");
        assert_eq!(reason(url("http://github.com/a/b", true)), "REPO_URL_SCHEME");
        assert_eq!(url("https://GitHub.com:443/a/b", false).unwrap(), "https://github.com/a/b");
    }

    #[test]
    fn refs_follow_the_rules_of_git() {
        for good in
            ["main", "feature/x", "v1.2.3", "a94a8fe5ccb19ba61c4c0873d391e987982fbbd3", "refs/heads/main", "ünï"]
        {
            assert_eq!(reason(reference(good)), "OK", "{good:?}");
        }
        for bad in [
            "-b",
            "--upload-pack=x",
            "a..b",
            "a b",
            "a~1",
            "a^",
            "a:b",
            "a?",
            "a*",
            "a[",
            "a\\b",
            "@",
            "a@{1}",
            "/a",
            "a/",
            "a//b",
            ".a",
            "a/.b",
            "a.lock",
            "a.lock/b",
            "a.",
            "a\0b",
            "a\nb",
            &"x".repeat(256),
        ] {
            assert_eq!(reason(reference(bad)), "REPO_REF_INVALID", "{bad:?}");
            assert_eq!(reason(branch(bad)), "PUSH_BRANCH_INVALID", "{bad:?}");
        }
        assert_eq!(reason(branch("HEAD")), "PUSH_BRANCH_INVALID");
        assert_eq!(reason(branch("refs/heads/x")), "PUSH_BRANCH_INVALID");
        assert_eq!(reason(branch("berth/fix-1")), "OK");
    }

    #[test]
    fn work_folders_stay_inside_the_workspace() {
        for (text, expected) in [("app", "app"), ("a/b/", "a/b"), ("a b;c", "a b;c")] {
            assert_eq!(workdir(text).unwrap(), expected);
        }
        for bad in ["/etc", "..", "a/../b", "a/..", "./a", "a//b", "-x", "a\0", "a\nb", "/", &"x".repeat(513)] {
            assert_eq!(reason(workdir(bad)), "WORKDIR_INVALID", "{bad:?}");
        }
    }
}
