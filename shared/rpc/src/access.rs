//! Which Cedar action and resource each RPC declares, read from the `berth.options.v1.access` method option.

use std::{collections::HashMap, sync::OnceLock};

use prost_reflect::{DynamicMessage, MethodDescriptor, ReflectMessage as _, Value};

/// What an RPC declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Cedar action; equals the RPC's name.
    pub action: String,
    /// Cedar resource type.
    pub resource: String,
    /// Services that may call it with their key alone; empty: a caller is required.
    pub services: Vec<String>,
}

/// By gRPC path (`/berth.lifecycle.v1.RunService/GetRun`). None for RPCs outside Berth's packages (health, reflection).
pub fn access(path: &str) -> Option<&'static Access> {
    table().get(path)
}

/// Every Berth RPC by path, sorted; an RPC without the option is absent (a test fails then).
pub fn all() -> Vec<(&'static str, &'static Access)> {
    let mut rows: Vec<_> = table().iter().map(|(path, access)| (path.as_str(), access)).collect();
    rows.sort_by_key(|(path, _)| *path);
    rows
}

/// Every method of Berth's own services, with or without the option.
pub fn methods() -> impl Iterator<Item = MethodDescriptor> {
    crate::pool()
        .services()
        .filter(|service| service.package_name().starts_with("berth."))
        .flat_map(|service| service.methods().collect::<Vec<_>>())
}

/// The path gRPC uses for a method.
pub fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

fn table() -> &'static HashMap<String, Access> {
    static TABLE: OnceLock<HashMap<String, Access>> = OnceLock::new();
    TABLE.get_or_init(|| methods().filter_map(|method| Some((path(&method), read(&method)?))).collect())
}

fn read(method: &MethodDescriptor) -> Option<Access> {
    let extension = crate::pool().get_extension_by_name("berth.options.v1.access")?;
    let options = method.options();
    if !options.has_extension(&extension) {
        return None;
    }
    let value = options.get_extension(&extension);
    let message = value.as_message()?;
    Some(Access {
        action: text(message, "action"),
        resource: text(message, "resource"),
        services: match message.get_field_by_name("services").as_deref() {
            Some(Value::List(items)) => items.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect(),
            _ => Vec::new(),
        },
    })
}

fn text(message: &DynamicMessage, field: &str) -> String {
    debug_assert!(message.descriptor().get_field_by_name(field).is_some());
    message.get_field_by_name(field).and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_a04_every_rpc_declares_action_and_resource() {
        for method in methods() {
            let access = access(&path(&method)).unwrap_or_else(|| panic!("{} declares no access", method.full_name()));
            assert_eq!(access.action, method.name(), "action of {}", method.full_name());
            assert!(!access.resource.is_empty(), "{} declares no resource", method.full_name());
        }
        assert!(methods().count() > 25);
    }

    #[test]
    fn secret_fields_are_redacted_in_debug() {
        let request = crate::lifecycle::PutSecretRequest { value: "canary".into(), ..Default::default() };
        assert!(!format!("{request:?}").contains("canary"));
    }
}
