//! The REST routes, read from the `google.api.http` option of every public RPC. No route is written by hand.

use std::{collections::BTreeSet, sync::Arc};

use http::Method;
use prost_reflect::{DynamicMessage, MethodDescriptor, Value};

use super::{
    json, query,
    template::{Path, Template, TemplateError},
};
use crate::rpcs::Rpc;

/// One binding of one RPC.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) method: Method,
    pub(crate) template: Template,
    /// The whole message is the body; without it the fields the path does not fill come from the query.
    pub(crate) takes_body: bool,
    pub(crate) rpc: Arc<Rpc>,
}

/// An annotation this gateway cannot serve: found at start, and by a test before that.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The path template.
    #[error("http annotation of {rpc}")]
    Template {
        /// The RPC's path.
        rpc: String,
        /// What is wrong.
        #[source]
        source: TemplateError,
    },
    /// A variable names no field of the request, or one that is no single value.
    #[error("http annotation of {rpc}: {{{field}}} is not a field it can fill")]
    Variable {
        /// The RPC's path.
        rpc: String,
        /// The variable.
        field: String,
    },
    /// Only `body: "*"` and no body are served, no `response_body`, and the five plain methods.
    #[error("http annotation of {0} asks for what the gateway does not serve")]
    Unsupported(String),
}

/// What a request's method and path lead to.
#[derive(Debug)]
pub(crate) enum Matched<'a> {
    /// Up to two RPCs share a binding: one that answers once and one that streams.
    Found {
        unary: Option<&'a Route>,
        stream: Option<&'a Route>,
        variables: Vec<(&'a str, String)>,
    },
    /// Other methods have the path.
    OtherMethods(String),
    None,
}

/// All routes.
#[derive(Debug)]
pub(crate) struct Routes {
    routes: Vec<Route>,
}

impl Routes {
    pub(crate) fn new(rpcs: &[Arc<Rpc>]) -> Result<Self, RouteError> {
        let mut routes = Vec::new();
        for rpc in rpcs {
            for rule in rules(&rpc.method) {
                routes.push(route(rpc, &rule)?);
            }
        }
        Ok(Self { routes })
    }

    pub(crate) fn all(&self) -> &[Route] {
        &self.routes
    }

    pub(crate) fn find(&self, method: &Method, path: &str) -> Matched<'_> {
        let Some(path) = Path::parse(path) else { return Matched::None };
        let fits = |route: &'_ &Route| route.template.matches(&path).is_some();
        let fitting: Vec<&Route> = self.routes.iter().filter(fits).collect();
        let wanted = if method == Method::HEAD { &Method::GET } else { method };
        let of_method = |streams: bool| {
            fitting.iter().copied().find(|r| r.method == *wanted && r.rpc.method.is_server_streaming() == streams)
        };
        let (unary, stream) = (of_method(false), of_method(true));
        match unary.or(stream) {
            Some(route) => {
                Matched::Found { unary, stream, variables: route.template.matches(&path).unwrap_or_default() }
            }
            None if fitting.is_empty() => Matched::None,
            None => Matched::OtherMethods(allow(&fitting)),
        }
    }

    /// The `Allow` of a path, if any route has it.
    pub(crate) fn allowed(&self, path: &str) -> Option<String> {
        let path = Path::parse(path)?;
        let fitting: Vec<&Route> = self.routes.iter().filter(|route| route.template.matches(&path).is_some()).collect();
        (!fitting.is_empty()).then(|| allow(&fitting))
    }
}

fn allow(routes: &[&Route]) -> String {
    let mut methods: BTreeSet<&str> = routes.iter().map(|route| route.method.as_str()).collect();
    if methods.contains("GET") {
        methods.insert("HEAD");
    }
    methods.insert("OPTIONS");
    methods.into_iter().collect::<Vec<_>>().join(", ")
}

