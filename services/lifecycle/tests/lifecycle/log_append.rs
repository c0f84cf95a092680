//! Append: the launch's numbers, the log's numbers, and who may write.

use berth_rpc::lifecycle::{self as proto, event::Payload, report_request::Outcome, run::State};
use futures::future::join_all;
use tonic::Code;

use crate::{
    fixture::{Deployment, assert_refused, on_both_engines},
    worker::{
        Worker, accepted, append_request, assistant, finished, notice, provision, relaunch, session_detail,
        start_driving,
    },
};

on_both_engines!(
    a_batch_sent_twice_is_logged_once,
    a_gap_is_refused_with_the_number_expected,
    only_the_live_launch_may_append,
    an_append_after_the_end_is_refused,
    a_batch_has_limits_and_form,
    many_logs_grow_at_once_without_gap,
    one_bad_append_does_not_harm_the_others,
    case_e04_a_replay_is_head_minus_cursor,
    a_page_is_bounded_by_size,
    case_n05_usage_and_turns_are_summed,
    case_s11_a_failed_turn_fails_the_run_with_its_reason,
);

async fn a_batch_sent_twice_is_logged_once(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    let batch = || vec![notice("1"), notice("2"), notice("3")];
    let first = sessions.append(&drive, 1, batch()).await.unwrap();
    let again = sessions.append(&drive, 1, batch()).await.unwrap();
    assert_eq!(first.last_sequence, again.last_sequence);
    // An overlap adds only what is new; an old part names its old place.
    let more = sessions.append(&drive, 2, vec![notice("2"), notice("3"), notice("4")]).await.unwrap();
    assert_eq!(more.last_sequence, first.last_sequence + 1);
    assert_eq!(sessions.append(&drive, 1, vec![notice("1")]).await.unwrap().last_sequence, first.last_sequence - 2);
    let mine: Vec<i64> =
        d.events(&run.run_id).await.iter().filter(|e| e.launch == 1).map(|e| e.launch_sequence).collect();
    assert_eq!(mine, [1, 2, 3, 4]);
}

async fn a_gap_is_refused_with_the_number_expected(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    sessions.append(&drive, 1, vec![notice("1")]).await.unwrap();
    let refused = sessions.append(&drive, 3, vec![notice("3")]).await;
    let status = assert_refused(refused, Code::FailedPrecondition, "SEQUENCE_GAP");
    let failure = berth_rpc::status::Failure::from_status(&status);
    assert_eq!(failure.metadata["expected"], "2");
    assert_eq!(d.events(&run.run_id).await.iter().filter(|event| event.launch == 1).count(), 1);
}

async fn only_the_live_launch_may_append(d: &Deployment) {
    d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    provision(&broker).await;
    let starting = sessions.claim().await;
    assert_refused(sessions.append(&starting, 1, vec![notice("early")]).await, Code::Aborted, "STALE_LAUNCH");
    let drive = sessions.report(&starting, Outcome::Launched(proto::Launched {})).await.unwrap().unwrap();
    assert_refused(sessions.append(&starting, 1, vec![notice("old fence")]).await, Code::Aborted, "STALE_FENCE");
    let mut other = append_request(&drive, 1, vec![notice("other launch")]);
    other.launch = 2;
    assert_refused(d.session_log().append(other).await, Code::Aborted, "STALE_LAUNCH");
    sessions.append(&drive, 1, vec![notice("mine")]).await.unwrap();
    // The next launch numbers from 1 again and is not taken for a duplicate.
    let next = relaunch(&sessions, &drive).await;
    assert_eq!(session_detail(&next).launch, 2);
    assert_refused(sessions.append(&drive, 2, vec![notice("late")]).await, Code::Aborted, "STALE_LAUNCH");
    sessions.append(&next, 1, vec![notice("mine too")]).await.unwrap();
}

async fn an_append_after_the_end_is_refused(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    d.cancel(&run.run_id).await.unwrap();
    let call = Payload::ToolCall(proto::ToolCall { call_id: "t1".to_owned(), ..Default::default() });
    assert_refused(sessions.append(&drive, 1, vec![call]).await, Code::Aborted, "STALE_FENCE");
    let events = d.events(&run.run_id).await;
    let last = events.last().unwrap();
    assert!(matches!(&last.payload, Some(Payload::RunStateChanged(change)) if change.to() == State::Cancelled));
}

