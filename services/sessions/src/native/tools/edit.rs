//! `edit`: replaces an exact text; an empty new text deletes it.

use serde::Deserialize;

use super::sandbox::Sandbox;
use super::{Answer, Trouble};

/// What the model gives.
#[derive(Debug, Deserialize)]
pub(super) struct Input {
    path: String,
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

pub(super) async fn edit(sandbox: &Sandbox, input: Input) -> Result<Answer, Trouble> {
    let before = sandbox.read_text(&input.path).await?;
    let (after, count) = replaced(&before, &input).map_err(Trouble::Told)?;
    sandbox.write_file(&input.path, after.into_bytes()).await?;
    Ok(Answer::ok(format!("replaced {count}")))
}

fn replaced(before: &str, input: &Input) -> Result<(String, usize), String> {
    let Input { path, old_string, new_string, replace_all } = input;
    if old_string == new_string {
        return Err("old_string and new_string are the same.".into());
    }
    if old_string.is_empty() {
        return Err("old_string must not be empty; use write for a new content.".into());
    }
    match before.matches(old_string.as_str()).count() {
        0 => Err(format!("old_string does not occur in {path}.")),
        count if count > 1 && !replace_all => {
            Err(format!("old_string occurs {count} times in {path}; give more of its surroundings, or replace_all."))
        }
        count => Ok((before.replace(old_string.as_str(), new_string), count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: &str, old: &str, new: &str, replace_all: bool) -> Result<(String, usize), String> {
        replaced(before, &Input { path: "f".into(), old_string: old.into(), new_string: new.into(), replace_all })
    }

    #[test]
    fn case_n04_a_deleting_edit_works() {
        assert_eq!(check("a\nb\n", "b\n", "", false), Ok(("a\n".into(), 1)));
        assert_eq!(check("x", "x", "", false), Ok((String::new(), 1)));
    }

    #[test]
    fn matches_must_be_unambiguous() {
        assert_eq!(check("aa", "a", "b", true), Ok(("bb".into(), 2)));
        assert!(check("aa", "a", "b", false).unwrap_err().contains("2 times"));
        assert!(check("a", "z", "b", false).unwrap_err().contains("does not occur"));
        assert!(check("a", "a", "a", false).unwrap_err().contains("the same"));
        assert!(check("a", "", "b", false).unwrap_err().contains("empty"));
    }
}
