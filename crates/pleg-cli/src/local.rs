//! A generator in this process, for commands that ask a runtime without a daemon.

use std::time::Duration;

use pleg::health::Stage;
use pleg::{Cache, CriRuntime, Generator, Pleg, PodEntry, PodRef, PodUid, RuntimeMonitor, Token, WaitError};
use pleg_cri::Client;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::waiting;
use crate::wire::ReportJson;

/// Interval at which a failed relist is noticed while a command waits for a complete one.
const NOTICE: Duration = Duration::from_millis(50);

/// A running generator; it stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Local {
    pub(crate) pleg: Pleg,
    pub(crate) client: Client,
    monitor: RuntimeMonitor<CriRuntime>,
    _stop: DropGuard,
}

impl Local {
    pub(crate) fn start(generator: Generator<CriRuntime>) -> Self {
        let (pleg, monitor) = (generator.handle(), generator.runtime_monitor());
        let client = generator.runtime().client().clone();
        let stop = CancellationToken::new();
        tokio::spawn(generator.run(stop.clone()));
        Self {
            pleg,
            client,
            monitor,
            _stop: stop.drop_guard(),
        }
    }

    /// The pods that `wanted` selects, as of a complete relist; only their inspections are awaited. A pod that cannot be inspected is
    /// included with its error.
    pub(crate) async fn pods(&self, wanted: impl Fn(&PodRef) -> bool) -> anyhow::Result<Vec<PodEntry>> {
        let inflight = self.pleg.health().inflight();
        waiting::told(|| waiting::oldest_call(inflight), async {
            let cache = self.pleg.cache();
            let token = cache.token();
            self.complete(token).await?;
            let mut pods = Vec::new();
            for entry in cache.entries() {
                if wanted(&entry.status.pod) {
                    pods.push(fresh(cache, &entry.status.pod.uid, token).await?);
                }
            }
            // A pod that was removed in the meantime is empty.
            pods.retain(|entry| !entry.status.pod.name.is_empty() || entry.inspected_at.is_some());
            Ok(pods)
        })
        .await
    }

    /// The health after a relist with its inspections, failed or complete, and after a call of `Status`.
    pub(crate) async fn health(&self) -> ReportJson {
        // The report contains a failure.
        let _ = tokio::join!(self.pods(|_| true), self.monitor.check());
        ReportJson::of(&self.pleg, None)
    }

    /// Waits for a complete relist; a failed one is an error.
    async fn complete(&self, token: Token) -> anyhow::Result<()> {
        let complete = self.pleg.cache().synced(token, Duration::MAX);
        tokio::pin!(complete);
        loop {
            tokio::select! {
                biased;
                _ = &mut complete => return Ok(()),
                () = tokio::time::sleep(NOTICE) => {
                    let report = self.pleg.health().report();
                    let failed = report.causes.into_iter().find(|cause| cause.stage == Stage::List && cause.attempts > 0);
                    if let Some(error) = failed.and_then(|cause| cause.last_error) {
                        anyhow::bail!("{error}");
                    }
                }
            }
        }
    }
}

async fn fresh(cache: &Cache, uid: &PodUid, token: Token) -> Result<PodEntry, WaitError> {
    match cache.newer_than(uid, token, Duration::MAX).await {
        Err(WaitError::Quarantined { last, .. }) => Ok(*last),
        fresh => fresh,
    }
}
