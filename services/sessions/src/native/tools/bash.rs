//! `bash`: one command, its output shown while it runs and given to the model bounded. Dropping the run kills the command's
//! whole process group at the broker. A stream that ends without an exit leaves the outcome unknown; it is never run again.

use std::time::Duration;

use berth_rpc::broker::{ExecRequest, ExecResponse, Exit, exec_response::Item};
use berth_rpc::lifecycle::{ToolOutput, event::Payload, tool_output::Stream};
use serde::Deserialize;
use tokio::time::Instant;
use tonic::Streaming;

use super::output::{Characters, Excerpt};
use super::sandbox::{Sandbox, trouble};
use super::{Answer, Trouble};
use crate::native::log::Pen;
use crate::upstream::worth_retrying;

const DEFAULT_TIMEOUT_S: u64 = 120;
const LONGEST_TIMEOUT_S: u64 = 600;
/// Beyond the command's own timeout, for the broker to kill it and say so.
const GRACE: Duration = Duration::from_secs(30);
/// Without a single item, `Alive` included, the broker is gone.
const SILENCE: Duration = Duration::from_secs(90);
/// Output the broker passes on.
const MAX_OUTPUT: i64 = 16 << 20;
/// Output is shown at least this often.
const SHOW_EVERY: Duration = Duration::from_millis(200);
/// Output is shown when this much has come.
const SHOW_BYTES: usize = 16 << 10;
/// Output shown of one command.
const SHOW_MAX: usize = 256 << 10;
const NOT_SHOWN: &str = "\n[… further output is not shown …]\n";
/// Said of a command whose end nobody saw.
pub(crate) const UNKNOWN: &str = "Interrupted; the outcome is unknown. Check before repeating the command.";

/// What the model gives.
#[derive(Debug, Deserialize)]
pub(super) struct Input {
    command: String,
    timeout_s: Option<u64>,
}

pub(super) async fn bash(sandbox: &Sandbox, call_id: &str, input: Input, pen: &mut Pen) -> Result<Answer, Trouble> {
    if input.command.trim().is_empty() {
        return Err(Trouble::Told("The command is empty.".into()));
    }
    let timeout = Duration::from_secs(input.timeout_s.unwrap_or(DEFAULT_TIMEOUT_S).clamp(1, LONGEST_TIMEOUT_S));
    let request = ExecRequest {
        exec_id: format!("{}-{call_id}", sandbox.launch()),
        argv: vec!["bash".into(), "-c".into(), input.command],
        timeout: Some(berth_rpc::duration_to_proto(timeout)),
        max_output_bytes: MAX_OUTPUT,
        ..ExecRequest::default()
    };
    let Some(stream) = sandbox.exec(request).await? else { return Ok(unknown(Excerpt::default())) };
    let mut running = Running { call_id, pen, output: Excerpt::default(), show: Show::default() };
    match tokio::time::timeout(timeout + GRACE, running.follow(stream)).await {
        Ok(Ok(Some(exit))) => Ok(answer(&exit, timeout, running.output)),
        Ok(Ok(None)) | Err(_) => Ok(unknown(running.output)),
        Ok(Err(trouble)) => Err(trouble),
    }
}

struct Running<'a> {
    call_id: &'a str,
    pen: &'a mut Pen,
    output: Excerpt,
    show: Show,
}

impl Running<'_> {
    /// How the command ended; `None` when the stream broke off.
    async fn follow(&mut self, mut stream: Streaming<ExecResponse>) -> Result<Option<Exit>, Trouble> {
        let mut heard = Instant::now();
        loop {
            let due = self.show.due;
            let item = tokio::select! {
                item = stream.message() => item,
                () = tokio::time::sleep_until(due.unwrap_or(heard)), if due.is_some() => {
                    self.tell().await?;
                    continue;
                }
                () = tokio::time::sleep_until(heard + SILENCE) => return Ok(None),
            };
            heard = Instant::now();
            let item = match item {
                Ok(Some(ExecResponse { item })) => item,
                Ok(None) => return Ok(None),
                Err(status) if worth_retrying(&status) => return Ok(None),
                Err(status) => return Err(trouble(&status, "the command")),
            };
            match item {
                Some(Item::Stdout(bytes)) => self.came(Stream::Stdout, &bytes).await?,
                Some(Item::Stderr(bytes)) => self.came(Stream::Stderr, &bytes).await?,
                Some(Item::Exit(exit)) => {
                    self.show.end();
                    self.tell().await?;
                    return Ok(Some(exit));
                }
                Some(Item::Started(_) | Item::Alive(_)) | None => {}
            }
        }
    }

    async fn came(&mut self, stream: Stream, bytes: &[u8]) -> Result<(), Trouble> {
        self.output.push(bytes);
        self.show.add(stream, bytes);
        if self.show.waiting_bytes() >= SHOW_BYTES { self.tell().await } else { Ok(()) }
    }

    async fn tell(&mut self) -> Result<(), Trouble> {
        let call_id = self.call_id;
        let pieces = self.show.take().into_iter().map(|(stream, text)| {
            Payload::ToolOutput(ToolOutput { call_id: call_id.to_owned(), stream: stream.into(), text })
        });
        self.pen.append(pieces.collect()).await.map_err(Trouble::Stop)
    }
}

