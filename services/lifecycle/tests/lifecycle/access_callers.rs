//! Callers behind services: assertions and keys passed on, tenants, the action asked for, CheckAccess.

use std::time::{SystemTime, UNIX_EPOCH};

use berth_rpc::lifecycle as proto;
use berth_serve::assertion::{self, Claims, SigningKey};
use secrecy::ExposeSecret as _;
use tonic::{Code, Status};

use crate::{
    callers::{bearer, get, refusal, with},
    fixture::{Deployment, on_both_engines},
};

const INVALID: (Code, &str) = (Code::Unauthenticated, "CREDENTIAL_INVALID");

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after the epoch").as_secs() as i64
}

/// A gateway with a registered key, for a caller it verified.
struct Gateway {
    key: SigningKey,
    claims: Claims,
}

impl Gateway {
    async fn start(deployment: &Deployment, credential: &str) -> Self {
        let key = assertion::generate();
        let mut identity = deployment.identity("gateway");
        let request = proto::RegisterAssertionKeyRequest {
            key_id: "gateway-1".into(),
            public_key: key.verifying_key().to_bytes().to_vec(),
        };
        let audience =
            identity.register_assertion_key(request.clone()).await.expect("registered").into_inner().audience;
        identity.register_assertion_key(request).await.expect("the same key again is fine");
        let request = proto::AuthenticateRequest { credential: credential.to_owned(), tenant: String::new() };
        let caller = identity.authenticate(request).await.expect("verified").into_inner();
        assert_eq!(caller.audience, audience);
        let claims = Claims {
            kid: "gateway-1".into(),
            aud: audience,
            tenant: caller.tenant,
            principal: caller.principal,
            credential: caller.credential_id,
            iat: now(),
            exp: now() + 60,
        };
        Self { key, claims }
    }

    /// What `GetRun` answers to an assertion with these claims, passed on by `service`.
    async fn ask(
        &self,
        deployment: &Deployment,
        service: &str,
        run_id: &str,
        claims: &Claims,
    ) -> Result<proto::Run, Status> {
        pass(deployment, service, run_id, &format!("assertion {}", assertion::mint(&self.key, claims))).await
    }
}

async fn pass(deployment: &Deployment, service: &str, run_id: &str, caller: &str) -> Result<proto::Run, Status> {
    let request = with(proto::GetRunRequest { run_id: run_id.to_owned() }, &[("x-berth-caller", caller)]);
    let mut runs = deployment.runs_as(&deployment.service_keys[service]);
    runs.get_run(request).await.map(tonic::Response::into_inner)
}

async fn an_assertion_is_good_only_as_it_was_minted(deployment: &Deployment) {
    let run_id = deployment.create().await.run_id;
    let (key_id, member) = deployment.new_key("default", "member").await;
    let gateway = Gateway::start(deployment, member.expose_secret()).await;
    let good = gateway.claims.clone();
    for service in ["gateway", "sandbox-broker", "sessions"] {
        gateway.ask(deployment, service, &run_id, &good).await.expect("passed on");
    }
    let wrong = [
        ("expired", Claims { iat: good.iat - 120, exp: good.exp - 120, ..good.clone() }),
        ("from the future", Claims { iat: good.iat + 120, exp: good.exp + 120, ..good.clone() }),
        ("too long", Claims { exp: good.exp + 3600, ..good.clone() }),
        ("other deployment", Claims { aud: "elsewhere".into(), ..good.clone() }),
        ("unregistered key", Claims { kid: "gateway-2".into(), ..good.clone() }),
        ("other tenant", Claims { tenant: "theirs".into(), ..good.clone() }),
        ("other principal", Claims { principal: "admin".into(), ..good.clone() }),
        ("other credential", Claims { credential: "key-bootstrap-admin".into(), ..good.clone() }),
        ("unknown credential", Claims { credential: "key-0".into(), ..good.clone() }),
    ];
    for (what, claims) in wrong {
        let refused = refusal(gateway.ask(deployment, "gateway", &run_id, &claims).await);
        assert_eq!((refused.0, refused.1.as_str()), INVALID, "{what}");
    }
    let forged = format!("assertion {}", assertion::mint(&assertion::generate(), &good));
    for caller in [forged.as_str(), "assertion x", "assertion", "", "bearer x", "basic x"] {
        let refused = refusal(pass(deployment, "gateway", &run_id, caller).await);
        assert_eq!((refused.0, refused.1.as_str()), INVALID, "{caller:.20}");
    }
    // Revocation reaches assertions that were minted before it.
    deployment.keys_as(&deployment.admin_key).revoke_key(proto::RevokeKeyRequest { key_id }).await.unwrap();
    assert_eq!(refusal(gateway.ask(deployment, "gateway", &run_id, &good).await).1, "CREDENTIAL_INVALID");
    assert_eq!(refusal(pass(deployment, "gateway", &run_id, &bearer(&member)).await).1, "CREDENTIAL_INVALID");
}

