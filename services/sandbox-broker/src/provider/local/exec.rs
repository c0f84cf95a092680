//! Commands in local sandboxes: the library's handle carried over to the port's process.

use async_trait::async_trait;
use berth_sandbox::{ErrorKind, ExecEvent, ExecHandle, ExecSpec as LocalSpec, Exit, SandboxError};
use bytes::Bytes;
use secrecy::ExposeSecret as _;
use tokio::io::AsyncWriteExt as _;

use super::{Local, failure};
use crate::provider::{Exec, ExecError, ExecItem, ExecSpec, ExitReport, Identity, Process, ProcessSink, process};

#[async_trait]
impl Exec for Local {
    async fn start(&self, identity: &Identity, spec: ExecSpec) -> Result<Process, ExecError> {
        self.check(identity)?;
        if let Some(text) =
            spec.argv.iter().chain(spec.env.keys()).chain(spec.env.values()).find(|text| text.contains('\0'))
        {
            return Err(ExecError::Invalid(format!("a zero byte in {text:?}")));
        }
        let mut local = LocalSpec::new(spec.argv);
        local.env.extend(spec.env);
        local.env.extend(spec.secrets.iter().map(|(name, value)| (name.clone(), value.expose_secret().to_owned())));
        if !spec.cwd.is_empty() {
            local.cwd = spec.cwd;
        }
        local.stdin = !spec.stdin.is_empty();
        local.limits.wall_s = spec.wall.map(|wall| wall.as_secs() + u64::from(wall.subsec_nanos() > 0));
        let handle =
            self.inner.sandboxes.exec(&identity.sandbox_id, local).await.map_err(|error| exec_error(&error))?;
        let (process, sink) = process();
        tokio::spawn(carry(handle, spec.stdin, sink));
        Ok(process)
    }

    async fn kill_all(&self, identity: &Identity) -> Result<(), ExecError> {
        self.check(identity)?;
        self.inner.sandboxes.kill_all(&identity.sandbox_id).await.map_err(|error| exec_error(&error))
    }
}

/// Until the command ended or nobody wants it any more; returning drops the handle, which kills what still runs.
async fn carry(mut handle: ExecHandle, input: Bytes, sink: ProcessSink) {
    let stdin = handle.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A command that does not read its input is no failure.
            let _ = stdin.write_all(&input).await;
        }
        // Dropped here: end of file.
    };
    let follow = async {
        while let Some(event) = handle.next().await {
            let item = match event {
                Ok(ExecEvent::Stdout(bytes)) => Ok(ExecItem::Stdout(bytes)),
                Ok(ExecEvent::Stderr(bytes)) => Ok(ExecItem::Stderr(bytes)),
                Ok(ExecEvent::Exit(exit)) => Ok(ExecItem::Exit(report(exit))),
                Err(error) => Err(exec_error(&error)),
            };
            let last = !matches!(item, Ok(ExecItem::Stdout(_) | ExecItem::Stderr(_)));
            if !sink.send(item).await || last {
                return;
            }
        }
    };
    tokio::pin!(feed, follow);
    let mut fed = false;
    loop {
        tokio::select! {
            () = sink.dropped() => return,
            () = &mut follow => return,
            () = &mut feed, if !fed => fed = true,
        }
    }
}

fn report(exit: Exit) -> ExitReport {
    ExitReport { code: exit.code.unwrap_or(-1), signal: exit.signal.unwrap_or(0), timed_out: exit.timed_out }
}

fn exec_error(error: &SandboxError) -> ExecError {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotRunning => ExecError::NoSandbox,
        ErrorKind::NotStarted => ExecError::NotStarted(failure(error).message),
        ErrorKind::Invalid => ExecError::Invalid(error.to_string()),
        ErrorKind::Unsupported | ErrorKind::Exists | ErrorKind::Timeout | ErrorKind::Internal => {
            ExecError::Provider(failure(error))
        }
    }
}
