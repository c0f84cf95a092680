//! Lifecycle, sessions and broker as the gateway sees them: they record what they were asked and answer by simple rules on
//! the run's id (see [`by_id`]).

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_domain::failure::Kind;
use berth_rpc::{
    broker::{
        self, ListProvidersRequest, ListProvidersResponse,
        provider_service_server::{ProviderService, ProviderServiceServer},
    },
    lifecycle::{
        self as pb,
        identity_service_server::{IdentityService, IdentityServiceServer},
        key_service_server::{KeyService, KeyServiceServer},
        run_service_server::{RunService, RunServiceServer},
        secret_service_server::{SecretService, SecretServiceServer},
    },
    sessions::{
        self, KeepAlive, Lagged, ListEventsRequest, ListEventsResponse, SendMessageRequest, SendMessageResponse,
        StreamEventsRequest, StreamEventsResponse,
        session_service_server::{SessionService, SessionServiceServer},
        stream_events_response::Item,
    },
    status::Failure,
};
use prost::Message;
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, metadata::MetadataMap, service::Routes};

pub(crate) const KEY: &str = "caller-key";
pub(crate) const SERVICE_KEY: &str = "gateway-service-key";
pub(crate) const TENANT: &str = "default";
pub(crate) const AUDIENCE: &str = "deployment-1";

/// One call an upstream received.
#[derive(Clone)]
pub(crate) struct Seen {
    pub(crate) rpc: &'static str,
    pub(crate) metadata: MetadataMap,
    pub(crate) message: Vec<u8>,
}

impl Seen {
    pub(crate) fn decode<M: Message + Default>(&self) -> M {
        M::decode(self.message.as_slice()).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<String> {
        self.metadata.get(name).map(|value| value.to_str().unwrap().to_owned())
    }
}

/// What the fakes remember.
pub(crate) struct Recorder {
    seen: Mutex<Vec<Seen>>,
    /// Calls whose handler or stream was dropped before it ended.
    cancelled: watch::Sender<usize>,
    /// Public keys registered by gateways.
    pub(crate) keys: Mutex<Vec<pb::RegisterAssertionKeyRequest>>,
}

impl Recorder {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { seen: Mutex::default(), cancelled: watch::channel(0).0, keys: Mutex::default() })
    }

    fn saw<M: Message>(&self, rpc: &'static str, request: &Request<M>) {
        let seen = Seen { rpc, metadata: request.metadata().clone(), message: request.get_ref().encode_to_vec() };
        self.seen.lock().unwrap().push(seen);
    }

    pub(crate) fn all(&self, rpc: &str) -> Vec<Seen> {
        self.seen.lock().unwrap().iter().filter(|seen| seen.rpc == rpc).cloned().collect()
    }

    pub(crate) fn last(&self, rpc: &str) -> Seen {
        self.all(rpc).pop().unwrap_or_else(|| panic!("{rpc} was not called"))
    }

    /// Waits until `count` calls were cancelled.
    pub(crate) async fn cancelled(&self, count: usize) {
        let mut receiver = self.cancelled.subscribe();
        let waited = tokio::time::timeout(Duration::from_secs(10), receiver.wait_for(|seen| *seen >= count)).await;
        waited.expect("upstream call was not cancelled").unwrap();
    }
}

/// Counts a cancellation unless defused.
struct Guard(Option<Arc<Recorder>>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(recorder) = self.0.take() {
            recorder.cancelled.send_modify(|count| *count += 1);
        }
    }
}

/// Lifecycle, sessions and broker in one.
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) recorder: Arc<Recorder>,
}

impl Fake {
    pub(crate) fn lifecycle(&self) -> Routes {
        Routes::new(RunServiceServer::new(self.clone()).max_decoding_message_size(16 << 20))
            .add_service(SecretServiceServer::new(self.clone()))
            .add_service(KeyServiceServer::new(self.clone()))
            .add_service(IdentityServiceServer::new(self.clone()))
    }

