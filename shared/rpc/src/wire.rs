//! The contract as it is on the wire, printed and committed: a breaking change shows in review. `UPDATE_EXPECT=1` rewrites it.

use std::fmt::Write as _;

use prost_reflect::{Cardinality, Kind, MessageDescriptor};

#[test]
fn field_numbers_and_methods_are_as_committed() {
    let mut page = String::from("# message.field = number type · enum.value = number · rpc\n");
    let pool = crate::pool();
    let mut messages: Vec<_> = pool.all_messages().filter(|m| m.package_name().starts_with("berth.")).collect();
    messages.sort_by(|a, b| a.full_name().cmp(b.full_name()));
    for message in &messages {
        write_message(&mut page, message);
    }
    let mut enums: Vec<_> = pool.all_enums().filter(|e| e.package_name().starts_with("berth.")).collect();
    enums.sort_by(|a, b| a.full_name().cmp(b.full_name()));
    for each in enums {
        for value in each.values() {
            writeln!(page, "{}.{} = {}", each.full_name(), value.name(), value.number()).expect("string");
        }
    }
    let mut methods: Vec<_> = crate::access::methods().collect();
    methods.sort_by(|a, b| a.full_name().cmp(b.full_name()));
    for method in methods {
        let stream = if method.is_server_streaming() { "stream " } else { "" };
        let (input, output) = (method.input(), method.output());
        writeln!(page, "{}({}) -> {stream}{}", method.full_name(), input.full_name(), output.full_name())
            .expect("string");
    }
    expect_test::expect_file!["../golden/wire.txt"].assert_eq(&page);
}

fn write_message(page: &mut String, message: &MessageDescriptor) {
    if message.is_map_entry() {
        return;
    }
    for field in message.fields() {
        let repeated = if field.cardinality() == Cardinality::Repeated { "repeated " } else { "" };
        let kind = match field.kind() {
            Kind::Message(inner) => inner.full_name().to_owned(),
            Kind::Enum(inner) => inner.full_name().to_owned(),
            scalar => format!("{scalar:?}").to_lowercase(),
        };
        writeln!(page, "{}.{} = {} {repeated}{kind}", message.full_name(), field.name(), field.number())
            .expect("string");
    }
}
