//! The OpenAPI 3.1 document, made from the descriptors: the same annotations that serve REST describe it, the comments of
//! the protos are its texts. Nothing in it is written by hand but the frame.

mod comments;
mod schema;

use std::collections::BTreeMap;

use http::Method;
use prost_reflect::{FieldDescriptor, MessageDescriptor};
use serde_json::{Map, Value, json};

use self::{comments::Comments, schema::Schemas};
use crate::{
    rest::routes::{Route, Routes},
    rpcs::Rpcs,
};

const ABOUT: &str = "Runs of coding agents in remote sandboxes. JSON uses proto field names; camelCase is accepted too, unknown \
    fields are refused. 64-bit integers are printed as strings; every number may be sent as one. Fields that are not set are \
    printed at their default, except messages and optional fields.";

/// The document; `public_url` is where clients reach this gateway.
///
/// # Panics
/// When an HTTP annotation cannot be served; a test of the routes rules that out.
pub fn document(public_url: Option<&str>) -> Value {
    let routes = Routes::new(&Rpcs::from_descriptors().public()).expect("routes are checked by a test");
    let comments = Comments::of(berth_rpc::pool());
    let mut schemas = Schemas::new(&comments);
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for route in routes.all() {
        let path = paths.entry(route.template.to_string()).or_default();
        let method = route.method.as_str().to_lowercase();
        let described = operation(route, &comments, &mut schemas);
        match path.get_mut(&method) {
            Some(other) => merge(other, described),
            None => {
                path.insert(method, described);
            }
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Berth", "version": env!("CARGO_PKG_VERSION"), "description": ABOUT},
        "servers": [{"url": public_url.unwrap_or("/")}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "parameters": {"tenant": {
                "name": "x-tenant-id", "in": "header", "schema": {"type": "string"},
                "description": "The tenant to act for; may be left out when the credential is for one tenant only.",
            }},
            "responses": {"error": {
                "description": "The request was not served; `reason` is stable.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/error"}}},
            }},
            "schemas": schemas.finish(error_schema()),
        },
    })
}

fn operation(route: &Route, comments: &Comments, schemas: &mut Schemas<'_>) -> Value {
    let rpc = &route.rpc.method;
    let input = rpc.input();
    let in_path: Vec<&str> = route.template.variables().collect();
    let mut parameters = vec![json!({"$ref": "#/components/parameters/tenant"})];
    for name in &in_path {
        let schema = input.get_field_by_name(name).map_or_else(|| json!({"type": "string"}), |f| schemas.field(&f));
        parameters.push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
    }
    if !route.takes_body {
        query_parameters(&input, "", &in_path, schemas, &mut parameters);
    }
    if input.get_field_by_name("request_id").is_some() {
        parameters.push(json!({
            "name": "idempotency-key", "in": "header", "schema": {"type": "string"}, "description": "The same as request_id.",
        }));
    }
    let schema = schemas.reference(&rpc.output());
    let content = if rpc.is_server_streaming() { "text/event-stream" } else { "application/json" };
    let mut operation = json!({
        "operationId": format!("{}{}", rpc.name(), suffix(route)),
        "tags": [rpc.parent_service().name()],
        "description": comments.method(rpc),
        "parameters": parameters,
        "responses": {
            "200": {"description": "OK", "content": {content: {"schema": schema}}},
            "default": {"$ref": "#/components/responses/error"},
        },
    });
    if route.takes_body && route.method != Method::GET {
        let schema = schemas.reference(&input);
        operation["requestBody"] = json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    operation
}

/// Operation ids are unique: the aliases below /api get a suffix.
fn suffix(route: &Route) -> &'static str {
    if route.template.to_string().starts_with("/api/") { "Alias" } else { "" }
}

fn query_parameters(
    of: &MessageDescriptor,
    prefix: &str,
    in_path: &[&str],
    schemas: &mut Schemas<'_>,
    parameters: &mut Vec<Value>,
) {
    let single = |field: &FieldDescriptor| !field.is_map();
    for field in of.fields().filter(single) {
        let name = format!("{prefix}{}", field.name());
        match schema::nested(&field) {
            _ if in_path.contains(&name.as_str()) => {}
            // One level is all the contract has; a list of messages has no query form.
            Some(message) if prefix.is_empty() && !field.is_list() => {
                query_parameters(&message, &format!("{name}."), in_path, schemas, parameters);
            }
            Some(_) => {}
            None => parameters.push(json!({"name": name, "in": "query", "schema": schemas.field(&field)})),
        }
    }
}

/// Two RPCs on one path and method: one operation with both answers and the parameters of both.
fn merge(one: &mut Value, other: Value) {
    let names = |operation: &Value| operation["parameters"].as_array().cloned().unwrap_or_default();
    let mut parameters = names(one);
    for parameter in names(&other) {
        if !parameters.iter().any(|known| known["name"] == parameter["name"] && known["in"] == parameter["in"]) {
            parameters.push(parameter);
        }
    }
    one["parameters"] = parameters.into();
    if let Value::Object(content) = &other["responses"]["200"]["content"] {
        for (media, schema) in content {
            one["responses"]["200"]["content"][media] = schema.clone();
        }
    }
    let text = |operation: &Value| operation["description"].as_str().unwrap_or_default().to_owned();
    one["description"] = [text(one), text(&other)].join("\n\n").into();
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {"error": {
            "type": "object",
            "required": ["code", "status", "reason", "message", "details"],
            "properties": {
                "code": {"type": "integer", "description": "The HTTP status."},
                "status": {"type": "string", "description": "The name of the google.rpc.Code."},
                "reason": {"type": "string", "description": "Stable, upper-case: what to match on."},
                "message": {"type": "string", "description": "For people."},
                "details": {"type": "array", "items": {
                    "type": "object", "required": ["@type"], "properties": {"@type": {"type": "string"}},
                    "description": "google.rpc.ErrorInfo, BadRequest, RetryInfo, …",
                }},
            },
        }},
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    match value.as_str() {
                        Some(target) if key == "$ref" => _ = found.insert(target.to_owned()),
                        _ => references(value, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_id_is_unique() {
        let document = document(None);
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() > 10);
        for target in found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
        let operations = document["paths"].as_object().unwrap().values().flat_map(|p| p.as_object().unwrap().values());
        let ids: Vec<_> = operations.map(|operation| operation["operationId"].as_str().unwrap().to_owned()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    }

    #[test]
    fn it_says_what_the_protos_say() {
        let document = document(Some("https://berth.example"));
        let create = &document["paths"]["/v1/agent-runs"]["post"];
        assert!(create["description"].as_str().unwrap().contains("in one transaction"));
        assert_eq!(
            create["requestBody"]["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/berth.lifecycle.v1.CreateRunRequest"
        );
        let events = &document["paths"]["/v1/agent-runs/{run_id}/events"]["get"]["responses"]["200"]["content"];
        assert!(events["application/json"].is_object() && events["text/event-stream"].is_object());
        let run = &document["components"]["schemas"]["berth.lifecycle.v1.Run"]["properties"];
        assert_eq!(run["last_sequence"]["type"], "string");
        assert_eq!(run["turn"]["type"], "integer");
        assert_eq!(run["state"]["$ref"], "#/components/schemas/berth.lifecycle.v1.Run.State");
        let secret = &document["components"]["schemas"]["berth.lifecycle.v1.PutSecretRequest"]["properties"]["value"];
        assert_eq!(secret["writeOnly"], true);
        assert_eq!(document["servers"][0]["url"], "https://berth.example");
    }
}
