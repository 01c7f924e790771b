//! Rotates container logs, as a kubelet does: a log that is too large is renamed (`0.log` becomes `0.log.20261116-110700`), the runtime
//! reopens the log, and the oldest rotated files are removed.
//!
//! A runtime keeps writing to the open file after it is renamed, so nothing is lost in between. If `pleg node` ends at that point, the next
//! run finds a rotated file without a current log, and makes the runtime reopen it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleg::{ContainerId, ContainerState};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::executor::requests::log_path;
use crate::manifest::Pod;
use crate::pod_workers::worker::{DRAIN, Shared};

/// How often logs are checked.
const PERIOD: Duration = Duration::from_secs(10);
/// Most concurrent rotations. A runtime that does not answer blocks no more than this.
const AT_ONCE: usize = 8;

/// How much of a container's log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// A larger file is rotated.
    pub most_bytes: u64,
    /// How many files there may be, with the one that is written to. At least two.
    pub most_files: usize,
}

impl Default for LogBounds {
    /// The kubelet's.
    fn default() -> Self {
        Self {
            most_bytes: 10 << 20,
            most_files: 5,
        }
    }
}

/// The log of a container that runs.
#[derive(Debug, Clone)]
struct Log {
    pod: Arc<Pod>,
    name: Arc<str>,
    id: ContainerId,
    file: PathBuf,
}

/// Rotates the logs of a node.
#[derive(Debug)]
pub(crate) struct Logs {
    shared: Shared,
    bounds: LogBounds,
    /// Ids of containers whose log is being rotated.
    busy: BTreeSet<ContainerId>,
    /// Containers for which a failed rotation was logged.
    told: BTreeSet<ContainerId>,
}

impl Logs {
    pub(crate) fn new(shared: Shared, bounds: LogBounds) -> Self {
        Self {
            shared,
            bounds,
            busy: BTreeSet::new(),
            told: BTreeSet::new(),
        }
    }

    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut tick = interval_at(Instant::now() + PERIOD, PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rotating = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(Ok((log, result))) = rotating.join_next() => self.rotated(&log, result),
                _ = tick.tick() => {
                    let Some(grown) = shutdown.run_until_cancelled(self.grown()).await else { break };
                    for log in grown {
                        if self.busy.len() < AT_ONCE && self.busy.insert(log.id.clone()) {
                            rotating.spawn(rotate(self.shared.clone(), log, self.bounds));
                        }
                    }
                }
            }
        }
        // One that has no name is not left so, if the runtime answers at all.
        let _ = timeout(DRAIN, async { while rotating.join_next().await.is_some() {} }).await;
    }

    /// Logs that have grown too large.
    async fn grown(&mut self) -> Vec<Log> {
        let logs = self.written();
        self.told.retain(|id| logs.iter().any(|log| log.id == *id));
        let most = self.bounds.most_bytes;
        let looked = tokio::task::spawn_blocking(move || {
            let grown = |log: &Log| is_grown(&log.file, most).unwrap_or_default();
            logs.into_iter().filter(grown).collect()
        });
        looked.await.unwrap_or_default()
    }

    /// Logs that are written to.
    fn written(&self) -> Vec<Log> {
        let mut logs = Vec::new();
        for report in self.shared.board.pods() {
            let Some(entry) = self.shared.pleg.cache().get(&report.pod.id.uid) else {
                continue;
            };
            let directory = self.shared.hands.log_directory(&report.pod);
            for container in &entry.status.containers {
                if container.state == ContainerState::Running && report.pod.spec.container(&container.name).is_some() {
                    logs.push(Log {
                        pod: Arc::clone(&report.pod),
                        name: Arc::clone(&container.name),
                        id: container.id.clone(),
                        file: directory.join(log_path(&container.name, container.attempt)),
                    });
                }
            }
        }
        logs
    }

    fn rotated(&mut self, log: &Log, result: Result<(), String>) {
        self.busy.remove(&log.id);
        self.shared.metrics.rotation(result.is_ok());
        let (pod, container) = (&log.pod.id, &log.name);
        match result {
            Ok(()) => {
                self.told.remove(&log.id);
                debug!(%pod, %container, "container log rotated");
            }
            Err(why) if self.told.insert(log.id.clone()) => {
                warn!(%pod, %container, file = %log.file.display(), "cannot rotate the container log, which keeps growing: {why}");
            }
            Err(_) => {}
        }
    }
}

