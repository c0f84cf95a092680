//! Handing a row to a worker: the Claim trigger of the machines, and the work as the worker gets it. Used by Claim and by
//! Report, which may hand over the row's next action.

use berth_domain::{
    aggregate::Trigger,
    id::{LeaseId, RunId, WorkerId},
    lease::{self, Lease},
    session::{self, LaunchPlan},
};
use berth_rpc::lifecycle as proto;

use crate::{
    Lifecycle,
    error::Error,
    store::{Changes, Loaded},
    to_proto,
};

/// Texts of messages that travel with one piece of work, together.
const MAX_TEXTS_BYTES: usize = 3 << 20;

/// Marks the row for the worker if its next action is due; the work without message texts.
///
/// # Errors
/// A refusal of the machine.
pub(crate) fn assign(
    loaded: &Loaded,
    changes: &mut Changes,
    (row_id, worker): (&str, &WorkerId),
    deployment_hash: &str,
) -> Result<Option<proto::Work>, Error> {
    match LeaseId::parse(row_id) {
        Ok(lease_id) => assign_lease(loaded, changes, (&lease_id, worker), deployment_hash),
        Err(_) => assign_session(loaded, changes, (row_id, worker)),
    }
}

fn assign_lease(
    loaded: &Loaded,
    changes: &mut Changes,
    (lease_id, worker): (&LeaseId, &WorkerId),
    deployment_hash: &str,
) -> Result<Option<proto::Work>, Error> {
    let due = loaded.after(changes).lease(lease_id).and_then(|lease| lease.next_action);
    let Some((action, at)) = due else { return Ok(None) };
    if at > loaded.now {
        return Ok(None);
    }
    let claim = lease::Trigger::Claim { worker: worker.clone(), action };
    if !loaded.apply(changes, &Trigger::Lease(lease_id.clone(), claim))? {
        return Ok(None);
    }
    let after = loaded.with(changes);
    let lease = after.aggregate.lease(lease_id);
    Ok(lease.and_then(|lease| to_proto::lease_work(&after, lease, deployment_hash)))
}

fn assign_session(
    loaded: &Loaded,
    changes: &mut Changes,
    (session_id, worker): (&str, &WorkerId),
) -> Result<Option<proto::Work>, Error> {
    let session = &loaded.after(changes).session;
    let Some((action, at)) = session.next_action else { return Ok(None) };
    if session.id.as_str() != session_id || at > loaded.now {
        return Ok(None);
    }
    let plan = match action {
        // Nothing posts for a native loop, so there is no bearer.
        session::Action::Launch => Some(LaunchPlan { first_seq: loaded.record.last_seq + 1, bearer_sha256: None }),
        session::Action::Drive | session::Action::Check | session::Action::Collect | session::Action::Park => None,
    };
    let claim = session::Trigger::Claim { worker: worker.clone(), action, plan };
    if !loaded.apply(changes, &Trigger::Session(claim))? {
        return Ok(None);
    }
    Ok(to_proto::session_work(&loaded.with(changes)))
}

impl Lifecycle {
    /// Whether a worker that serves `localities` can do what is due for the row. A host-bound sandbox, and one that may
    /// exist, is only seen from the host it was asked for on.
    pub(crate) fn can_reach(&self, loaded: &Loaded, row_id: &str, localities: &[String]) -> bool {
        let lease = loaded.aggregate.leases.iter().find(|lease| lease.id.as_str() == row_id);
        let Some(lease) = lease.filter(|lease| self.is_host_bound(lease)) else { return true };
        lease.bound_to().is_none_or(|scope| localities.is_empty() || localities.iter().any(|served| served == scope))
    }

    /// Writes into the claim of an ALLOCATE where it is tried, in the claim's own transaction: should nothing more be heard
    /// of it, only that host can tell whether a sandbox was made. A worker that serves several hosts does not say which.
    pub(crate) fn remember_scope(&self, changes: &mut Changes, row_id: &str, localities: &[String]) {
        let scope = match localities {
            [scope] => Some(scope.as_str()),
            [] | [_, _, ..] => None,
        };
        let Some(next) = &mut changes.next else { return };
        for lease in next.leases.iter_mut().filter(|lease| lease.id.as_str() == row_id) {
            if self.is_host_bound(lease) {
                lease.asked_in(scope);
            }
        }
    }

    /// Only the broker that made the lease's sandbox can reach it.
    pub(crate) fn is_host_bound(&self, lease: &Lease) -> bool {
        self.config.host_bound_providers.contains(&lease.provider)
    }

    /// Fills the texts of the first messages into a session's work, as many as an answer holds; the worker finds the others
    /// in the log. Texts never change, so that they may be read after the commit. The work is claimed by then and must reach
    /// its worker: what cannot be read is left out.
    pub(crate) async fn fill_texts(&self, work: &mut proto::Work) {
        let Some(proto::work::Detail::Session(detail)) = &mut work.detail else { return };
        if detail.messages.is_empty() {
            return;
        }
        let Ok(run_id) = RunId::parse(&work.run_id) else { return };
        let mut texts = match self.store.open_texts(&run_id, MAX_TEXTS_BYTES).await {
            Ok(texts) => texts,
            Err(error) => {
                tracing::warn!(%run_id, error = &error as &dyn std::error::Error, "texts of messages not read");
                return;
            }
        };
        for message in &mut detail.messages {
            message.text = texts.remove(&message.message_id).unwrap_or_default();
        }
    }
}
