//! The documents are true: every command in them is run, and what is shown beneath it has to come.
//!
//! In a block marked `console`, `$ ` begins a command, `...` stands for output that was left out, and the rest is output. In a block
//! marked `sh`, every line is a command. Each document is one session with a simulated runtime of its own, which stands where
//! containerd would; its commands are run in order. Of what is shown, each line has to be found in what is printed:
//!
//! - a line of JSON by its keys;
//! - any other by its words, in order. Words with a digit (times, ids, counts, names of pods) differ from run to run and are not
//!   compared, nor are endpoints.
//!
//! A command has to end with 0, or not with 0 if it is shown to print `Error:` or `CRITICAL`. What is changed in a command before it is run is
//! said at [`Session::here`]; what cannot be run is in [`NOT_RUN`], with the reason.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod document;
mod session;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use document::Document;
use session::Session;

/// Commands that begin like this are not run.
const NOT_RUN: &[(&str, &str)] = &[
    ("./test", "runs this test"),
    ("bench/run", "builds a part of the kubelet and measures for long"),
    ("cargo build", "cargo built what is tested here"),
    ("cargo install", "installs"),
    ("cargo test", "runs this test"),
    ("cargo run --release -p", "builds and measures for minutes"),
    ("e2e/containerd/fetch", "downloads packages"),
    ("helm ", "needs a cluster"),
    ("kubectl ", "needs a cluster"),
    ("ls target/release-files", "was not built"),
    ("man ", "needs the package"),
    ("PROPTEST_CASES", "tries histories for minutes"),
    ("release/build", "builds for minutes"),
    ("sudo ", "changes this machine"),
    ("systemctl ", "needs the package"),
    ("tar ", "was not built"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The documents of the repository and of its crates.
fn documents() -> Vec<Document> {
    let root = root();
    let mut paths: Vec<PathBuf> = Vec::new();
    for dir in [root.clone(), root.join("docs")] {
        paths.extend(std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()));
    }
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        paths.push(entry.unwrap().path().join("README.md"));
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md") && path.exists());
    paths.sort();
    paths.iter().map(|path| Document::read(&root, path)).collect()
}

#[test]
fn every_command_runs_and_prints_what_is_shown() {
    let documents = documents();
    let wrong: Mutex<Vec<String>> = Mutex::default();
    let left_out: Mutex<BTreeSet<&str>> = Mutex::default();
    std::thread::scope(|scope| {
        for document in documents.iter().filter(|document| !document.commands.is_empty()) {
            let (wrong, left_out) = (&wrong, &left_out);
            scope.spawn(move || {
                let mut session = Session::start();
                for command in &document.commands {
                    let known = NOT_RUN.iter().find(|(start, _)| command.text.starts_with(start));
                    if let Some((start, _)) = known {
                        left_out.lock().unwrap().insert(start);
                    } else if let Err(what) = session.run(command) {
                        let place = format!("{}:{}", document.name, command.line);
                        wrong
                            .lock()
                            .unwrap()
                            .push(format!("{place}: $ {}\n{what}", command.text));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    let left_out = left_out.into_inner().unwrap();
    for (start, _) in NOT_RUN {
        assert!(
            left_out.contains(start),
            "no document has a command {start:?}: take it off the list"
        );
    }
}

/// The example in the README is the one that `cargo test` compiles and runs.
#[test]
fn the_example_of_the_library_is_the_tested_one() {
    let library = std::fs::read_to_string(root().join("crates/pleg/src/lib.rs")).unwrap();
    let tested: Vec<&str> = library
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line))
        .skip_while(|line| *line != "```")
        .skip(1)
        .take_while(|line| *line != "```")
        .filter(|line| !line.starts_with("# "))
        .collect();
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let shown: Vec<&str> = readme
        .lines()
        .skip_while(|line| *line != "```rust")
        .skip(1)
        .take_while(|line| *line != "```")
        .collect();
    assert_eq!(shown, tested);
}

/// For those who do not use kustomize.
#[test]
fn one_file_has_the_manifests_of_kustomize() {
    let deploy = root().join("deploy");
    let read = |name: &str| std::fs::read_to_string(deploy.join(name)).unwrap();
    let whole = read("pleg.yaml");
    let (_, documents) = whole.split_once("---\n").unwrap();
    let base = ["namespace", "serviceaccount", "daemonset"].map(|name| read(&format!("kustomize/base/{name}.yaml")));
    assert_eq!(documents, base.join("---\n"));
    // kustomize reads no file outside of its directory.
    for (plain, component) in [
        ("rbac", "report-to-cluster"),
        ("rbac-pod-condition", "report-pod-condition"),
    ] {
        let copy = read(&format!("kustomize/components/{component}/rbac.yaml"));
        assert_eq!(read(&format!("{plain}.yaml")), copy, "{component}");
    }
}

#[test]
fn links_lead_somewhere() {
    for document in documents() {
        for link in &document.links {
            let path = document.dir.join(link);
            assert!(path.exists(), "{}: there is no {link}", document.name);
        }
    }
}

/// `test NAME` and paths in the text about the code.
#[test]
fn tests_and_files_that_are_named_exist() {
    let mut code = String::new();
    read_all(&root().join("crates"), &mut code);
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let text = read("ARCHITECTURE.md") + &read("CONTRIBUTING.md");
    for name in document::quoted(&text) {
        if name.starts_with("test ") {
            let name = name.trim_start_matches("test ");
            assert!(code.contains(&format!("fn {name}(")), "there is no test {name}");
        } else if name.starts_with("crates/") || name.starts_with("docs/") {
            assert!(root().join(name).exists(), "there is no {name}");
        }
    }
}

fn read_all(dir: &Path, into: &mut String) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}
