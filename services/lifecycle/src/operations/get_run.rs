//! GetRun.

use berth_rpc::lifecycle as proto;

use crate::{Lifecycle, authenticate::Admitted, error::Error, guard, to_proto};

/// The run now.
///
/// # Errors
/// NOT_FOUND for unknown, foreign and DELETED runs.
pub(crate) async fn get_run(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::GetRunRequest,
) -> Result<proto::Run, Error> {
    let run_id = guard::run_id(&request.run_id)?;
    let loaded = app.find(call, &run_id).await?;
    guard::not_deleted(&loaded)?;
    Ok(to_proto::run(&loaded))
}
