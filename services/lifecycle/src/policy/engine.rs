//! Cedar itself: schema and built-in policies, loaded once and validated strictly; static entities prebuilt, the request's
//! own added per decision.
//!
//! Must not live here: what a denial means to the client.

use std::{
    collections::{HashMap, HashSet},
    str::FromStr as _,
};

use berth_domain::caller::{Caller, Role};
use cedar_policy::{
    Authorizer, Context, Decision as Verdict, Entities, Entity, EntityId, EntityTypeName, EntityUid,
    Policy as CedarPolicy, PolicyId, PolicySet, Request, RestrictedExpression, Schema, ValidationMode, Validator,
};

use super::{Decision, Resource, Service, Subject};

const SCHEMA: &str = include_str!("../../policies/schema.cedarschema");
const BUILT_IN: [(&str, &str); 2] = [
    ("callers.cedar", include_str!("../../policies/callers.cedar")),
    ("services.cedar", include_str!("../../policies/services.cedar")),
];

/// Roles a caller may have, each with the one it includes.
const ROLES: [(Role, Option<Role>); 4] = [
    (Role::Admin, Some(Role::Operator)),
    (Role::Operator, Some(Role::Member)),
    (Role::Member, Some(Role::Viewer)),
    (Role::Viewer, None),
];

/// Why a policy set is refused. Nothing runs with a set that has any of these.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The schema does not parse.
    #[error("the policy schema does not parse: {0}")]
    Schema(String),
    /// A policy file does not parse.
    #[error("{file} does not parse: {problem}")]
    Syntax {
        /// File name.
        file: String,
        /// What Cedar says.
        problem: String,
    },
    /// A policy without a unique `@id`, or one that is a template.
    #[error("{file}: every policy needs its own @id and no slots: {problem}")]
    Id {
        /// File name.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A policy that parses but does not fit the schema: it could never apply, or would fail when it does.
    #[error("policies do not fit the schema: {0}")]
    Invalid(String),
}

/// Schema, policies and static entities, ready to decide.
pub(crate) struct Policy {
    authorizer: Authorizer,
    policies: PolicySet,
    schema: Schema,
    entities: Entities,
    types: Types,
}

impl std::fmt::Debug for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policy").field("policies", &self.policies.num_of_policies()).finish_non_exhaustive()
    }
}

/// Entity type names, parsed once.
struct Types {
    role: EntityTypeName,
    caller: EntityTypeName,
    service: EntityTypeName,
    tenant: EntityTypeName,
    run: EntityTypeName,
    deployment: EntityTypeName,
    action: EntityTypeName,
}

impl Policy {
    /// The built-in policies.
    ///
    /// # Errors
    /// [`PolicyError`]; a test makes sure that it does not happen.
    pub(crate) fn built_in() -> Result<Self, PolicyError> {
        Self::load(SCHEMA, &BUILT_IN)
    }

    /// Parses and validates schema and policies (file name, text). Warnings count as errors: a policy that can never apply
    /// is a mistake.
    pub(super) fn load(schema: &str, files: &[(&str, &str)]) -> Result<Self, PolicyError> {
        let (schema, warnings) =
            Schema::from_cedarschema_str(schema).map_err(|error| PolicyError::Schema(error.to_string()))?;
        if let Some(warning) = warnings.into_iter().next() {
            return Err(PolicyError::Schema(warning.to_string()));
        }
        let mut policies = PolicySet::new();
        for (file, text) in files {
            add(&mut policies, file, text)?;
        }
        let validation = Validator::new(schema.clone()).validate(&policies, ValidationMode::Strict);
        let errors = validation.validation_errors().map(ToString::to_string);
        let problems: Vec<_> = errors.chain(validation.validation_warnings().map(ToString::to_string)).collect();
        if !problems.is_empty() {
            return Err(PolicyError::Invalid(problems.join("; ")));
        }
        let types = Types::new();
        let roles = ROLES.map(|(role, includes)| {
            let parents = includes.into_iter().map(|role| uid(&types.role, role.as_str())).collect();
            Entity::new_no_attrs(uid(&types.role, role.as_str()), parents)
        });
        let services =
            Service::ALL.map(|name| Entity::new_no_attrs(uid(&types.service, name.as_str()), HashSet::new()));
        let entities = Entities::from_entities(roles.into_iter().chain(services), Some(&schema))
            .map_err(|error| PolicyError::Invalid(error.to_string()))?;
        Ok(Self { authorizer: Authorizer::new(), policies, schema, entities, types })
    }