/// Rotates a log, and makes the runtime reopen it.
async fn rotate(shared: Shared, log: Log, bounds: LogBounds) -> (Log, Result<(), String>) {
    let (file, now) = (log.file.clone(), shared.clock.now());
    let put = tokio::task::spawn_blocking(move || put_aside(&file, bounds.most_files, now)).await;
    let aside = match put {
        Ok(Ok(aside)) => aside,
        Ok(Err(error)) => return (log, Err(error.to_string())),
        Err(error) => return (log, Err(error.to_string())),
    };
    let reopened = shared.hands.reopen_log(&log.pod, &log.name, &log.id).await;
    if let (Err(_), Some(aside)) = (&reopened, aside) {
        // Under its name again, unless the runtime has begun a new one all the same.
        let file = log.file.clone();
        let back = tokio::task::spawn_blocking(move || if file.exists() { Ok(()) } else { fs::rename(aside, file) });
        if let Ok(Err(error)) = back.await {
            return (log, Err(error.to_string()));
        }
    }
    (log, reopened)
}

/// Whether a log is too large; or missing, because it was renamed and not reopened.
fn is_grown(file: &Path, most_bytes: u64) -> io::Result<bool> {
    match fs::symlink_metadata(file) {
        Ok(metadata) => Ok(metadata.is_file() && metadata.len() > most_bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(!aside(file)?.is_empty()),
        Err(error) => Err(error),
    }
}

/// Renames a log, and removes the oldest rotated files. Returns the new name, if there is a log.
fn put_aside(file: &Path, most_files: usize, now: Timestamp) -> io::Result<Option<PathBuf>> {
    let name = named(file, &format!(".{}", now.strftime("%Y%m%d-%H%M%S")));
    match fs::rename(file, &name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        renamed => renamed?,
    }
    // The one that is begun counts too.
    let room = most_files.saturating_sub(1);
    for surplus in aside(file)?.iter().rev().skip(room) {
        remove_file(surplus)?;
    }
    Ok(Some(name))
}

/// Removes a log and its rotated files. Blocking.
pub(crate) fn remove(file: &Path) -> io::Result<()> {
    for old in aside(file)? {
        remove_file(&old)?;
    }
    remove_file(file)
}

/// The rotated files of a log, oldest first.
fn aside(file: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(directory), Some(prefix)) = (file.parent(), named(file, ".").file_name().map(OsString::from)) else {
        return Ok(Vec::new());
    };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let prefix = prefix.as_encoded_bytes();
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(prefix) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn named(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// What is gone is gone.
fn remove_file(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    #[test]
    fn the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("0.log");
        // Of another attempt.
        fs::write(dir.path().join("10.log"), "x").unwrap();
        for round in 0..6 {
            fs::write(&file, round.to_string()).unwrap();
            assert!(is_grown(&file, 0).unwrap());
            assert!(!is_grown(&file, 1).unwrap());
            let name = put_aside(&file, 3, at(round)).unwrap().unwrap();
            assert_eq!(fs::read_to_string(name).unwrap(), round.to_string());
            // It was put aside, and no new one was begun.
            assert!(is_grown(&file, 1).unwrap());
        }
        let left: Vec<String> = aside(&file)
            .unwrap()
            .iter()
            .map(|file| fs::read_to_string(file).unwrap())
            .collect();
        assert_eq!(left, ["4", "5"]);
        assert_eq!(put_aside(&file, 3, at(9)).unwrap(), None);
        fs::write(&file, "now").unwrap();
        remove(&file).unwrap();
        remove(&file).unwrap();
        assert!(!is_grown(&file, 0).unwrap());
        let names: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["10.log"]);
        assert!(!is_grown(&dir.path().join("no/such/0.log"), 0).unwrap());
    }
}
