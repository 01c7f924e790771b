//! Compiles `proto/cri.proto` with protox, so that nobody needs protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/cri.proto");
    let descriptors = protox::compile(["cri.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // Our client (src/client.rs) sends every call through one place that knows deadlines and names.
        .build_client(false)
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .compile_fds(descriptors)?;
    Ok(())
}
