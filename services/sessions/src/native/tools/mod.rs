//! The four tools, and where grants are enforced: a tool that was not granted does not reach the broker, whatever the model asks.

mod bash;
mod edit;
mod output;
mod read;
mod sandbox;
mod write;

use std::time::Duration;

use berth_rpc::lifecycle::{ToolResult, event::Payload};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Stop;
use super::history::OpenCall;
use super::log::Pen;
pub(crate) use sandbox::Sandbox;

/// A tool of the native harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    Read,
    Write,
    Edit,
    Bash,
}

/// What a tool brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) is_error: bool,
    pub(crate) truncated: bool,
    pub(crate) exit_code: Option<i32>,
    /// Whether and how it ended is not known.
    pub(crate) interrupted: bool,
}

impl Answer {
    fn ok(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    fn error(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: true, ..Self::default() }
    }

    /// The event that tells it.
    pub(crate) fn into_event(self, call_id: String, duration: Duration) -> Payload {
        Payload::ToolResult(ToolResult {
            call_id,
            text: self.text,
            is_error: self.is_error,
            truncated: self.truncated,
            exit_code: self.exit_code,
            duration: Some(berth_rpc::duration_to_proto(duration)),
            interrupted: self.interrupted,
        })
    }
}

/// Why a tool has no answer of its own.
#[derive(Debug)]
enum Trouble {
    /// The model is told.
    Told(String),
    /// The loop stops.
    Stop(Stop),
}

impl Tool {
    const ALL: [Tool; 4] = [Tool::Read, Tool::Write, Tool::Edit, Tool::Bash];

    /// The tools a run was granted; names we do not have grant nothing.
    pub(crate) fn granted(names: &[String]) -> Vec<Tool> {
        Self::ALL.into_iter().filter(|tool| names.iter().any(|name| name == tool.name())).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Tool::Read => "read",
            Tool::Write => "write",
            Tool::Edit => "edit",
            Tool::Bash => "bash",
        }
    }

    /// As the model API wants it.
    pub(crate) fn definition(self) -> Value {
        let text = |about: &str| json!({"type": "string", "description": about});
        let number = |about: &str| json!({"type": "integer", "description": about});
        let path = || text("Path relative to the working folder, or absolute.");
        let (about, properties, required) = match self {
            Tool::Read => (
                "Read a text file. Answers with numbered lines.",
                json!({"path": path(), "offset": number("First line, from 1."), "limit": number("Number of lines; 2000 when absent.")}),
                json!(["path"]),
            ),
            Tool::Write => (
                "Create or replace a file. The folder must exist. Empty content makes an empty file.",
                json!({"path": path(), "content": text("The whole content.")}),
                json!(["path", "content"]),
            ),
            Tool::Edit => (
                "Replace a text that occurs exactly once in a file, or every occurrence with replace_all. An empty new_string deletes it.",
                json!({
                    "path": path(), "old_string": text("Exact text to replace."), "new_string": text("What takes its place."),
                    "replace_all": {"type": "boolean", "description": "Replace every occurrence."},
                }),
                json!(["path", "old_string", "new_string"]),
            ),
            Tool::Bash => (
                "Run a command with bash in the working folder. Answers with its output; the first line is `exit N` when the command failed. Each call is a new shell.",
                json!({"command": text("The command."), "timeout_s": number("Seconds before it is killed; 120 when absent, at most 600.")}),
                json!(["command"]),
            ),
        };
        json!({
            "name": self.name(), "description": about,
            "input_schema": {"type": "object", "properties": properties, "required": required},
        })
    }
}

/// Runs one call; its `tool_call` event is in the log already.
pub(crate) async fn run(
    granted: &[Tool],
    sandbox: &Sandbox,
    call: &OpenCall,
    pen: &mut Pen,
) -> Result<(Answer, Duration), Stop> {
    let began = Instant::now();
    let outcome = match Tool::ALL.into_iter().find(|tool| tool.name() == call.name) {
        None => Err(Trouble::Told(format!("There is no tool named {:?}.", bounded(&call.name)))),
        Some(tool) if !granted.contains(&tool) => {
            Err(Trouble::Told(format!("The tool {} is not granted to this run.", tool.name())))
        }
        Some(Tool::Read) => with_input(call, |input| read::read(sandbox, input)).await,
        Some(Tool::Write) => with_input(call, |input| write::write(sandbox, input)).await,
        Some(Tool::Edit) => with_input(call, |input| edit::edit(sandbox, input)).await,
        Some(Tool::Bash) => with_input(call, |input| bash::bash(sandbox, &call.id, input, pen)).await,
    };
    let answer = match outcome {
        Ok(answer) => answer,
        Err(Trouble::Told(text)) => Answer::error(text),
        Err(Trouble::Stop(stop)) => return Err(stop),
    };
    Ok((answer, began.elapsed()))
}

async fn with_input<I, F, Running>(call: &OpenCall, act: F) -> Result<Answer, Trouble>
where
    I: DeserializeOwned,
    F: FnOnce(I) -> Running,
    Running: Future<Output = Result<Answer, Trouble>>,
{
    act(input(&call.name, &call.input)?).await
}

fn input<I: DeserializeOwned>(name: &str, input: &Map<String, Value>) -> Result<I, Trouble> {
    serde_json::from_value(Value::Object(input.clone()))
        .map_err(|error| Trouble::Told(format!("The input of {name} is not valid: {error}.")))
}

fn bounded(text: &str) -> &str {
    &text[..text.floor_char_boundary(100)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_a09_only_known_names_grant() {
        let names = ["bash", "rm", "READ"].map(str::to_owned);
        assert_eq!(Tool::granted(&names), [Tool::Bash]);
        assert_eq!(Tool::granted(&[]), []);
    }

    #[test]
    fn a_bad_input_is_told_to_the_model() {
        let bad = json!({"command": 7}).as_object().cloned().unwrap();
        let Err(Trouble::Told(text)) = input::<bash::Input>("bash", &bad) else { panic!("accepted") };
        assert!(text.contains("bash") && text.contains("expected a string"), "{text}");
    }

    #[test]
    fn definitions_are_objects_with_required_fields() {
        for tool in Tool::ALL {
            let definition = tool.definition();
            assert_eq!(definition["name"], tool.name());
            let schema = &definition["input_schema"];
            for field in schema["required"].as_array().unwrap() {
                assert!(schema["properties"].get(field.as_str().unwrap()).is_some(), "{tool:?} {field}");
            }
        }
    }
}