async fn a_batch_has_limits_and_form(d: &Deployment) {
    d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    let many = (0..257).map(|_| notice("")).collect();
    assert_refused(sessions.append(&drive, 1, many).await, Code::InvalidArgument, "BATCH_TOO_LARGE");
    let large = vec![notice(&"x".repeat(3 << 20)), notice(&"x".repeat(2 << 20))];
    assert_refused(sessions.append(&drive, 1, large).await, Code::InvalidArgument, "BATCH_TOO_LARGE");
    let foreign = vec![Payload::UserMessage(proto::UserMessage::default())];
    assert_refused(sessions.append(&drive, 1, foreign).await, Code::InvalidArgument, "EVENT_PAYLOAD_INVALID");
    assert_refused(sessions.append(&drive, 0, vec![notice("")]).await, Code::InvalidArgument, "EVENT_NUMBER_INVALID");
    let unknown = vec![accepted("msg-01900000000070008000000000000000")];
    assert_refused(sessions.append(&drive, 1, unknown).await, Code::InvalidArgument, "MESSAGE_UNKNOWN");
    let mut uneven = append_request(&drive, 1, vec![notice("1"), notice("2")]);
    uneven.events[1].launch_sequence = 3;
    assert_refused(d.session_log().append(uneven).await, Code::InvalidArgument, "BATCH_NOT_CONSECUTIVE");
    let full: Vec<Payload> = (0..256).map(|n| notice(&n.to_string())).collect();
    sessions.append(&drive, 1, full).await.unwrap();
}

/// Twelve launches write at once while messages come in: every log is 1..N.
async fn many_logs_grow_at_once_without_gap(d: &Deployment) {
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let mut drives = Vec::new();
    for _ in 0..12 {
        d.create().await;
        drives.push(start_driving(&broker, &sessions).await);
    }
    let writers = join_all(drives.iter().map(|drive| {
        let sessions = &sessions;
        async move {
            for batch in 0..20 {
                let payloads = (0..3).map(|n| notice(&format!("{batch}.{n}"))).collect();
                sessions.append(drive, batch * 3 + 1, payloads).await.unwrap();
            }
        }
    }));
    let senders = join_all(drives.iter().map(|drive| async move {
        for n in 0..5 {
            let request = proto::QueueMessageRequest {
                run_id: drive.run_id.clone(),
                text: format!("steer {n}"),
                ..Default::default()
            };
            d.log().queue_message(request).await.unwrap();
        }
    }));
    tokio::join!(writers, senders);
    for drive in &drives {
        let events = d.events(&drive.run_id).await;
        let mine: Vec<i64> =
            events.iter().filter(|event| event.launch == 1).map(|event| event.launch_sequence).collect();
        assert_eq!(mine, (1..=60).collect::<Vec<i64>>());
        let messages = events.iter().filter(|e| matches!(e.payload, Some(Payload::UserMessage(_)))).count();
        assert_eq!(messages, 6);
    }
}

async fn one_bad_append_does_not_harm_the_others(d: &Deployment) {
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let mut drives = Vec::new();
    for _ in 0..6 {
        d.create().await;
        drives.push(start_driving(&broker, &sessions).await);
    }
    let outcomes = join_all(drives.iter().enumerate().map(|(n, drive)| {
        let first = if n % 2 == 0 { 1 } else { 5 };
        sessions.append(drive, first, vec![notice("x")])
    }))
    .await;
    for (n, (outcome, drive)) in outcomes.into_iter().zip(&drives).enumerate() {
        let logged = d.events(&drive.run_id).await.iter().filter(|event| event.launch == 1).count();
        if n % 2 == 0 {
            assert_eq!((outcome.is_ok(), logged), (true, 1));
        } else {
            assert_refused(outcome, Code::FailedPrecondition, "SEQUENCE_GAP");
            assert_eq!(logged, 0);
        }
    }
}

