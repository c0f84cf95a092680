//! ListRuns and ListTransitions: pages, filters and tokens.

use berth_rpc::lifecycle as proto;
use tonic::Code;

use crate::{
    callers::{Runs, refusal},
    fixture::{Deployment, on_both_engines, request},
};

fn page(page_size: i32, page_token: &str) -> proto::ListRunsRequest {
    proto::ListRunsRequest { page_size, page_token: page_token.to_owned(), ..Default::default() }
}

async fn list(runs: &mut Runs, request: proto::ListRunsRequest) -> proto::ListRunsResponse {
    runs.list_runs(request).await.expect("a page").into_inner()
}

fn ids(page: &proto::ListRunsResponse) -> Vec<String> {
    page.runs.iter().map(|run| run.run_id.clone()).collect()
}

async fn pages_are_newest_first_and_meet_without_gap_or_overlap(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let mut made = Vec::new();
    for _ in 0..47 {
        made.push(deployment.create().await.run_id);
    }
    made.reverse();
    for size in [1, 7, 20, 46, 47, 200] {
        let mut seen = Vec::new();
        let mut token = String::new();
        loop {
            let answer = list(&mut runs, page(size, &token)).await;
            assert!(answer.runs.len() <= size as usize);
            seen.extend(ids(&answer));
            if answer.next_page_token.is_empty() {
                break;
            }
            assert_eq!(answer.runs.len(), size as usize, "only the last page is short");
            token = answer.next_page_token;
        }
        assert_eq!(seen, made, "page size {size}");
    }
    assert_eq!(list(&mut runs, page(0, "")).await.runs.len(), 47, "50 by default");
}

async fn lists_show_the_tenants_own_by_state_and_nothing_deleted(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let kept = deployment.create().await.run_id;
    let cancelled = deployment.create().await.run_id;
    let deleted = deployment.create().await.run_id;
    deployment.cancel(&cancelled).await.unwrap();
    deployment.cancel(&deleted).await.unwrap();
    deployment.delete(&deleted).await.unwrap();
    let theirs = deployment.key("theirs", "viewer").await;
    assert!(list(&mut deployment.runs_as(&theirs), page(0, "")).await.runs.is_empty());
    assert_eq!(ids(&list(&mut runs, page(0, "")).await), [cancelled.clone(), kept.clone()]);
    for (state, expected) in [
        (proto::run::State::Cancelled, vec![cancelled]),
        (proto::run::State::Provisioning, vec![kept]),
        (proto::run::State::Deleted, vec![]),
    ] {
        let request = proto::ListRunsRequest { state: state.into(), ..page(0, "") };
        assert_eq!(ids(&list(&mut runs, request).await), expected);
    }
}

async fn tokens_are_good_for_their_own_list_only(deployment: &Deployment) {
    let mut runs = deployment.runs();
    for _ in 0..2 {
        deployment.create().await;
    }
    let token = list(&mut runs, page(1, "")).await.next_page_token;
    let invalid = (Code::InvalidArgument, "PAGE_TOKEN_INVALID".to_owned());
    let theirs = deployment.key("theirs", "admin").await;
    assert_eq!(refusal(deployment.runs_as(&theirs).list_runs(page(1, &token)).await), invalid);
    let filtered = proto::ListRunsRequest { state: proto::run::State::Failed.into(), ..page(1, &token) };
    assert_eq!(refusal(runs.list_runs(filtered).await), invalid);
    for token in ["x", "AAAAAAAA", "%%%", &token[1..], &"A".repeat(10_000)] {
        assert_eq!(refusal(runs.list_runs(page(1, token)).await), invalid, "{token:.20}");
    }
    assert_eq!(refusal(runs.list_runs(page(-1, "")).await).1, "PAGE_SIZE_OUT_OF_RANGE");
    let unknown = proto::ListRunsRequest { state: 99, ..page(0, "") };
    assert_eq!(refusal(runs.list_runs(unknown).await).1, "STATE_INVALID");
}

async fn a_page_of_large_runs_is_bounded_in_bytes(deployment: &Deployment) {
    let mut runs = deployment.runs().max_decoding_message_size(16 << 20);
    for _ in 0..6 {
        let large = proto::CreateRunRequest { prompt: "x".repeat(1 << 20), ..request() };
        deployment.create_from(large).await;
    }
    let first = list(&mut runs, page(200, "")).await;
    assert_eq!(first.runs.len(), 3, "4 MiB hold three of them");
    let second = list(&mut runs, page(200, &first.next_page_token)).await;
    assert_eq!(second.runs.len(), 3);
    assert!(second.next_page_token.is_empty());
}

async fn the_timeline_comes_in_pages(deployment: &Deployment) {
    let mut runs = deployment.runs();
    let run_id = deployment.create().await.run_id;
    deployment.cancel(&run_id).await.unwrap();
    let all = deployment.timeline(&run_id).await.len();
    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = proto::ListTransitionsRequest { run_id: run_id.clone(), page_size: 2, page_token };
        let answer = runs.list_transitions(request).await.unwrap().into_inner();
        seen.extend(answer.transitions.iter().map(|line| line.sequence));
        page_token = answer.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, (1..=all as i64).collect::<Vec<_>>());
    let other = deployment.create().await.run_id;
    let request = proto::ListTransitionsRequest { run_id: run_id.clone(), page_size: 2, ..Default::default() };
    let token = runs.list_transitions(request).await.unwrap().into_inner().next_page_token;
    let foreign = proto::ListTransitionsRequest { run_id: other, page_size: 2, page_token: token };
    assert_eq!(refusal(runs.list_transitions(foreign).await).1, "PAGE_TOKEN_INVALID");
}

on_both_engines!(
    pages_are_newest_first_and_meet_without_gap_or_overlap,
    lists_show_the_tenants_own_by_state_and_nothing_deleted,
    tokens_are_good_for_their_own_list_only,
    a_page_of_large_runs_is_bounded_in_bytes,
    the_timeline_comes_in_pages,
);
