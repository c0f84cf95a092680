//! What SessionService can be asked, one file per RPC: parse, pass the caller on to lifecycle, answer. Lifecycle authorizes.

pub(crate) mod list_events;
pub(crate) mod send_message;
pub(crate) mod stream_events;

use berth_rpc::lifecycle::{ReadRequest, ReadResponse};
use berth_rpc::metadata::ForwardedCaller;
use tonic::Request;
use tonic::metadata::MetadataMap;

use crate::error::Error;
use crate::upstream::{CALL_TIMEOUT, Upstream, within};

/// The caller of an incoming call.
fn caller(metadata: &MetadataMap) -> Result<ForwardedCaller, Error> {
    ForwardedCaller::from_metadata(metadata).ok_or(Error::CredentialMissing)
}

/// A part of a run's log, read as the caller.
async fn read_log(
    upstream: &Upstream,
    caller: &ForwardedCaller,
    action: &'static str,
    read: ReadRequest,
) -> Result<ReadResponse, Error> {
    let mut request = Request::new(read);
    caller.apply(request.metadata_mut(), action);
    within(CALL_TIMEOUT, upstream.log.clone().read(request)).await.map_err(Error::Lifecycle)
}

fn invalid(field: &'static str, reason: &'static str, message: impl Into<String>) -> Error {
    Error::Invalid { field, reason, message: message.into() }
}
