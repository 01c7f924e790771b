//! Upstream's own end-to-end tests (`k8s.io/kubernetes/test/e2e`) against one node of a real control plane.
//!
//! `upstream/build` has built the tests, the program that runs them side by side, and the program of the image that they use most.
//! [`images`] makes all images of these; [`compare`] says what differs from the list of what passes. `upstream/run` puts them together.
//!
//! Only specs of SIG Node that are part of a conformance suite are selected: what they check is a node's to do, on every node.

pub mod compare;
pub mod images;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::cluster::{ControlPlane, parts};
use crate::ginkgo::{self, Outcome};
use crate::version;

/// The specs that are run.
const FOCUS: &str = r"\[sig-node\].*\[(Node)?Conformance\]";
/// The ones among them that are not: they harm each other, take long, or need what a node does not have by default.
const SKIP: &str = r"\[Serial\]|\[Disruptive\]|\[Slow\]|\[Feature:|Windows";

/// The file of the report.
const REPORT: &str = "report.json";

/// Where `upstream/build` puts its programs.
pub fn place() -> Result<PathBuf> {
    Ok(version::cache()?.join(format!("upstream-{}", parts::kubernetes()?)))
}

/// A program of `upstream/build`.
pub fn program(name: &str) -> Result<PathBuf> {
    let path = place()?.join(name);
    ensure!(path.exists(), "{} is missing: run e2e/upstream/build", path.display());
    Ok(path)
}

/// Which specs are run, and how.
#[derive(Debug)]
pub struct Selection {
    /// Only specs whose names match these regular expressions as well.
    pub only: Vec<String>,
    /// How many run at once.
    pub at_once: u32,
}

/// A process group. Dropping it ends it.
struct Group(i32);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.0) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Runs the specs against a cluster whose nodes have joined. Their words and their report go to `dir`. Returns how those that were
/// selected ended.
pub async fn run(cluster: &ControlPlane, selection: &Selection, dir: &Path) -> Result<BTreeMap<String, Outcome>> {
    // ginkgo puts reports beside the test binary, or into this directory, and moves them there at the end.
    let report = dir.join(REPORT);
    let log = File::create(dir.join("specs.log")).context("create the log of the specs")?;
    let mut ginkgo = Command::new(program("ginkgo")?);
    ginkgo.arg(format!("--procs={}", selection.at_once));
    // A spec of a busy machine may be late once. The comparison names it.
    ginkgo.args(["--flake-attempts=2", "--no-color", "--timeout=1h"]);
    ginkgo.arg(format!("--skip={SKIP}"));
    if selection.only.is_empty() {
        ginkgo.arg(format!("--focus={FOCUS}"));
    }
    for only in &selection.only {
        // The words in brackets stand before or behind.
        ginkgo.arg(format!("--focus={FOCUS}.*{only}"));
        ginkgo.arg(format!(r"--focus=\[sig-node\].*{only}.*\[(Node)?Conformance\]"));
    }
    ginkgo.arg(format!("--json-report={REPORT}"));
    ginkgo.arg("--output-dir").arg(dir);
    ginkgo.arg(program("e2e.test")?).arg("--");
    ginkgo.arg(format!("--kubeconfig={}", cluster.admin_kubeconfig().display()));
    ginkgo.arg(format!("--kubectl-path={}", parts::program("kubectl")?.display()));
    ginkgo.args([
        "--provider=skeleton",
        "--allowed-not-ready-nodes=0",
        "--minStartupPods=0",
        "--disable-log-dump",
        "--num-nodes=1",
    ]);
    ginkgo.current_dir(dir).stdin(Stdio::null());
    ginkgo.stdout(log.try_clone()?).stderr(log);
    // With those that it starts, so that all of them can be ended.
    std::os::unix::process::CommandExt::process_group(&mut ginkgo, 0);
    let mut child = ginkgo.spawn().context("run ginkgo")?;
    let group = Group(i32::try_from(child.id())?);
    let status = tokio::task::spawn_blocking(move || child.wait()).await??;
    drop(group);
    let text = std::fs::read_to_string(&report).with_context(|| {
        format!(
            "ginkgo ended with {status} and wrote no report; see specs.log in {}",
            dir.display()
        )
    })?;
    let mut outcomes = ginkgo::outcomes(&serde_json::from_str(&text).context("read ginkgo's report")?)?;
    outcomes.retain(|_, outcome| outcome.attempts > 0);
    Ok(outcomes)
}
