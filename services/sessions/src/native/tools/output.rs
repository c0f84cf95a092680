//! Bounded output: head and tail for the model with an explicit mark, and whole characters for people while a command runs.

use std::collections::VecDeque;

/// Bytes the model is given of one output, half from its head and half from its tail.
const LIMIT: usize = 30 << 10;
const HALF: usize = LIMIT / 2;

/// An output of any length in bounded memory.
#[derive(Debug, Default)]
pub(super) struct Excerpt {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Excerpt {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let to_head = bytes.len().min(HALF - self.head.len());
        self.head.extend_from_slice(&bytes[..to_head]);
        let rest = &bytes[to_head..];
        self.tail.extend(&rest[rest.len().saturating_sub(HALF)..]);
        let over = self.tail.len().saturating_sub(HALF);
        self.tail.drain(..over);
    }

    /// The text and whether anything is missing; `dropped` bytes never came.
    pub(super) fn finish(mut self, dropped: u64) -> (String, bool) {
        let tail: &[u8] = self.tail.make_contiguous();
        let missing = self.total - (self.head.len() + tail.len()) as u64 + dropped;
        if missing == 0 {
            self.head.extend_from_slice(tail);
            return (String::from_utf8_lossy(&self.head).into_owned(), false);
        }
        // What the broker dropped came after the tail; what was dropped here, before it.
        let head = String::from_utf8_lossy(whole_end(&self.head));
        let tail = String::from_utf8_lossy(whole_start(tail));
        (format!("{head}\n[… {missing} bytes of output are not shown …]\n{tail}"), true)
    }
}

/// The same for a text that is here.
pub(super) fn excerpt(text: &str) -> (String, bool) {
    let mut excerpt = Excerpt::default();
    excerpt.push(text.as_bytes());
    excerpt.finish(0)
}

/// Without a character cut at the end.
fn whole_end(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        Ok(_) | Err(_) => bytes,
    }
}

/// Without a character cut at the start.
fn whole_start(bytes: &[u8]) -> &[u8] {
    let continuation = bytes.iter().take(3).take_while(|byte| (0x80..0xC0).contains(*byte)).count();
    &bytes[continuation..]
}

/// Bytes of one stream turned into text without cutting characters.
#[derive(Debug, Default)]
pub(super) struct Characters {
    carry: Vec<u8>,
}

impl Characters {
    /// The text up to the last whole character; rubbish is replaced.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.carry.extend_from_slice(bytes);
        let whole = whole_end_of_rubbish(&self.carry);
        let text = String::from_utf8_lossy(&self.carry[..whole]).into_owned();
        self.carry.drain(..whole);
        text
    }

    /// What is left at the end of the stream.
    pub(super) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.carry)).into_owned()
    }
}

/// Length without a cut character at the end, even when there is rubbish before it.
fn whole_end_of_rubbish(bytes: &[u8]) -> usize {
    let from = bytes.len().saturating_sub(3);
    let start = (from..bytes.len()).rev().find(|at| bytes[*at] >= 0xC0);
    match start {
        Some(at) if bytes.len() - at < width(bytes[at]) => at,
        Some(_) | None => bytes.len(),
    }
}

fn width(first: u8) -> usize {
    match first {
        0xF0.. => 4,
        0xE0.. => 3,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_n06_output_is_capped_with_an_explicit_mark() {
        let text = format!("{}{}{}", "h".repeat(HALF), "m".repeat(1_000_000), "t".repeat(HALF));
        let mut pieces = Excerpt::default();
        text.as_bytes().chunks(777).for_each(|piece| pieces.push(piece));
        for (shown, cut) in [pieces.finish(0), excerpt(&text)] {
            assert!(cut && shown.len() < LIMIT + 100);
            assert!(shown.starts_with(&"h".repeat(HALF)) && shown.ends_with(&"t".repeat(HALF)));
            assert!(shown.contains("[… 1000000 bytes of output are not shown …]"), "{}", &shown[HALF..HALF + 80]);
        }
    }

    #[test]
    fn a_short_output_is_whole_and_dropped_bytes_are_counted() {
        assert_eq!(excerpt("ab"), ("ab".into(), false));
        let exact = "x".repeat(LIMIT);
        assert_eq!(excerpt(&exact), (exact, false));
        let mut short = Excerpt::default();
        short.push(b"ab");
        let (text, cut) = short.finish(5);
        assert!(cut && text.contains("5 bytes"));
    }

    #[test]
    fn characters_are_never_cut() {
        let text = "ä€😀".repeat(LIMIT / 4);
        let (shown, cut) = excerpt(&text);
        assert!(cut && !shown.contains('\u{FFFD}'));

        let mut characters = Characters::default();
        let shown: String = text.as_bytes().chunks(5).map(|piece| characters.push(piece)).collect();
        assert_eq!(shown + &characters.finish(), text);

        let mut rubbish = Characters::default();
        assert_eq!(rubbish.push(b"a\xFFb\xE2"), "a\u{FFFD}b");
        assert_eq!(rubbish.push(b"\x82\xAC"), "€");
        assert_eq!(rubbish.push(b"\xE2"), "");
        assert_eq!(rubbish.finish(), "\u{FFFD}");
    }
}
