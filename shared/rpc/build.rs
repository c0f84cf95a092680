//! Compiles the protos without a protoc install and writes the descriptor set that reflection, REST mapping and the
//! access table read. Messages with a `secret` field get a Debug that shows no field.

use std::{env, error::Error, fmt::Write as _, fs, path::PathBuf};

use prost_reflect::{DescriptorPool, Value};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", root.display());

    let mut files = Vec::new();
    for package in ["options", "lifecycle", "broker", "sessions"] {
        for entry in fs::read_dir(root.join("berth").join(package).join("v1"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "proto") {
                files.push(path);
            }
        }
    }
    files.sort();

    let mut compiler = protox::Compiler::new([&root])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(&files)?;
    // The bytes keep extension options (google.api.http, access); the prost-typed set below loses them.
    let bytes = compiler.encode_file_descriptor_set();
    fs::write(out.join("descriptors.bin"), &bytes)?;

    let pool = DescriptorPool::decode(bytes.as_slice())?;
    let secret =
        pool.get_extension_by_name("berth.options.v1.secret").ok_or("berth.options.v1.secret is not defined")?;
    let mut config = tonic_prost_build::configure().build_transport(true).compile_well_known_types(false);
    let mut redacted = String::new();
    for message in pool.all_messages() {
        let is_secret = |field: prost_reflect::FieldDescriptor| {
            matches!(field.options().get_extension(&secret).as_ref(), Value::Bool(true))
        };
        if message.fields().any(is_secret) {
            config = config.skip_debug([format!(".{}", message.full_name())]);
            let path = message.full_name().replace('.', "::");
            writeln!(
                redacted,
                "impl std::fmt::Debug for crate::{path} {{\n    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {{\n        f.write_str(\"{}(redacted)\")\n    }}\n}}",
                message.name()
            )?;
        }
    }
    fs::write(out.join("redacted.rs"), redacted)?;
    config.compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}
