//! Prints events as they arrive, and what came of the run.

use std::collections::HashMap;

use berth_rpc::lifecycle::{Event, Result as RunResult, event::Payload, run::State};

/// Longest tool input or output line that is shown.
const MAX_LINE: usize = 160;

/// What was seen so far.
#[derive(Default)]
pub(super) struct Progress {
    /// Commands of bash calls without a result yet.
    commands: HashMap<String, String>,
    /// Output of each run of the repository's test.
    tests: Vec<(bool, String)>,
    in_text: bool,
}

impl Progress {
    /// Prints one event; true when the run has settled.
    pub(super) fn print(&mut self, event: &Event) -> bool {
        let Some(payload) = &event.payload else { return false };
        if self.in_text && !matches!(payload, Payload::AssistantDelta(_)) {
            println!();
            self.in_text = false;
        }
        match payload {
            Payload::UserMessage(message) => println!("user        {}", message.text),
            Payload::AssistantDelta(delta) => {
                if !self.in_text {
                    print!("agent       ");
                    self.in_text = true;
                }
                print!("{}", delta.text.replace('\n', "\n            "));
                let _ = std::io::Write::flush(&mut std::io::stdout());
            }
            Payload::AttemptVoided(voided) => println!("            (void: {})", voided.reason),
            Payload::ToolCall(call) => {
                let input: serde_json::Value = serde_json::from_str(&call.input_json).unwrap_or_default();
                let shown = match (call.name.as_str(), input.get("command"), input.get("path")) {
                    ("bash", Some(command), _) => command.as_str().unwrap_or_default().to_owned(),
                    (_, _, Some(path)) => path.as_str().unwrap_or_default().to_owned(),
                    _ => call.input_json.clone(),
                };
                println!("tool        {} {}", call.name, clip(&shown));
                self.commands.insert(call.call_id.clone(), shown);
            }
            Payload::ToolResult(result) => {
                let sign = if result.is_error { "error" } else { "ok" };
                for (at, line) in result.text.lines().take(12).enumerate() {
                    println!("{:<12}{}", if at == 0 { format!("  {sign}") } else { String::new() }, clip(line));
                }
                let command = self.commands.remove(&result.call_id).unwrap_or_default();
                if command.contains("test.sh") {
                    self.tests.push((result.exit_code == Some(0), result.text.clone()));
                }
            }
            Payload::Notice(notice) => println!("notice      {} {}", notice.code, notice.text),
            Payload::RunStateChanged(change) => {
                println!("state       {}", change.to().as_str_name());
                return matches!(change.to(), State::Completed | State::Failed | State::Cancelled);
            }
            Payload::MessageAccepted(_)
            | Payload::AssistantMessage(_)
            | Payload::ToolOutput(_)
            | Payload::TurnEnded(_) => {}
        }
        false
    }

    /// The diff, and the test before and after.
    pub(super) fn print_result(&self, result: &RunResult) {
        println!("\nresult      {}", result.text);
        println!("head commit {}", result.head_commit);
        println!("diff\n{}", result.diff);
        if let Some(error) = &result.collect_error {
            println!("not collected: {} ({})", error.message, error.reason);
        }
        match self.tests.as_slice() {
            [] => println!("the agent did not run the test"),
            [(passed, text)] => println!("test        {}: {}", verdict(*passed), clip(text)),
            [(before, before_text), .., (after, after_text)] => {
                println!("test before {}: {}", verdict(*before), clip(last_line(before_text)));
                println!("test after  {}: {}", verdict(*after), clip(last_line(after_text)));
            }
        }
    }
}

fn verdict(passed: bool) -> &'static str {
    if passed { "passes" } else { "fails" }
}

fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default()
}

fn clip(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= MAX_LINE && !text.trim_end().contains('\n') {
        return line.to_owned();
    }
    line.chars().take(MAX_LINE).chain(" …".chars()).collect()
}
