//! Every RPC of lifecycle, taken from the descriptors: without credential, with the wrong role, from a foreign tenant, with
//! the wrong service's key. Nothing is reachable that the policies do not permit, and refusals change nothing.

use berth_rpc::{access, lifecycle as proto, status};
use berth_serve::peer::ServiceChannel;
use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message as _;
use prost_reflect::{DynamicMessage, MethodDescriptor, Value};
use secrecy::SecretString;
use tonic::{
    Code, Request, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};

use crate::{
    callers::bearer,
    fixture::{Deployment, on_both_engines},
};

/// What viewers may do; everything else of callers writes.
const READS: [&str; 6] = ["GetRun", "ListRuns", "WatchRun", "ListTransitions", "GetReceipt", "Read"];
/// RPCs whose request names nothing foreign: a foreign caller acts in its own tenant.
const OWN_TENANT_ONLY: [&str; 3] = ["CreateRun", "ListRuns", "ListKeys"];

/// Messages as they are on the wire.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

fn methods() -> impl Iterator<Item = MethodDescriptor> {
    access::methods().filter(|method| method.parent_file().package_name() == "berth.lifecycle.v1")
}

/// Calls any RPC; a stream's first message counts as its answer.
async fn call(
    channel: ServiceChannel,
    method: &MethodDescriptor,
    body: Vec<u8>,
    metadata: &[(&'static str, &str)],
) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.expect("in process");
    let mut request = Request::new(Bytes::from(body));
    for (name, value) in metadata {
        request.metadata_mut().insert(*name, value.parse().expect("metadata"));
    }
    let path = PathAndQuery::try_from(access::path(method)).expect("a path");
    let mut answers = client.server_streaming(request, path, Raw).await?.into_inner();
    answers.message().await.map(|_| ())
}

/// A request that gets past every check of form: about this run, tenant and key.
fn request(method: &MethodDescriptor, run_id: &str, tenant: &str, key_id: &str) -> Vec<u8> {
    let mut message = DynamicMessage::new(method.input());
    let fields = [
        ("run_id", run_id),
        ("tenant", tenant),
        ("key_id", key_id),
        ("text", "hello"),
        ("prompt", "fix it"),
        ("sandbox_provider", "local"),
        ("principal", "eve"),
        ("reason", "because"),
        ("name", "github_token"),
        ("value", "x"),
    ];
    for (field, value) in fields {
        if let Some(field) = method.input().get_field_by_name(field) {
            message.set_field(&field, Value::String(value.to_owned()));
        }
    }
    message.encode_to_vec()
}

async fn case_a04_no_rpc_answers_without_a_valid_credential(deployment: &Deployment) {
    let run_id = deployment.create().await.run_id;
    let anonymous = ServiceChannel::anonymous(deployment.channel.clone());
    for method in methods() {
        let body = request(&method, &run_id, "default", "key-1");
        for (authorization, reason) in [
            (None, "CREDENTIAL_MISSING"),
            (Some("Bearer berth_guess"), "CREDENTIAL_INVALID"),
            (Some("Basic YTpi"), "CREDENTIAL_INVALID"),
            (Some("Bearer "), "CREDENTIAL_INVALID"),
        ] {
            let metadata: Vec<_> = authorization.map(|value| ("authorization", value)).into_iter().collect();
            let refused =
                call(anonymous.clone(), &method, body.clone(), &metadata).await.expect_err(method.full_name());
            let told = (refused.code(), status::reason(&refused).unwrap_or_default());
            assert_eq!(told, (Code::Unauthenticated, reason.to_owned()), "{} {authorization:?}", method.full_name());
        }
    }
    let untouched = deployment.get(&run_id).await.unwrap();
    assert_eq!(untouched.state(), proto::run::State::Provisioning);
}

async fn case_a04_viewers_read_and_nothing_else(deployment: &Deployment) {
    let run_id = deployment.create().await.run_id;
    let viewer = deployment.key("default", "viewer").await;
    let (key_id, _) = deployment.new_key("default", "member").await;
    let before = deployment.timeline(&run_id).await;
    for method in methods() {
        let body = request(&method, &run_id, "default", &key_id);
        let outcome = call(deployment.channel_with(&viewer), &method, body, &[]).await;
        if READS.contains(&method.name()) {
            outcome.unwrap_or_else(|status| panic!("{}: {status:?}", method.full_name()));
        } else {
            let refused = outcome.expect_err(method.full_name());
            assert_eq!(refused.code(), Code::PermissionDenied, "{}: {refused:?}", method.full_name());
        }
    }
    assert_eq!(deployment.timeline(&run_id).await, before, "refusals change nothing");
    assert!(deployment.store.secrets("default").await.unwrap().is_empty());
}

async fn case_a03_foreign_tenants_find_nothing_with_the_same_answer_as_for_what_is_not_there(deployment: &Deployment) {
    let run_id = deployment.create().await.run_id;
    let (key_id, key) = deployment.new_key("default", "member").await;
    let foreign = deployment.key("theirs", "admin").await;
    let before = deployment.timeline(&run_id).await;
    let nowhere = "run-0193c0de0000700080000000000000ff";
    for method in methods().filter(|method| !OWN_TENANT_ONLY.contains(&method.name())) {
        let access = access::access(&access::path(&method)).unwrap();
        if !access.services.is_empty() {
            continue;
        }
        let theirs = request(&method, &run_id, "default", &key_id);
        let refused =
            call(deployment.channel_with(&foreign), &method, theirs, &[]).await.expect_err(method.full_name());
        let unknown = request(&method, nowhere, "nobody", "key-0");
        let absent =
            call(deployment.channel_with(&foreign), &method, unknown, &[]).await.expect_err(method.full_name());
        assert_eq!(refused.code(), Code::NotFound, "{}: {refused:?}", method.full_name());
        let told = |status: &Status| (status.code(), status.message().to_owned(), status.details().to_vec());
        assert_eq!(told(&refused), told(&absent), "{} tells foreign from absent", method.full_name());
    }
    // The same behind a service that passes the foreign caller on.
    let get = methods().find(|method| method.name() == "GetRun").unwrap();
    let forwarded = [("x-berth-caller", bearer(&foreign))];
    let forwarded: Vec<_> = forwarded.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let body = request(&get, &run_id, "default", &key_id);
    let refused = call(deployment.service("gateway"), &get, body, &forwarded).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);

    assert_eq!(deployment.timeline(&run_id).await, before, "no effect");
    deployment.runs_as(&key).list_runs(proto::ListRunsRequest::default()).await.expect("the key was not revoked");
}

