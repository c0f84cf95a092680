//! Every way a CreateRun request can be wrong is found before anything is made.

use std::time::Duration;

use berth_domain::{lease::ProviderTraits, policy::Policy as Limits, run::OnSandboxLoss};
use berth_rpc::lifecycle as proto;

use super::{
    is_traceparent,
    parse::{Parsed, Rules, parse},
};
use crate::error::Error;

fn good() -> proto::CreateRunRequest {
    proto::CreateRunRequest {
        prompt: "fix it".into(),
        sandbox_provider: "local".into(),
        model: "claude".into(),
        ..Default::default()
    }
}

fn check(change: impl FnOnce(&mut proto::CreateRunRequest)) -> Result<Parsed, Error> {
    let offered = ["local", "e2b"].map(|name| ProviderTraits {
        provider: name.into(),
        can_lookup_key: true,
        create_horizon: Duration::from_secs(60),
    });
    let limits = Limits::default();
    let rules = Rules { providers: &offered, default_model: None, allow_private_repos: false, limits: &limits };
    let mut request = good();
    change(&mut request);
    parse(request, &rules)
}

#[test]
fn case_l18_every_invalid_field_is_found_before_the_intent() {
    type Change = fn(&mut proto::CreateRunRequest);
    let cases: &[(Change, &str, &str)] = &[
        (|r| r.prompt.clear(), "prompt", "PROMPT_EMPTY"),
        (|r| r.prompt = " \n".into(), "prompt", "PROMPT_EMPTY"),
        (|r| r.prompt = "x".repeat((1 << 20) + 1), "prompt", "PROMPT_TOO_LONG"),
        (|r| r.prompt = "a\0b".into(), "prompt", "PROMPT_INVALID"),
        (|r| r.sandbox_provider.clear(), "sandbox_provider", "UNKNOWN_PROVIDER"),
        (|r| r.sandbox_provider = "nope".into(), "sandbox_provider", "UNKNOWN_PROVIDER"),
        (|r| r.repo_url = "ssh://h/a/b".into(), "repo_url", "REPO_URL_SCHEME"),
        (|r| r.repo_url = "https://127.0.0.1/a".into(), "repo_url", "REPO_URL_PRIVATE"),
        (|r| r.repo_ref = "main".into(), "repo_ref", "REPO_REF_INVALID"),
        (
            |r| {
                r.repo_url = "https://h.org/a".into();
                r.repo_ref = "--x".into();
            },
            "repo_ref",
            "REPO_REF_INVALID",
        ),
        (|r| r.push_branch = "fix".into(), "push_branch", "PUSH_BRANCH_INVALID"),
        (|r| r.workdir = "../x".into(), "workdir", "WORKDIR_INVALID"),
        (|r| r.tools = vec!["bash".into(), "rm".into()], "tools", "UNKNOWN_TOOL"),
        (|r| r.max_turns = -1, "max_turns", "MAX_TURNS_OUT_OF_RANGE"),
        (|r| r.max_turns = 501, "max_turns", "MAX_TURNS_OUT_OF_RANGE"),
        (|r| r.model.clear(), "model", "MODEL_MISSING"),
        (|r| r.model = "a b".into(), "model", "MODEL_INVALID"),
        (|r| r.system_prompt = "x".repeat((256 << 10) + 1), "system_prompt", "SYSTEM_PROMPT_TOO_LONG"),
        (|r| r.system_prompt = "\0".into(), "system_prompt", "SYSTEM_PROMPT_INVALID"),
        (|r| r.sandbox_image = "-x".into(), "sandbox_image", "SANDBOX_IMAGE_INVALID"),
        (|r| r.harness = "codex".into(), "harness", "UNKNOWN_HARNESS"),
        (|r| r.on_sandbox_loss = 9, "on_sandbox_loss", "ON_SANDBOX_LOSS_INVALID"),
        (|r| r.budget = Some(budget(-1, 0)), "budget.max_tokens", "BUDGET_OUT_OF_RANGE"),
        (|r| r.budget = Some(budget(i64::MAX, 0)), "budget.max_tokens", "BUDGET_OUT_OF_RANGE"),
        (|r| r.budget = Some(budget(0, -1)), "budget.wall_clock", "BUDGET_OUT_OF_RANGE"),
        (|r| r.budget = Some(budget(0, 25 * 3600)), "budget.wall_clock", "BUDGET_OUT_OF_RANGE"),
    ];
    for (change, expected_field, expected_reason) in cases {
        match check(change) {
            Err(Error::Invalid { field, reason, .. }) => {
                assert_eq!((field, reason), (*expected_field, *expected_reason))
            }
            other => panic!("{expected_field} {expected_reason}: {other:?}"),
        }
    }
}

fn budget(max_tokens: i64, seconds: i64) -> proto::Budget {
    proto::Budget { max_tokens, wall_clock: Some(prost_types::Duration { seconds, nanos: 0 }) }
}

#[test]
fn an_unknown_provider_is_told_what_is_offered() {
    let error = check(|r| r.sandbox_provider = "nope".into()).unwrap_err();
    assert!(error.to_string().ends_with("offered: local, e2b"), "{error}");
}

#[test]
fn defaults_fill_what_was_left_out() {
    let parsed = check(|_| ()).unwrap();
    assert_eq!(parsed.spec.tools, ["read", "write", "edit", "bash"]);
    assert_eq!((parsed.spec.max_turns, parsed.spec.max_tokens), (50, 0));
    assert_eq!(parsed.policy, Limits::default());
    assert_eq!(parsed.on_sandbox_loss, OnSandboxLoss::Fail);
    assert_eq!(parsed.spec.harness, "native");
}

#[test]
fn what_was_given_is_kept() {
    let parsed = check(|r| {
        r.repo_url = "https://github.com/a/b".into();
        r.push_branch = "berth/fix".into();
        r.tools = vec!["bash".into(), "read".into(), "bash".into()];
        r.max_turns = 500;
        r.budget = Some(budget(1000, 60));
    })
    .unwrap();
    assert_eq!(parsed.spec.tools, ["bash", "read"]);
    assert_eq!((parsed.spec.max_turns, parsed.spec.max_tokens), (500, 1000));
    assert_eq!(parsed.policy.wall_clock, Duration::from_secs(60));
    assert_eq!(parsed.spec.push_branch, "berth/fix");
}

#[test]
fn traceparents_are_recognised() {
    assert!(is_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
    for bad in ["", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7-b7ad-01", "x"] {
        assert!(!is_traceparent(bad), "{bad}");
    }
}