    pub(crate) fn sessions(&self) -> Routes {
        Routes::new(SessionServiceServer::new(self.clone()))
    }

    pub(crate) fn broker(&self) -> Routes {
        Routes::new(ProviderServiceServer::new(self.clone()))
    }

    /// `missing`: NOT_FOUND with a text that needs percent-encoding; `busy`: try again in 1.2 s; `hangs`: never answers.
    async fn by_id(&self, run_id: &str) -> Result<pb::Run, Status> {
        match run_id {
            "missing" => Err(Failure::new(Kind::NotFound, "RUN_NOT_FOUND", "no such run: 100 % „nothing“").into()),
            "active" => Err(Failure::new(Kind::IllegalState, "RUN_ACTIVE", "cancel first").into()),
            "busy" => {
                let failure = Failure::new(Kind::Exhausted, "QUOTA_RUNS", "too many runs");
                Err(failure.retry_after(Duration::from_millis(1200)).into())
            }
            "hangs" => {
                let _guard = Guard(Some(self.recorder.clone()));
                std::future::pending().await
            }
            id => Ok(run(id)),
        }
    }
}

pub(crate) fn run(id: &str) -> pb::Run {
    pb::Run {
        run_id: id.to_owned(),
        tenant: TENANT.to_owned(),
        state: pb::run::State::Running.into(),
        prompt: "fix it".to_owned(),
        max_turns: 15,
        last_sequence: 9_007_199_254_740_993,
        change_seq: 4,
        create_time: Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 0 }),
        ..Default::default()
    }
}

pub(crate) fn event(sequence: i64) -> pb::Event {
    let call = pb::ToolCall { call_id: format!("c{sequence}"), name: "bash".into(), input_json: "{\"a\":\n1}".into() };
    pb::Event {
        run_id: "r1".into(),
        sequence,
        launch: 1,
        launch_sequence: sequence,
        payload: Some(pb::event::Payload::ToolCall(call)),
        ..Default::default()
    }
}

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl RunService for Fake {
    type WatchRunStream = Streamed<pb::Run>;

    async fn create_run(&self, request: Request<pb::CreateRunRequest>) -> Result<Response<pb::Run>, Status> {
        self.recorder.saw("CreateRun", &request);
        let request = request.into_inner();
        let created = self.by_id(&request.prompt).await?;
        Ok(Response::new(pb::Run { run_id: "run-new".into(), max_turns: request.max_turns, ..created }))
    }

    async fn get_run(&self, request: Request<pb::GetRunRequest>) -> Result<Response<pb::Run>, Status> {
        self.recorder.saw("GetRun", &request);
        self.by_id(&request.get_ref().run_id).await.map(Response::new)
    }

    async fn list_runs(&self, request: Request<pb::ListRunsRequest>) -> Result<Response<pb::ListRunsResponse>, Status> {
        self.recorder.saw("ListRuns", &request);
        Ok(Response::new(pb::ListRunsResponse::default()))
    }

    async fn watch_run(&self, request: Request<pb::WatchRunRequest>) -> Result<Response<Self::WatchRunStream>, Status> {
        self.recorder.saw("WatchRun", &request);
        let run = self.by_id(&request.get_ref().run_id).await?;
        let after = request.get_ref().after_change_seq;
        let changes = (after + 1..after + 3).map(move |change_seq| Ok(pb::Run { change_seq, ..run.clone() }));
        Ok(Response::new(Box::pin(tokio_stream::iter(changes))))
    }

    async fn cancel_run(&self, request: Request<pb::CancelRunRequest>) -> Result<Response<pb::Run>, Status> {
        self.recorder.saw("CancelRun", &request);
        self.by_id(&request.get_ref().run_id).await.map(Response::new)
    }

    async fn delete_run(&self, request: Request<pb::DeleteRunRequest>) -> Result<Response<pb::Run>, Status> {
        self.recorder.saw("DeleteRun", &request);
        let run = self.by_id(&request.get_ref().run_id).await?;
        Ok(Response::new(pb::Run { state: pb::run::State::Deleting.into(), ..run }))
    }

    async fn retry_deletion(&self, request: Request<pb::RetryDeletionRequest>) -> Result<Response<pb::Run>, Status> {
        self.recorder.saw("RetryDeletion", &request);
        self.by_id(&request.get_ref().run_id).await.map(Response::new)
    }

    async fn forget_run(&self, request: Request<pb::ForgetRunRequest>) -> Result<Response<pb::Run>, Status> {
        self.recorder.saw("ForgetRun", &request);
        self.by_id(&request.get_ref().run_id).await.map(Response::new)
    }

    async fn list_transitions(
        &self,
        request: Request<pb::ListTransitionsRequest>,
    ) -> Result<Response<pb::ListTransitionsResponse>, Status> {
        self.recorder.saw("ListTransitions", &request);
        Ok(Response::new(pb::ListTransitionsResponse::default()))
    }

    async fn get_receipt(
        &self,
        request: Request<pb::GetReceiptRequest>,
    ) -> Result<Response<pb::GetReceiptResponse>, Status> {
        self.recorder.saw("GetReceipt", &request);
        let run_id = request.into_inner().run_id;
        Ok(Response::new(pb::GetReceiptResponse { run_id, ..Default::default() }))
    }
}

