//! Query parameters and path variables as JSON values: names may be nested (`budget.max_tokens`), lists are repeated
//! parameters, and each text becomes what the field's JSON form is.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value};

use super::{json, refusal::Refusal};

/// The field a dotted name leads to, and its proto path.
pub(crate) fn resolve(of: &MessageDescriptor, name: &str) -> Option<(Vec<String>, FieldDescriptor)> {
    let mut path = Vec::new();
    let mut names = name.split('.');
    let mut field = json::field(of, names.next()?)?;
    path.push(field.name().to_owned());
    for name in names {
        if field.is_list() || field.is_map() {
            return None;
        }
        field = json::field(&json::nested(field.kind())?, name)?;
        path.push(field.name().to_owned());
    }
    // A message without a JSON text form has no single value.
    (json::nested(field.kind()).is_none() && !field.is_map()).then_some((path, field))
}

/// The parameters of a query as an object of proto names.
pub(crate) fn parse(query: &str, of: &MessageDescriptor) -> Result<Map<String, Value>, Refusal> {
    let mut object = Map::new();
    for (name, text) in url::form_urlencoded::parse(query.as_bytes()) {
        let Some((path, field)) = resolve(of, &name) else {
            return Err(Refusal::field(&*name, "UNKNOWN_FIELD", format!("there is no parameter {name}")));
        };
        let value = value(&text, &field);
        let slot = slot(&mut object, &path)
            .ok_or_else(|| Refusal::field(&*name, "DUPLICATE_FIELD", format!("{name} is given twice")))?;
        match slot {
            Value::Null if field.is_list() => *slot = Value::Array(vec![value]),
            Value::Null => *slot = value,
            Value::Array(items) if field.is_list() => items.push(value),
            _ => return Err(Refusal::field(&*name, "DUPLICATE_FIELD", format!("{name} is given twice"))),
        }
    }
    Ok(object)
}

/// Puts a path variable into the object. The same field given elsewhere with another value is refused.
pub(crate) fn bind(
    object: &mut Map<String, Value>,
    of: &MessageDescriptor,
    name: &str,
    text: &str,
) -> Result<(), Refusal> {
    let mismatch = || Refusal::field(name, "FIELD_MISMATCH", format!("{name} differs from the one in the path"));
    let (path, field) = resolve(of, name).ok_or_else(mismatch)?;
    let value = value(text, &field);
    let slot = slot(object, &path).ok_or_else(mismatch)?;
    let unset = slot.is_null() || *slot == Value::String(String::new());
    if !unset && *slot != value {
        return Err(mismatch());
    }
    *slot = value;
    Ok(())
}

/// The place of a field, made if it is not there; none when something else than an object is in the way.
fn slot<'a>(object: &'a mut Map<String, Value>, path: &[String]) -> Option<&'a mut Value> {
    let (first, rest) = path.split_first()?;
    let mut slot = object.entry(first.clone()).or_insert(Value::Null);
    for name in rest {
        if slot.is_null() {
            *slot = Value::Object(Map::new());
        }
        slot = slot.as_object_mut()?.entry(name.clone()).or_insert(Value::Null);
    }
    Some(slot)
}

/// Numbers stay text, which canonical JSON takes; only booleans and enum numbers need a form of their own.
fn value(text: &str, field: &FieldDescriptor) -> Value {
    match (field.kind(), text) {
        (Kind::Bool, "true") => Value::Bool(true),
        (Kind::Bool, "false") => Value::Bool(false),
        (Kind::Enum(_), text) => text.parse::<i32>().map_or_else(|_| text.into(), Value::from),
        (_, text) => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn create_run() -> MessageDescriptor {
        berth_rpc::pool().get_message_by_name("berth.lifecycle.v1.CreateRunRequest").unwrap()
    }

    #[test]
    fn nested_repeated_and_both_name_forms() {
        let object = parse(
            "prompt=a%20b+c&tools=read&tools=bash&budget.max_tokens=7&maxTurns=3&conversation=true&budget.wallClock=90s",
            &create_run(),
        );
        let expected = json!({
            "prompt": "a b c", "tools": ["read", "bash"], "max_turns": "3", "conversation": true,
            "budget": {"max_tokens": "7", "wall_clock": "90s"},
        });
        assert_eq!(Value::Object(object.unwrap()), expected);
    }

    #[test]
    fn unknown_and_doubled_parameters_are_refused() {
        for query in ["nonsense=1", "budget=1", "budget.nonsense=1", "prompt.x=1", "prompt=a&prompt=b", "tools.x=1"] {
            assert!(parse(query, &create_run()).is_err(), "{query}");
        }
    }
}
