//! Rotates container logs, as a kubelet does: a log that is too large is renamed (`0.log` becomes `0.log.20261116-110700`), the runtime
//! reopens the log, rotated files except the newest are compressed, and the oldest are removed.
//!
//! A runtime keeps writing to the open file after it is renamed, so nothing is lost in between. If `pleg node` ends at that point, the next
//! run finds a rotated file without a current log, and makes the runtime reopen it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pleg::{ContainerId, ContainerState};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::log_files;
use super::requests::log_path;
use crate::error::with_causes;
use crate::manifest::Pod;
use crate::pod_workers::context::NodeContext;
use crate::pod_workers::worker::DRAIN;

/// How often logs are checked.
const PERIOD: Duration = Duration::from_secs(10);
/// Most concurrent rotations. A runtime that does not answer blocks no more than this.
const CONCURRENT_ROTATIONS: usize = 8;

/// How much of a container's log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// A larger file is rotated.
    pub max_bytes: u64,
    /// Most files of one log, including the current one. At least two.
    pub max_files: usize,
}

impl Default for LogLimits {
    /// The kubelet's defaults.
    fn default() -> Self {
        Self {
            max_bytes: 10 << 20,
            max_files: 5,
        }
    }
}

/// Why a log could not be rotated.
#[derive(Debug, thiserror::Error)]
enum RotateError {
    /// Its files cannot be renamed or removed.
    #[error(transparent)]
    Files(#[from] io::Error),
    /// The log is rotated, but an older file cannot be compressed.
    #[error("cannot compress an older file")]
    Compress(#[source] io::Error),
    /// The runtime does not reopen it.
    #[error(transparent)]
    Reopen(#[from] pleg_cri::Error),
    /// The thread for its files panicked, or we shut down.
    #[error(transparent)]
    Interrupted(#[from] JoinError),
}

/// The log of a running container.
#[derive(Debug, Clone)]
struct ContainerLog {
    pod: Arc<Pod>,
    name: Arc<str>,
    id: ContainerId,
    file: PathBuf,
}

/// Rotates the logs of a node.
#[derive(Debug)]
pub(crate) struct LogRotator {
    context: NodeContext,
    limits: LogLimits,
    /// Containers whose logs are being rotated.
    rotating: BTreeSet<ContainerId>,
    /// Containers for which a failed rotation was logged.
    logged: BTreeSet<ContainerId>,
}

impl LogRotator {
    pub(crate) fn new(context: NodeContext, limits: LogLimits) -> Self {
        Self {
            context,
            limits,
            rotating: BTreeSet::new(),
            logged: BTreeSet::new(),
        }
    }

    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut tick = interval_at(Instant::now() + PERIOD, PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rotations = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(Ok((log, result))) = rotations.join_next() => self.on_rotated(&log, result),
                _ = tick.tick() => {
                    let Some(logs) = shutdown.run_until_cancelled(self.large_logs()).await else { break };
                    for log in logs {
                        if self.rotating.len() < CONCURRENT_ROTATIONS && self.rotating.insert(log.id.clone()) {
                            let (context, limits) = (self.context.clone(), self.limits);
                            rotations.spawn(async move {
                                let result = rotate(&context, &log, limits).await;
                                (log, result)
                            });
                        }
                    }
                }
            }
        }
        // A renamed log is not left without a current one, if the runtime answers at all.
        let _ = timeout(DRAIN, async { while rotations.join_next().await.is_some() {} }).await;
    }

    /// Logs that are too large.
    async fn large_logs(&mut self) -> Vec<ContainerLog> {
        let logs = self.current_logs();
        self.logged.retain(|id| logs.iter().any(|log| log.id == *id));
        let max = self.limits.max_bytes;
        let checked = tokio::task::spawn_blocking(move || {
            let is_large = |log: &ContainerLog| log_files::needs_rotation(&log.file, max).unwrap_or_default();
            logs.into_iter().filter(is_large).collect()
        });
        checked.await.unwrap_or_default()
    }

    /// Logs that containers write to now.
    fn current_logs(&self) -> Vec<ContainerLog> {
        let mut logs = Vec::new();
        for report in self.context.reports.pods() {
            let Some(entry) = self.context.pleg.cache().get(&report.pod.id.uid) else {
                continue;
            };
            let directory = self.context.executor.log_directory(&report.pod);
            for container in &entry.status.containers {
                if container.state == ContainerState::Running && report.pod.spec.container(&container.name).is_some() {
                    logs.push(ContainerLog {
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

    fn on_rotated(&mut self, log: &ContainerLog, result: Result<(), RotateError>) {
        self.rotating.remove(&log.id);
        self.context.metrics.rotation(result.is_ok());
        let (pod, container, file) = (&log.pod.id, &log.name, log.file.display());
        match result {
            Ok(()) => {
                self.logged.remove(&log.id);
                debug!(%pod, %container, "container log rotated");
            }
            Err(error) if self.logged.insert(log.id.clone()) => {
                let error = with_causes(&error);
                warn!(%pod, %container, %file, "cannot rotate the container log; its files keep growing: {error}");
            }
            Err(_) => {}
        }
    }
}

/// Renames a log and makes the runtime reopen it.
async fn rotate(context: &NodeContext, log: &ContainerLog, limits: LogLimits) -> Result<(), RotateError> {
    let (file, now) = (log.file.clone(), context.clock.now());
    let renamed = tokio::task::spawn_blocking(move || log_files::rotate(&file, limits.max_files, now)).await??;
    let reopened = context.executor.reopen_log(&log.pod, &log.name, &log.id).await;
    if let (Err(_), Some(renamed)) = (&reopened, renamed) {
        // It gets its name back, unless the runtime has opened a new log all the same.
        let file = log.file.clone();
        let undone = move || {
            if file.exists() {
                Ok(())
            } else {
                fs::rename(renamed, file)
            }
        };
        if let Ok(undone) = tokio::task::spawn_blocking(undone).await {
            undone?;
        }
    }
    reopened?;
    let file = log.file.clone();
    let compressed = tokio::task::spawn_blocking(move || log_files::compress(&file)).await?;
    compressed.map_err(RotateError::Compress)
}
