//! The actions over a provider that answers as told: what is Unknown, what is refused, and when nothing is called at all.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use berth_serve::peer::{ServiceChannel, connect};

use super::*;
use crate::{
    claims::{Answer, Claims},
    provider::{
        CreateOutcome, CreateSpec, DeadlineEffect, Declaration, Destroyed, Health, Identity, Lookup, Observation,
        ObservedState, Renewal, SecretChannel,
    },
};

const SCOPE: &str = "account-1";
const HORIZON: Duration = Duration::from_secs(77);

/// What the provider will say; an empty list answers as a provider without trouble would.
#[derive(Default)]
struct Script {
    create: Option<CreateOutcome>,
    create_takes: Duration,
    destroy: Option<ProviderFailure>,
    observe: VecDeque<Result<ObservedState, ProviderFailure>>,
    find: VecDeque<Result<Option<Identity>, ProviderFailure>>,
    calls: Vec<&'static str>,
}

struct Scripted {
    declaration: Declaration,
    script: Mutex<Script>,
    looks_up: bool,
}

impl Scripted {
    fn new(script: Script, looks_up: bool) -> Arc<Self> {
        let declaration = Declaration {
            name: "scripted",
            renewal: Renewal::LocalOnly,
            deadline_effect: DeadlineEffect::Stop,
            secret_channel: SecretChannel::CommandEnvironment,
            account_scope: SCOPE.to_owned(),
            host_bound: false,
            create_horizon: HORIZON,
            max_sandboxes: 1,
        };
        Arc::new(Self { declaration, script: Mutex::new(script), looks_up })
    }

    fn called(&self, what: &'static str) -> std::sync::MutexGuard<'_, Script> {
        let mut script = self.script.lock().unwrap();
        script.calls.push(what);
        script
    }

    fn calls(&self) -> Vec<&'static str> {
        self.script.lock().unwrap().calls.clone()
    }
}

#[async_trait]
impl Provider for Scripted {
    fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    async fn health(&self) -> Health {
        Health::Healthy(String::new())
    }

    async fn live_sandboxes(&self) -> Result<u32, ProviderFailure> {
        Ok(0)
    }

    async fn create(&self, _: &str, _: &CreateSpec) -> CreateOutcome {
        let (outcome, takes) = {
            let mut script = self.called("create");
            (script.create.take().unwrap_or_else(|| CreateOutcome::Created(identity())), script.create_takes)
        };
        tokio::time::sleep(takes).await;
        outcome
    }

    async fn observe(&self, _: &Identity) -> Result<Observation, ProviderFailure> {
        let next = self.called("observe").observe.pop_front().unwrap_or(Ok(ObservedState::Absent));
        next.map(|state| Observation { state, how: "seen".to_owned() })
    }

    async fn destroy(&self, _: Option<&Identity>, _: &str) -> Result<Destroyed, ProviderFailure> {
        self.called("destroy").destroy.take().map_or(Ok(Destroyed::Accepted), Err)
    }

    fn lookup(&self) -> Option<&dyn Lookup> {
        self.looks_up.then_some(self)
    }
}

#[async_trait]
impl Lookup for Scripted {
    async fn find_by_lease(&self, _: &str) -> Result<Option<Identity>, ProviderFailure> {
        self.called("find").find.pop_front().unwrap_or(Ok(None))
    }
}

fn identity() -> Identity {
    Identity {
        sandbox_id: "sb-1".to_owned(),
        sandbox_url: String::new(),
        account_scope: SCOPE.to_owned(),
        provider: "scripted".to_owned(),
        provider_deadline: None,
    }
}

fn transient() -> ProviderFailure {
    ProviderFailure::new(Class::Transient, "UNAVAILABLE", "503")
}

fn task(action: Action) -> Task {
    Task {
        lease_id: "lease-1".to_owned(),
        run_id: "run-1".to_owned(),
        fence: 1,
        action,
        time_left: Duration::from_secs(60),
        traceparent: String::new(),
        provider: "scripted".to_owned(),
        key: "berth-k".to_owned(),
        attempt: 1,
        in_doubt: false,
        identity: (action == Action::Release).then(identity),
        image: String::new(),
        repo_url: String::new(),
        repo_ref: String::new(),
        workdir: String::new(),
        hard_deadline: SystemTime::now() + Duration::from_secs(600),
    }
}

struct Stage {
    provider: Arc<Scripted>,
    claims: Claims,
}

impl Stage {
    fn new(script: Script, looks_up: bool) -> Self {
        let claims = Claims::default();
        claims.alive(Instant::now(), Duration::from_secs(60));
        Self { provider: Scripted::new(script, looks_up), claims }
    }

    async fn act(&self, task: &Task) -> Outcome {
        let claim = self.claims.take(task, Instant::now());
        self.act_in(task, &claim).await
    }

