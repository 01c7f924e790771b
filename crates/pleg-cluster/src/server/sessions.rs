//! Room for what stays open: followed logs, and sessions in containers.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Most logs and sessions at once.
const SESSIONS: usize = 256;

/// What is said beyond that.
pub(super) const FULL: &str = "too many logs and sessions are open on this node";

#[derive(Debug)]
pub(super) struct Sessions {
    room: Arc<Semaphore>,
    /// Sessions outlive the requests that began them.
    pub(super) tasks: TaskTracker,
    /// When they end.
    pub(super) shutdown: CancellationToken,
}

impl Sessions {
    pub(super) fn new(tasks: TaskTracker, shutdown: CancellationToken) -> Self {
        Self {
            room: Arc::new(Semaphore::new(SESSIONS)),
            tasks,
            shutdown,
        }
    }

    /// Room for one more, as long as the permit exists.
    pub(super) fn begin(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).try_acquire_owned().ok()
    }
}
