//! The comments of the protos, by the element they stand before.

use std::collections::HashMap;

use prost_reflect::{
    DescriptorPool, EnumDescriptor, EnumValueDescriptor, FieldDescriptor, MessageDescriptor, MethodDescriptor,
};

/// Comments of every file, by file name and source path.
pub(super) struct Comments {
    texts: HashMap<(String, Vec<i32>), String>,
}

impl Comments {
    pub(super) fn of(pool: &DescriptorPool) -> Self {
        let mut texts = HashMap::new();
        for file in pool.files().filter(|file| file.package_name().starts_with("berth.")) {
            let Some(info) = &file.file_descriptor_proto().source_code_info else { continue };
            for location in &info.location {
                let Some(text) = &location.leading_comments else { continue };
                let text = text.lines().map(str::trim).collect::<Vec<_>>().join("\n").trim().to_owned();
                texts.insert((file.name().to_owned(), location.path.clone()), text);
            }
        }
        Self { texts }
    }

    pub(super) fn method(&self, of: &MethodDescriptor) -> &str {
        self.text(of.parent_file().name(), of.path())
    }

    pub(super) fn message(&self, of: &MessageDescriptor) -> &str {
        self.text(of.parent_file().name(), of.path())
    }

    pub(super) fn field(&self, of: &FieldDescriptor) -> &str {
        self.text(of.parent_message().parent_file().name(), of.path())
    }

    pub(super) fn enumeration(&self, of: &EnumDescriptor) -> &str {
        self.text(of.parent_file().name(), of.path())
    }

    pub(super) fn value(&self, of: &EnumValueDescriptor) -> &str {
        self.text(of.parent_enum().parent_file().name(), of.path())
    }

    fn text(&self, file: &str, path: &[i32]) -> &str {
        self.texts.get(&(file.to_owned(), path.to_vec())).map_or("", String::as_str)
    }
}
