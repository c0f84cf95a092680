//! WatchRun: the run now and after every change. Hints say when to look; the database says what is.

use std::pin::Pin;

use berth_domain::{failure::Kind, id::RunId, run::State};
use berth_events::{Hint, Subscription};
use berth_rpc::{lifecycle as proto, status::Failure};
use futures::Stream;
use tonic::Status;

use crate::{Lifecycle, authenticate::Admitted, error::Error, guard, store::Loaded, to_proto};

/// The answer of WatchRun.
pub(crate) type RunStream = Pin<Box<dyn Stream<Item = Result<proto::Run, Status>> + Send>>;

/// Snapshots newer than the cursor, each newer than the one before; changes in quick succession may share one. Ends after a
/// settled or DELETED state was sent, or was known to the client already.
///
/// # Errors
/// NOT_FOUND for unknown, foreign and DELETED runs; INVALID_ARGUMENT (CURSOR_INVALID).
pub(crate) async fn watch_run(
    app: &Lifecycle,
    call: &Admitted,
    request: proto::WatchRunRequest,
) -> Result<RunStream, Error> {
    let run_id = guard::run_id(&request.run_id)?;
    let cursor = u64::try_from(request.after_change_seq)
        .map_err(|_| Error::invalid("after_change_seq", "CURSOR_INVALID", "a cursor is 0 or a run's change_seq"))?;
    // Before the first read, so that no change falls in between.
    let hints = app.store.bus().subscribe();
    let first = app.find(call, &run_id).await?;
    guard::not_deleted(&first)?;
    Ok(Box::pin(follow(app.clone(), run_id, first, cursor, hints)))
}

fn follow(
    app: Lifecycle,
    run_id: RunId,
    first: Loaded,
    mut cursor: u64,
    mut hints: Subscription,
) -> impl Stream<Item = Result<proto::Run, Status>> + Send {
    async_stream::stream! {
        let mut loaded = first;
        loop {
            if loaded.record.change_seq > cursor {
                cursor = loaded.record.change_seq;
                yield Ok(to_proto::run(&loaded));
            }
            let state = loaded.aggregate.run.state;
            if state.is_settled() || state == State::Deleted {
                return;
            }
            tokio::select! {
                () = hints.wait_for(|hint| matches!(hint, Hint::Run { run_id: changed, .. } if changed == run_id.as_str())) => {}
                () = tokio::time::sleep(app.config.poll_every) => {}
                () = app.shutdown.cancelled() => {
                    yield Err(Failure::new(Kind::Unavailable, "SHUTTING_DOWN", "watch again with the last cursor").into());
                    return;
                }
            }
            loaded = match app.store.read(&run_id).await {
                Ok(Some(loaded)) => loaded,
                Ok(None) => return,
                Err(error) => {
                    yield Err(Error::from(error).into());
                    return;
                }
            };
        }
    }
}
