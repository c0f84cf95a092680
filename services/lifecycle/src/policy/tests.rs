//! The policies against the descriptors, the permission matrix, and what strict validation refuses.

use std::fmt::Write as _;

use berth_domain::{
    caller::{AuthMethod, Caller, Role},
    id::{PrincipalId, RunId, TenantId},
};
use berth_rpc::access;
use cedar_policy::EntityUid;

use super::*;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/permissions.txt");
const ROLES: [Role; 4] = [Role::Admin, Role::Operator, Role::Member, Role::Viewer];

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).unwrap()
}

fn caller(tenant_name: &str, role: Role) -> Subject {
    Subject::Caller(Caller {
        tenant: tenant(tenant_name),
        principal: PrincipalId::parse("ada").unwrap(),
        role,
        method: AuthMethod::ApiKey,
        credential: "key-1".to_owned(),
    })
}

fn policy() -> Policy {
    Policy::built_in().unwrap()
}

fn run_id() -> RunId {
    RunId::parse("run-1").unwrap()
}

/// The resource an RPC's access option names, lying in `tenant`.
fn resource<'a>(kind: &str, run: &'a RunId, tenant: &'a TenantId) -> Resource<'a> {
    match kind {
        "Run" => Resource::Run(run, tenant),
        "Tenant" => Resource::Tenant(tenant),
        "Deployment" => Resource::Deployment,
        other => panic!("no resource type {other}"),
    }
}

#[test]
fn case_a04_every_rpc_is_an_action_of_the_schema_and_back() {
    let policy = policy();
    let actions: Vec<&EntityUid> = policy.schema().actions().collect();
    for (path, access) in access::all() {
        let action: EntityUid = format!("Action::\"{}\"", access.action).parse().unwrap();
        assert!(actions.contains(&&action), "{path}: the schema does not know {action}");
        let resource: cedar_policy::EntityTypeName = access.resource.parse().unwrap();
        let known = policy.schema().request_envs().any(|env| *env.action() == action && *env.resource() == resource);
        assert!(known, "{path}: {action} does not apply to {resource}");
    }
    for action in actions {
        let name: &str = action.id().as_ref();
        assert!(access::all().iter().any(|(_, access)| access.action == name), "{name} is no RPC");
    }
}

#[test]
fn services_may_exactly_what_the_descriptors_say() {
    let (policy, run, home) = (policy(), run_id(), tenant("default"));
    for (path, access) in access::all() {
        for service in Service::ALL {
            let decision =
                policy.decide(&Subject::Service(service), &access.action, resource(&access.resource, &run, &home));
            let declared = access.services.iter().any(|name| name == service.as_str());
            assert_eq!(decision.allowed, declared, "{path} by {}", service.as_str());
        }
    }
}

#[test]
fn callers_may_nothing_that_is_for_services() {
    let (policy, run, home) = (policy(), run_id(), tenant("default"));
    for (path, access) in access::all().into_iter().filter(|(_, access)| !access.services.is_empty()) {
        for role in Role::ALL {
            let decision =
                policy.decide(&caller("default", role), &access.action, resource(&access.resource, &run, &home));
            assert!(!decision.allowed, "{path} by {}", role.as_str());
        }
    }
}

#[test]
fn case_a03_a_foreign_tenant_is_denied_everything_and_sees_nothing() {
    let (policy, run, theirs) = (policy(), run_id(), tenant("theirs"));
    for (path, access) in access::all().into_iter().filter(|(_, access)| access.services.is_empty()) {
        for role in ROLES {
            let asked = resource(&access.resource, &run, &theirs);
            let denial = policy.authorize(&caller("ours", role), &access.action, asked).expect_err(path);
            assert!(!denial.visible, "{path} by {} shows that it exists", role.as_str());
        }
    }
}

#[test]
fn a_denied_write_on_a_visible_run_is_told_apart_from_one_that_is_not_there() {
    let (policy, run, home) = (policy(), run_id(), tenant("ours"));
    let denial = policy.authorize(&caller("ours", Role::Viewer), "CancelRun", Resource::Run(&run, &home)).unwrap_err();
    assert!(denial.visible && denial.about_run && denial.decision.policies.is_empty());
    let allowed = policy.authorize(&caller("ours", Role::Admin), "CancelRun", Resource::Run(&run, &home)).unwrap();
    assert_eq!(allowed.policies, ["member-works"], "the determining policy is named");
}

