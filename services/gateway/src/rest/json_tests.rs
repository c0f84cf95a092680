//! Whatever one direction prints, the other reads back.

use proptest::prelude::*;
use prost::Message as _;
use prost_reflect::{DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};

use super::{normalize, parse, to_message, to_text};

/// Random but valid content for every kind of field, from a stream of numbers.
struct Dice {
    numbers: Vec<u64>,
    at: usize,
}

impl Dice {
    fn roll(&mut self) -> u64 {
        self.at += 1;
        // Mixed, so that a short list still fills a large message with different values.
        self.numbers[self.at % self.numbers.len()]
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left((self.at % 64) as u32)
    }

    fn message(&mut self, of: &MessageDescriptor, depth: usize) -> DynamicMessage {
        let mut message = DynamicMessage::new(of.clone());
        match of.full_name() {
            "google.protobuf.Timestamp" => {
                message.set_field_by_name("seconds", Value::I64((self.roll() % 253_402_300_800) as i64));
                message.set_field_by_name("nanos", Value::I32((self.roll() % 1_000_000_000) as i32));
                return message;
            }
            "google.protobuf.Duration" => {
                message.set_field_by_name("seconds", Value::I64((self.roll() % 315_576_000_000) as i64));
                message.set_field_by_name("nanos", Value::I32((self.roll() % 1_000_000_000) as i32));
                return message;
            }
            _ => {}
        }
        for field in of.fields() {
            if self.roll().is_multiple_of(3) || (depth == 0 && matches!(field.kind(), Kind::Message(_))) {
                continue;
            }
            let value = self.field(&field, depth);
            message.set_field(&field, value);
        }
        message
    }

    fn field(&mut self, field: &FieldDescriptor, depth: usize) -> Value {
        if field.is_map() {
            let Kind::Message(entry) = field.kind() else { unreachable!("maps are made of entries") };
            let value = self.one(&entry.map_entry_value_field().kind(), depth);
            return Value::Map([(MapKey::String(self.text()), value)].into());
        }
        if field.is_list() {
            let count = self.roll() % 4;
            return Value::List((0..count).map(|_| self.one(&field.kind(), depth)).collect());
        }
        self.one(&field.kind(), depth)
    }

    fn one(&mut self, kind: &Kind, depth: usize) -> Value {
        let number = self.roll();
        match kind {
            Kind::Bool => Value::Bool(number.is_multiple_of(2)),
            Kind::String => Value::String(self.text()),
            Kind::Bytes => Value::Bytes(number.to_be_bytes().to_vec().into()),
            Kind::Double => Value::F64(f64::from(number as u32) / 7.0),
            Kind::Float => Value::F32((number as u16).into()),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(number as i32),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(number as i64),
            Kind::Uint32 | Kind::Fixed32 => Value::U32(number as u32),
            Kind::Uint64 | Kind::Fixed64 => Value::U64(number),
            Kind::Enum(of) => Value::EnumNumber(member(of, number)),
            Kind::Message(of) => Value::Message(self.message(of, depth.saturating_sub(1))),
        }
    }

    fn text(&mut self) -> String {
        const PIECES: [&str; 8] =
            ["", "plain", "zwei\nZeilen", "\"quoted\"", "\u{0}\u{1f}", "\u{1f980}", "\\", "</script>"];
        let (first, second) = (self.roll() % 8, self.roll() % 8);
        format!("{}{}", PIECES[first as usize], PIECES[second as usize])
    }
}

fn member(of: &EnumDescriptor, number: u64) -> i32 {
    let members: Vec<_> = of.values().collect();
    members[(number % members.len() as u64) as usize].number()
}

proptest! {
    #[test]
    fn what_is_printed_is_read_back(numbers in prop::collection::vec(any::<u64>(), 8..40), which in any::<prop::sample::Index>()) {
        let messages: Vec<_> =
            berth_rpc::pool().all_messages().filter(|m| m.full_name().starts_with("berth.") && !m.is_map_entry()).collect();
        let of = which.get(&messages);
        let message = Dice { numbers, at: 0 }.message(of, 3);
        let text = to_text(&message).unwrap();
        prop_assert!(!text.contains('\n'), "one line, for SSE");
        let read = to_message(normalize(parse(text.as_bytes()).unwrap(), of).unwrap(), of).unwrap();
        // Defaults that were set by hand and defaults that were never set are the same bytes.
        prop_assert_eq!(read.encode_to_vec(), message.encode_to_vec(), "{}", &text);
    }

    /// Rubbish is an error, never a panic.
    #[test]
    fn rubbish_is_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..64), text in "[{}\\[\\]\":,a-z0-9.]{0,40}") {
        let of = berth_rpc::pool().get_message_by_name("berth.lifecycle.v1.CreateRunRequest").unwrap();
        for body in [bytes.as_slice(), text.as_bytes()] {
            let _ = parse(body).and_then(|object| normalize(object, &of)).and_then(|object| to_message(object, &of));
        }
    }
}
