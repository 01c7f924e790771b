//! Polls the runtime's `Status`, independently of the generator: neither waits for the other.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Fuse, FusedFuture};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::generator::requests::RelistRequests;
use crate::health::readiness::{Readiness, STATUS_PERIOD};
use crate::model::event::Source;
use crate::runtime::Runtime;

/// A runtime that takes longer than this to answer `Status` may be frozen.
const PATIENCE: Duration = Duration::from_secs(2);

/// The task behind [`Readiness`]. Made with [`crate::Generator::runtime_monitor`].
#[derive(Debug)]
pub struct RuntimeMonitor<R> {
    runtime: Arc<R>,
    readiness: Readiness,
    hints: RelistRequests,
    /// While full relists are rarer than this, the runtime is asked so often.
    heartbeat: Option<Duration>,
}

impl<R: Runtime> RuntimeMonitor<R> {
    pub(crate) fn new(runtime: Arc<R>, readiness: Readiness, hints: RelistRequests) -> Self {
        Self {
            runtime,
            readiness,
            hints,
            heartbeat: None,
        }
    }

    /// Asks at least this often while full relists are rarer: for callers that have to know soon that the runtime is frozen, and not only
    /// that nothing changes.
    #[must_use]
    pub fn with_heartbeat(mut self, every: Duration) -> Self {
        self.heartbeat = Some(every);
        self
    }

    /// Calls `Status` once. [`Readiness`] has the result.
    pub async fn check(&self) {
        let mut asking = pin!(self.runtime.status());
        let answer = if let Ok(answer) = timeout(PATIENCE, &mut asking).await {
            answer
        } else {
            // While events let the generator rest, its next relist may be a minute away, and a frozen runtime looks like a quiet one.
            self.hints.all(Source::Relist);
            asking.await
        };
        match answer {
            Ok(status) => self.readiness.answered(&status),
            Err(error) => self.readiness.failed(&error),
        }
    }

    fn period(&self) -> Duration {
        let (rare, looks) = (2 * STATUS_PERIOD, self.readiness.health().full_relist_period());
        let usual = if looks >= rare { rare } else { STATUS_PERIOD };
        // Relists that come as often are sign enough.
        let heartbeat = self.heartbeat.filter(|every| looks > *every);
        heartbeat.map_or(usual, |every| every.min(usual))
    }

    /// Asks every [`STATUS_PERIOD`] until `shutdown`, never twice at once, and dates transitions also while there is no answer; half as
    /// often while the runtime's events let full relists be rarer than that. On an idle node it is waking up that costs.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut next = Instant::now();
        let asking = Fuse::terminated();
        let mut asking = pin!(asking);
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = &mut asking => drop(self.readiness.ready()),
                () = sleep_until(next) => {
                    next = Instant::now() + self.period();
                    if asking.is_terminated() {
                        asking.set(self.check().fuse());
                    } else {
                        drop(self.readiness.ready());
                    }
                }
            }
        }
    }
}