#[test]
fn administrators_of_default_keep_keys_of_every_tenant_and_of_services() {
    let (policy, theirs) = (policy(), tenant("theirs"));
    for action in ["CreateKey", "RevokeKey"] {
        for resource in [Resource::Tenant(&theirs), Resource::Deployment] {
            assert!(policy.decide(&caller("default", Role::Admin), action, resource).allowed);
            assert!(!policy.decide(&caller("ours", Role::Admin), action, resource).allowed);
            assert!(!policy.decide(&caller("default", Role::Operator), action, resource).allowed);
        }
    }
    assert!(!policy.decide(&caller("default", Role::Admin), "ListRuns", Resource::Tenant(&theirs)).allowed);
}

#[test]
fn case_a05_a_policy_with_a_type_error_is_refused() {
    let schema = include_str!("../../policies/schema.cedarschema");
    let check = |text: &str| Policy::load(schema, &[("test.cedar", text)]).map(|_| ());
    let good = r#"@id("x") permit (principal in Role::"admin", action == Action::"GetRun", resource);"#;
    assert_eq!(check(good), Ok(()));
    for (what, text) in [
        (
            "unknown attribute",
            r#"@id("x") permit (principal, action, resource) when { principal.tennant == resource };"#,
        ),
        (
            "types never equal",
            r#"@id("x") permit (principal, action == Action::"GetRun", resource) when { principal.tenant == "default" };"#,
        ),
        ("unknown action", r#"@id("x") permit (principal, action == Action::"GetRuns", resource);"#),
        ("unknown entity type", r#"@id("x") permit (principal in Rule::"admin", action, resource);"#),
        ("can never apply", r#"@id("x") permit (principal in Role::"admin", action == Action::"Claim", resource);"#),
        ("number and text", r#"@id("x") forbid (principal, action, resource) when { 1 < "2" };"#),
    ] {
        assert!(matches!(check(text), Err(PolicyError::Invalid(_))), "{what}: {:?}", check(text));
    }
    assert!(matches!(check("permit (principal, action, resource)"), Err(PolicyError::Syntax { .. })));
    assert!(matches!(check("permit (principal, action, resource);"), Err(PolicyError::Id { .. })));
    let twice = format!("{good}\n{good}");
    assert!(matches!(check(&twice), Err(PolicyError::Id { .. })));
    assert!(matches!(Policy::load("entity", &[]), Err(PolicyError::Schema(_))));
}

#[test]
fn the_permission_matrix_is_as_committed() {
    let actual = matrix();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(GOLDEN, &actual).unwrap();
    }
    let committed = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    assert_eq!(actual, committed, "run with UPDATE_EXPECT=1 and review the change");
}

/// Role and service × RPC, on a resource of the subject's own tenant (not `default`).
fn matrix() -> String {
    let (policy, run, home) = (policy(), run_id(), tenant("ours"));
    let subjects: Vec<(&str, Subject)> = ROLES
        .map(|role| (role.as_str(), caller("ours", role)))
        .into_iter()
        .chain(Service::ALL.map(|service| (service.as_str(), Subject::Service(service))))
        .collect();
    let mut text = String::from("# Who may call what, on their own tenant's resources. Written by the policy tests.\n");
    let mut line = |method: &str, resource: &str, cells: Vec<&str>| {
        let mut row = format!("{method:<56}{resource:<12}");
        for ((name, _), cell) in subjects.iter().zip(cells) {
            write!(row, "{cell:<width$}", width = name.len() + 2).unwrap();
        }
        writeln!(text, "{}", row.trim_end()).unwrap();
    };
    line("# RPC", "resource", subjects.iter().map(|(name, _)| *name).collect());
    for (path, access) in access::all() {
        let cells = subjects.iter().map(|(_, subject)| {
            let decision = policy.decide(subject, &access.action, resource(&access.resource, &run, &home));
            if decision.allowed { "yes" } else { "-" }
        });
        line(path.trim_start_matches("/berth."), &access.resource, cells.collect());
    }
    text
}
