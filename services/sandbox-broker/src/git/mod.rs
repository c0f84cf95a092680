//! git inside a sandbox: how it is called, and nothing a caller wrote ever becomes an option, a shell word or a
//! configuration. Every command runs as the agent's user inside the sandbox, never on the host.

pub(crate) mod askpass;
pub(crate) mod checkout;
pub(crate) mod classify;
pub(crate) mod clone;
pub(crate) mod collect;
pub(crate) mod names;
pub(crate) mod push;
pub(crate) mod repo_url;

use std::collections::BTreeMap;

use crate::provider::ExecSpec;

/// Configuration that holds for every call and that no repository can override: no helper that could store or supply a
/// credential, no redirect (a redirect could name another host), no hooks, no file-system monitor, no pager.
const FIXED: [&str; 10] = [
    "credential.helper=",
    "core.askPass=",
    "http.followRedirects=false",
    "http.lowSpeedLimit=1",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.pager=cat",
    "commit.gpgSign=false",
    "gc.auto=0",
    "advice.addEmbeddedRepo=false",
];

/// Seconds without a byte after which a transfer is given up.
const STALL_S: u32 = 60;

/// A git command: `git <fixed configuration> <args>`, in `cwd`, with a closed environment.
pub(crate) fn command<I, S>(cwd: &str, args: I) -> ExecSpec
where
    I: IntoIterator<Item = S>,
    S: Into<String>,
{
    let mut argv = vec!["git".to_owned(), "--no-pager".to_owned()];
    for setting in FIXED {
        argv.extend(["-c".to_owned(), setting.to_owned()]);
    }
    argv.extend(["-c".to_owned(), format!("http.lowSpeedTime={STALL_S}")]);
    argv.extend(args.into_iter().map(Into::into));
    ExecSpec { argv, env: environment(), cwd: cwd.to_owned(), ..ExecSpec::default() }
}

/// The environment of every git call. System and user configuration are out; messages are the untranslated ones that
/// `classify` knows; nothing prompts; the proxy applies to every host.
fn environment() -> BTreeMap<String, String> {
    [
        ("LC_ALL", "C"),
        ("LANG", "C"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_ALLOW_PROTOCOL", ""),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_LFS_SKIP_SMUDGE", "1"),
        ("NO_PROXY", ""),
        ("no_proxy", ""),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}
