//! crictl and critest, as `cri-tools/build` made them, and the list of what critest finds in the simulator.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use pleg_cri::Endpoint;
use pleg_sim::{Sim, SimConfig};
use serde_json::Value;
use tempfile::TempDir;

use crate::ginkgo::{self, Outcome};
use crate::version::cache;

/// What is to be expected of each spec of critest, and why.
const BASELINE: &str = include_str!("../cri-tools/critest.baseline");
/// The groups of the baseline whose specs have to pass.
const REQUIRED: [&str; 2] = ["passes", "proves nothing"];
/// The version that `cri-tools/build` builds.
const GO_MOD: &str = include_str!("../cri-tools/go.mod");

/// Where `cri-tools/build` puts its programs.
pub fn place() -> Result<PathBuf> {
    let line = GO_MOD.lines().find(|line| line.contains("sigs.k8s.io/cri-tools v"));
    let version = line
        .and_then(|line| line.rsplit_once(" v"))
        .map(|(_, version)| version.trim());
    let version = version.context("cri-tools/go.mod names no version of the cri-tools")?;
    Ok(cache()?.join(format!("cri-tools-{version}")))
}

/// Why they cannot run here, if so.
pub fn obstacle() -> Option<String> {
    let missing = |place: PathBuf| {
        let whole = place.join("crictl").exists() && place.join("critest").exists();
        (!whole).then(|| format!("{} is missing: run e2e/cri-tools/build", place.display()))
    };
    place().map_or_else(|error| Some(error.to_string()), missing)
}

/// A simulated runtime on a socket of its own, and a directory for files. Dropping it ends the one and removes the other.
#[derive(Debug)]
pub struct Bench {
    tools: PathBuf,
    sim: Sim,
    dir: TempDir,
}

impl Bench {
    /// Starts a simulator with a thread of its own: what is run against it is other processes.
    pub async fn start(config: SimConfig) -> Result<Self> {
        let dir = tempfile::tempdir().context("create a directory")?;
        let endpoint = Endpoint::parse(&dir.path().join("cri.sock").to_string_lossy())?;
        let sim = Sim::spawn_thread(config, endpoint)
            .await
            .context("start the simulator")?;
        Ok(Self {
            tools: place()?,
            sim,
            dir,
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The simulator.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    /// A file in the directory; its path.
    pub fn file(&self, name: &str, content: &Value) -> Result<String> {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content.to_string()).with_context(|| format!("write {}", path.display()))?;
        Ok(path.to_string_lossy().into_owned())
    }

    /// crictl with these arguments, pointed at the simulator and at no configuration of the host.
    pub fn crictl(&self, args: &[&str]) -> Result<Command> {
        let config = self.dir.path().join("crictl.yaml");
        if !config.exists() {
            std::fs::write(&config, "timeout: 10\n").context("write crictl's configuration")?;
        }
        let mut command = Command::new(self.tools.join("crictl"));
        command
            .arg("--config")
            .arg(config)
            .args(["--runtime-endpoint", &self.sim.endpoint().to_string()])
            .args(args)
            .stdin(Stdio::null());
        Ok(command)
    }

    /// What crictl prints, or its error.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        let output = self.crictl(args)?.output().context("run crictl")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "crictl {}: {errors}", args.join(" "));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What crictl prints, as JSON.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.run(args)?;
        serde_json::from_str(&text).with_context(|| format!("crictl {} printed {text}", args.join(" ")))
    }

    /// The error of a command that has to fail.
    pub fn fails(&self, args: &[&str]) -> Result<String> {
        match self.run(args) {
            Ok(printed) => bail!("crictl {} succeeded and printed {printed}", args.join(" ")),
            Err(error) => Ok(error.to_string()),
        }
    }

    /// Runs critest with these arguments. Each spec with its state and, if it failed, why.
    pub fn critest(&self, args: &[String]) -> Result<BTreeMap<String, Outcome>> {
        let report = self.dir.path().join("report.json");
        let output = Command::new(self.tools.join("critest"))
            .arg(format!("-runtime-endpoint={}", self.sim.endpoint()))
            .arg(format!("-ginkgo.json-report={}", report.display()))
            .args(["-ginkgo.no-color", "-ginkgo.succinct", "-ginkgo.timeout=5m"])
            .args(args)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .output()
            .context("run critest")?;
        let text = std::fs::read_to_string(&report)
            .with_context(|| format!("critest wrote no report: {}", String::from_utf8_lossy(&output.stdout)))?;
        ginkgo::outcomes(&serde_json::from_str(&text).context("read critest's report")?)
    }
}

/// The baseline: each spec and its group.
pub fn baseline() -> Result<BTreeMap<&'static str, &'static str>> {
    ginkgo::baseline(BASELINE)
}

/// The specs that have to pass.
pub fn required() -> Result<Vec<&'static str>> {
    let specs = baseline()?.into_iter().filter(|(_, group)| REQUIRED.contains(group));
    Ok(specs.map(|(spec, _)| spec).collect())
}

/// The text as a regular expression that matches it and nothing else at the end of a name.
pub fn focus(spec: &str) -> String {
    let mut pattern = String::with_capacity(spec.len() + 8);
    for letter in spec.chars() {
        if !letter.is_alphanumeric() && letter != ' ' {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    format!("-ginkgo.focus={pattern}$")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_baseline_is_well_formed() {
        let specs = baseline().unwrap();
        let required = required().unwrap();
        assert!(
            required.len() * 3 > specs.len(),
            "{} of {}",
            required.len(),
            specs.len()
        );
        assert!(place().unwrap().ends_with("cri-tools-1.36.0"));
    }

    #[test]
    fn a_focus_is_the_name_and_nothing_else() {
        assert_eq!(focus("[k8s.io] A|b (c)."), r"-ginkgo.focus=\[k8s\.io\] A\|b \(c\)\.$");
    }
}
