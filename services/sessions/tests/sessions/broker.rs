//! The fake broker: files in a map and a handful of commands, all under the live fence; knows what ran and what was killed.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_domain::failure::Kind;
use berth_rpc::broker::{exec_response::Item, sandbox_service_server::SandboxService, *};
use berth_rpc::lifecycle::Result as RunResult;
use berth_rpc::status::Failure;
use futures::{Stream, StreamExt as _};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::lifecycle::{DEADLINE, Lifecycle};

#[derive(Clone)]
pub(crate) struct Broker {
    lifecycle: Lifecycle,
    pub(crate) files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    /// Commands started, in order.
    pub(crate) ran: Arc<watch::Sender<Vec<String>>>,
    /// Commands whose stream was dropped before their end.
    pub(crate) killed: Arc<watch::Sender<Vec<String>>>,
}

type ExecStream = Pin<Box<dyn Stream<Item = Result<ExecResponse, Status>> + Send>>;

impl Broker {
    pub(crate) fn new(lifecycle: Lifecycle) -> Self {
        let (ran, killed) = (Arc::new(watch::Sender::new(Vec::new())), Arc::new(watch::Sender::new(Vec::new())));
        Self { lifecycle, files: Arc::default(), ran, killed }
    }

    pub(crate) fn file(&self, path: &str) -> Option<String> {
        self.files.lock().unwrap().get(path).map(|content| String::from_utf8(content.clone()).unwrap())
    }

    pub(crate) async fn until(list: &watch::Sender<Vec<String>>, command: &str) {
        let mut list = list.subscribe();
        let met = tokio::time::timeout(DEADLINE, list.wait_for(|list| list.iter().any(|entry| entry == command)));
        assert!(met.await.is_ok(), "never happened to a command: {command}");
    }

    fn check(&self, hold: Option<&Hold>) -> Result<(), Status> {
        let hold = hold.expect("every call names its hold");
        let holds = self.lifecycle.see(|ledger| hold.session_fence == ledger.fence && hold.launch == ledger.launch);
        if holds { Ok(()) } else { Err(Failure::new(Kind::Conflict, "STALE_FENCE", "the claim is over").into()) }
    }
}

/// Tells when a command's stream is dropped before its end.
struct Guard {
    command: String,
    ended: bool,
    killed: Arc<watch::Sender<Vec<String>>>,
}

impl Guard {
    fn end(&mut self) {
        self.ended = true;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.ended {
            self.killed.send_modify(|killed| killed.push(self.command.clone()));
        }
    }
}

/// What a command does: its output pieces, then its exit, or nothing for ever.
fn play(command: &str) -> (Vec<Item>, Option<Exit>) {
    let out = |text: &str| Item::Stdout(text.as_bytes().to_vec());
    let exit = |code| Some(Exit { code, ..Exit::default() });
    match command.split_once(' ').unwrap_or((command, "")) {
        ("echo", text) => (vec![out(text), Item::Alive(Alive {}), out("\n")], exit(0)),
        ("fail", code) => (vec![Item::Stderr(b"it failed\n".to_vec())], exit(code.parse().unwrap())),
        ("flood", bytes) => {
            let count = bytes.parse::<usize>().unwrap() / 1000;
            (vec![out(&"x".repeat(1000)); count], exit(0))
        }
        ("hang", _) => (vec![out("hanging\n")], None),
        ("vanish", _) => (vec![out("half\n")], exit(-99)),
        _ => (Vec::new(), exit(0)),
    }
}

#[tonic::async_trait]
impl SandboxService for Broker {
    type ExecStream = ExecStream;

    async fn exec(&self, request: Request<ExecRequest>) -> Result<Response<ExecStream>, Status> {
        let exec = request.into_inner();
        self.check(exec.hold.as_ref())?;
        assert_eq!(&exec.argv[..2], ["bash", "-c"]);
        let command = exec.argv[2].clone();
        self.ran.send_modify(|ran| ran.push(command.clone()));
        if command == "lost" {
            return Err(Failure::new(Kind::IllegalState, "SANDBOX_LOST", "gone").into());
        }
        let (items, exit) = play(&command);
        let killed = self.killed.clone();
        let mut guard = Guard { command, ended: false, killed };
        let response = |item| Ok(ExecResponse { item: Some(item) });
        let started = futures::stream::iter(std::iter::once(Item::Started(Started {})).chain(items).map(response));
        let end = futures::stream::once(async move {
            let Some(exit) = exit else {
                tokio::time::sleep(Duration::from_secs(3600)).await;
                return Err(Status::internal("hung for an hour"));
            };
            guard.end();
            if exit.code == -99 { Err(Status::unavailable("the broker died")) } else { response(Item::Exit(exit)) }
        });
        Ok(Response::new(Box::pin(started.chain(end))))
    }

    async fn read_file(&self, request: Request<ReadFileRequest>) -> Result<Response<ReadFileResponse>, Status> {
        let read = request.into_inner();
        self.check(read.hold.as_ref())?;
        match self.files.lock().unwrap().get(&read.path) {
            Some(content) => Ok(Response::new(ReadFileResponse {
                content: content.clone(),
                size: content.len() as i64,
                truncated: false,
            })),
            None => Err(Failure::new(Kind::NotFound, "FILE_NOT_FOUND", "no such file").into()),
        }
    }

    async fn write_file(&self, request: Request<WriteFileRequest>) -> Result<Response<WriteFileResponse>, Status> {
        let write = request.into_inner();
        self.check(write.hold.as_ref())?;
        let size = write.content.len() as i64;
        self.files.lock().unwrap().insert(write.path, write.content);
        Ok(Response::new(WriteFileResponse { size }))
    }

    async fn collect(&self, request: Request<CollectRequest>) -> Result<Response<CollectResponse>, Status> {
        self.check(request.get_ref().hold.as_ref())?;
        let result = RunResult { head_commit: "abc".into(), diff: "+fix".into(), ..RunResult::default() };
        Ok(Response::new(CollectResponse { result: Some(result) }))
    }
}
