//! `write`: creates or replaces a file; empty content is a content.

use serde::Deserialize;

use super::sandbox::Sandbox;
use super::{Answer, Trouble};

/// What the model gives.
#[derive(Debug, Deserialize)]
pub(super) struct Input {
    path: String,
    content: String,
}

pub(super) async fn write(sandbox: &Sandbox, input: Input) -> Result<Answer, Trouble> {
    let bytes = input.content.len();
    sandbox.write_file(&input.path, input.content.into_bytes()).await?;
    Ok(Answer::ok(format!("wrote {bytes} bytes")))
}
