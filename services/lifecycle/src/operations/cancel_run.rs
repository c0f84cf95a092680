//! CancelRun: idempotent, and never held up by teardown, which is durable work of its own.

use berth_domain::aggregate::{Entity, Trigger};
use berth_rpc::lifecycle as proto;

use crate::{
    Lifecycle,
    authenticate::Admitted,
    error::Error,
    guard,
    store::{Changes, Decision},
    to_proto,
};

/// Active: CANCELLED at once. Settled or deleting: unchanged.
///
/// # Errors
/// NOT_FOUND for unknown and DELETED runs, denied.
pub(crate) async fn cancel_run(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::CancelRunRequest,
) -> Result<proto::Run, Error> {
    let run_id = guard::run_id(&request.run_id)?;
    let ((), after) = app
        .store
        .transact_run(&run_id, |loaded| {
            app.allow(call, loaded)?;
            guard::not_deleted(loaded)?;
            let reason = guard::reason(&request.reason)?;
            let mut changes = Changes { actor: call.actor(), ..Changes::default() };
            if loaded.apply(&mut changes, &Trigger::Cancel)? && !reason.is_empty() {
                // People read the timeline to learn why.
                for transition in changes.transitions.iter_mut().filter(|line| line.entity == Entity::Run) {
                    transition.cause = format!("{}: {reason}", transition.cause);
                }
            }
            Ok(Decision::changed((), changes))
        })
        .await?;
    Ok(to_proto::run(&after))
}
