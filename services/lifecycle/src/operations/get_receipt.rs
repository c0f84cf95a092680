//! GetReceipt: the proofs that a run's sandboxes are absent, readable after deletion.

use berth_rpc::lifecycle as proto;

use crate::{Lifecycle, authenticate::Admitted, error::Error, guard, to_proto};

/// One receipt per lease whose sandbox is proven absent.
///
/// # Errors
/// NOT_FOUND.
pub(crate) async fn get_receipt(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::GetReceiptRequest,
) -> Result<proto::GetReceiptResponse, Error> {
    let run_id = guard::run_id(&request.run_id)?;
    let loaded = app.find(call, &run_id).await?;
    let stored = app.store.receipts(&run_id).await?;
    // Leases are only added; those read before the receipts are the ones they must cover.
    let proven = |lease: &str| stored.iter().any(|receipt| receipt.lease_id == lease);
    let complete = loaded.aggregate.leases.iter().all(|lease| proven(lease.id.as_str()));
    Ok(proto::GetReceiptResponse {
        run_id: run_id.to_string(),
        receipts: stored.iter().map(to_proto::receipt).collect(),
        complete,
    })
}
