//! `read`: numbered lines of a text file.

use serde::Deserialize;

use super::output::excerpt;
use super::sandbox::Sandbox;
use super::{Answer, Trouble};

const DEFAULT_LINES: usize = 2000;

/// What the model gives.
#[derive(Debug, Deserialize)]
pub(super) struct Input {
    path: String,
    offset: Option<usize>,
    limit: Option<usize>,
}

pub(super) async fn read(sandbox: &Sandbox, input: Input) -> Result<Answer, Trouble> {
    let text = sandbox.read_text(&input.path).await?;
    Ok(numbered(&text, input.offset.unwrap_or(1).max(1), input.limit.unwrap_or(DEFAULT_LINES)))
}

fn numbered(text: &str, first: usize, count: usize) -> Answer {
    if text.is_empty() {
        return Answer::ok("(the file is empty)");
    }
    let lines = text.lines().enumerate().skip(first - 1).take(count);
    let shown: Vec<String> = lines.map(|(index, line)| format!("{}\t{line}", index + 1)).collect();
    let total = text.lines().count();
    if shown.is_empty() {
        return Answer::ok(format!("(the file has {total} lines)"));
    }
    let last = first - 1 + shown.len();
    let (mut text, truncated) = excerpt(&shown.join("\n"));
    if last < total {
        text.push_str(&format!("\n[{} more lines; go on with offset {}]", total - last, last + 1));
    }
    Answer { truncated: truncated || last < total, ..Answer::ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_and_windows_say_what_is_left() {
        assert_eq!(numbered("a\nb\n", 1, 10), Answer::ok("1\ta\n2\tb"));
        let window = numbered("a\nb\nc\nd", 2, 2);
        assert_eq!(window.text, "2\tb\n3\tc\n[1 more lines; go on with offset 4]");
        assert!(window.truncated);
        assert_eq!(numbered("", 1, 10).text, "(the file is empty)");
        assert_eq!(numbered("a", 9, 10).text, "(the file has 1 lines)");
    }
}
