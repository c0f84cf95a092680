//! From the store's and the domain's types to the contract's.

use berth_domain::{
    aggregate::Transition,
    lease::{self, Lease, ReceiptKind},
    run::{Activity, OnSandboxLoss, Outcome, Run, State},
    session::{self, MessageState, Session},
    time::Time,
};
use berth_rpc::{duration_to_proto, lifecycle as proto, time_to_proto};

use crate::store::{
    Loaded, RunSpec, StoredReceipt, StoredTransition, Usage,
    keys::{Credential, Holder},
    secrets::StoredSecret,
};

/// The run as clients see it.
pub(crate) fn run(loaded: &Loaded) -> proto::Run {
    let (run, record) = (&loaded.aggregate.run, &loaded.record);
    let spec = &record.spec;
    proto::Run {
        run_id: run.id.to_string(),
        tenant: run.tenant.to_string(),
        state: state(run.state).into(),
        activity: run.activity.map_or(proto::run::Activity::Unspecified, activity).into(),
        prompt: record.prompt.clone(),
        sandbox_provider: spec.provider.clone(),
        repo_url: spec.repo_url.clone(),
        repo_ref: spec.repo_ref.clone(),
        tools: spec.tools.clone(),
        max_turns: signed32(spec.max_turns),
        model: spec.model.clone(),
        system_prompt: spec.system_prompt.clone(),
        sandbox_image: spec.image.clone(),
        workdir: spec.workdir.clone(),
        budget: Some(budget(spec, run)),
        push_branch: spec.push_branch.clone(),
        conversation: run.conversation,
        on_sandbox_loss: match run.on_sandbox_loss {
            OnSandboxLoss::Fail => proto::run::OnSandboxLoss::Fail,
            OnSandboxLoss::Recreate => proto::run::OnSandboxLoss::Recreate,
        }
        .into(),
        harness: spec.harness.clone(),
        sandbox: loaded.aggregate.current().and_then(sandbox),
        turn: signed32(record.progress.turns),
        usage: Some(usage(&record.progress.usage)),
        result: record.result.clone().filter(|_| shows_result(run)),
        error: error(run),
        trace_id: trace_id(&record.traceparent),
        create_time: Some(time_to_proto(record.created_at)),
        update_time: Some(time_to_proto(record.updated_at)),
        deadline: run.deadline.map(time_to_proto),
        last_sequence: signed(record.last_seq),
        change_seq: signed(record.change_seq),
        principal: record.principal.clone(),
    }
}

/// The result belongs to a run that got there; a run that failed or was cancelled has none to trust.
fn shows_result(run: &Run) -> bool {
    match run.state {
        State::Completed | State::Waiting => true,
        State::Deleting | State::DeletionFailed => run.outcome.is_none() && !run.cancel_asked,
        State::Provisioning
        | State::Running
        | State::Recovering
        | State::Failed
        | State::Cancelled
        | State::Deleted => false,
    }
}

/// The run's state.
pub(crate) fn state(state: State) -> proto::run::State {
    match state {
        State::Provisioning => proto::run::State::Provisioning,
        State::Running => proto::run::State::Running,
        State::Waiting => proto::run::State::Waiting,
        State::Recovering => proto::run::State::Recovering,
        State::Completed => proto::run::State::Completed,
        State::Failed => proto::run::State::Failed,
        State::Cancelled => proto::run::State::Cancelled,
        State::Deleting => proto::run::State::Deleting,
        State::DeletionFailed => proto::run::State::DeletionFailed,
        State::Deleted => proto::run::State::Deleted,
    }
}

fn activity(activity: Activity) -> proto::run::Activity {
    match activity {
        Activity::Thinking => proto::run::Activity::Thinking,
        Activity::Executing => proto::run::Activity::Executing,
        Activity::Steering => proto::run::Activity::Steering,
        Activity::Compacting => proto::run::Activity::Compacting,
    }
}

fn error(run: &Run) -> Option<proto::Error> {
    run.outcome.as_ref().map(|Outcome::Failed { reason, text }| proto::Error {
        reason: reason.as_str().to_owned(),
        message: text.clone(),
    })
}

fn budget(spec: &RunSpec, run: &Run) -> proto::Budget {
    proto::Budget { max_tokens: signed(spec.max_tokens), wall_clock: Some(duration_to_proto(run.policy.wall_clock)) }
}

fn usage(usage: &Usage) -> proto::Usage {
    proto::Usage {
        input_tokens: signed(usage.input_tokens),
        output_tokens: signed(usage.output_tokens),
        cache_creation_input_tokens: signed(usage.cache_creation_input_tokens),
        cache_read_input_tokens: signed(usage.cache_read_input_tokens),
        model_calls: signed(usage.model_calls),
    }
}

