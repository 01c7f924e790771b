//! Brings the files of a running pod's volumes up to date: when an object of the API changed, when a token is to be replaced, when labels or
//! annotations changed, and once when a running pod is adopted.
//!
//! One refresh at a time, which begins with what is known then; what changes meanwhile makes another one due. A refresh that fails is retried,
//! and the files stay as they are until then.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use pleg::{PodStatus, SandboxState};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{PodWorker, far};
use crate::error::with_causes;
use crate::executor::ActionError;
use crate::manifest::{Pod, Projection, Volume};
use crate::reconcile::backoff::doubling;
use crate::reconcile::decide::Goal;

/// Delay before a failed refresh is retried, and its maximum; doubles with each failure in a row.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_mins(1));

/// The reason of volumes that cannot be prepared.
const FAILED_MOUNT: &str = "FailedMount";

/// The refresh of a pod's volumes.
#[derive(Default)]
pub(super) struct VolumeRefresh {
    /// Notified by the source of objects.
    changed: Arc<Notify>,
    /// Something changed that the running refresh may not have seen.
    due: bool,
    running: Option<BoxFuture<'static, Result<(), ActionError>>>,
    /// Failures in a row, and when the next attempt is made.
    failures: u32,
    retry_at: Option<Instant>,
    stopped: CancellationToken,
    writes: Arc<Mutex<()>>,
}

/// What happened about a refresh.
pub(super) enum Refresh {
    /// Files may have to be written.
    Due,
    /// A refresh is over.
    Done(Result<(), ActionError>),
}

impl VolumeRefresh {
    /// Held while files of volumes are written.
    pub(super) fn writes(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.writes)
    }

    pub(super) fn set_due(&mut self) {
        self.due = true;
    }

    /// Waits for the next thing to happen. Cancel-safe.
    pub(super) async fn next(&mut self) -> Refresh {
        let Self {
            changed,
            running,
            retry_at,
            ..
        } = self;
        let done = async {
            match running {
                Some(running) => running.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = done => {
                self.running = None;
                Refresh::Done(result)
            }
            () = changed.notified() => Refresh::Due,
            () = sleep_until(retry_at.unwrap_or_else(far)), if retry_at.is_some() => {
                self.retry_at = None;
                Refresh::Due
            }
        }
    }

    /// No refresh begins any more; one that is writing completes.
    pub(super) async fn stop(&mut self) {
        self.stopped.cancel();
        if let Some(running) = self.running.take() {
            // It is of no use any more, whatever became of it.
            let _ = running.await;
        }
    }
}

impl PodWorker {
    /// Tells the source of objects about this pod.
    pub(super) fn register(&self) {
        let objects = self.context.executor.objects();
        objects.register(&self.pod, &self.refresh.changed);
    }

    /// The pod is another one than `before`.
    pub(super) fn on_updated(&mut self, before: &Pod) {
        if before.spec != self.pod.spec {
            self.register();
        }
        let same_metadata = before.labels == self.pod.labels && before.annotations == self.pod.annotations;
        if !same_metadata && has_downward_files(&self.pod) {
            self.refresh.due = true;
        }
    }

    pub(super) fn on_refresh(&mut self, refresh: Refresh) {
        match refresh {
            Refresh::Due => {
                self.refresh.due = true;
                self.retry_mounts();
            }
            Refresh::Done(Ok(())) => self.refresh.failures = 0,
            Refresh::Done(Err(ActionError::Cancelled)) => {}
            Refresh::Done(Err(error)) => self.on_failed_refresh(&error),
        }
        self.start_refresh_if_due();
    }

    /// A pod that waits for its volumes need not wait longer: what they lack may be there now.
    fn retry_mounts(&mut self) {
        let failure = self.history.sandbox_failure.as_ref();
        if failure.is_some_and(|failure| failure.reason == FAILED_MOUNT) {
            self.history.sandbox_failure = None;
            self.wake.notify_one();
        }
    }

    fn on_failed_refresh(&mut self, error: &ActionError) {
        let delay = doubling(RETRY.0, RETRY.1, self.refresh.failures);
        self.refresh.failures = self.refresh.failures.saturating_add(1);
        self.refresh.retry_at = Some(Instant::now() + delay);
        warn!(
            pod = %self.pod.id,
            reason = error.reason(),
            "cannot bring the files of volumes up to date; retrying in {} s: {}",
            delay.as_secs(),
            with_causes(error)
        );
        let message = format!("MountVolume.SetUp failed: {}", with_causes(error));
        self.context.events.pod_warning(&self.pod, error.reason(), &message);
    }

    /// Starts a refresh if one is due and the volumes exist. If they do not, whoever prepares them reads what is known by then.
    pub(super) fn start_refresh_if_due(&mut self) {
        let has_volumes = self.last.as_ref().is_some_and(|(status, _)| is_ready(status));
        let is_wanted = *self.goal.borrow() == Goal::Run && has_projected(&self.pod) && has_volumes;
        if !self.refresh.due || self.refresh.running.is_some() || self.refresh.stopped.is_cancelled() {
            return;
        }
        self.refresh.due = false;
        if !is_wanted {
            return;
        }
        let (executor, pod) = (self.context.executor.clone(), Arc::clone(&self.pod));
        let (writes, stopped) = (self.refresh.writes(), self.refresh.stopped.clone());
        self.refresh.running = Some(Box::pin(async move {
            executor.refresh_volumes(&pod, writes, &stopped).await
        }));
    }
}

/// Whether a pod has a sandbox: its volumes were prepared before that.
fn is_ready(status: &PodStatus) -> bool {
    let mut sandboxes = status.sandboxes.iter();
    sandboxes.any(|sandbox| sandbox.state == SandboxState::Ready)
}

fn has_projected(pod: &Pod) -> bool {
    pod.spec
        .volumes
        .values()
        .any(|volume| matches!(volume, Volume::Projected(_)))
}

fn has_downward_files(pod: &Pod) -> bool {
    pod.spec.volumes.values().any(|volume| match volume {
        Volume::Projected(volume) => {
            let mut sources = volume.sources.iter();
            sources.any(|source| matches!(source, Projection::DownwardApi(_)))
        }
        _ => false,
    })
}