/// The method's own rule and its additional bindings.
fn rules(method: &MethodDescriptor) -> Vec<DynamicMessage> {
    let Some(extension) = berth_rpc::pool().get_extension_by_name("google.api.http") else { return Vec::new() };
    let options = method.options();
    if !options.has_extension(&extension) {
        return Vec::new();
    }
    let value = options.get_extension(&extension);
    let Some(rule) = value.as_message() else { return Vec::new() };
    let mut rules = vec![rule.clone()];
    if let Some(Value::List(more)) = rule.get_field_by_name("additional_bindings").as_deref() {
        rules.extend(more.iter().filter_map(|value| value.as_message().cloned()));
    }
    rules
}

fn route(rpc: &Arc<Rpc>, rule: &DynamicMessage) -> Result<Route, RouteError> {
    let name = || rpc.path.as_str().to_owned();
    let text =
        |field: &str| rule.get_field_by_name(field).and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
    let patterns = [
        ("get", Method::GET),
        ("put", Method::PUT),
        ("post", Method::POST),
        ("delete", Method::DELETE),
        ("patch", Method::PATCH),
    ];
    let pattern = patterns.into_iter().find(|(field, _)| !text(field).is_empty());
    let (field, method) = pattern.ok_or_else(|| RouteError::Unsupported(name()))?;
    let template = Template::parse(&text(field)).map_err(|source| RouteError::Template { rpc: name(), source })?;
    for variable in template.variables() {
        if query::resolve(&rpc.method.input(), variable).is_none_or(|(_, field)| field.is_list() || field.is_map()) {
            return Err(RouteError::Variable { rpc: name(), field: variable.to_owned() });
        }
    }
    let body = text("body");
    let served = matches!(body.as_str(), "" | "*") && text("response_body").is_empty();
    if !served || rpc.method.is_client_streaming() {
        return Err(RouteError::Unsupported(name()));
    }
    debug_assert!(
        template.variables().all(|v| json::field(&rpc.method.input(), v.split('.').next().unwrap_or(v)).is_some())
    );
    Ok(Route { method, template, takes_body: body == "*", rpc: rpc.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpcs::Rpcs;

    fn routes() -> Routes {
        Routes::new(&Rpcs::from_descriptors().public()).unwrap()
    }

    #[test]
    fn every_public_rpc_has_a_route() {
        let routes = routes();
        for rpc in Rpcs::from_descriptors().public() {
            assert!(routes.all().iter().any(|route| route.rpc.path == rpc.path), "{}", rpc.path);
        }
    }

    #[test]
    fn paths_lead_to_their_rpcs() {
        let routes = routes();
        let rpc = |method: Method, path: &str| match routes.find(&method, path) {
            Matched::Found { unary, stream, .. } => {
                let name = |route: Option<&Route>| route.map_or("-", |r| r.rpc.method.name()).to_owned();
                format!("{} {}", name(unary), name(stream))
            }
            Matched::OtherMethods(allow) => format!("allow {allow}"),
            Matched::None => "none".to_owned(),
        };
        for (method, path, expected) in [
            (Method::POST, "/v1/agent-runs", "CreateRun -"),
            (Method::GET, "/v1/agent-runs", "ListRuns -"),
            (Method::HEAD, "/v1/agent-runs/r", "GetRun -"),
            (Method::DELETE, "/v1/agent-runs/r", "DeleteRun -"),
            (Method::POST, "/v1/agent-runs/r:cancel", "CancelRun -"),
            (Method::POST, "/v1/agent-runs/r:retry-deletion", "RetryDeletion -"),
            (Method::GET, "/v1/agent-runs/r:receipt", "GetReceipt -"),
            (Method::GET, "/v1/agent-runs/r:watch", "- WatchRun"),
            (Method::GET, "/v1/agent-runs/r/events", "ListEvents StreamEvents"),
            (Method::PUT, "/api/tenants/t/secrets/n", "PutSecret -"),
            (Method::GET, "/v1/providers", "ListProviders -"),
            (Method::PATCH, "/v1/agent-runs", "allow GET, HEAD, OPTIONS, POST"),
            (Method::GET, "/v1/agent-runs/r:cancel", "allow OPTIONS, POST"),
            (Method::GET, "/v1/agent-runs/r:nonsense", "none"),
            (Method::GET, "/v2/agent-runs", "none"),
        ] {
            assert_eq!(rpc(method, path), expected, "{path}");
        }
    }
}