#[tonic::async_trait]
impl SecretService for Fake {
    async fn put_secret(&self, request: Request<pb::PutSecretRequest>) -> Result<Response<pb::Secret>, Status> {
        self.recorder.saw("PutSecret", &request);
        let pb::PutSecretRequest { tenant, name, hosts, .. } = request.into_inner();
        Ok(Response::new(pb::Secret { tenant, name, hosts, version: 1, ..Default::default() }))
    }

    async fn list_secrets(
        &self,
        request: Request<pb::ListSecretsRequest>,
    ) -> Result<Response<pb::ListSecretsResponse>, Status> {
        self.recorder.saw("ListSecrets", &request);
        Ok(Response::new(pb::ListSecretsResponse::default()))
    }

    async fn delete_secret(
        &self,
        request: Request<pb::DeleteSecretRequest>,
    ) -> Result<Response<pb::DeleteSecretResponse>, Status> {
        self.recorder.saw("DeleteSecret", &request);
        Ok(Response::new(pb::DeleteSecretResponse {}))
    }

    async fn resolve_secret(
        &self,
        request: Request<pb::ResolveSecretRequest>,
    ) -> Result<Response<pb::ResolveSecretResponse>, Status> {
        self.recorder.saw("ResolveSecret", &request);
        Ok(Response::new(pb::ResolveSecretResponse::default()))
    }
}

#[tonic::async_trait]
impl KeyService for Fake {
    async fn create_key(
        &self,
        request: Request<pb::CreateKeyRequest>,
    ) -> Result<Response<pb::CreateKeyResponse>, Status> {
        self.recorder.saw("CreateKey", &request);
        Ok(Response::new(pb::CreateKeyResponse { key: None, value: "berth_new".into() }))
    }

    async fn list_keys(&self, request: Request<pb::ListKeysRequest>) -> Result<Response<pb::ListKeysResponse>, Status> {
        self.recorder.saw("ListKeys", &request);
        Ok(Response::new(pb::ListKeysResponse::default()))
    }

    async fn revoke_key(&self, request: Request<pb::RevokeKeyRequest>) -> Result<Response<pb::Key>, Status> {
        self.recorder.saw("RevokeKey", &request);
        Ok(Response::new(pb::Key { key_id: request.into_inner().key_id, ..Default::default() }))
    }
}

#[tonic::async_trait]
impl IdentityService for Fake {
    async fn check_access(
        &self,
        request: Request<pb::CheckAccessRequest>,
    ) -> Result<Response<pb::CheckAccessResponse>, Status> {
        self.recorder.saw("CheckAccess", &request);
        Ok(Response::new(pb::CheckAccessResponse::default()))
    }

