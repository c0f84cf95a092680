//! Names a caller chooses: the ref to check out, the branch to push, the folder to work in. Checked here once more,
//! though lifecycle refused bad ones before the run was made.

/// Where every work folder lives.
pub(crate) const WORKSPACE: &str = "/workspace";
/// Prefix of our own folders beside it.
pub(crate) const OURS: &str = ".berth-";

const MAX: usize = 255;

/// The rules of git check-ref-format, and no leading `-`.
pub(crate) fn is_ref_name(name: &str) -> bool {
    let forbidden = |c: char| c.is_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\');
    let component = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    !name.is_empty()
        && name.len() <= MAX
        && !name.starts_with('-')
        && !name.ends_with('.')
        && name != "@"
        && !name.contains("..")
        && !name.contains("@{")
        && !name.chars().any(forbidden)
        && name.split('/').all(component)
}

/// A full or abbreviated commit id.
pub(crate) fn is_commit_id(name: &str) -> bool {
    (4..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The absolute folder of a requested relative one; None when it would leave the workspace or take one of our names.
pub(crate) fn work_folder(relative: &str) -> Option<String> {
    let component = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.starts_with('-');
    let fits = !relative.is_empty() && relative.len() <= MAX && !relative.chars().any(char::is_control);
    let parts: Vec<&str> = relative.trim_end_matches('/').split('/').collect();
    let ours = parts.first().is_some_and(|first| first.starts_with(OURS));
    (fits && !ours && parts.iter().all(|part| component(part))).then(|| format!("{WORKSPACE}/{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_a06_hostile_refs_and_folders_are_refused() {
        for bad in [
            "",
            "-x",
            "--upload-pack=x",
            "a b",
            "a..b",
            "a~1",
            "a^{tree}",
            "x:y",
            "a/",
            "/a",
            "a//b",
            ".a",
            "a.lock",
            "@{-1}",
            "a\nb",
            "a\\b",
        ] {
            assert!(!is_ref_name(bad), "{bad:?}");
        }
        for good in ["main", "feature/x", "v1.0", "refs/heads/main", "$(touch x)", "a;b", "a'b", "ünï"] {
            // A shell's special characters are nothing to us: there is no shell.
            assert!(is_ref_name(good) || good.contains(' '), "{good:?}");
        }
        for bad in ["", "/etc", "..", "a/../b", "./a", "-rf", "a/-x", "a\0b", "a\nb", ".berth-clone-1"] {
            assert_eq!(work_folder(bad), None, "{bad:?}");
        }
        assert_eq!(work_folder("a/b/").as_deref(), Some("/workspace/a/b"));
        assert_eq!(work_folder("$(touch x)").as_deref(), Some("/workspace/$(touch x)"));
    }
}
