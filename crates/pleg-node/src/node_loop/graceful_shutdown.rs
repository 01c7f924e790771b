//! Ends all pods when the node shuts down: the lowest priority first, each group of priorities within its share of the time. Usually there are
//! two groups: critical pods, and all others.
//!
//! Pods of an API server fail with the kubelet's words, so that their controllers create others elsewhere. Static pods terminate, and start
//! again with the next `pleg node`. Nothing is started any more. At the end, what is left of the last statuses is published.

use std::collections::{BTreeMap, BTreeSet};
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
    pub(super) requested: CancellationToken,
    /// By the lowest priority of a group: how long its pods have. They end one group after the other, the lowest first.
    periods: BTreeMap<i64, Duration>,
}

impl GracefulShutdown {
    /// All pods have `grace_period` together, of which `critical_pods` is kept for critical ones.
    pub fn new(requested: CancellationToken, grace_period: Duration, critical_pods: Duration) -> Self {
        let ordinary_pods = grace_period.saturating_sub(critical_pods);
        let periods = BTreeMap::from([(i64::MIN, ordinary_pods), (CRITICAL, critical_pods)]);
        Self { requested, periods }
    }

    /// Pods of each of these priorities or more have so long. Pods below all of them belong to the lowest one.
    pub fn by_priority(requested: CancellationToken, periods: BTreeMap<i32, Duration>) -> Self {
        let periods = periods
            .into_iter()
            .map(|(priority, period)| (i64::from(priority), period));
        Self {
            requested,
            periods: periods.collect(),
        }
    }

    /// The group of a pod of this priority.
    fn group(&self, priority: i64) -> Option<i64> {
        let group = self.periods.range(..=priority).next_back();
        group
            .or_else(|| self.periods.first_key_value())
            .map(|(group, _)| *group)
    }

    /// The groups after this one; all, if there is none.
    fn next_group(&self, after: Option<i64>) -> Option<(i64, Duration)> {
        let mut groups = self
            .periods
            .iter()
            .filter(|(group, _)| after.is_none_or(|after| **group > after));
        groups.next().map(|(group, period)| (*group, *period))
    }

    fn total(&self) -> Duration {
        self.periods
            .values()
            .fold(Duration::ZERO, |all, period| all.saturating_add(*period))
    }
}

/// What is waited for.
#[derive(Debug, Clone)]
pub(super) enum Ending {
    /// The pods of this group, until then. The next group follows.
    Group(i64, BTreeSet<PodUid>, Instant),
    /// The last statuses.
    Publishing(Instant),
}

impl Ending {
    /// Waits until it is over. Cancel-safe.
    pub(super) async fn is_over(&self, reports: &PodReports) {
        let (pods, deadline) = match self {
            Self::Group(_, pods, deadline) => (Some(pods), *deadline),
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
        let last = match ending {
            None => {
                let groups: Vec<String> = config.periods.values().map(|period| seconds(*period)).collect();
                info!(
                    "the node is shutting down: ending all pods within {}, by priority, the lowest first: {}",
                    seconds(config.total()),
                    groups.join(", then ")
                );
                None
            }
            Some(Ending::Group(group, pods, _)) => {
                self.log_left(pods);
                Some(*group)
            }
            Some(Ending::Publishing(_)) => return None,
        };
        Some(match config.next_group(last) {
            Some((group, within)) => {
                let pods = self.end_pods(within, |priority| config.group(priority) == Some(group));
                Ending::Group(group, pods, Instant::now() + within)
            }
            None => Ending::Publishing(Instant::now() + PUBLISH),
        })
    }

    /// Ends the pods of these priorities.
    fn end_pods(&self, within: Duration, is_meant: impl Fn(i64) -> bool) -> BTreeSet<PodUid> {
        let reports = self.workers.context.reports.pods();
        let pods = reports.iter().map(|report| &report.pod);
        let group = pods.filter(|pod| is_meant(priority(pod)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_priority_belongs_to_one_group() {
        let second = Duration::from_secs(1);
        let requested = CancellationToken::new();
        let usual = GracefulShutdown::new(requested.clone(), 30 * second, 10 * second);
        assert_eq!(
            (usual.group(-5), usual.group(CRITICAL - 1)),
            (Some(i64::MIN), Some(i64::MIN))
        );
        assert_eq!((usual.group(CRITICAL), usual.total()), (Some(CRITICAL), 30 * second));
        assert_eq!(usual.next_group(None), Some((i64::MIN, 20 * second)));
        assert_eq!(usual.next_group(Some(i64::MIN)), Some((CRITICAL, 10 * second)));
        assert_eq!(usual.next_group(Some(CRITICAL)), None);

        let periods = BTreeMap::from([(0, second), (1000, 2 * second), (50, 3 * second)]);
        let own = GracefulShutdown::by_priority(requested, periods);
        let groups = [-1, 0, 49, 50, 999, 1000, i64::MAX].map(|priority| own.group(priority));
        assert_eq!(groups, [0, 0, 0, 50, 50, 1000, 1000].map(Some));
        let mut order = Vec::new();
        while let Some((group, _)) = own.next_group(order.last().copied()) {
            order.push(group);
        }
        assert_eq!((order, own.total()), (vec![0, 50, 1000], 6 * second));
    }
}
