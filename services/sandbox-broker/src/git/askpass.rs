//! The password helper of one git command. The script holds no secret: it prints what the environment of that one
//! process holds, and only when git asks for exactly the origin the token was resolved for. It lies outside the work tree.

use secrecy::SecretString;

use super::repo_url::RepoUrl;
use crate::provider::ExecSpec;

/// The user name of token authentication.
pub(crate) const USER: &str = "x-access-token";

/// A token and the one origin it may be shown to.
#[derive(Clone, Debug)]
pub(crate) struct Credential {
    origin: String,
    password_origin: String,
    token: SecretString,
}

impl Credential {
    /// None unless `url` is on a host the secret is bound to.
    pub(crate) fn for_repo(url: &RepoUrl, token: SecretString, hosts: &[String]) -> Option<Self> {
        url.is_bound_to(hosts).then(|| Self { origin: url.origin(), password_origin: url.prompt_origin(USER), token })
    }

    /// For redaction.
    pub(crate) fn token(&self) -> &SecretString {
        &self.token
    }

    /// Lets one command answer the origin's prompt, with the script at `path`.
    pub(crate) fn attach(&self, mut spec: ExecSpec, path: &str) -> ExecSpec {
        spec.env.insert("GIT_ASKPASS".to_owned(), path.to_owned());
        spec.env.insert("BERTH_GIT_ORIGIN".to_owned(), self.origin.clone());
        spec.env.insert("BERTH_GIT_PASSWORD_ORIGIN".to_owned(), self.password_origin.clone());
        spec.secrets.push(("BERTH_GIT_TOKEN".to_owned(), self.token.clone()));
        spec
    }
}

/// printf is a builtin of sh, so the token is in no argument list.
const SCRIPT: &str = r#"#!/bin/sh
case "$1" in
"Username for '$BERTH_GIT_ORIGIN': ") printf '%s\n' x-access-token ;;
"Password for '$BERTH_GIT_PASSWORD_ORIGIN': ") printf '%s\n' "$BERTH_GIT_TOKEN" ;;
*) exit 1 ;;
esac
"#;

/// Writes the script to `<folder>/askpass`; `folder` must not exist.
pub(crate) fn install(folder: &str) -> ExecSpec {
    let line = r#"umask 077 && mkdir -- "$1" && cat > "$1/askpass" && chmod 0700 "$1/askpass""#;
    ExecSpec {
        argv: ["/bin/sh", "-c", line, "sh", folder].map(str::to_owned).into(),
        cwd: "/".to_owned(),
        stdin: SCRIPT.into(),
        ..ExecSpec::default()
    }
}

/// Path of the script in `folder`.
pub(crate) fn path(folder: &str) -> String {
    format!("{folder}/askpass")
}