    async fn authenticate(
        &self,
        request: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        self.recorder.saw("Authenticate", &request);
        let request = request.into_inner();
        if request.credential != KEY {
            return Err(Failure::new(Kind::Unauthenticated, "CREDENTIAL_INVALID", "credential is not valid").into());
        }
        if !request.tenant.is_empty() && request.tenant != TENANT {
            return Err(Failure::new(Kind::Denied, "TENANT_MISMATCH", "credential is for another tenant").into());
        }
        Ok(Response::new(pb::AuthenticateResponse {
            tenant: TENANT.into(),
            principal: "ada".into(),
            role: "admin".into(),
            credential_id: "key-1".into(),
            audience: AUDIENCE.into(),
        }))
    }

    async fn register_assertion_key(
        &self,
        request: Request<pb::RegisterAssertionKeyRequest>,
    ) -> Result<Response<pb::RegisterAssertionKeyResponse>, Status> {
        self.recorder.saw("RegisterAssertionKey", &request);
        self.recorder.keys.lock().unwrap().push(request.into_inner());
        Ok(Response::new(pb::RegisterAssertionKeyResponse { audience: AUDIENCE.into() }))
    }
}

#[tonic::async_trait]
impl SessionService for Fake {
    type StreamEventsStream = Streamed<StreamEventsResponse>;

    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        self.recorder.saw("SendMessage", &request);
        Ok(Response::new(SendMessageResponse { message_id: "msg-1".into(), run_state: pb::run::State::Running.into() }))
    }

    /// `ends`: three events; `keeps`: a keep-alive, an event, and then nothing for ever; `lags`; `breaks` after one event;
    /// `late`: refused by the first item; `floods`: events without end.
    async fn stream_events(
        &self,
        request: Request<StreamEventsRequest>,
    ) -> Result<Response<Self::StreamEventsStream>, Status> {
        self.recorder.saw("StreamEvents", &request);
        let StreamEventsRequest { run_id, after_sequence: after } = request.into_inner();
        self.by_id(&run_id).await?;
        let recorder = self.recorder.clone();
        let items = async_stream::stream! {
            let item = |item| Ok(StreamEventsResponse { item: Some(item) });
            match run_id.as_str() {
                "keeps" => {
                    let _guard = Guard(Some(recorder));
                    yield item(Item::KeepAlive(KeepAlive {}));
                    yield item(Item::Event(event(after + 1)));
                    std::future::pending::<()>().await;
                }
                "floods" => {
                    let _guard = Guard(Some(recorder));
                    for sequence in after + 1.. {
                        yield item(Item::Event(event(sequence)));
                    }
                }
                "lags" => yield item(Item::Lagged(Lagged { after_sequence: 5 })),
                "late" => yield Err(Failure::new(Kind::Invalid, "CURSOR_AHEAD", "ahead of the log").into()),
                "breaks" => {
                    yield item(Item::Event(event(after + 1)));
                    yield Err(Failure::new(Kind::Unavailable, "LOG_AWAY", "try again").into());
                }
                _ => {
                    for sequence in after + 1..=after + 3 {
                        yield item(Item::Event(event(sequence)));
                    }
                }
            }
        };
        Ok(Response::new(Box::pin(items)))
    }

    async fn list_events(&self, request: Request<ListEventsRequest>) -> Result<Response<ListEventsResponse>, Status> {
        self.recorder.saw("ListEvents", &request);
        let events = vec![event(1), event(2)];
        Ok(Response::new(sessions::ListEventsResponse { events, last_sequence: 2, ..Default::default() }))
    }
}

#[tonic::async_trait]
impl ProviderService for Fake {
    async fn list_providers(
        &self,
        request: Request<ListProvidersRequest>,
    ) -> Result<Response<ListProvidersResponse>, Status> {
        self.recorder.saw("ListProviders", &request);
        let local = broker::Provider { name: "local".into(), ..Default::default() };
        Ok(Response::new(ListProvidersResponse { providers: vec![local] }))
    }
}