/// A stream that was opened in time reads on, by sessions only, and only while its credential holds.
async fn an_open_stream_outlives_its_assertion_but_not_its_credential(deployment: &Deployment) {
    let run_id = deployment.create().await.run_id;
    let (key_id, member) = deployment.new_key("default", "member").await;
    let gateway = Gateway::start(deployment, member.expose_secret()).await;
    let old = Claims { iat: gateway.claims.iat - 7200, exp: gateway.claims.exp - 7200, ..gateway.claims.clone() };
    let caller = format!("assertion {}", assertion::mint(&gateway.key, &old));
    let read = async |service: &str, action: &str| {
        let request = proto::ReadRequest { run_id: run_id.clone(), ..Default::default() };
        let request = with(request, &[("x-berth-caller", &caller), ("x-berth-action", action)]);
        deployment.log_as(&deployment.service_keys[service]).read(request).await
    };
    read("sessions", "StreamEvents").await.expect("the stream reads on");
    for (service, action) in [("sessions", "ListEvents"), ("sessions", "Read"), ("sandbox-broker", "StreamEvents")] {
        assert_eq!(refusal(read(service, action).await).1, "CREDENTIAL_INVALID", "{service} {action}");
    }
    deployment.keys_as(&deployment.admin_key).revoke_key(proto::RevokeKeyRequest { key_id }).await.unwrap();
    assert_eq!(refusal(read("sessions", "StreamEvents").await).1, "CREDENTIAL_INVALID");
}

async fn gateways_register_sound_keys_under_their_own_ids(deployment: &Deployment) {
    let mut identity = deployment.identity("gateway");
    let mut register = async |key_id: &str, public_key: Vec<u8>| {
        let request = proto::RegisterAssertionKeyRequest { key_id: key_id.to_owned(), public_key };
        identity.register_assertion_key(request).await
    };
    let key = || assertion::generate().verifying_key().to_bytes().to_vec();
    register("gateway-1", key()).await.unwrap();
    assert_eq!(refusal(register("gateway-1", key()).await), (Code::AlreadyExists, "KEY_ID_TAKEN".to_owned()));
    assert_eq!(refusal(register("", key()).await).1, "KEY_ID_INVALID");
    assert_eq!(refusal(register("gateway-2", vec![1; 31]).await).1, "PUBLIC_KEY_INVALID");
    let mut identity_point = vec![0; 32];
    identity_point[0] = 1;
    assert_eq!(refusal(register("gateway-2", identity_point).await).1, "PUBLIC_KEY_INVALID");
}

async fn a_credential_acts_for_its_own_tenant_only(deployment: &Deployment) {
    let run_id = deployment.create().await.run_id;
    let request = || proto::GetRunRequest { run_id: run_id.clone() };
    let mut runs = deployment.runs();
    runs.get_run(with(request(), &[("x-tenant-id", "default")])).await.expect("its own tenant");
    let mismatch = (Code::PermissionDenied, "TENANT_MISMATCH".to_owned());
    assert_eq!(refusal(runs.get_run(with(request(), &[("x-tenant-id", "theirs")])).await), mismatch);

    let admin = bearer(&deployment.admin_key);
    let mut behind = deployment.runs_as(&deployment.service_keys["sessions"]);
    let forwarded = with(request(), &[("x-berth-caller", &admin), ("x-tenant-id", "theirs")]);
    assert_eq!(refusal(behind.get_run(forwarded).await), mismatch);

    let mut identity = deployment.identity("gateway");
    let mut authenticate = async |tenant: &str, credential: &str| {
        let request = proto::AuthenticateRequest { credential: credential.to_owned(), tenant: tenant.to_owned() };
        identity.authenticate(request).await.map(tonic::Response::into_inner)
    };
    let admin = deployment.admin_key.expose_secret();
    let answer = authenticate("default", admin).await.unwrap();
    assert_eq!(
        (answer.tenant.as_str(), answer.principal.as_str(), answer.role.as_str()),
        ("default", "admin", "admin")
    );
    assert_eq!(refusal(authenticate("theirs", admin).await), mismatch);
    assert_eq!(refusal(authenticate("", "berth_guess").await).1, "CREDENTIAL_INVALID");
    // A service's key is nobody's who could be a caller.
    let service = deployment.service_keys["sessions"].expose_secret();
    assert_eq!(refusal(authenticate("", service).await).1, "CREDENTIAL_INVALID");
    assert_eq!(
        refusal(get(&mut deployment.runs_as(&deployment.service_keys["sessions"]), &run_id).await).1,
        "CREDENTIAL_MISSING"
    );
}

