//! The broker's side of the socket on which an init takes requests.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use crate::descriptors;
use crate::error::{Result, SandboxError};
use crate::protocol::{Reply, Request, frame, receive_async};
use crate::state::{CONTROL_SOCKET, Home};

/// The first bytes fit every socket buffer; this only guards against a stopped init with a full backlog.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);

/// Connects to the init of a sandbox.
pub(crate) fn connect(home: &Home) -> Result<StdStream> {
    descriptors::connect(&home.control(), CONTROL_SOCKET).map_err(|failure| match failure.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => SandboxError::NotRunning(String::new()),
        _ => SandboxError::io("connect to the sandbox init", failure),
    })
}

/// Sends the first frame of a connection, with descriptors.
pub(crate) async fn open(line: StdStream, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<UnixStream> {
    let cut = |failure: io::Error| SandboxError::Connection(format!("init does not take the request: {failure}"));
    let bytes =
        frame(request).map_err(|failure| SandboxError::Invalid { what: "request", why: failure.to_string() })?;
    let (header, body) = bytes.split_at(4);
    descriptors::send_header(&line, [header[0], header[1], header[2], header[3]], descriptors).map_err(cut)?;
    line.set_nonblocking(true).map_err(cut)?;
    let mut line = UnixStream::from_std(line).map_err(cut)?;
    match tokio::time::timeout(WRITE_PATIENCE, line.write_all(body)).await {
        Ok(outcome) => outcome.map_err(cut)?,
        Err(_) => return Err(SandboxError::Timeout("request to the sandbox init")),
    }
    Ok(line)
}

/// One request, one answer.
pub(crate) async fn ask(line: StdStream, request: &Request, patience: Duration, what: &'static str) -> Result<()> {
    let mut line = open(line, request, &[]).await?;
    let answer = tokio::time::timeout(patience, receive_async::<Reply>(&mut line)).await;
    match answer.map_err(|_| SandboxError::Timeout(what))? {
        Ok(Some(Reply::Done)) => Ok(()),
        Ok(Some(Reply::Refused { reason })) => Err(SandboxError::Connection(reason)),
        Ok(answer) => Err(SandboxError::Connection(format!("unexpected answer {answer:?}"))),
        Err(failure) => Err(SandboxError::Connection(failure.to_string())),
    }
}