/// Output on its way to the log, neighbouring pieces of one stream joined.
#[derive(Debug, Default)]
struct Show {
    waiting: Vec<(Stream, String)>,
    stdout: Characters,
    stderr: Characters,
    shown: usize,
    due: Option<Instant>,
}

impl Show {
    fn add(&mut self, stream: Stream, bytes: &[u8]) {
        let characters = if stream == Stream::Stderr { &mut self.stderr } else { &mut self.stdout };
        let text = characters.push(bytes);
        self.put(stream, &text);
    }

    fn end(&mut self) {
        for (stream, text) in [(Stream::Stdout, self.stdout.finish()), (Stream::Stderr, self.stderr.finish())] {
            self.put(stream, &text);
        }
    }

    fn put(&mut self, stream: Stream, text: &str) {
        let room = SHOW_MAX.saturating_sub(self.shown);
        if text.is_empty() || room == 0 {
            return;
        }
        let fits = &text[..text.floor_char_boundary(room)];
        let piece = if fits.len() < text.len() {
            self.shown = SHOW_MAX;
            format!("{fits}{NOT_SHOWN}")
        } else {
            self.shown += fits.len();
            fits.to_owned()
        };
        self.due.get_or_insert_with(|| Instant::now() + SHOW_EVERY);
        match self.waiting.last_mut() {
            Some((last, so_far)) if *last == stream => so_far.push_str(&piece),
            Some(_) | None => self.waiting.push((stream, piece)),
        }
    }

    fn waiting_bytes(&self) -> usize {
        self.waiting.iter().map(|(_, text)| text.len()).sum()
    }

    fn take(&mut self) -> Vec<(Stream, String)> {
        self.due = None;
        std::mem::take(&mut self.waiting)
    }
}

fn answer(exit: &Exit, timeout: Duration, output: Excerpt) -> Answer {
    let (output, truncated) = output.finish(exit.dropped_bytes.max(0).unsigned_abs());
    let (first, is_error) = match exit {
        Exit { timed_out: true, .. } => (
            format!("Timed out after {} s; the command and everything it had started were killed.", timeout.as_secs()),
            true,
        ),
        // Without a timeout it is most often the sandbox's memory limit.
        Exit { signal: 9, .. } => ("Killed by signal 9 (out of memory?).".to_owned(), true),
        Exit { signal: 1.., .. } => (format!("Killed by signal {}.", exit.signal), true),
        Exit { code: 0, .. } => (String::new(), false),
        Exit { code, .. } => (format!("exit {code}"), false),
    };
    let text = match (first.is_empty(), output.is_empty()) {
        (true, _) => output,
        (false, true) => first,
        (false, false) => format!("{first}\n{output}"),
    };
    Answer { text, is_error, truncated, exit_code: Some(exit.code), interrupted: false }
}

fn unknown(output: Excerpt) -> Answer {
    let (output, truncated) = output.finish(0);
    let text = if output.is_empty() { UNKNOWN.to_owned() } else { format!("{UNKNOWN}\n{output}") };
    Answer { truncated, interrupted: true, ..Answer::error(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(exit: Exit, output: &str) -> Answer {
        let mut excerpt = Excerpt::default();
        excerpt.push(output.as_bytes());
        answer(&exit, Duration::from_secs(7), excerpt)
    }

    #[test]
    fn the_first_line_says_how_it_failed() {
        assert_eq!(told(Exit::default(), "hi\n").text, "hi\n");
        let failed = told(Exit { code: 3, ..Exit::default() }, "no\n");
        assert_eq!((failed.text.as_str(), failed.is_error, failed.exit_code), ("exit 3\nno\n", false, Some(3)));
        assert_eq!(told(Exit { code: 1, ..Exit::default() }, "").text, "exit 1");
        let late = told(Exit { timed_out: true, signal: 9, code: -1, ..Exit::default() }, "part");
        assert!(late.is_error && late.text.starts_with("Timed out after 7 s") && late.text.ends_with("part"));
        assert!(told(Exit { signal: 11, code: -1, ..Exit::default() }, "").text.contains("signal 11"));
        assert!(told(Exit { dropped_bytes: 9, ..Exit::default() }, "x").truncated);
    }

    #[test]
    fn case_n06_what_is_shown_is_bounded_too() {
        let mut show = Show::default();
        for _ in 0..100 {
            show.add(Stream::Stdout, &[b'x'; 10_000]);
        }
        let shown: String = show.take().into_iter().map(|(_, text)| text).collect();
        assert!(shown.len() <= SHOW_MAX + NOT_SHOWN.len() && shown.ends_with(NOT_SHOWN));
    }

    #[test]
    fn neighbouring_pieces_of_a_stream_are_one_event() {
        let mut show = Show::default();
        show.add(Stream::Stdout, b"a");
        show.add(Stream::Stdout, b"b");
        show.add(Stream::Stderr, b"c");
        assert_eq!(show.take(), [(Stream::Stdout, "ab".to_owned()), (Stream::Stderr, "c".to_owned())]);
    }
}
