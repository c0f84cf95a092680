//! WatchRun: the run now and after every change.

use berth_rpc::lifecycle::{self as proto, run::State};
use tokio_stream::StreamExt as _;
use tonic::{Code, Streaming};

use crate::{
    fixture::{Deployment, EVENTUALLY, assert_refused, on_both_engines},
    worker::{Worker, absent, complete, created, start_driving},
};

on_both_engines!(
    a_watch_follows_a_run_to_its_end,
    a_watch_resumes_after_its_cursor,
    a_watch_sees_the_deletion,
    what_cannot_be_read_cannot_be_watched,
);

async fn watch(d: &Deployment, run_id: &str, after_change_seq: i64) -> Streaming<proto::Run> {
    let request = proto::WatchRunRequest { run_id: run_id.to_owned(), after_change_seq };
    d.runs().watch_run(request).await.expect("a watch").into_inner()
}

async fn next(stream: &mut Streaming<proto::Run>) -> Option<proto::Run> {
    let item = tokio::time::timeout(EVENTUALLY, stream.next()).await.expect("in time");
    item.map(|run| run.expect("no error"))
}

async fn until(stream: &mut Streaming<proto::Run>, state: State) -> proto::Run {
    let mut seen = 0;
    loop {
        let run = next(stream).await.expect("the stream goes on until then");
        assert!(run.change_seq > seen, "each newer than the one before");
        seen = run.change_seq;
        if run.state() == state {
            return run;
        }
    }
}

async fn a_watch_follows_a_run_to_its_end(d: &Deployment) {
    let run = d.create().await;
    let mut stream = watch(d, &run.run_id, 0).await;
    assert_eq!(next(&mut stream).await.unwrap().state(), State::Provisioning);
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    until(&mut stream, State::Running).await;
    complete(&sessions, &drive).await;
    let done = until(&mut stream, State::Completed).await;
    assert_eq!(done.result.unwrap().text, "done");
    assert!(next(&mut stream).await.is_none(), "a settled state ends it");
}

async fn a_watch_resumes_after_its_cursor(d: &Deployment) {
    let run = d.create().await;
    let cursor = d.get(&run.run_id).await.unwrap().change_seq;
    assert!(cursor > 0);
    let mut stream = watch(d, &run.run_id, cursor).await;
    d.cancel(&run.run_id).await.unwrap();
    let cancelled = next(&mut stream).await.unwrap();
    assert_eq!(cancelled.state(), State::Cancelled);
    assert!(cancelled.change_seq > cursor);
    assert!(next(&mut stream).await.is_none());
    let mut known = watch(d, &run.run_id, cancelled.change_seq).await;
    assert!(next(&mut known).await.is_none(), "nothing newer, and settled");
}

async fn a_watch_sees_the_deletion(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let allocate = broker.claim().await;
    d.cancel(&run.run_id).await.unwrap();
    d.delete(&run.run_id).await.unwrap();
    let mut stream = watch(d, &run.run_id, 0).await;
    assert_eq!(next(&mut stream).await.unwrap().state(), State::Deleting);
    let release = broker.report(&allocate, created(&allocate)).await.unwrap().unwrap();
    broker.report(&release, absent()).await.unwrap();
    let gone = until(&mut stream, State::Deleted).await;
    assert!(gone.prompt.is_empty());
    assert!(next(&mut stream).await.is_none());
}

async fn what_cannot_be_read_cannot_be_watched(d: &Deployment) {
    let request =
        |run_id: &str, after_change_seq| proto::WatchRunRequest { run_id: run_id.to_owned(), after_change_seq };
    let unknown = d.runs().watch_run(request("run-01900000000070008000000000000000", 0)).await;
    assert_refused(unknown.map(|_| ()), Code::NotFound, "RUN_NOT_FOUND");
    let run = d.create().await;
    let negative = d.runs().watch_run(request(&run.run_id, -1)).await;
    assert_refused(negative.map(|_| ()), Code::InvalidArgument, "CURSOR_INVALID");
    d.cancel(&run.run_id).await.unwrap();
    d.delete(&run.run_id).await.unwrap();
    let deleted = d.runs().watch_run(request(&run.run_id, 0)).await;
    assert_refused(deleted.map(|_| ()), Code::NotFound, "RUN_NOT_FOUND");
}
