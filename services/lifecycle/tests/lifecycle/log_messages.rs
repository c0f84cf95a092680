//! QueueMessage: steers and follow-ups.

use berth_rpc::lifecycle::{self as proto, event::Payload, run::State, work::Action};
use tonic::{Code, Status};

use crate::{
    fixture::{Deployment, assert_refused, on_both_engines, request},
    worker::{Worker, absent, accepted, complete, finished, launch, session_detail, start_driving},
};

on_both_engines!(
    a_message_is_queued_once,
    case_n02_two_quick_steers_arrive_in_order,
    a_follow_up_continues_a_completed_run,
    a_message_to_a_released_sandbox_is_refused,
    a_message_to_an_ended_run_is_refused,
    a_conversation_waits_between_turns,
    a_message_has_form_and_number,
    a_known_message_id_is_not_used_for_another_text,
    what_waits_is_bounded_and_an_answer_carries_what_fits,
);

async fn send(
    d: &Deployment,
    run_id: &str,
    text: &str,
    message_id: &str,
) -> Result<proto::QueueMessageResponse, Status> {
    let request = proto::QueueMessageRequest {
        run_id: run_id.to_owned(),
        message_id: message_id.to_owned(),
        text: text.to_owned(),
    };
    d.log().queue_message(request).await.map(tonic::Response::into_inner)
}

fn user_texts(events: &[proto::Event]) -> Vec<&str> {
    events
        .iter()
        .filter_map(|event| match &event.payload {
            Some(Payload::UserMessage(message)) => Some(message.text.as_str()),
            _ => None,
        })
        .collect()
}

async fn a_message_is_queued_once(d: &Deployment) {
    let run = d.create().await;
    let id = uuid::Uuid::now_v7().to_string();
    let first = send(d, &run.run_id, "steer", &id).await.unwrap();
    let again = send(d, &run.run_id, "steer", &first.message_id).await.unwrap();
    assert_eq!(first.message_id, again.message_id);
    let other = send(d, &run.run_id, "another", "").await.unwrap();
    assert_ne!(other.message_id, first.message_id);
    assert_eq!(user_texts(&d.events(&run.run_id).await), ["fix the failing test", "steer", "another"]);
}

async fn case_n02_two_quick_steers_arrive_in_order(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    let first = send(d, &run.run_id, "one", "").await.unwrap().message_id;
    let second = send(d, &run.run_id, "two", "").await.unwrap().message_id;
    let appended = sessions.append(&drive, 1, vec![crate::worker::notice("between tool calls")]).await.unwrap();
    assert!(appended.queued_messages >= 2, "the driver hears of them");
    let waiting = sessions.extend(&[&drive]).await.remove(0).messages;
    let ids: Vec<&str> = waiting.iter().map(|message| message.message_id.as_str()).collect();
    let place = |id: &str| ids.iter().position(|have| *have == id).expect("waiting");
    assert!(place(&first) < place(&second), "{ids:?}");
    let prompt = session_detail(&drive).messages[0].message_id.clone();
    let taken = vec![accepted(&prompt), accepted(&first), accepted(&second)];
    let appended = sessions.append(&drive, 2, taken).await.unwrap();
    assert_eq!(appended.queued_messages, 0);
    assert_eq!(d.get(&run.run_id).await.unwrap().activity(), proto::run::Activity::Steering);
}

async fn a_follow_up_continues_a_completed_run(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    complete(&sessions, &drive).await;
    d.until_state(&run.run_id, State::Completed).await;
    let sent = send(d, &run.run_id, "and the docs", "").await.unwrap();
    assert_eq!(sent.run.unwrap().state(), State::Running);
    let drive = launch(&sessions).await;
    let detail = session_detail(&drive);
    assert_eq!((detail.launch, detail.messages.len()), (2, 1));
    assert_eq!(detail.messages[0].text, "and the docs");
    complete(&sessions, &drive).await;
    d.until_state(&run.run_id, State::Completed).await;
}

async fn a_message_to_a_released_sandbox_is_refused(d: &Deployment) {
    let run = d.create().await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    complete(&sessions, &drive).await;
    d.until_state(&run.run_id, State::Completed).await;
    d.clock.advance(std::time::Duration::from_secs(901));
    let release = broker.claim().await;
    assert_eq!(release.action(), Action::Release);
    broker.report(&release, absent()).await.unwrap();
    let before = d.events(&run.run_id).await.len();
    let refused = send(d, &run.run_id, "too late", "").await;
    assert_refused(refused, Code::FailedPrecondition, "SANDBOX_RELEASED");
    assert_eq!(d.get(&run.run_id).await.unwrap().state(), State::Completed, "a late message changes nothing");
    assert_eq!(d.events(&run.run_id).await.len(), before);
}