/// Present as soon as the identity is durable.
fn sandbox(lease: &Lease) -> Option<proto::Sandbox> {
    let identity = lease.identity.as_ref()?;
    Some(proto::Sandbox {
        lease_id: lease.id.to_string(),
        provider: identity.provider.clone(),
        sandbox_id: identity.sandbox_id.clone(),
        sandbox_url: identity.sandbox_url.clone(),
        lease_state: lease.state.as_str().to_owned(),
        workdir: lease.workdir.clone().unwrap_or_default(),
        observed: lease.observed.as_str().to_owned(),
        observed_time: lease.observed_at.map(time_to_proto),
        expire_time: Some(time_to_proto(lease.expires_at)),
    })
}

/// The event lifecycle writes with a change of the run's state.
pub(crate) fn run_state_changed(transition: &Transition, after: &Run) -> proto::RunStateChanged {
    let to = State::parse(&transition.to);
    proto::RunStateChanged {
        from: State::parse(&transition.from).map_or(proto::run::State::Unspecified, state).into(),
        to: to.map_or(proto::run::State::Unspecified, state).into(),
        error: error(after).filter(|_| to == Some(State::Failed)),
    }
}

/// One line of the timeline.
pub(crate) fn transition(stored: &StoredTransition) -> proto::Transition {
    let entity = match stored.entity.as_str() {
        "run" => proto::transition::Entity::Run,
        "lease" => proto::transition::Entity::Lease,
        "session" => proto::transition::Entity::Session,
        _ => proto::transition::Entity::Unspecified,
    };
    proto::Transition {
        sequence: signed(stored.sequence),
        entity: entity.into(),
        entity_id: stored.entity_id.clone(),
        from: stored.from.clone(),
        to: stored.to.clone(),
        cause: stored.cause.clone(),
        actor: stored.actor.clone(),
        time: Some(time_to_proto(stored.at)),
    }
}

/// The proof that a sandbox is absent.
pub(crate) fn receipt(stored: &StoredReceipt) -> proto::Receipt {
    let receipt = &stored.receipt;
    let (kind, how, reason) = match receipt.kind {
        ReceiptKind::NeverCreated => (proto::receipt::Kind::NeverCreated, receipt.how.clone(), String::new()),
        ReceiptKind::ObservedAbsent => (proto::receipt::Kind::ObservedAbsent, receipt.how.clone(), String::new()),
        ReceiptKind::Forgotten => (proto::receipt::Kind::Forgotten, String::new(), receipt.how.clone()),
    };
    proto::Receipt {
        receipt_id: stored.receipt_id.clone(),
        lease_id: stored.lease_id.clone(),
        provider: stored.provider.clone(),
        sandbox_id: stored.sandbox_id.clone(),
        kind: kind.into(),
        how,
        observed_by: receipt.by.clone(),
        account_scope: receipt.account_scope.clone(),
        observe_time: Some(time_to_proto(receipt.at)),
        last_seen: receipt.last_seen.clone().unwrap_or_default(),
        reason,
    }
}

/// A tenant secret: name and hosts, never the value.
pub(crate) fn secret(stored: &StoredSecret) -> proto::Secret {
    proto::Secret {
        tenant: stored.tenant.clone(),
        name: stored.name.clone(),
        hosts: stored.hosts.clone(),
        version: signed(stored.version),
        create_time: Some(time_to_proto(stored.created_at)),
        update_time: Some(time_to_proto(stored.updated_at)),
    }
}

/// A key without its text.
pub(crate) fn key(stored: &Credential) -> proto::Key {
    let (principal, role, service) = match &stored.holder {
        Holder::Caller { principal, role } => (principal.clone(), role.as_str().to_owned(), String::new()),
        Holder::Service(service) => (String::new(), String::new(), service.clone()),
    };
    proto::Key {
        key_id: stored.key_id.clone(),
        tenant: stored.tenant.clone(),
        principal,
        role,
        service,
        create_time: Some(time_to_proto(stored.created_at)),
        revoke_time: stored.revoked_at.map(time_to_proto),
    }
}

