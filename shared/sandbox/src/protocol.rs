//! What the broker and the init of a sandbox say to one another: length-prefixed JSON frames over unix sockets, with the
//! standard streams of an exec passed along as file descriptors. Both ends are the same build or a neighbouring one, so
//! unknown fields are ignored and new fields need a default.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::config::{ExecLimits, ExecUser, ReadOnlyBind};

/// Longest frame: the kernel itself takes no more than about 2 MiB of arguments and environment.
const MAX_FRAME: usize = 4 << 20;

/// Word in the command line of every init of a sandbox; key and root tag follow it.
pub(crate) const SERVE: &str = "serve";
/// Word in the command line of the process that tries what the kernel offers.
pub(crate) const PROBE: &str = "probe";

/// From the broker to the starting init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToInit {
    /// First of all: what to become.
    Plan(Box<Plan>),
    /// The uid and gid mappings are written.
    Mapped,
    /// The record is durable: from now on the init may outlive the broker.
    Go,
}

/// From the starting init to the broker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromInit {
    /// The namespaces exist; waiting for the mappings.
    Unshared,
    /// Process id of the future pid 1 as the host sees it; that one waits for `Go`.
    Forked { pid: u32 },
    /// Execs are accepted.
    Ready,
    /// The process that says this ends.
    Failed { step: String, message: String },
}

/// Everything the init needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Directory of the sandbox on the host.
    pub(crate) directory: PathBuf,
    pub(crate) ids: Ids,
    pub(crate) user_namespace: bool,
    pub(crate) network_namespace: bool,
    pub(crate) seccomp: bool,
    pub(crate) binds: Vec<ReadOnlyBind>,
    pub(crate) shm_bytes: u64,
    /// Milliseconds since the epoch after which the init ends itself.
    pub(crate) deadline_ms: Option<u64>,
    /// Per-process limits standing in for absent cgroups.
    pub(crate) data_bytes: Option<u64>,
    pub(crate) nproc: Option<u64>,
}

/// User (and group) ids as seen inside the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ids {
    /// Inner root; `None` where only the agent is mapped (a broker without root).
    pub(crate) root: Option<u32>,
    pub(crate) agent: u32,
}

/// First frame of a connection to a running init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Run a command. Comes with descriptors: stdout and stderr to write, the same two to read, then stdin if any.
    Exec(Box<ExecRequest>),
    /// Kill every process but the init.
    KillAll,
    /// Move the moment at which the init ends itself.
    Deadline { deadline_ms: Option<u64> },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ExecRequest {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
    pub(crate) user: ExecUser,
    pub(crate) stdin: bool,
    pub(crate) limits: ExecLimits,
}

/// Later frames of an exec connection, from the broker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Control {
    /// Send a signal to the process group.
    Signal(i32),
}

/// From the running init.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The command runs; its process id inside the sandbox.
    Started { pid: i32 },
    /// The command was not started.
    NotStarted { step: String, errno: i32 },
    /// The command ended.
    Exit { code: Option<i32>, signal: Option<i32>, timed_out: bool },
    /// A request without a command was carried out.
    Done,
    /// The request was not accepted.
    Refused { reason: String },
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "frame too long")
}

/// The bytes of a frame: four bytes of length, then JSON.
pub(crate) fn frame<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    if length > MAX_FRAME {
        return Err(too_long());
    }
    bytes[..4].copy_from_slice(&(length as u32).to_be_bytes());
    Ok(bytes)
}

fn body_length(header: [u8; 4]) -> io::Result<usize> {
    let length = u32::from_be_bytes(header) as usize;
    if length > MAX_FRAME { Err(too_long()) } else { Ok(length) }
}

/// Writes one frame, blocking.
pub(crate) fn send<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    to.write_all(&frame(message)?)
}

/// Reads one frame, blocking; the end of the stream is an error.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut header = [0; 4];
    from.read_exact(&mut header)?;
    let mut body = vec![0; body_length(header)?];
    from.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}

/// Writes one frame.
pub(crate) async fn send_async<T: Serialize>(to: &mut (impl AsyncWrite + Unpin), message: &T) -> io::Result<()> {
    to.write_all(&frame(message)?).await
}

/// Reads one frame; `None` at the end of the stream. Not cancel-safe: keep the future until it is done.
pub(crate) async fn receive_async<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<T>> {
    let mut header = [0; 4];
    match from.read_exact(&mut header).await {
        Ok(_) => {}
        Err(failure) if failure.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(failure) => return Err(failure),
    }
    receive_body(header, from).await.map(Some)
}

/// Reads the rest of a frame whose header is known already.
pub(crate) async fn receive_body<T: DeserializeOwned>(
    header: [u8; 4],
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<T> {
    let mut body = vec![0; body_length(header)?];
    from.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_and_are_bounded() {
        let bytes = frame(&Reply::Started { pid: 7 }).unwrap();
        assert!(matches!(receive::<Reply>(&mut bytes.as_slice()).unwrap(), Reply::Started { pid: 7 }));
        assert!(receive::<Reply>(&mut &bytes[..bytes.len() - 1]).is_err());
        let huge = (MAX_FRAME as u32 + 1).to_be_bytes();
        assert_eq!(receive::<Reply>(&mut huge.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let long = "x".repeat(MAX_FRAME);
        assert!(frame(&Reply::Refused { reason: long }).is_err());
    }
}
