//! The messages in `src/generated` are what `proto/cri.proto` describes.
//!
//! They are checked in, so that crates that depend on this one build no protobuf compiler. After a change of the `.proto`:
//!
//! ```sh
//! PLEG_REGENERATE=1 cargo test -p pleg-cri --test generated
//! ```

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

const CHECKED_IN: &str = "src/generated/runtime.v1.rs";

/// Compiles the `.proto` with protox, so that nobody needs protoc.
fn generate(into: &Path) {
    let descriptors = protox::compile(["cri.proto"], ["proto"]).unwrap();
    tonic_prost_build::configure()
        // Our client sends every call through one place that knows deadlines and names.
        .build_client(false)
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .out_dir(into)
        .compile_fds(descriptors)
        .unwrap();
}

#[test]
fn the_generated_code_is_up_to_date() {
    let directory = tempfile::tempdir().unwrap();
    generate(directory.path());
    let generated = std::fs::read_to_string(directory.path().join("runtime.v1.rs")).unwrap();
    if std::env::var_os("PLEG_REGENERATE").is_some() {
        std::fs::write(CHECKED_IN, &generated).unwrap();
    }
    let checked_in = std::fs::read_to_string(CHECKED_IN).unwrap();
    // Not assert_eq: a diff of two thousand lines helps nobody.
    assert!(
        generated == checked_in,
        "{CHECKED_IN} differs from proto/cri.proto; run PLEG_REGENERATE=1 cargo test -p pleg-cri --test generated"
    );
}
