//! `pleg node` itself: this binary as a child process, with its directory of manifests.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use pleg_cri::Endpoint;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::pods::NODE;
use crate::http::client::Daemon;

/// Where it shows its pods.
const PODS: &str = "/api/v1/pods";
/// How long an answer of it may take.
const ANSWER: Duration = Duration::from_secs(10);
/// How long it may take to answer at all.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is asked whether it is there.
const ASK: Duration = Duration::from_millis(5);
/// In which the kernel counts the processor's time for us, on every machine of today.
const TICK: Duration = Duration::from_millis(10);
/// Lines of its log that are shown if it falls.
const LOG_TAIL: usize = 20;

/// A running `pleg node`. Ended when dropped.
#[derive(Debug)]
pub(super) struct Subject {
    directory: PathBuf,
    runtime: Endpoint,
    daemon: Daemon,
    child: Option<Child>,
}

impl Subject {
    /// In this directory. Not started.
    pub(super) fn new(directory: &Path, runtime: &Endpoint) -> anyhow::Result<Self> {
        fs::create_dir_all(directory.join("manifests"))?;
        let socket = Endpoint::unix(directory.join("pleg.sock"));
        Ok(Self {
            directory: directory.to_owned(),
            runtime: runtime.clone(),
            daemon: Daemon::new(socket, ANSWER),
            child: None,
        })
    }

    /// Starts it. It is not ready yet.
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        let path = |name: &str| self.directory.join(name);
        let log = OpenOptions::new().create(true).append(true).open(path("log"))?;
        let child = Command::new(std::env::current_exe().context("cannot find the path of this binary")?)
            .arg("node")
            .arg("--manifests")
            .arg(path("manifests"))
            .args(["--node-name", NODE, "--cgroup-root", NODE])
            .arg("--log-dir")
            .arg(path("logs"))
            .arg("--log-link-dir")
            .arg(path("containers"))
            // The state of this machine must not decide about the pods that are measured.
            .args(["--image-gc-high-threshold", "100", "--eviction-hard", ""])
            .arg("--pod-dir")
            .arg(path("pods"))
            .arg("--state-file")
            .arg(path("node.redb"))
            // As shipped, but not in the file of this machine's own daemon.
            .arg("--history-file")
            .arg(path("history.dat"))
            .arg("--listen")
            .arg(self.daemon.address().to_string())
            .arg("--runtime-endpoint")
            .arg(self.runtime.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start pleg node")?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until it has completed a relist.
    pub(super) async fn ready(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.daemon.get_bytes("/readyz").await.is_err() {
            self.is_alive()?;
            ensure!(began.elapsed() < PATIENCE, "pleg node is not ready\n{}", self.log());
            sleep(ASK).await;
        }
        Ok(())
    }

    /// Ends it without a word; its pods go on.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn is_alive(&mut self) -> anyhow::Result<()> {
        let child = self.child.as_mut().context("pleg node was not started")?;
        if let Some(status) = child.try_wait()? {
            anyhow::bail!("pleg node ended by itself: {status}\n{}", self.log());
        }
        Ok(())
    }

    /// Writes a manifest, all at once.
    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let manifests = self.directory.join("manifests");
        let hidden = manifests.join(format!(".{name}"));
        fs::write(&hidden, text)?;
        fs::rename(hidden, manifests.join(format!("{name}.yaml")))?;
        Ok(())
    }

    pub(super) fn remove(&self, name: &str) -> anyhow::Result<()> {
        Ok(fs::remove_file(
            self.directory.join("manifests").join(format!("{name}.yaml")),
        )?)
    }

    /// Waits until it shows so many pods, all of them running and ready; asked anew after each answer.
    pub(super) async fn shows(&mut self, pods: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let list: Value = self.daemon.get_json(PODS).await.unwrap_or_default();
            let shown = list["items"].as_array().map_or(&[][..], Vec::as_slice);
            let ready = |pod: &&Value| {
                let containers = pod["status"]["containerStatuses"].as_array();
                containers.is_some_and(|all| all.iter().all(|one| one["ready"] == true))
            };
            if shown.len() == pods && shown.iter().filter(ready).count() == pods {
                return Ok(());
            }
            self.is_alive()?;
            ensure!(
                began.elapsed() < PATIENCE,
                "pleg node shows {} of {pods} pods\n{}",
                shown.len(),
                self.log()
            );
            sleep(ASK).await;
        }
    }

    /// The processor's time that it has used, with that of threads that have ended.
    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        let id = self.child.as_ref().context("pleg node was not started")?.id();
        let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
        // The name before it stands in parentheses and may hold anything; user and system time are the 14th and 15th of all.
        let fields = stat
            .rsplit_once(") ")
            .map_or("", |(_, fields)| fields)
            .split(' ')
            .skip(11);
        let ticks: u32 = fields.take(2).filter_map(|ticks| ticks.parse::<u32>().ok()).sum();
        Ok(TICK * ticks)
    }

    /// Its resident memory, in MiB.
    pub(super) fn resident(&self) -> anyhow::Result<f64> {
        let id = self.child.as_ref().context("pleg node was not started")?.id();
        let status = fs::read_to_string(format!("/proc/{id}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        Ok(kib.context("the kernel does not report how much memory it has")? / 1024.0)
    }

    /// The last lines of its log.
    pub(super) fn log(&self) -> String {
        let text = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n")
    }
}

impl Subject {
    /// Asks it to end, which lets it end the calls that are in flight: a start that is cut off leaves a runtime in a state that it
    /// may not get out of. That takes some seconds at most.
    pub(super) fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            let _ = child.wait();
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.end();
    }
}
