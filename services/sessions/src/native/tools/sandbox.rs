//! The broker's sandbox as the tools see it: files and commands under the session's claim, refusals sorted into what the model
//! is told and what stops the loop.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use berth_rpc::broker::{
    ExecRequest, ExecResponse, Hold as BrokerHold, ReadFileRequest, ReadFileResponse, WriteFileRequest,
    sandbox_service_client::SandboxServiceClient,
};
use berth_rpc::status::Failure;
use berth_serve::peer::ServiceChannel;
use tonic::{Code, Status, Streaming};

use super::Trouble;
use crate::native::Stop;
use crate::native::log::Hold;
use crate::upstream::{within, worth_retrying};

/// One file operation.
const FILE_TIMEOUT: Duration = Duration::from_secs(60);
/// Until a command has started.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Tries of a file operation; reading and writing the same content again changes nothing.
const FILE_RETRIES: usize = 4;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Sandbox {
    client: SandboxServiceClient<ServiceChannel>,
    hold: Hold,
}

impl Sandbox {
    pub(crate) fn new(client: SandboxServiceClient<ServiceChannel>, hold: Hold) -> Self {
        Self { client, hold }
    }

    pub(super) fn launch(&self) -> i32 {
        self.hold.launch
    }

    /// A file, up to the broker's limit.
    pub(super) async fn read_file(&self, path: &str) -> Result<ReadFileResponse, Trouble> {
        let request = ReadFileRequest { hold: Some(self.hold()), path: path.to_owned(), max_bytes: 0 };
        let call = || async { within(FILE_TIMEOUT, self.client.clone().read_file(request.clone())).await };
        tried(call).await.map_err(|status| trouble(&status, path))
    }

    /// A file that is text as a whole.
    pub(super) async fn read_text(&self, path: &str) -> Result<String, Trouble> {
        let file = self.read_file(path).await?;
        if file.truncated {
            return Err(Trouble::Told(format!(
                "{path} is too large ({} bytes). Use bash to look at parts of it.",
                file.size
            )));
        }
        String::from_utf8(file.content).map_err(|_| Trouble::Told(format!("{path} is not a UTF-8 text file.")))
    }

    /// Creates or replaces a file.
    pub(super) async fn write_file(&self, path: &str, content: Vec<u8>) -> Result<(), Trouble> {
        let request = WriteFileRequest { hold: Some(self.hold()), path: path.to_owned(), content };
        let call = || async { within(FILE_TIMEOUT, self.client.clone().write_file(request.clone())).await };
        tried(call).await.map_err(|status| trouble(&status, path)).map(|_| ())
    }

    /// Starts a command, once. Dropping the stream kills it. `None`: whether it started is not known.
    pub(super) async fn exec(&self, mut request: ExecRequest) -> Result<Option<Streaming<ExecResponse>>, Trouble> {
        request.hold = Some(self.hold());
        match within(START_TIMEOUT, self.client.clone().exec(request)).await {
            Ok(stream) => Ok(Some(stream)),
            Err(status) if worth_retrying(&status) => Ok(None),
            Err(status) => Err(trouble(&status, "the command")),
        }
    }

    fn hold(&self) -> BrokerHold {
        let Hold { run_id, session_id, fence, launch } = self.hold.clone();
        BrokerHold { run_id, session_id, session_fence: fence, launch }
    }
}

async fn tried<T, F, Answer>(call: F) -> Result<T, Status>
where
    F: FnMut() -> Answer,
    Answer: Future<Output = Result<T, Status>>,
{
    let backoff = ExponentialBuilder::default().with_min_delay(Duration::from_millis(100)).with_max_times(FILE_RETRIES);
    call.retry(backoff).when(worth_retrying).await
}

/// What a refusal means: `subject` is the path or thing asked for.
pub(super) fn trouble(status: &Status, subject: &str) -> Trouble {
    let failure = Failure::from_status(status);
    let told = match (failure.reason.as_str(), status.code()) {
        ("SANDBOX_LOST", _) => return Trouble::Stop(Stop::SandboxGone),
        (_, Code::Aborted | Code::Unauthenticated | Code::PermissionDenied) => return Trouble::Stop(Stop::Lost),
        ("FILE_NOT_FOUND", _) => format!("There is no file {subject}."),
        ("NOT_A_FILE", _) => format!("{subject} is not a regular file."),
        ("PARENT_MISSING", _) => format!("The folder of {subject} does not exist."),
        ("PATH_OUTSIDE_WORKDIR", _) => format!("{subject} is outside the working folder."),
        (_, Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::ResourceExhausted) => {
            format!("{subject}: {}", failure.message)
        }
        (reason, _) => format!("{subject}: the sandbox did not answer properly ({reason})."),
    };
    Trouble::Told(told)
}
