//! CreateRun: everything that can be checked is checked before the intent, then run, lease, session, prompt and idempotency
//! record are committed together.

mod parse;
mod repository;
#[cfg(test)]
mod tests;

use berth_domain::aggregate::CreateSpec;
use berth_rpc::lifecycle as proto;
use berth_serve::trace;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use self::parse::{Rules, parse};
use crate::{
    Lifecycle,
    authenticate::Admitted,
    error::Error,
    hosts::Place,
    policy::Resource,
    store::{Created, IdempotencyKey, NewRun},
    to_proto,
};

const MAX_KEY_LEN: usize = 128;
/// The secret without which no model can be asked.
const MODEL_KEY: &str = "anthropic_api_key";

/// Makes a run, or finds the one an earlier request with the same idempotency key made.
///
/// # Errors
/// Denied; INVALID_ARGUMENT with the field's own reason; FAILED_PRECONDITION (MODEL_KEY_MISSING); ALREADY_EXISTS
/// (IDEMPOTENCY_KEY_REUSED); NOT_FOUND for the key of a DELETED run.
pub(crate) async fn create_run(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::CreateRunRequest,
) -> Result<proto::Run, Error> {
    let caller = call.caller()?;
    app.policy.authorize(call.subject(), call.action(), Resource::Tenant(&caller.tenant))?;
    let key = idempotency_key(call, &request)?;
    // A repetition gets its run even if the deployment would no longer accept the request.
    if let Some(key) = &key
        && !request.validate_only
        && let Some(known) = app.store.replay(key).await?
    {
        return Ok(to_proto::run(&known));
    }
    let config = &app.config;
    let validate_only = request.validate_only;
    let parsed = parse(
        request,
        &Rules {
            providers: &config.providers,
            default_model: config.default_model.as_deref(),
            allow_private_repos: config.allow_private_repos,
            limits: &config.limits,
        },
    )?;
    if config.model_key_required {
        model_key_present(app, caller.tenant.as_str()).await?;
    }
    let preview = parsed.preview(caller);
    if validate_only {
        return Ok(preview);
    }
    let new = NewRun {
        domain: CreateSpec {
            tenant: caller.tenant.clone(),
            provider: parsed.provider,
            harness: parsed.harness,
            conversation: parsed.conversation,
            on_sandbox_loss: parsed.on_sandbox_loss,
            prompt: parsed.prompt,
            policy: parsed.policy,
        },
        principal: caller.principal.to_string(),
        traceparent: traceparent(call),
        spec: parsed.spec,
        audit: Vec::new(),
    };
    match app.store.create(&new, key.as_ref()).await? {
        Created::New(loaded) => {
            tracing::info!(run_id = %loaded.run_id(), tenant = %caller.tenant, provider = new.spec.provider, "run created");
            Ok(to_proto::run(&loaded))
        }
        Created::Replayed(loaded) => Ok(to_proto::run(&loaded)),
    }
}

/// The key from the body or the header; both may be given if they agree. The hash covers the request without the key.
fn idempotency_key(call: &Admitted, request: &proto::CreateRunRequest) -> Result<Option<IdempotencyKey>, Error> {
    let wrong = |message: &str| Error::invalid("request_id", "IDEMPOTENCY_KEY_INVALID", message);
    let key = match (request.request_id.as_str(), call.idempotency_key()) {
        ("", None) => return Ok(None),
        ("", Some(key)) => key,
        (key, None) => key,
        (key, Some(header)) if key == header => key,
        (_, Some(_)) => return Err(wrong("request_id and the idempotency-key header differ")),
    };
    if key.len() > MAX_KEY_LEN || !key.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(wrong("an idempotency key is at most 128 visible ASCII characters"));
    }
    let bare = proto::CreateRunRequest { request_id: String::new(), validate_only: false, ..request.clone() };
    Ok(Some(IdempotencyKey {
        tenant: call.caller()?.tenant.to_string(),
        method: "CreateRun",
        key: key.to_owned(),
        request_hash: Sha256::digest(bare.encode_to_vec()).to_vec(),
    }))
}

/// The tenant's model key exists and may be used for the configured model host.
async fn model_key_present(app: &Lifecycle, tenant: &str) -> Result<(), Error> {
    let missing = |message: String| Error::illegal_state("MODEL_KEY_MISSING", message);
    let Some(secret) = app.store.secret(tenant, MODEL_KEY).await? else {
        return Err(missing(format!("the tenant has no secret {MODEL_KEY}; put it first")));
    };
    let model_host = &app.config.model_host;
    let bound = Place::parse(model_host).is_some_and(|place| place.is_bound(&secret.hosts));
    if bound { Ok(()) } else { Err(missing(format!("the secret {MODEL_KEY} may not be used for {model_host}"))) }
}

/// The trace this call belongs to: the server's own span when there is telemetry, else as sent, else a new one, so that
/// every run has a trace id to look for.
fn traceparent(call: &Admitted) -> String {
    let current = trace::traceparent();
    if is_traceparent(&current) {
        current
    } else if is_traceparent(call.traceparent()) {
        call.traceparent().to_owned()
    } else {
        let span = rand::random::<u64>().max(1);
        format!("00-{}-{span:016x}-00", uuid::Uuid::new_v4().simple())
    }
}

/// `00-<32 hex>-<16 hex>-<2 hex>` with a trace id that is not all zeros (W3C trace context).
fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let hex =
        |part: &str, len: usize| part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    matches!(parts.as_slice(), ["00", trace, span, flags]
        if hex(trace, 32) && hex(span, 16) && hex(flags, 2) && trace.bytes().any(|b| b != b'0'))
}
