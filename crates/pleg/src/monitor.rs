//! Asks the runtime how it is, beside the generator: neither waits for the other.

use std::sync::Arc;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::readiness::{Readiness, STATUS_PERIOD};
use crate::runtime::Runtime;

/// The task behind [`Readiness`]. Made with [`crate::Generator::runtime_monitor`].
#[derive(Debug)]
pub struct RuntimeMonitor<R> {
    runtime: Arc<R>,
    readiness: Readiness,
}

impl<R: Runtime> RuntimeMonitor<R> {
    pub(crate) fn new(runtime: Arc<R>, readiness: Readiness) -> Self {
        Self { runtime, readiness }
    }

    /// Asks once. How that ended is told by [`Readiness`].
    pub async fn check(&self) {
        match self.runtime.status().await {
            Ok(status) => self.readiness.answered(&status),
            Err(error) => self.readiness.failed(&error),
        }
    }

    /// Asks every [`STATUS_PERIOD`] until `shutdown`, and dates transitions also while there is no answer.
    pub async fn run(self, shutdown: CancellationToken) {
        let asking = async {
            loop {
                self.check().await;
                sleep(STATUS_PERIOD).await;
            }
        };
        let dating = async {
            loop {
                sleep(STATUS_PERIOD).await;
                self.readiness.ready();
            }
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => {}
            () = asking => {}
            () = dating => {}
        }
    }
}