async fn case_e04_a_replay_is_head_minus_cursor(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    sessions.append(&drive, 1, (0..50).map(|n| notice(&n.to_string())).collect()).await.unwrap();
    let head = d.get(&run.run_id).await.unwrap().last_sequence;
    for cursor in [0, 1, head / 2, head - 1, head, head + 7] {
        let request = proto::ReplayRequest {
            run_id: run.run_id.clone(),
            session_id: drive.row_id.clone(),
            fence: drive.fence,
            after_sequence: cursor,
            limit: 1000,
        };
        let page = d.session_log().replay(request).await.unwrap().into_inner();
        assert_eq!(page.events.len() as i64, (head - cursor).max(0), "after {cursor}");
        assert_eq!((page.last_sequence, page.run_state()), (head, State::Running));
    }
    let stale = proto::ReplayRequest {
        run_id: run.run_id.clone(),
        session_id: drive.row_id.clone(),
        fence: drive.fence - 1,
        ..Default::default()
    };
    assert_refused(d.session_log().replay(stale).await, Code::Aborted, "STALE_FENCE");
    let read = |after_sequence, limit| proto::ReadRequest { run_id: run.run_id.clone(), after_sequence, limit };
    assert_refused(d.log().read(read(-1, 0)).await, Code::InvalidArgument, "CURSOR_INVALID");
    assert_refused(d.log().read(read(0, 1001)).await, Code::InvalidArgument, "LIMIT_INVALID");
    assert_eq!(d.log().read(read(0, 7)).await.unwrap().into_inner().events.len(), 7);
}

async fn a_page_is_bounded_by_size(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    let text = "x".repeat(900 << 10);
    for batch in 0..3 {
        sessions.append(&drive, batch * 3 + 1, vec![notice(&text), notice(&text), notice(&text)]).await.unwrap();
    }
    let request = proto::ReadRequest { run_id: run.run_id.clone(), after_sequence: 0, limit: 1000 };
    let page = d.log().read(request).await.unwrap().into_inner();
    let bytes = prost::Message::encoded_len(&page);
    assert!(bytes <= 4 << 20, "{bytes}");
    assert!(page.events.len() > 3 && (page.events.len() as i64) < page.last_sequence);
    assert!(d.events(&run.run_id).await.len() >= 10);
}

async fn case_n05_usage_and_turns_are_summed(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    let prompt = session_detail(&drive).messages[0].message_id.clone();
    sessions.append(&drive, 1, vec![accepted(&prompt), assistant("a", 100, 7)]).await.unwrap();
    sessions.append(&drive, 1, vec![accepted(&prompt), assistant("a", 100, 7)]).await.unwrap();
    sessions.append(&drive, 3, vec![assistant("b", 250, 3)]).await.unwrap();
    let now = d.get(&run.run_id).await.unwrap();
    let usage = now.usage.unwrap();
    assert_eq!((usage.input_tokens, usage.output_tokens, usage.model_calls, now.turn), (350, 10, 2, 2));
    // Another launch is told what was spent.
    let next = relaunch(&sessions, &drive).await;
    let detail = session_detail(&next);
    assert_eq!((detail.turns_used, detail.usage.unwrap().input_tokens), (2, 350));
}

async fn case_s11_a_failed_turn_fails_the_run_with_its_reason(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    let prompt = session_detail(&drive).messages[0].message_id.clone();
    let Payload::TurnEnded(ended) = finished("", &[&prompt]) else { panic!("a turn") };
    let failed = Payload::TurnEnded(proto::TurnEnded {
        outcome: proto::turn_ended::Outcome::Failed.into(),
        error: Some(proto::Error { reason: "BUDGET_TURNS".to_owned(), message: "50 turns".to_owned() }),
        ..ended
    });
    sessions.append(&drive, 1, vec![accepted(&prompt), failed]).await.unwrap();
    let run = d.get(&run.run_id).await.unwrap();
    assert_eq!((run.state(), run.error.unwrap().reason.as_str()), (State::Failed, "BUDGET_TURNS"));
    let events = d.events(&run.run_id).await;
    let last = events.last().unwrap();
    assert!(matches!(&last.payload, Some(Payload::RunStateChanged(change))
        if change.to() == State::Failed && change.error.as_ref().unwrap().reason == "BUDGET_TURNS"));
}
