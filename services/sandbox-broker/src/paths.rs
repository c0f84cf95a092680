//! Which files callers may name: relative to the work folder, or absolute inside the agent's own folders. The check here
//! is on the text; links are resolved and checked again inside the sandbox, where the file is opened.

use crate::error::Error;

/// Folders an absolute path may lie in.
pub(crate) const ROOTS: [&str; 3] = ["/workspace", "/tmp", "/home/agent"];
const MAX: usize = 4096;

/// The absolute form of `path`, without `.` and `..`.
pub(crate) fn resolve(field: &'static str, workdir: &str, path: &str) -> Result<String, Error> {
    if path.len() > MAX || path.contains('\0') {
        return Err(Error::Invalid { field, reason: "PATH_INVALID", message: "not a path".to_owned() });
    }
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{workdir}/{path}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let absolute = format!("/{}", parts.join("/"));
    if is_inside(&absolute) { Ok(absolute) } else { Err(outside(field)) }
}

fn is_inside(absolute: &str) -> bool {
    ROOTS.iter().any(|root| absolute.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// The refusal, also of what the sandbox found behind a link.
pub(crate) fn outside(field: &'static str) -> Error {
    Error::Invalid {
        field,
        reason: "PATH_OUTSIDE_WORKDIR",
        message: format!("only files inside {} can be reached", ROOTS.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        let check = |path: &str| resolve("path", "/workspace/repo", path).ok();
        assert_eq!(check("a/../b.txt").as_deref(), Some("/workspace/repo/b.txt"));
        assert_eq!(check("").as_deref(), Some("/workspace/repo"));
        assert_eq!(check("../other").as_deref(), Some("/workspace/other"));
        assert_eq!(check("/tmp/x").as_deref(), Some("/tmp/x"));
        assert_eq!(check("-rf").as_deref(), Some("/workspace/repo/-rf"));
        for bad in [
            "/etc/passwd",
            "../../etc/passwd",
            "/workspace/../etc",
            "/tmpfile",
            "/",
            "/proc/1/environ",
            "/home/other",
            "a\0b",
        ] {
            assert_eq!(check(bad), None, "{bad:?}");
        }
    }
}
