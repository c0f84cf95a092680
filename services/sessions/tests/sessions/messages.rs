//! SendMessage and ListEvents.

use berth_rpc::lifecycle::{Notice, event::Payload, run};
use berth_rpc::sessions::{ListEventsRequest, SendMessageRequest};
use berth_rpc::status::reason;
use tonic::{Code, Request};

use crate::ledger::RUN;
use crate::world::World;

pub(crate) fn as_ada<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", "Bearer ada-key".parse().unwrap());
    request
}

fn send(text: &str, message_id: &str) -> SendMessageRequest {
    SendMessageRequest { run_id: RUN.into(), text: text.into(), message_id: message_id.into() }
}

#[tokio::test]
async fn a_message_is_queued_once_as_the_caller_and_refusals_pass() {
    let world = World::new(r#"{"conversations":[]}"#).await;
    let (mut client, _shutdown) = world.client();
    let id = "0193f2a0-0000-7000-8000-000000000001";
    for _ in 0..2 {
        let sent = client.send_message(as_ada(send("go", id))).await.unwrap().into_inner();
        assert_eq!((sent.message_id.as_str(), sent.run_state()), (id, run::State::Running));
    }
    assert_eq!(world.lifecycle.see(|ledger| ledger.messages.len()), 1);
    assert_eq!(*world.lifecycle.actions.lock().unwrap(), ["SendMessage", "SendMessage"]);

    let status = client.send_message(as_ada(send("", ""))).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_deref()), (Code::InvalidArgument, Some("TEXT_EMPTY")));
    let status = client.send_message(Request::new(send("go", ""))).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_deref()), (Code::Unauthenticated, Some("CREDENTIAL_MISSING")));
    let unknown = SendMessageRequest { run_id: "run-unknown".into(), ..send("go", "") };
    let status = client.send_message(as_ada(unknown)).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_deref()), (Code::NotFound, Some("RUN_NOT_FOUND")));
}

#[tokio::test]
async fn pages_follow_each_other_without_gap() {
    let world = World::new(r#"{"conversations":[]}"#).await;
    world.lifecycle.change(|ledger| {
        (0..25).for_each(|n| ledger.write(Payload::Notice(Notice { code: "N".into(), text: n.to_string() })));
    });
    let (mut client, _shutdown) = world.client();
    let mut request = ListEventsRequest { run_id: RUN.into(), page_size: 10, ..ListEventsRequest::default() };
    let mut seen = Vec::new();
    loop {
        let page = client.list_events(as_ada(request.clone())).await.unwrap().into_inner();
        assert_eq!(page.last_sequence, 25);
        seen.extend(page.events.iter().map(|event| event.sequence));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(seen, (1..=25).collect::<Vec<i64>>());
    request.page_token = "nonsense".into();
    let status = client.list_events(as_ada(request)).await.unwrap_err();
    assert_eq!(reason(&status).as_deref(), Some("PAGE_TOKEN_INVALID"));
}
