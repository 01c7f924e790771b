//! Probes containers.
//!
//! One task for each running container that has probes: first the startup probe until it has succeeded, then liveness and readiness
//! beside each other. A pod's worker begins the task when it sees the container run and ends it when it does not; what is found goes
//! into one table, and the worker is told when a result has settled, which is after as many answers in a row as its threshold says.
//!
//! | probe | before it settles | when it fails |
//! |---|---|---|
//! | startup | not started: the other two wait | the container is killed |
//! | liveness | alive | the container is killed |
//! | readiness | not ready | not ready |

mod run_probe;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use pleg::ContainerId;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::executor::RuntimeExecutor;
use crate::manifest::{Container, Pod, Probe, ProbeKind};
use crate::metrics::NodeMetrics;

/// What probes found: for each container and probe its last settled result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Results {
    results: BTreeMap<(ContainerId, ProbeKind), bool>,
}

impl Results {
    /// Whether it succeeded; none before it has settled.
    pub fn get(&self, container: &ContainerId, kind: ProbeKind) -> Option<bool> {
        // The key is two words and an Arc: cheaper than a second map.
        self.results.get(&(container.clone(), kind)).copied()
    }

    /// Notes a result. Returns whether it is another one than before.
    pub fn set(&mut self, container: &ContainerId, kind: ProbeKind, success: bool) -> bool {
        self.results.insert((container.clone(), kind), success) != Some(success)
    }

    /// Forgets a container.
    pub fn forget(&mut self, container: &ContainerId) {
        self.results.retain(|(id, _), _| id != container);
    }
}

/// A container that is to be asked.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) pod: Arc<Pod>,
    pub(crate) name: String,
    pub(crate) id: ContainerId,
    /// Its pod's address, if it has one of its own.
    pub(crate) ip: Option<IpAddr>,
    /// When it began to run, by tokio's clock.
    pub(crate) since: Instant,
}

/// The probes of one pod. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Prober {
    hands: RuntimeExecutor,
    results: Arc<Mutex<Results>>,
    metrics: NodeMetrics,
    news: Arc<Notify>,
    tasks: BTreeMap<ContainerId, JoinHandle<()>>,
}

impl Prober {
    pub(crate) fn new(
        hands: RuntimeExecutor,
        results: Arc<Mutex<Results>>,
        metrics: NodeMetrics,
        news: Arc<Notify>,
    ) -> Self {
        Self {
            hands,
            results,
            metrics,
            news,
            tasks: BTreeMap::new(),
        }
    }

    /// These run now: whoever is new is asked from now on, whoever is gone is not asked any more.
    pub(crate) fn keep(&mut self, running: Vec<Subject>) {
        let results = &self.results;
        self.tasks.retain(|id, task| {
            let stays = running.iter().any(|subject| subject.id == *id);
            if !stays {
                task.abort();
                results.lock().forget(id);
            }
            stays
        });
        for subject in running {
            let Some(container) = subject.pod.spec.container(&subject.name) else {
                continue;
            };
            let probed = ProbeKind::ALL.into_iter().any(|kind| container.probe(kind).is_some());
            if !probed || self.tasks.contains_key(&subject.id) {
                continue;
            }
            let asking = Asking {
                container: container.clone(),
                hands: self.hands.clone(),
                results: Arc::clone(&self.results),
                metrics: self.metrics.clone(),
                news: Arc::clone(&self.news),
                subject,
            };
            let id = asking.subject.id.clone();
            self.tasks.insert(id, tokio::spawn(asking.run()));
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.keep(Vec::new());
    }
}

/// One container that is asked.
struct Asking {
    subject: Subject,
    container: Container,
    hands: RuntimeExecutor,
    results: Arc<Mutex<Results>>,
    metrics: NodeMetrics,
    news: Arc<Notify>,
}

impl Asking {
    async fn run(self) {
        if self.container.startup.is_some() && !self.settle(ProbeKind::Startup).await {
            return;
        }
        tokio::join!(self.settle(ProbeKind::Liveness), self.settle(ProbeKind::Readiness));
    }

    /// Asks until there is no more to ask: a startup probe that settled, a liveness probe that failed. Returns whether it succeeded.
    async fn settle(&self, kind: ProbeKind) -> bool {
        let Some(probe) = self.container.probe(kind) else {
            return true;
        };
        tokio::time::sleep_until(self.subject.since + probe.initial_delay).await;
        // Answers of the last kind, in a row.
        let (mut row, mut last) = (0_u32, None);
        loop {
            let asked = Instant::now();
            let answer = run_probe::ask(&self.hands, &self.subject, probe).await;
            let success = answer.is_ok();
            self.metrics.probe(kind, success);
            row = if last == Some(success) {
                row.saturating_add(1)
            } else {
                1
            };
            last = Some(success);
            if row >= threshold(probe, success) {
                self.found(kind, probe, answer);
                if kind == ProbeKind::Startup || (kind == ProbeKind::Liveness && !success) {
                    return success;
                }
            }
            tokio::time::sleep_until(asked + probe.period).await;
        }
    }

    fn found(&self, kind: ProbeKind, probe: &Probe, answer: Result<(), String>) {
        let success = answer.is_ok();
        if !self.results.lock().set(&self.subject.id, kind, success) {
            return;
        }
        let (pod, container) = (&self.subject.pod.id, &self.subject.name);
        match answer {
            Ok(()) => debug!(%pod, container, "{} probe succeeded", kind.name()),
            Err(why) => warn!(%pod, container, times = probe.failure_threshold, "{} probe failed: {why}", kind.name()),
        }
        self.news.notify_one();
    }
}

fn threshold(probe: &Probe, success: bool) -> u32 {
    if success {
        probe.success_threshold
    } else {
        probe.failure_threshold
    }
}
