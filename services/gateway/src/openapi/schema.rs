//! Messages and enums as JSON Schema, in the form `rest::json` prints them.

use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, Value as OptionValue};
use serde_json::{Map, Value, json};

use super::comments::Comments;

/// Collects the types that are referred to.
pub(super) struct Schemas<'a> {
    comments: &'a Comments,
    wanted: BTreeMap<String, MessageDescriptor>,
    enums: BTreeMap<String, EnumDescriptor>,
}

impl<'a> Schemas<'a> {
    pub(super) fn new(comments: &'a Comments) -> Self {
        Self { comments, wanted: BTreeMap::new(), enums: BTreeMap::new() }
    }

    /// A reference to a message, which is described in the end.
    pub(super) fn reference(&mut self, message: &MessageDescriptor) -> Value {
        self.wanted.insert(message.full_name().to_owned(), message.clone());
        refer(message.full_name())
    }

    /// One field with its comment.
    pub(super) fn field(&mut self, field: &FieldDescriptor) -> Value {
        let mut schema = if field.is_map() {
            match field.kind() {
                Kind::Message(entry) => {
                    let value = self.one(entry.map_entry_value_field().kind());
                    json!({"type": "object", "additionalProperties": value})
                }
                _ => json!({"type": "object"}),
            }
        } else if field.is_list() {
            json!({"type": "array", "items": self.one(field.kind())})
        } else {
            self.one(field.kind())
        };
        let text = self.comments.field(field);
        if !text.is_empty() {
            schema["description"] = text.into();
        }
        if is_secret(field) {
            schema["writeOnly"] = true.into();
        }
        schema
    }

    /// Everything that was referred to, and what that refers to; `error` is the shape of an error.
    pub(super) fn finish(mut self, error: Value) -> Map<String, Value> {
        let mut done = BTreeSet::new();
        let mut schemas = Map::from_iter([("error".to_owned(), error)]);
        while let Some((name, message)) = self.wanted.pop_first() {
            if done.insert(name.clone()) {
                let schema = self.message(&message);
                schemas.insert(name, schema);
            }
        }
        for (name, enumeration) in std::mem::take(&mut self.enums) {
            schemas.insert(name, self.enumeration(&enumeration));
        }
        schemas
    }

    fn message(&mut self, message: &MessageDescriptor) -> Value {
        let properties: Map<String, Value> =
            message.fields().map(|field| (field.name().to_owned(), self.field(&field))).collect();
        json!({
            "type": "object",
            "description": self.comments.message(message),
            "properties": properties,
            "additionalProperties": false,
        })
    }

    fn enumeration(&self, of: &EnumDescriptor) -> Value {
        let names: Vec<_> = of.values().map(|value| value.name().to_owned()).collect();
        let mut lines = vec![self.comments.enumeration(of).to_owned()];
        for value in of.values() {
            let text = self.comments.value(&value);
            if !text.is_empty() {
                lines.push(format!("{}: {text}", value.name()));
            }
        }
        lines.retain(|line| !line.is_empty());
        json!({"type": "string", "enum": names, "description": lines.join("\n")})
    }

    fn one(&mut self, kind: Kind) -> Value {
        match kind {
            Kind::Bool => json!({"type": "boolean"}),
            Kind::String => json!({"type": "string"}),
            Kind::Bytes => json!({"type": "string", "contentEncoding": "base64"}),
            Kind::Double | Kind::Float => json!({"type": "number"}),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => json!({"type": "integer", "format": "int32"}),
            Kind::Uint32 | Kind::Fixed32 => json!({"type": "integer", "format": "uint32"}),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => json!({"type": "string", "format": "int64"}),
            Kind::Uint64 | Kind::Fixed64 => json!({"type": "string", "format": "uint64"}),
            Kind::Enum(of) => {
                self.enums.insert(of.full_name().to_owned(), of.clone());
                refer(of.full_name())
            }
            Kind::Message(of) => match of.full_name() {
                "google.protobuf.Timestamp" => json!({"type": "string", "format": "date-time"}),
                "google.protobuf.Duration" => {
                    json!({"type": "string", "pattern": "^-?[0-9]+(\\.[0-9]{1,9})?s$", "examples": ["90s"]})
                }
                _ => self.reference(&of),
            },
        }
    }
}

/// The message a field holds, unless that has a text form of its own.
pub(super) fn nested(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    match field.kind() {
        Kind::Message(of) if !of.full_name().starts_with("google.protobuf.") => Some(of),
        _ => None,
    }
}

fn refer(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn is_secret(field: &FieldDescriptor) -> bool {
    let Some(extension) = berth_rpc::pool().get_extension_by_name("berth.options.v1.secret") else { return false };
    matches!(field.options().get_extension(&extension).as_ref(), OptionValue::Bool(true))
}
