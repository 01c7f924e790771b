//! Builds the program of the test image as a static binary.
//!
//! An image without a distribution in it needs a program without a dynamic loader. The compiler can do that by itself for a file
//! without dependencies, so no second toolchain and no second cargo run is needed.

#![allow(clippy::print_stdout, reason = "that is how a build script talks to cargo")]

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=tool/main.rs");
    let var = |name: &str| env::var_os(name).unwrap_or_default();
    let out = PathBuf::from(var("OUT_DIR")).join("tool");
    let status = Command::new(var("RUSTC"))
        .args([
            "--edition=2024",
            "--crate-name=tool",
            "-Copt-level=s",
            "-Cpanic=abort",
            "-Cstrip=symbols",
        ])
        .arg("-Ctarget-feature=+crt-static")
        .arg("--target")
        .arg(var("TARGET"))
        .arg("-o")
        .arg(&out)
        .arg("tool/main.rs")
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => complain(&format!(
            "the static test tool does not build ({status}); is libc.a there (package libc6-dev)?"
        )),
        Err(error) => complain(&format!("cannot run the compiler: {error}")),
    }
}

fn complain(what: &str) -> ExitCode {
    println!("cargo::error={what}");
    ExitCode::FAILURE
}
