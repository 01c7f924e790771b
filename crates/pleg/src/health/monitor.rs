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

/// A runtime that has not answered `Status` after this long may be frozen.
const PATIENCE: Duration = Duration::from_secs(2);

/// The task behind [`Readiness`]. Made with [`crate::Generator::runtime_monitor`].
#[derive(Debug)]
pub struct RuntimeMonitor<R> {
    runtime: Arc<R>,
    readiness: Readiness,
    requests: RelistRequests,
    /// See [`Config::heartbeat`](crate::Config::heartbeat).
    heartbeat: Option<Duration>,
}

impl<R: Runtime> RuntimeMonitor<R> {
    pub(crate) fn new(
        runtime: Arc<R>,
        readiness: Readiness,
        requests: RelistRequests,
        heartbeat: Option<Duration>,
    ) -> Self {
        Self {
            runtime,
            readiness,
            requests,
            heartbeat,
        }
    }

    /// Calls `Status` once. [`Readiness`] has the result.
    pub async fn check(&self) {
        let mut asking = pin!(self.runtime.status());
        let answer = if let Ok(answer) = timeout(PATIENCE, &mut asking).await {
            answer
        } else {
            // With a good event stream the next relist may be a minute away, and a frozen runtime sends no events, as an idle one does.
            self.requests.all(Source::Relist);
            asking.await
        };
        match answer {
            Ok(status) => self.readiness.answered(&status),
            Err(error) => self.readiness.failed(&error),
        }
    }

    fn period(&self) -> Duration {
        let (rare, relists) = (2 * STATUS_PERIOD, self.readiness.health().full_relist_period());
        let usual = if relists >= rare { rare } else { STATUS_PERIOD };
        // Relists that come as often say the same.
        let heartbeat = self.heartbeat.filter(|every| relists > *every);
        heartbeat.map_or(usual, |every| every.min(usual))
    }

    /// Calls `Status` every [`STATUS_PERIOD`] until `shutdown`, one call at a time, and dates transitions of the Ready condition also while
    /// no answer comes. Calls half as often while full relists are rarer than that: on an idle node, waking up is the cost.
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
