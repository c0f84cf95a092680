//! Handing a row to a worker: the Claim trigger of the machines, and the work as the worker gets it. Used by Claim and by
//! Report, which may hand over the row's next action.

use berth_domain::{
    aggregate::Trigger,
    id::{LeaseId, WorkerId},
    lease,
    session::{self, LaunchPlan},
};
use berth_rpc::lifecycle as proto;

use crate::{
    Lifecycle,
    error::Error,
    store::{Changes, Loaded},
    to_proto,
};

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
    /// Fills the texts of the messages into a session's work. Texts never change, so that they may be read after the commit.
    pub(crate) async fn fill_texts(&self, work: &mut proto::Work) -> Result<(), Error> {
        let Some(proto::work::Detail::Session(detail)) = &mut work.detail else { return Ok(()) };
        if detail.messages.is_empty() {
            return Ok(());
        }
        let mut texts = self.store.open_texts(&crate::guard::run_id(&work.run_id)?).await?;
        for message in &mut detail.messages {
            message.text = texts.remove(&message.message_id).unwrap_or_default();
        }
        Ok(())
    }
}
