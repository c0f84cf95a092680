//! A new run: run, first lease (REQUESTED) and session (PENDING, first prompt queued), in one go.

use super::{Aggregate, Entity, Note, Transition};
use crate::id::{LeaseId, MessageId, RunId, SessionId, TenantId};
use crate::lease::{Lease, ProviderTraits};
use crate::policy::Policy;
use crate::run::{self, OnSandboxLoss, Run};
use crate::session::{Harness, MessageKind, NewMessage, Session};
use crate::time::Time;
use uuid::Uuid;

/// What CreateRun decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateSpec {
    /// Whose run it is.
    pub tenant: TenantId,
    /// Where its sandbox comes from.
    pub provider: ProviderTraits,
    /// What does the thinking.
    pub harness: Harness,
    /// Conversation, or one-shot.
    pub conversation: bool,
    /// What a lost sandbox means.
    pub on_sandbox_loss: OnSandboxLoss,
    /// The first message.
    pub prompt: String,
    /// The settings it is judged by from now on.
    pub policy: Policy,
}

/// Makes the rows of a new run. `ids` is asked four times: run, lease, session, message.
pub fn create(spec: CreateSpec, now: Time, ids: &mut dyn FnMut() -> Uuid) -> (Aggregate, Vec<Transition>, Vec<Note>) {
    let run_id = RunId::new(ids());
    let lease = Lease::acquire(LeaseId::new(ids()), run_id.clone(), &spec.provider, &spec.policy, now);
    let session_id = SessionId::new(ids());
    let uuid = ids();
    let prompt = NewMessage { id: MessageId::new(uuid), kind: MessageKind::Prompt, text: spec.prompt, uuid };
    let session = Session::open(session_id, run_id.clone(), spec.harness, prompt, &spec.policy, now);
    let mut run = Run {
        id: run_id,
        tenant: spec.tenant,
        state: run::State::Provisioning,
        activity: None,
        conversation: spec.conversation,
        on_sandbox_loss: spec.on_sandbox_loss,
        cancel_asked: false,
        deletion_asked: false,
        outcome: None,
        created_at: now,
        state_since: now,
        deadline: None,
        wall_clock_deadline: None,
        linger: spec.policy.linger,
        settled_at: None,
        policy: spec.policy,
    };
    run::enter(&mut run, run::State::Provisioning, now);
    let born = |entity, id: &str, to: &str| Transition {
        entity,
        id: id.to_owned(),
        from: String::new(),
        to: to.to_owned(),
        cause: "CreateRun".to_owned(),
        at: now,
    };
    let transitions = vec![
        born(Entity::Run, run.id.as_str(), run.state.as_str()),
        born(Entity::Lease, lease.id.as_str(), lease.state.as_str()),
        born(Entity::Session, session.id.as_str(), session.state.as_str()),
    ];
    let notes = vec![Note::QuotaReserved(lease.id.clone())];
    (Aggregate { run, leases: vec![lease], session }, transitions, notes)
}