    /// Asks Cedar. An action that the schema does not allow for this kind of subject and resource is denied.
    pub(crate) fn decide(&self, subject: &Subject, action: &str, resource: Resource<'_>) -> Decision {
        let label = resource.label();
        let denied =
            || Decision { allowed: false, action: action.to_owned(), resource: label.clone(), policies: Vec::new() };
        let (principal, mut own) = match subject {
            Subject::Caller(caller) => {
                let entity = self.caller(caller);
                (entity.uid(), vec![entity])
            }
            Subject::Service(service) => (uid(&self.types.service, service.as_str()), Vec::new()),
        };
        let resource = self.resource(resource);
        let resource_uid = resource.uid();
        own.push(resource);
        let action_uid = uid(&self.types.action, action);
        let request = Request::new(principal, action_uid, resource_uid, Context::empty(), Some(&self.schema));
        let (request, entities) = match (request, self.entities.clone().add_entities(own, Some(&self.schema))) {
            (Ok(request), Ok(entities)) => (request, entities),
            (Err(error), _) => {
                tracing::debug!(%error, action, "not a request the schema knows");
                return denied();
            }
            (_, Err(error)) => {
                tracing::error!(%error, action, "entities do not fit the schema");
                return denied();
            }
        };
        let answer = self.authorizer.is_authorized(&request, &self.policies, &entities);
        for error in answer.diagnostics().errors() {
            tracing::error!(%error, action, "a policy failed to evaluate");
        }
        let mut policies: Vec<_> = answer.diagnostics().reason().map(ToString::to_string).collect();
        policies.sort();
        Decision { allowed: answer.decision() == Verdict::Allow, policies, ..denied() }
    }

    fn caller(&self, caller: &Caller) -> Entity {
        // Principals are named within their tenant.
        let name = format!("{}/{}", caller.tenant, caller.principal);
        let tenant = RestrictedExpression::new_entity_uid(uid(&self.types.tenant, caller.tenant.as_str()));
        let attributes = HashMap::from([("tenant".to_owned(), tenant)]);
        let role = HashSet::from([uid(&self.types.role, caller.role.as_str())]);
        Entity::new(uid(&self.types.caller, &name), attributes, role).expect("an entity reference always evaluates")
    }

    fn resource(&self, resource: Resource<'_>) -> Entity {
        let types = &self.types;
        match resource {
            Resource::Tenant(tenant) => Entity::new_no_attrs(uid(&types.tenant, tenant.as_str()), HashSet::new()),
            Resource::Run(run, tenant) => {
                let parent = HashSet::from([uid(&types.tenant, tenant.as_str())]);
                Entity::new_no_attrs(uid(&types.run, run.as_str()), parent)
            }
            Resource::Deployment => Entity::new_no_attrs(uid(&types.deployment, "this"), HashSet::new()),
        }
    }

    /// Every action of the schema with the resource types it applies to, for the tests that compare it with the descriptors.
    #[cfg(test)]
    pub(super) fn schema(&self) -> &Schema {
        &self.schema
    }
}

impl Types {
    fn new() -> Self {
        let name = |text| EntityTypeName::from_str(text).expect("a plain identifier");
        Self {
            role: name("Role"),
            caller: name("Caller"),
            service: name("Service"),
            tenant: name("Tenant"),
            run: name("Run"),
            deployment: name("Deployment"),
            action: name("Action"),
        }
    }
}

fn uid(kind: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}

/// Adds one file's policies under their `@id`.
fn add(policies: &mut PolicySet, file: &str, text: &str) -> Result<(), PolicyError> {
    let wrong_id = |problem: String| PolicyError::Id { file: file.to_owned(), problem };
    let parsed = PolicySet::from_str(text)
        .map_err(|error| PolicyError::Syntax { file: file.to_owned(), problem: error.to_string() })?;
    if parsed.templates().next().is_some() {
        return Err(wrong_id("a template".to_owned()));
    }
    for policy in parsed.policies() {
        let id = policy.annotation("id").ok_or_else(|| wrong_id("a policy without @id".to_owned()))?;
        let named: CedarPolicy = policy.new_id(PolicyId::new(id));
        policies.add(named).map_err(|error| wrong_id(error.to_string()))?;
    }
    Ok(())
}
