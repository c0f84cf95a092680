//! Canonical protobuf JSON, both ways. Printed with proto field names, every field without presence printed even at its
//! default (so that `"runs": []` and `"complete": false` are there to read), 64-bit integers as strings, enums by name.
//! Read in both forms, numbers also as strings; unknown fields are refused by name. Errors never repeat a value: it may be
//! a secret.

use prost_reflect::{DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, SerializeOptions};
use serde::de::IntoDeserializer as _;
use serde_json::{Map, Value};

use super::refusal::Refusal;

/// The JSON of a message.
///
/// # Errors
/// When a well-known type holds what it may not (a timestamp out of range).
pub(crate) fn to_value(message: &DynamicMessage) -> Result<Value, serde_json::Error> {
    message.serialize_with_options(serde_json::value::Serializer, &options())
}

/// The same as text.
pub(crate) fn to_text(message: &DynamicMessage) -> Result<String, serde_json::Error> {
    let mut text = Vec::new();
    message.serialize_with_options(&mut serde_json::Serializer::new(&mut text), &options())?;
    String::from_utf8(text).map_err(serde::ser::Error::custom)
}

fn options() -> SerializeOptions {
    SerializeOptions::new().use_proto_field_name(true).skip_default_fields(false)
}

/// The object in a request's body; an empty body is an empty object.
pub(crate) fn parse(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(Refusal::invalid("BODY_NOT_AN_OBJECT", "the body must be a JSON object")),
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            Err(Refusal::invalid("MALFORMED_JSON", format!("the body is not JSON: line {line}, column {column}")))
        }
    }
}

/// Renames every field to its proto name and refuses what the message does not have.
pub(crate) fn normalize(object: Map<String, Value>, of: &MessageDescriptor) -> Result<Map<String, Value>, Refusal> {
    normalize_at(object, of, "")
}

/// The message an object of proto names describes.
pub(crate) fn to_message(object: Map<String, Value>, of: &MessageDescriptor) -> Result<DynamicMessage, Refusal> {
    match read(Value::Object(object.clone()), of) {
        Ok(message) => Ok(message),
        Err(_) => Err(blame(&object, of, "")),
    }
}

fn read(value: Value, of: &MessageDescriptor) -> Result<DynamicMessage, serde_json::Error> {
    let strict = DeserializeOptions::new().deny_unknown_fields(true);
    DynamicMessage::deserialize_with_options(of.clone(), value.into_deserializer(), &strict)
}

/// A field by either of its names.
pub(crate) fn field(of: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    of.get_field_by_name(name).or_else(|| of.get_field_by_json_name(name))
}

/// The message type whose fields an object value of `kind` names; none for scalars and types with a JSON form of their own.
pub(crate) fn nested(kind: Kind) -> Option<MessageDescriptor> {
    match kind {
        Kind::Message(message) if !message.full_name().starts_with("google.protobuf.") => Some(message),
        _ => None,
    }
}

fn normalize_at(object: Map<String, Value>, of: &MessageDescriptor, at: &str) -> Result<Map<String, Value>, Refusal> {
    let mut normal = Map::new();
    for (name, value) in object {
        let path = join(at, &name);
        let Some(field) = field(of, &name) else {
            return Err(Refusal::field(&path, "UNKNOWN_FIELD", format!("there is no field {path}")));
        };
        let value = normalize_value(value, &field, &path)?;
        if normal.insert(field.name().to_owned(), value).is_some() {
            return Err(Refusal::field(&path, "DUPLICATE_FIELD", format!("{path} is given twice")));
        }
    }
    Ok(normal)
}

fn normalize_value(value: Value, field: &FieldDescriptor, path: &str) -> Result<Value, Refusal> {
    if field.is_map() {
        let Kind::Message(entry) = field.kind() else { return Ok(value) };
        let (Some(of), Value::Object(entries)) = (nested(entry.map_entry_value_field().kind()), &value) else {
            return Ok(value);
        };
        let entries = entries.clone().into_iter().map(|(key, value)| {
            let at = join(path, &key);
            Ok((key, nest(value, &of, &at)?))
        });
        return entries.collect::<Result<Map<_, _>, Refusal>>().map(Value::Object);
    }
    let Some(of) = nested(field.kind()) else { return Ok(value) };
    match value {
        Value::Array(items) if field.is_list() => {
            let items = items.into_iter().enumerate().map(|(index, item)| nest(item, &of, &format!("{path}[{index}]")));
            items.collect::<Result<Vec<_>, _>>().map(Value::Array)
        }
        value => nest(value, &of, path),
    }
}

fn nest(value: Value, of: &MessageDescriptor, path: &str) -> Result<Value, Refusal> {
    match value {
        Value::Object(object) => normalize_at(object, of, path).map(Value::Object),
        value => Ok(value),
    }
}

/// Which field could not be read: found by reading each alone.
fn blame(object: &Map<String, Value>, of: &MessageDescriptor, at: &str) -> Refusal {
    for (name, value) in object {
        let alone = Map::from_iter([(name.clone(), value.clone())]);
        if read(Value::Object(alone), of).is_ok() {
            continue;
        }
        let path = join(at, name);
        let Some(field) = field(of, name) else { break };
        return match (nested(field.kind()), value) {
            (Some(of), Value::Object(inner)) if !field.is_map() => blame(inner, &of, &path),
            _ => Refusal::field(&path, "INVALID_VALUE", format!("{path} must be {}", expected(&field))),
        };
    }
    Refusal::field(at, "INVALID_VALUE", "fields that exclude one another are given together")
}

fn expected(field: &FieldDescriptor) -> String {
    if field.is_map() {
        return "an object".to_owned();
    }
    let one = match field.kind() {
        Kind::Bool => "true or false".to_owned(),
        Kind::String => "a string".to_owned(),
        Kind::Bytes => "a base64 string".to_owned(),
        Kind::Double | Kind::Float => "a number".to_owned(),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => "a 32-bit integer".to_owned(),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => "a 64-bit integer".to_owned(),
        Kind::Uint32 | Kind::Fixed32 => "a 32-bit integer that is not negative".to_owned(),
        Kind::Uint64 | Kind::Fixed64 => "a 64-bit integer that is not negative".to_owned(),
        Kind::Enum(of) => {
            let names: Vec<_> = of.values().map(|value| value.name().to_owned()).collect();
            format!("one of {}", names.join(", "))
        }
        Kind::Message(of) => match of.full_name() {
            "google.protobuf.Duration" => "a duration such as \"90s\"".to_owned(),
            "google.protobuf.Timestamp" => "a time such as \"2026-01-02T03:04:05Z\"".to_owned(),
            _ => "an object".to_owned(),
        },
    };
    if field.is_list() { format!("a list, each item {one}") } else { one }
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