/// The claimed action of a lease, for its worker. None when it is not claimed.
pub(crate) fn lease_work(loaded: &Loaded, lease: &Lease, deployment_hash: &str) -> Option<proto::Work> {
    let claim = lease.claim.as_ref()?;
    let spec = &loaded.record.spec;
    let action = match claim.action {
        lease::Action::Allocate => proto::work::Action::Allocate,
        lease::Action::Bootstrap => proto::work::Action::Bootstrap,
        lease::Action::Release => proto::work::Action::Release,
    };
    let detail = proto::LeaseWork {
        provider: lease.provider.clone(),
        key: berth_domain::id::sandbox_key(deployment_hash, &lease.id),
        attempt: signed32(lease.attempt),
        in_doubt: lease.in_doubt,
        identity: lease.identity.as_ref().map(identity),
        image: spec.image.clone(),
        repo_url: spec.repo_url.clone(),
        repo_ref: spec.repo_ref.clone(),
        workdir: spec.workdir.clone(),
        max_lifetime: Some(duration_to_proto(lease.max_lifetime)),
        idle_timeout: Some(duration_to_proto(lease.idle_timeout)),
        hard_deadline: Some(time_to_proto(lease.created_at.plus(lease.max_lifetime))),
    };
    Some(proto::Work {
        row_id: lease.id.to_string(),
        fence: signed(lease.fence),
        action: action.into(),
        detail: Some(proto::work::Detail::Lease(detail)),
        ..work(loaded, claim.deadline)
    })
}

/// The claimed action of the session, for its worker; texts of messages are filled in by the caller. None when it is not
/// claimed.
pub(crate) fn session_work(loaded: &Loaded) -> Option<proto::Work> {
    let session = &loaded.aggregate.session;
    let claim = session.claim.as_ref()?;
    let (spec, record) = (&loaded.record.spec, &loaded.record);
    let action = match claim.action {
        session::Action::Launch => proto::work::Action::Launch,
        session::Action::Drive => proto::work::Action::Drive,
        session::Action::Check => proto::work::Action::Check,
        session::Action::Collect => proto::work::Action::Collect,
        session::Action::Park => proto::work::Action::Park,
    };
    let lease = loaded.aggregate.current();
    let run = &loaded.aggregate.run;
    let detail = proto::SessionWork {
        launch: signed32(session.launch),
        harness: spec.harness.clone(),
        model: spec.model.clone(),
        system_prompt: spec.system_prompt.clone(),
        tools: spec.tools.clone(),
        max_turns: signed32(spec.max_turns),
        budget: Some(budget(spec, run)),
        usage: Some(usage(&record.progress.usage)),
        turns_used: signed32(record.progress.turns),
        wall_clock_deadline: run.wall_clock_deadline.map(time_to_proto),
        messages: open_messages(session),
        workdir: lease.and_then(|lease| lease.workdir.clone()).unwrap_or_default(),
        lease_id: lease.map(|lease| lease.id.to_string()).unwrap_or_default(),
        push_branch: spec.push_branch.clone(),
        repo_url: spec.repo_url.clone(),
        base_commit: record.progress.base_commit.clone(),
        conversation: run.conversation,
        last_sequence: signed(record.last_seq),
    };
    Some(proto::Work {
        row_id: session.id.to_string(),
        fence: signed(session.fence),
        action: action.into(),
        detail: Some(proto::work::Detail::Session(detail)),
        ..work(loaded, claim.deadline)
    })
}

fn work(loaded: &Loaded, deadline: Time) -> proto::Work {
    proto::Work {
        run_id: loaded.run_id().to_string(),
        tenant: loaded.aggregate.run.tenant.to_string(),
        time_left: Some(duration_to_proto(deadline.since(loaded.now))),
        traceparent: loaded.record.traceparent.clone(),
        ..proto::Work::default()
    }
}

/// Messages not yet done, in order, without their texts.
fn open_messages(session: &Session) -> Vec<proto::QueuedMessage> {
    let open = session.messages.iter().filter(|message| message.is_open());
    open.map(|message| proto::QueuedMessage {
        message_id: message.id.to_string(),
        state: message_state(message.state).into(),
        text: String::new(),
    })
    .collect()
}

fn message_state(state: MessageState) -> proto::queued_message::State {
    match state {
        MessageState::Queued => proto::queued_message::State::Queued,
        MessageState::Delivered => proto::queued_message::State::Delivered,
        MessageState::Accepted => proto::queued_message::State::Accepted,
        MessageState::Done => proto::queued_message::State::Done,
        MessageState::Failed(_) => proto::queued_message::State::Failed,
    }
}

/// What is durable about a sandbox.
pub(crate) fn identity(identity: &lease::Identity) -> proto::SandboxIdentity {
    proto::SandboxIdentity {
        sandbox_id: identity.sandbox_id.clone(),
        sandbox_url: identity.sandbox_url.clone(),
        account_scope: identity.scope.clone(),
        provider: identity.provider.clone(),
        provider_deadline: identity.provider_deadline.map(time_to_proto),
    }
}

/// The trace id of a W3C traceparent (`00-<32 hex>-<16 hex>-<2 hex>`); empty without one.
fn trace_id(traceparent: &str) -> String {
    let id = traceparent.split('-').nth(1).unwrap_or_default();
    let valid = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if valid { id.to_owned() } else { String::new() }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn signed32(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