async fn the_action_asked_for_is_the_one_decided(deployment: &Deployment) {
    let run_id = deployment.create().await.run_id;
    let viewer = bearer(&deployment.key("default", "viewer").await);
    let mut log = deployment.log_as(&deployment.service_keys["sessions"]);
    let read = || proto::ReadRequest { run_id: run_id.clone(), ..Default::default() };
    for action in ["StreamEvents", "ListEvents", "Read", "Nonsense"] {
        let request = with(read(), &[("x-berth-caller", &viewer), ("x-berth-action", action)]);
        log.read(request).await.unwrap_or_else(|status| panic!("{action}: {status:?}"));
    }
    // Naming a harmless action does not make the RPC harmless.
    for (action, decided) in
        [("SendMessage", "SendMessage"), ("GetRun", "QueueMessage"), ("ListEvents", "QueueMessage")]
    {
        let message = proto::QueueMessageRequest { run_id: run_id.clone(), text: "hi".into(), ..Default::default() };
        let request = with(message, &[("x-berth-caller", &viewer), ("x-berth-action", action)]);
        let status = log.queue_message(request).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{action}");
        assert_eq!(berth_rpc::status::Failure::from_status(&status).metadata["action"], decided);
    }
}

async fn check_access_decides_what_reads_no_row(deployment: &Deployment) {
    let viewer = bearer(&deployment.key("theirs", "viewer").await);
    let check = async |service: &str, action: &str, caller: Option<&str>| {
        let metadata: Vec<_> = caller.map(|caller| ("x-berth-caller", caller)).into_iter().collect();
        let request = with(proto::CheckAccessRequest { action: action.to_owned() }, &metadata);
        deployment.identity(service).check_access(request).await.map(tonic::Response::into_inner)
    };
    for service in ["sandbox-broker", "sessions"] {
        let allowed = check(service, "ListProviders", Some(&viewer)).await.unwrap();
        assert_eq!((allowed.tenant.as_str(), allowed.principal.as_str()), ("theirs", "viewer-1"));
    }
    let denied = refusal(check("sandbox-broker", "PutSecret", Some(&viewer)).await);
    assert_eq!(denied, (Code::PermissionDenied, "PERMISSION_DENIED".to_owned()));
    for action in ["GetRun", "Claim", "CheckAccess", "Nonsense", ""] {
        assert_eq!(refusal(check("sandbox-broker", action, Some(&viewer)).await).1, "ACTION_UNKNOWN", "{action}");
    }
    assert_eq!(refusal(check("sandbox-broker", "ListProviders", None).await).1, "CREDENTIAL_MISSING");
    assert_eq!(refusal(check("sandbox-broker", "ListProviders", Some("bearer x")).await).1, "CREDENTIAL_INVALID");
    let trail = deployment.store.audit_trail("theirs", 10).await.unwrap();
    assert!(trail.iter().any(|line| line.action == "PutSecret" && line.decision == "DENIED"));
}

on_both_engines!(
    an_assertion_is_good_only_as_it_was_minted,
    an_open_stream_outlives_its_assertion_but_not_its_credential,
    gateways_register_sound_keys_under_their_own_ids,
    a_credential_acts_for_its_own_tenant_only,
    the_action_asked_for_is_the_one_decided,
    check_access_decides_what_reads_no_row,
);