    async fn act_in(&self, task: &Task, claim: &Claim) -> Outcome {
        let timeouts = Timeouts {
            create: Duration::from_millis(100),
            look_delay: Duration::from_millis(1),
            absence_looks: 3,
            ..Timeouts::default()
        };
        // Nobody listens there, and neither ALLOCATE nor RELEASE has anything to ask.
        let channel = ServiceChannel::anonymous(connect("http://127.0.0.1:1").unwrap());
        let context = Context {
            registry: Registry::new([Arc::clone(&self.provider) as Arc<dyn Provider>]),
            lifecycle: Lifecycle::new(channel, Duration::from_secs(1)),
            timeouts,
            allow_private_repos: false,
            egress: Arc::default(),
        };
        act(&context, task, claim).await
    }
}

fn reason(outcome: &Outcome) -> (&'static str, Option<Class>) {
    match outcome {
        Outcome::Refused(failure) | Outcome::ReleaseFailed(failure) => (failure.reason, Some(failure.class)),
        Outcome::Unknown { failure, create_horizon } => {
            assert_eq!(*create_horizon, HORIZON);
            (failure.reason, None)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_first_attempt_creates_without_looking() {
    let stage = Stage::new(Script::default(), true);
    assert_eq!(stage.act(&task(Action::Allocate)).await, Outcome::Created(identity()));
    assert_eq!(stage.provider.calls(), ["create"]);
}

#[tokio::test]
async fn a_later_or_doubtful_attempt_looks_first_and_adopts() {
    for (attempt, in_doubt) in [(2, false), (1, true)] {
        let script = Script {
            find: VecDeque::from([Ok(Some(identity()))]),
            observe: VecDeque::from([Ok(ObservedState::Running)]),
            ..Script::default()
        };
        let stage = Stage::new(script, true);
        let outcome = stage.act(&Task { attempt, in_doubt, ..task(Action::Allocate) }).await;
        assert_eq!(outcome, Outcome::Adopted(identity()));
        assert_eq!(stage.provider.calls(), ["find", "observe"]);
    }
}

#[tokio::test]
async fn what_cannot_be_adopted_is_removed_and_made_anew() {
    let script = Script {
        find: VecDeque::from([Ok(Some(identity()))]),
        observe: VecDeque::from([Ok(ObservedState::Ended)]),
        ..Script::default()
    };
    let stage = Stage::new(script, true);
    let outcome = stage.act(&Task { attempt: 2, ..task(Action::Allocate) }).await;
    assert_eq!(outcome, Outcome::Created(identity()));
    assert_eq!(stage.provider.calls(), ["find", "observe", "destroy", "create"]);
}

#[tokio::test]
async fn a_failed_look_never_leads_to_a_second_create() {
    let stage = Stage::new(Script { find: VecDeque::from([Err(transient())]), ..Script::default() }, true);
    let outcome = stage.act(&Task { attempt: 2, ..task(Action::Allocate) }).await;
    assert_eq!(reason(&outcome), ("UNAVAILABLE", None));
    assert_eq!(stage.provider.calls(), ["find"]);
}

#[tokio::test]
async fn a_create_without_a_definite_answer_is_unknown() {
    let slow = Script { create_takes: Duration::from_secs(60), ..Script::default() };
    assert_eq!(reason(&Stage::new(slow, true).act(&task(Action::Allocate)).await), ("TIMEOUT", None));
    let vague = Script { create: Some(CreateOutcome::Unknown(transient())), ..Script::default() };
    assert_eq!(reason(&Stage::new(vague, true).act(&task(Action::Allocate)).await), ("UNAVAILABLE", None));
}

#[tokio::test]
async fn outside_its_claim_nothing_is_asked_for() {
    for action in [Action::Allocate, Action::Release] {
        let stage = Stage::new(Script::default(), true);
        let over = Task { time_left: Duration::ZERO, ..task(action) };
        assert_eq!(reason(&stage.act(&over).await).0, "CLAIM_OVER");
        assert!(stage.provider.calls().is_empty());
    }
}

#[tokio::test]
async fn what_nobody_wants_any_more_is_not_made() {
    let stage = Stage::new(Script::default(), true);
    let task = task(Action::Allocate);
    let claim = stage.claims.take(&task, Instant::now());
    stage.claims.answered("lease-1", 1, Answer::DesireChanged);
    let outcome = stage.act_in(&task, &claim).await;
    assert_eq!(reason(&outcome), ("DESIRE_CHANGED", Some(Class::Permanent)));
    assert!(stage.provider.calls().is_empty());
}

#[tokio::test]
async fn case_l15_a_create_under_way_is_still_reported_when_it_was_released() {
    let stage = Stage::new(Script { create_takes: Duration::from_millis(50), ..Script::default() }, true);
    let task = task(Action::Allocate);
    let claim = stage.claims.take(&task, Instant::now());
    let released = async {
        // Only once the provider was asked: before that it would be refused, not under way.
        while !stage.provider.calls().contains(&"create") {
            tokio::task::yield_now().await;
        }
        stage.claims.answered("lease-1", 1, Answer::DesireChanged);
    };
    let both = async { tokio::join!(stage.act_in(&task, &claim), released) };
    let (outcome, ()) = tokio::time::timeout(Duration::from_secs(10), both).await.expect("the create was asked for");
    assert_eq!(outcome, Outcome::Created(identity()));
}

#[tokio::test]
async fn absent_means_by_id_and_by_key() {
    let stage = Stage::new(Script::default(), true);
    let outcome = stage.act(&task(Action::Release)).await;
    assert!(matches!(outcome, Outcome::Absent { account_scope, .. } if account_scope == SCOPE));
    assert_eq!(stage.provider.calls(), ["destroy", "observe", "find"]);

    // A second sandbox under the key: the recorded one's absence is not enough.
    let other = Script { find: (0..3).map(|_| Ok(Some(identity()))).collect(), ..Script::default() };
    let outcome = Stage::new(other, true).act(&task(Action::Release)).await;
    assert!(matches!(outcome, Outcome::StillThere { .. }), "{outcome:?}");
}

#[tokio::test]
async fn an_accepted_delete_is_verified_and_given_some_time() {
    let states = |count| (0..count).map(|_| Ok(ObservedState::Running)).collect();
    let slow = Script { observe: states(2), ..Script::default() };
    let outcome = Stage::new(slow, true).act(&task(Action::Release)).await;
    assert!(matches!(outcome, Outcome::Absent { .. }), "{outcome:?}");
    let never = Script { observe: states(3), ..Script::default() };
    let outcome = Stage::new(never, true).act(&task(Action::Release)).await;
    assert!(matches!(outcome, Outcome::StillThere { .. }), "{outcome:?}");
    // Ended is not absent.
    let ended = Script { observe: (0..3).map(|_| Ok(ObservedState::Ended)).collect(), ..Script::default() };
    let outcome = Stage::new(ended, true).act(&task(Action::Release)).await;
    assert!(matches!(outcome, Outcome::StillThere { .. }), "{outcome:?}");
}

#[tokio::test]
async fn case_d01_no_failure_is_taken_for_absence() {
    for class in [Class::Transient, Class::Permanent, Class::CredentialsMissing, Class::IdentityDiffers] {
        let failure = ProviderFailure::new(class, "X", "");
        let script = Script { destroy: Some(failure.clone()), ..Script::default() };
        assert_eq!(Stage::new(script, true).act(&task(Action::Release)).await, Outcome::ReleaseFailed(failure.clone()));
        let script = Script { observe: VecDeque::from([Err(failure.clone())]), ..Script::default() };
        assert_eq!(Stage::new(script, true).act(&task(Action::Release)).await, Outcome::ReleaseFailed(failure.clone()));
        let script = Script { find: VecDeque::from([Err(failure.clone())]), ..Script::default() };
        assert_eq!(Stage::new(script, true).act(&task(Action::Release)).await, Outcome::ReleaseFailed(failure));
    }
}

#[tokio::test]
async fn a_changed_scope_is_refused_before_any_call() {
    let stage = Stage::new(Script::default(), true);
    let moved = Identity { account_scope: "account-2".to_owned(), ..identity() };
    let outcome = stage.act(&Task { identity: Some(moved), ..task(Action::Release) }).await;
    assert_eq!(reason(&outcome), ("SCOPE_CHANGED", Some(Class::ScopeChanged)));
    assert!(stage.provider.calls().is_empty());
}

#[tokio::test]
async fn without_lookup_only_a_certain_single_sandbox_can_be_proven_absent() {
    let certain = Stage::new(Script::default(), false).act(&task(Action::Release)).await;
    assert!(matches!(certain, Outcome::Absent { .. }), "{certain:?}");
    let doubtful = Task { in_doubt: true, ..task(Action::Release) };
    let unrecorded = Task { identity: None, ..task(Action::Release) };
    for task in [doubtful, unrecorded] {
        let stage = Stage::new(Script::default(), false);
        assert_eq!(reason(&stage.act(&task).await), ("NO_LOOKUP", Some(Class::Permanent)));
        // What is known is destroyed all the same.
        assert_eq!(stage.provider.calls()[0], "destroy");
    }
}

#[tokio::test]
async fn the_provider_really_used_is_the_one_asked() {
    let elsewhere = Task { provider: "other".to_owned(), ..task(Action::Release) };
    let outcome = Stage::new(Script::default(), true).act(&elsewhere).await;
    assert!(matches!(outcome, Outcome::Absent { .. }), "{outcome:?}");
    let unknown = Task { provider: "other".to_owned(), ..task(Action::Allocate) };
    assert_eq!(reason(&Stage::new(Script::default(), true).act(&unknown).await).0, "PROVIDER_UNKNOWN");
}
