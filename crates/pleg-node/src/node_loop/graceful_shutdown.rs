//! Ends all pods when the node shuts down: first those of ordinary priority, then critical ones, each group within its share of the time.
//!
//! Pods of an API server fail with the kubelet's words, so that their controllers create others elsewhere. Static pods terminate, and start
//! again with the next `pleg node`. Nothing is started any more. At the end, what is left of the last statuses is published.

use std::collections::BTreeSet;
use std::time::Duration;

use pleg::PodUid;
use pleg_cri::duration::seconds;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::NodeLoop;
use crate::eviction::manager::Eviction;
use crate::eviction::ranking::{CRITICAL, priority};
use crate::reconcile::history::PodFailure;
use crate::status::Phase;
use crate::status::reports::PodReports;

/// How long the last statuses may take to be published.
const PUBLISH: Duration = Duration::from_secs(5);

/// When and how the pods of a node end with it.
#[derive(Debug, Clone)]
pub struct GracefulShutdown {
    /// Cancelled when the node shuts down.
    pub requested: CancellationToken,
    /// How long all pods have together.
    pub grace_period: Duration,
    /// How much of that is kept for critical pods.
    pub critical_pods: Duration,
}

impl GracefulShutdown {
    /// What ordinary pods have.
    fn ordinary_pods(&self) -> Duration {
        self.grace_period.saturating_sub(self.critical_pods)
    }
}

/// What is waited for.
#[derive(Debug, Clone)]
pub(super) enum Ending {
    /// These pods, until then. Critical ones follow.
    Ordinary(BTreeSet<PodUid>, Instant),
    /// These pods, until then.
    Critical(BTreeSet<PodUid>, Instant),
    /// The last statuses.
    Publishing(Instant),
}

impl Ending {
    /// Waits until it is over. Cancel-safe.
    pub(super) async fn is_over(&self, reports: &PodReports) {
        let (pods, deadline) = match self {
            Self::Ordinary(pods, deadline) | Self::Critical(pods, deadline) => (Some(pods), *deadline),
            Self::Publishing(deadline) => (None, *deadline),
        };
        let done = async {
            match pods {
                Some(pods) => reports.wait_for(|reports| left(pods, reports).is_empty()).await,
                None => reports.wait_for(PodReports::is_published).await,
            }
        };
        tokio::select! {
            () = sleep_until(deadline) => {}
            () = done => {}
        }
    }
}

/// The pods of which something may still run.
fn left(pods: &BTreeSet<PodUid>, reports: &PodReports) -> Vec<String> {
    let runs = |uid: &PodUid| {
        let report = reports.get(uid)?;
        let is_over = matches!(report.phase(), Phase::Failed | Phase::Succeeded);
        (!is_over).then(|| report.pod.id.full_name().to_string())
    };
    pods.iter().filter_map(runs).collect()
}

impl NodeLoop {
    /// Ends all pods when the node shuts down, and then the loop. Without it, pods keep running.
    #[must_use]
    pub fn with_graceful_shutdown(mut self, config: GracefulShutdown) -> Self {
        self.graceful_shutdown = Some(config);
        self
    }

    /// Waits until the node shuts down. Never, if pods keep running then. Cancel-safe.
    pub(super) async fn shutdown_requested(config: Option<&GracefulShutdown>) {
        match config {
            Some(config) => config.requested.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// What comes next; none once all is over. `ending` is what is over now; none if the shutdown has just been requested.
    pub(super) fn next_ending(&self, ending: Option<&Ending>) -> Option<Ending> {
        let config = self.graceful_shutdown.as_ref()?;
        match ending {
            None => {
                let within = config.ordinary_pods();
                info!(
                    "the node is shutting down: ending all pods within {}, of which critical ones have the last {}",
                    seconds(config.grace_period),
                    seconds(config.critical_pods)
                );
                Some(Ending::Ordinary(self.end_pods(within, false), Instant::now() + within))
            }
            Some(Ending::Ordinary(pods, _)) => {
                self.log_left(pods);
                let within = config.critical_pods;
                Some(Ending::Critical(self.end_pods(within, true), Instant::now() + within))
            }
            Some(Ending::Critical(pods, _)) => {
                self.log_left(pods);
                Some(Ending::Publishing(Instant::now() + PUBLISH))
            }
            Some(Ending::Publishing(_)) => None,
        }
    }

    /// Ends the pods that are critical, or those that are not.
    fn end_pods(&self, within: Duration, critical: bool) -> BTreeSet<PodUid> {
        let reports = self.workers.context.reports.pods();
        let pods = reports.iter().map(|report| &report.pod);
        let group = pods.filter(|pod| (priority(pod) >= CRITICAL) == critical);
        let mut ended = BTreeSet::new();
        for pod in group {
            let (uid, grace) = (pod.id.uid.clone(), pod.spec.termination_grace.min(within));
            if pod.is_static() {
                self.workers.terminate_within(&uid, grace);
            } else {
                self.workers.evict(Eviction {
                    uid: uid.clone(),
                    why: PodFailure {
                        reason: "Terminated".to_owned(),
                        message: "Pod was terminated in response to imminent node shutdown.".to_owned(),
                    },
                    grace,
                });
            }
            ended.insert(uid);
        }
        ended
    }

    fn log_left(&self, pods: &BTreeSet<PodUid>) {
        let left = left(pods, &self.workers.context.reports);
        if !left.is_empty() {
            warn!("pods that have not ended in time: {}", left.join(", "));
        }
    }
}
