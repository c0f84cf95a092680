//! RetryDeletion: a failed teardown is tried again at once instead of at its slow cadence.

use berth_domain::aggregate::Trigger;
use berth_rpc::lifecycle as proto;

use crate::{
    Lifecycle,
    authenticate::Admitted,
    error::Error,
    guard,
    store::{Changes, Decision},
    to_proto,
};

/// DELETING or DELETION_FAILED: tried again.
///
/// # Errors
/// FAILED_PRECONDITION (NOT_DELETING), NOT_FOUND for unknown and DELETED runs, denied.
pub(crate) async fn retry_deletion(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::RetryDeletionRequest,
) -> Result<proto::Run, Error> {
    let run_id = guard::run_id(&request.run_id)?;
    let ((), after) = app
        .store
        .transact_run(&run_id, |loaded| {
            app.allow(call, loaded)?;
            guard::not_deleted(loaded)?;
            let mut changes = Changes { actor: call.actor(), ..Changes::default() };
            loaded.apply(&mut changes, &Trigger::RetryDeletion)?;
            Ok(Decision::changed((), changes))
        })
        .await?;
    Ok(to_proto::run(&after))
}
