//! Compiles `proto/` without an installed protoc: protox makes the descriptor set, connectrpc's
//! generator the code.

use std::path::PathBuf;

const FILES: &[&str] = &[
    "google/rpc/error_details.proto",
    "overwinter/v1/operation.proto",
    "overwinter/v1/sandbox.proto",
    "overwinter/v1/process.proto",
    "overwinter/v1/file.proto",
    "overwinter/v1/gateway.proto",
    "overwinter/supervisor/v1/supervisor.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // As it is now, not when this was compiled: a target folder may be shared by several trees.
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", root.display());

    let mut compiler = protox::Compiler::new([&root])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(FILES)?;
    let set = out.join("descriptors.bin");
    std::fs::write(&set, compiler.encode_file_descriptor_set())?;

    let mut code = connectrpc_build::CodeGenConfig::default();
    // File and process data is passed on by reference count, never copied.
    code.bytes_fields = vec![(".".into(), buffa_codegen::BytesRepr::Bytes)];
    code.preserve_unknown_fields = false;
    connectrpc_build::Config::new()
        .buffa_config(code)
        .descriptor_set(&set)
        .files(FILES)
        .includes(&[&root])
        .emit_rerun_directives(false)
        .generate_json(std::env::var_os("CARGO_FEATURE_JSON").is_some())
        .gate_client_feature(true)
        .emit_descriptor_set("overwinter.bin")
        .include_file("overwinter.rs")
        .compile()?;
    Ok(())
}