async fn service_rpcs_need_the_key_of_their_service(deployment: &Deployment) {
    let run_id = deployment.create().await.run_id;
    for method in methods() {
        let access = access::access(&access::path(&method)).unwrap();
        let body = request(&method, &run_id, "default", "key-1");
        for service in ["gateway", "sandbox-broker", "sessions"] {
            let outcome = call(deployment.service(service), &method, body.clone(), &[]).await;
            if access.services.is_empty() {
                // A service is no caller: without one passed on there is none.
                let refused = outcome.expect_err(method.full_name());
                assert_eq!(refused.code(), Code::Unauthenticated, "{} by {service}", method.full_name());
            } else if !access.services.iter().any(|name| name == service) {
                let refused = outcome.expect_err(method.full_name());
                assert_eq!(refused.code(), Code::PermissionDenied, "{} by {service}", method.full_name());
                assert_eq!(status::reason(&refused).as_deref(), Some("SERVICE_KEY_REQUIRED"));
            } else if let Err(refused) = outcome {
                // Past the door; what the request itself lacks is told.
                let passed = refused.code() != Code::PermissionDenied
                    && (refused.code() != Code::Unauthenticated
                        || access.action == "CheckAccess"
                        || access.action == "Authenticate");
                assert!(passed, "{} by {service}: {refused:?}", method.full_name());
            }
        }
        for key in [&deployment.admin_key] {
            if !access.services.is_empty() {
                let refused = call(deployment.channel_with(key), &method, body.clone(), &[]).await.unwrap_err();
                assert_eq!(refused.code(), Code::PermissionDenied, "{} by an administrator", method.full_name());
            }
        }
    }
}

async fn denials_leave_their_line_in_the_audit_trail(deployment: &Deployment) {
    let run_id = deployment.create().await.run_id;
    let viewer: SecretString = deployment.key("default", "viewer").await;
    let foreign = deployment.key("theirs", "member").await;
    let cancel = methods().find(|method| method.name() == "CancelRun").unwrap();
    let claim = methods().find(|method| method.name() == "Claim").unwrap();
    for (key, method) in [(&viewer, &cancel), (&viewer, &claim), (&foreign, &cancel)] {
        let body = request(method, &run_id, "default", "");
        call(deployment.channel_with(key), method, body, &[]).await.unwrap_err();
    }
    let line = |trail: &[berth_lifecycle::store::audit::AuditEntry], action: &str| {
        let line = trail.iter().find(|line| line.action == action).expect("a line").clone();
        (line.actor, line.resource, line.decision)
    };
    let ours = deployment.store.audit_trail("default", 100).await.unwrap();
    let denied = "DENIED".to_owned();
    assert_eq!(line(&ours, "CancelRun"), ("viewer-1".to_owned(), format!("Run/{run_id}"), denied.clone()));
    assert_eq!(line(&ours, "Claim"), ("viewer-1".to_owned(), "Deployment".to_owned(), denied.clone()));
    let theirs = deployment.store.audit_trail("theirs", 100).await.unwrap();
    assert_eq!(line(&theirs, "CancelRun"), ("member-1".to_owned(), format!("Run/{run_id}"), denied));
}

on_both_engines!(
    case_a04_no_rpc_answers_without_a_valid_credential,
    case_a04_viewers_read_and_nothing_else,
    case_a03_foreign_tenants_find_nothing_with_the_same_answer_as_for_what_is_not_there,
    service_rpcs_need_the_key_of_their_service,
    denials_leave_their_line_in_the_audit_trail,
);
