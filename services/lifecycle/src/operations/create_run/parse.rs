//! A CreateRun request, field by field, into what the machines and the store take. Pure: nothing is looked up, nothing made.

use std::time::Duration;

use berth_domain::{
    caller::Caller, lease::ProviderTraits, policy::Policy as Limits, run::OnSandboxLoss, session::Harness,
};
use berth_rpc::lifecycle as proto;

use super::repository;
use crate::{error::Error, store::RunSpec};

const MAX_PROMPT_BYTES: usize = 1 << 20;
const MAX_SYSTEM_PROMPT_BYTES: usize = 256 << 10;
const MAX_NAME_LEN: usize = 256;
const TOOLS: [&str; 4] = ["read", "write", "edit", "bash"];
const DEFAULT_MAX_TURNS: u32 = 50;
const MAX_TURNS: i32 = 500;
const MAX_TOKENS: i64 = 1_000_000_000_000;
const MAX_WALL_CLOCK: Duration = Duration::from_secs(24 * 3600);

/// What this deployment accepts.
pub(super) struct Rules<'a> {
    pub(super) providers: &'a [ProviderTraits],
    pub(super) default_model: Option<&'a str>,
    pub(super) allow_private_repos: bool,
    pub(super) limits: &'a Limits,
}

/// A request that can be carried out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parsed {
    pub(super) prompt: String,
    pub(super) provider: ProviderTraits,
    pub(super) harness: Harness,
    pub(super) conversation: bool,
    pub(super) on_sandbox_loss: OnSandboxLoss,
    pub(super) policy: Limits,
    pub(super) spec: RunSpec,
}

/// Checks every field.
///
/// # Errors
/// INVALID_ARGUMENT naming the field and its reason.
pub(super) fn parse(request: proto::CreateRunRequest, rules: &Rules<'_>) -> Result<Parsed, Error> {
    let prompt = prompt(request.prompt)?;
    let provider = provider(&request.sandbox_provider, rules.providers)?;
    let repo_url = optional(&request.repo_url, |text| repository::url(text, rules.allow_private_repos))?;
    let repo_ref = optional(&request.repo_ref, repository::reference)?;
    let push_branch = optional(&request.push_branch, repository::branch)?;
    needs_repository("repo_ref", "REPO_REF_INVALID", &repo_ref, &repo_url)?;
    needs_repository("push_branch", "PUSH_BRANCH_INVALID", &push_branch, &repo_url)?;
    let workdir = optional(&request.workdir, repository::workdir)?;
    let tools = tools(&request.tools)?;
    let max_turns = max_turns(request.max_turns)?;
    let (max_tokens, wall_clock) = budget(request.budget, rules.limits)?;
    let model = model(&request.model, rules.default_model)?;
    let system_prompt = system_prompt(request.system_prompt)?;
    let image = optional(&request.sandbox_image, |text| name("sandbox_image", "SANDBOX_IMAGE_INVALID", text))?;
    let harness = harness(&request.harness)?;
    let on_sandbox_loss = on_sandbox_loss(request.on_sandbox_loss)?;
    Ok(Parsed {
        prompt,
        harness,
        conversation: request.conversation,
        on_sandbox_loss,
        policy: Limits { wall_clock, ..rules.limits.clone() },
        spec: RunSpec {
            provider: provider.provider.clone(),
            repo_url,
            repo_ref,
            tools,
            max_turns,
            model,
            system_prompt,
            image,
            workdir,
            max_tokens,
            wall_clock_seconds: wall_clock.as_secs(),
            push_branch,
            harness: harness.as_str().to_owned(),
        },
        provider,
    })
}

impl Parsed {
    /// The run as `validate_only` shows it: what would be made, without id, state or time.
    pub(super) fn preview(&self, caller: &Caller) -> proto::Run {
        let spec = &self.spec;
        proto::Run {
            tenant: caller.tenant.to_string(),
            principal: caller.principal.to_string(),
            prompt: self.prompt.clone(),
            sandbox_provider: spec.provider.clone(),
            repo_url: spec.repo_url.clone(),
            repo_ref: spec.repo_ref.clone(),
            tools: spec.tools.clone(),
            max_turns: i32::try_from(spec.max_turns).unwrap_or(i32::MAX),
            model: spec.model.clone(),
            system_prompt: spec.system_prompt.clone(),
            sandbox_image: spec.image.clone(),
            workdir: spec.workdir.clone(),
            budget: Some(proto::Budget {
                max_tokens: i64::try_from(spec.max_tokens).unwrap_or(i64::MAX),
                wall_clock: Some(berth_rpc::duration_to_proto(self.policy.wall_clock)),
            }),
            push_branch: spec.push_branch.clone(),
            conversation: self.conversation,
            on_sandbox_loss: match self.on_sandbox_loss {
                OnSandboxLoss::Fail => proto::run::OnSandboxLoss::Fail,
                OnSandboxLoss::Recreate => proto::run::OnSandboxLoss::Recreate,
            }
            .into(),
            harness: spec.harness.clone(),
            ..proto::Run::default()
        }
    }
}

/// An empty field is an absent one.
fn optional(text: &str, rule: impl FnOnce(&str) -> Result<String, Error>) -> Result<String, Error> {
    if text.is_empty() { Ok(String::new()) } else { rule(text) }
}

fn prompt(text: String) -> Result<String, Error> {
    if text.trim().is_empty() {
        return Err(Error::invalid("prompt", "PROMPT_EMPTY", "a prompt is required"));
    }
    if text.len() > MAX_PROMPT_BYTES {
        return Err(Error::invalid("prompt", "PROMPT_TOO_LONG", "a prompt is at most 1 MiB"));
    }
    without_nul("prompt", "PROMPT_INVALID", text)
}

