//! DeleteRun: asks for teardown and erasure; the run is DELETED when every sandbox of it is proven absent.

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

/// Settled: DELETING. DELETING or DELETION_FAILED: tried again at once. DELETED: authorized, then unchanged.
///
/// # Errors
/// FAILED_PRECONDITION (RUN_ACTIVE), NOT_FOUND, denied. A lost race is run again, with the decision; a denial never is.
pub(crate) async fn delete_run(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::DeleteRunRequest,
) -> Result<proto::Run, Error> {
    let run_id = guard::run_id(&request.run_id)?;
    let ((), after) = app
        .store
        .transact_run(&run_id, |loaded| {
            app.allow(call, loaded)?;
            let mut changes = Changes { actor: call.actor(), ..Changes::default() };
            loaded.apply(&mut changes, &Trigger::Delete)?;
            Ok(Decision::changed((), changes))
        })
        .await?;
    Ok(to_proto::run(&after))
}