async fn a_message_to_an_ended_run_is_refused(d: &Deployment) {
    let run = d.create().await;
    d.cancel(&run.run_id).await.unwrap();
    assert_refused(send(d, &run.run_id, "hello", "").await, Code::FailedPrecondition, "RUN_SETTLED");
    d.delete(&run.run_id).await.unwrap();
    assert_refused(send(d, &run.run_id, "hello", "").await, Code::NotFound, "RUN_NOT_FOUND");
    let unknown = "run-01900000000070008000000000000000";
    assert_refused(send(d, unknown, "hello", "").await, Code::NotFound, "RUN_NOT_FOUND");
}

async fn a_conversation_waits_between_turns(d: &Deployment) {
    let run = d.create_from(proto::CreateRunRequest { conversation: true, ..request() }).await;
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    let prompt = session_detail(&drive).messages[0].message_id.clone();
    sessions.append(&drive, 1, vec![accepted(&prompt), finished("hello", &[&prompt])]).await.unwrap();
    assert_eq!(d.get(&run.run_id).await.unwrap().state(), State::Waiting);
    let next = send(d, &run.run_id, "go on", "").await.unwrap();
    assert_eq!(next.run.unwrap().state(), State::Running);
    let waiting = sessions.extend(&[&drive]).await.remove(0).messages;
    assert_eq!(waiting.len(), 1, "the driver that stayed takes it");
    let id = waiting[0].message_id.clone();
    sessions.append(&drive, 3, vec![accepted(&id), finished("bye", &[&id])]).await.unwrap();
    assert_eq!(d.get(&run.run_id).await.unwrap().state(), State::Waiting);
}

async fn a_message_has_form_and_number(d: &Deployment) {
    let run = d.create().await;
    for text in ["", "  \n", "nul\0", &"x".repeat((1 << 20) + 1)] {
        assert_refused(send(d, &run.run_id, text, "").await, Code::InvalidArgument, "MESSAGE_TEXT_INVALID");
    }
    assert_refused(send(d, &run.run_id, "text", "../1").await, Code::InvalidArgument, "MESSAGE_ID_INVALID");
    for _ in 0..99 {
        send(d, &run.run_id, "more", "").await.unwrap();
    }
    assert_refused(send(d, &run.run_id, "too many", "").await, Code::ResourceExhausted, "QUEUE_FULL");
}

async fn a_known_message_id_is_not_used_for_another_text(d: &Deployment) {
    let run = d.create().await;
    let id = send(d, &run.run_id, "steer", "").await.unwrap().message_id;
    assert_refused(send(d, &run.run_id, "another", &id).await, Code::AlreadyExists, "MESSAGE_ID_REUSED");
    assert_eq!(send(d, &run.run_id, "steer", &id).await.unwrap().message_id, id);
    assert_eq!(user_texts(&d.events(&run.run_id).await), ["fix the failing test", "steer"]);
}

async fn what_waits_is_bounded_and_an_answer_carries_what_fits(d: &Deployment) {
    let run = d.create().await;
    let text = "x".repeat(1 << 20);
    for _ in 0..7 {
        send(d, &run.run_id, &text, "").await.unwrap();
    }
    assert_refused(send(d, &run.run_id, &text, "").await, Code::ResourceExhausted, "QUEUE_FULL");
    let (broker, sessions) = (Worker::broker(d, "broker-1"), Worker::sessions(d, "sessions-1"));
    let drive = start_driving(&broker, &sessions).await;
    let sizes: Vec<usize> = session_detail(&drive).messages.iter().map(|message| message.text.len()).collect();
    assert_eq!(sizes, [20, 1 << 20, 1 << 20, 0, 0, 0, 0, 0], "the others are read from the log");
    let prompt = session_detail(&drive).messages[0].message_id.clone();
    sessions.append(&drive, 1, vec![accepted(&prompt), finished("done", &[&prompt])]).await.unwrap();
    send(d, &run.run_id, "there is room for a little", "").await.unwrap();
}