fn system_prompt(text: String) -> Result<String, Error> {
    if text.len() > MAX_SYSTEM_PROMPT_BYTES {
        return Err(Error::invalid("system_prompt", "SYSTEM_PROMPT_TOO_LONG", "a system prompt is at most 256 KiB"));
    }
    without_nul("system_prompt", "SYSTEM_PROMPT_INVALID", text)
}

/// Not every database can store a NUL character.
fn without_nul(field: &'static str, reason: &'static str, text: String) -> Result<String, Error> {
    if text.contains('\0') { Err(Error::invalid(field, reason, "the text holds a NUL character")) } else { Ok(text) }
}

fn provider(name: &str, offered: &[ProviderTraits]) -> Result<ProviderTraits, Error> {
    let found = offered.iter().find(|traits| traits.provider == name);
    found.cloned().ok_or_else(|| {
        let names: Vec<&str> = offered.iter().map(|traits| traits.provider.as_str()).collect();
        let offered = names.join(", ");
        let message = if name.is_empty() {
            format!("a sandbox provider is required; offered: {offered}")
        } else {
            format!("this deployment does not offer that sandbox provider; offered: {offered}")
        };
        Error::invalid("sandbox_provider", "UNKNOWN_PROVIDER", message)
    })
}

fn needs_repository(field: &'static str, reason: &'static str, value: &str, repo_url: &str) -> Result<(), Error> {
    if value.is_empty() || !repo_url.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(field, reason, format!("{field} needs a repo_url")))
}

/// Without repetition, in the order given; none given: all.
fn tools(asked: &[String]) -> Result<Vec<String>, Error> {
    if asked.is_empty() {
        return Ok(TOOLS.map(str::to_owned).to_vec());
    }
    let mut granted: Vec<String> = Vec::new();
    for tool in asked {
        if !TOOLS.contains(&tool.as_str()) {
            let message = format!("there are the tools {}", TOOLS.join(", "));
            return Err(Error::invalid("tools", "UNKNOWN_TOOL", message));
        }
        if !granted.contains(tool) {
            granted.push(tool.clone());
        }
    }
    Ok(granted)
}

fn max_turns(asked: i32) -> Result<u32, Error> {
    match asked {
        0 => Ok(DEFAULT_MAX_TURNS),
        1..=MAX_TURNS => Ok(asked.unsigned_abs()),
        _ => Err(Error::invalid("max_turns", "MAX_TURNS_OUT_OF_RANGE", format!("max_turns is from 1 to {MAX_TURNS}"))),
    }
}

/// Tokens (0: no limit) and wall clock.
fn budget(asked: Option<proto::Budget>, limits: &Limits) -> Result<(u64, Duration), Error> {
    let wrong = |field, message: &str| Error::invalid(field, "BUDGET_OUT_OF_RANGE", message);
    let asked = asked.unwrap_or_default();
    if !(0..=MAX_TOKENS).contains(&asked.max_tokens) {
        return Err(wrong("budget.max_tokens", "max_tokens is from 1 to 10^12"));
    }
    let wall_clock = match asked.wall_clock {
        None => limits.wall_clock,
        Some(time) if time.seconds < 0 || time.nanos < 0 => {
            return Err(wrong("budget.wall_clock", "a wall clock budget is not negative"));
        }
        Some(time) => match berth_rpc::duration_from_proto(&time) {
            Duration::ZERO => limits.wall_clock,
            time if (Duration::from_secs(1)..=MAX_WALL_CLOCK).contains(&time) => time,
            _ => return Err(wrong("budget.wall_clock", "a wall clock budget is from 1 second to 24 hours")),
        },
    };
    Ok((asked.max_tokens.unsigned_abs(), wall_clock))
}

fn model(asked: &str, default: Option<&str>) -> Result<String, Error> {
    match (asked, default) {
        ("", Some(default)) => Ok(default.to_owned()),
        ("", None) => {
            let message = "this deployment has no default model, so the run must name one";
            Err(Error::invalid("model", "MODEL_MISSING", message))
        }
        (asked, _) => name("model", "MODEL_INVALID", asked),
    }
}

/// A name handed to another system as one argument: visible ASCII, no leading dash.
fn name(field: &'static str, reason: &'static str, text: &str) -> Result<String, Error> {
    let visible = text.len() <= MAX_NAME_LEN && text.bytes().all(|b| b.is_ascii_graphic());
    if visible && !text.starts_with('-') {
        return Ok(text.to_owned());
    }
    Err(Error::invalid(
        field,
        reason,
        format!("{field} is at most {MAX_NAME_LEN} visible ASCII characters, no leading dash"),
    ))
}

fn harness(asked: &str) -> Result<Harness, Error> {
    if asked.is_empty() || asked == Harness::Native.as_str() {
        return Ok(Harness::Native);
    }
    Err(Error::invalid("harness", "UNKNOWN_HARNESS", "the only harness is native"))
}

fn on_sandbox_loss(asked: i32) -> Result<OnSandboxLoss, Error> {
    match proto::run::OnSandboxLoss::try_from(asked) {
        Ok(proto::run::OnSandboxLoss::Unspecified | proto::run::OnSandboxLoss::Fail) => Ok(OnSandboxLoss::Fail),
        Ok(proto::run::OnSandboxLoss::Recreate) => Ok(OnSandboxLoss::Recreate),
        Err(_) => Err(Error::invalid("on_sandbox_loss", "ON_SANDBOX_LOSS_INVALID", "FAIL or RECREATE")),
    }
}
