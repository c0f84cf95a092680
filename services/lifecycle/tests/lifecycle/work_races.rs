//! Many at once: one truth, one teardown.

use std::time::Duration;

use berth_rpc::lifecycle::{self as proto, receipt, run::State, work::Action};
use futures::future::join_all;
use tonic::Code;

use crate::{
    fixture::{Deployment, eventually, on_both_engines, reason},
    worker::{Worker, absent, complete, created, start_driving},
};

on_both_engines!(
    case_d03_fifty_deletes_one_teardown,
    fifty_cancels_race_the_report_of_the_create,
    many_runs_pass_through_many_workers,
);

async fn case_d03_fifty_deletes_one_teardown(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    complete(&sessions, &drive).await;
    d.until_state(&run.run_id, State::Completed).await;
    let deletes = join_all((0..50).map(|_| d.delete(&run.run_id))).await;
    for deleted in deletes {
        assert!(matches!(deleted.unwrap().state(), State::Deleting), "the same truth for all");
    }
    let release = broker.claim().await;
    assert!(broker.look(4).await.is_empty(), "one teardown");
    let (reported, deletes) =
        tokio::join!(broker.report(&release, absent()), join_all((0..50).map(|_| d.delete(&run.run_id))));
    reported.unwrap();
    for deleted in deletes {
        assert!(matches!(deleted.unwrap().state(), State::Deleting | State::Deleted));
    }
    d.until_deleted(&run.run_id).await;
    let receipts = d.receipts(&run.run_id).await.receipts;
    assert_eq!(receipts.len(), 1);
    assert_eq!(receipts[0].kind(), receipt::Kind::ObservedAbsent);
    let timeline = d.timeline(&run.run_id).await;
    let count = |line: &str| timeline.iter().filter(|have| *have == line).count();
    assert_eq!((count("run COMPLETED>DELETING"), count("run DELETING>DELETED")), (1, 1), "{timeline:#?}");
}

async fn fifty_cancels_race_the_report_of_the_create(d: &Deployment) {
    let run = d.create().await;
    let broker = Worker::broker(d, "broker-1");
    let allocate = broker.claim().await;
    let cancels = join_all((0..50).map(|_| d.cancel(&run.run_id)));
    let deletes = join_all((0..10).map(|_| d.delete(&run.run_id)));
    let (reported, cancels, deletes) = tokio::join!(broker.report(&allocate, created(&allocate)), cancels, deletes);
    for cancelled in cancels {
        assert!(matches!(cancelled.unwrap().state(), State::Cancelled | State::Deleting), "cancel never fails");
    }
    for deleted in deletes.into_iter().filter_map(Result::err) {
        assert_eq!((deleted.code(), reason(&deleted).as_str()), (Code::FailedPrecondition, "RUN_ACTIVE"));
    }
    // Whichever came first: the sandbox is known and goes.
    let mut next = reported.unwrap();
    loop {
        let work = match next {
            Some(work) => work,
            None => broker.claim().await,
        };
        next = match work.action() {
            Action::Release => break broker.report(&work, absent()).await.map(|_| ()).unwrap(),
            Action::Bootstrap => broker.report(&work, crate::worker::bootstrapped()).await.unwrap(),
            other => panic!("unexpected {other:?}"),
        };
    }
    d.delete(&run.run_id).await.unwrap();
    d.until_deleted(&run.run_id).await;
    assert_eq!(d.receipts(&run.run_id).await.receipts.len(), 1);
}

/// Twelve runs, three brokers, three drivers, some cancelled on the way: every one ends, every sandbox has its receipt.
async fn many_runs_pass_through_many_workers(d: &Deployment) {
    let mut runs = Vec::new();
    for _ in 0..12 {
        runs.push(d.create().await.run_id);
    }
    let stop = tokio_util::sync::CancellationToken::new();
    let brokers = join_all((0..3).map(|n| broker_loop(d, n, &stop)));
    let drivers = join_all((0..3).map(|n| driver_loop(d, n, &stop)));
    let clients = async {
        let cancelled = runs.iter().step_by(4).map(|run_id| d.cancel(run_id));
        for outcome in join_all(cancelled).await {
            outcome.unwrap();
        }
        let settled = runs.iter().map(|run_id| async move {
            eventually(|| async {
                let state = d.get(run_id).await.unwrap().state();
                if matches!(state, State::Completed | State::Cancelled) { Ok(()) } else { Err(state) }
            })
            .await;
            d.delete(run_id).await.unwrap();
            d.until_deleted(run_id).await;
        });
        join_all(settled).await;
        stop.cancel();
    };
    tokio::join!(brokers, drivers, clients);
    for run_id in &runs {
        let receipts = d.receipts(run_id).await;
        assert!(receipts.complete && receipts.receipts.len() == 1, "{receipts:?}");
    }
}

async fn broker_loop(d: &Deployment, n: usize, stop: &tokio_util::sync::CancellationToken) {
    let broker = Worker::broker(d, &format!("broker-{n}"));
    while !stop.is_cancelled() {
        let request = broker.request(2, Duration::from_millis(100));
        for work in d.work("sandbox-broker").claim(request).await.unwrap().into_inner().works {
            let mut next = Some(work);
            while let Some(work) = next.take() {
                let outcome = match work.action() {
                    Action::Allocate => created(&work),
                    Action::Bootstrap => crate::worker::bootstrapped(),
                    Action::Release => absent(),
                    other => panic!("unexpected {other:?}"),
                };
                next = broker.report(&work, outcome).await.unwrap();
            }
        }
    }
}

async fn driver_loop(d: &Deployment, n: usize, stop: &tokio_util::sync::CancellationToken) {
    let sessions = Worker::sessions(d, &format!("sessions-{n}"));
    while !stop.is_cancelled() {
        let request = sessions.request(2, Duration::from_millis(100));
        for work in d.work("sessions").claim(request).await.unwrap().into_inner().works {
            let mut next = Some(work);
            while let Some(work) = next.take() {
                next = act(&sessions, &work).await;
            }
        }
    }
}

/// A cancel may end any of it: ABORTED then, and nothing more is done.
async fn act(sessions: &Worker<'_>, work: &proto::Work) -> Option<proto::Work> {
    use berth_rpc::lifecycle::report_request::Outcome;
    let outcome = match work.action() {
        Action::Launch => Outcome::Launched(proto::Launched {}),
        Action::Drive => {
            let prompt = crate::worker::session_detail(work).messages[0].message_id.clone();
            let turn = vec![crate::worker::accepted(&prompt), crate::worker::finished("done", &[&prompt])];
            let appended = sessions.append(work, 1, turn).await;
            assert!(ok_or_aborted(&appended), "{appended:?}");
            return None;
        }
        Action::Collect => Outcome::Collected(proto::Result::default()),
        Action::Park => Outcome::Parked(proto::Parked {}),
        other => panic!("unexpected {other:?}"),
    };
    let reported = sessions.report(work, outcome).await;
    assert!(ok_or_aborted(&reported), "{reported:?}");
    reported.ok().flatten()
}

fn ok_or_aborted<T>(outcome: &Result<T, tonic::Status>) -> bool {
    outcome.as_ref().err().is_none_or(|status| status.code() == Code::Aborted)
}
