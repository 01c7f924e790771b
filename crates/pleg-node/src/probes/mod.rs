//! Probes containers.
//!
//! In: the running containers of a pod, from its worker. Out: settled results in one table for the node, and a wake-up of the worker when a
//! result changes. A result settles after as many equal answers in a row as its threshold says. Each `PodProber` owns its tasks.
//!
//! A probe succeeds, fails, or is not known: the runtime could not run its command. What is not known changes nothing. What an earlier run of
//! `pleg node` knew of a container is where a new one begins.
//!
//! One task for each running container with probes: first the startup probe until it succeeds, then liveness and readiness in parallel.
//!
//! | probe | before it settles | when it fails |
//! |---|---|---|
//! | startup | not started: the other two wait | the container is killed |
//! | liveness | alive | the container is killed |
//! | readiness | not ready | not ready |

mod counts;
mod run_probe;

pub use self::counts::{ProbeCount, ProbeCounts};

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use pleg::{ContainerId, PodUid};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{debug, warn};

use self::run_probe::{ProbeError, ProbeSuccess, run_probe};
use crate::error::with_causes;
use crate::events::wording;
use crate::executor::RuntimeExecutor;
use crate::manifest::{Container, Pod, Probe, ProbeKind};
use crate::metrics::NodeMetrics;
use crate::reconcile::history::ProbeMemory;

/// The last settled result of each probe of each container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProbeResults {
    results: BTreeMap<(ContainerId, ProbeKind), bool>,
}

impl ProbeResults {
    /// Whether the probe succeeded; none before it has settled.
    pub fn get(&self, container: &ContainerId, kind: ProbeKind) -> Option<bool> {
        // The key is two words and an Arc: cheaper than a second map.
        self.results.get(&(container.clone(), kind)).copied()
    }

    /// Records a result. Returns whether it changed.
    pub fn set(&mut self, container: &ContainerId, kind: ProbeKind, success: bool) -> bool {
        self.results.insert((container.clone(), kind), success) != Some(success)
    }

    /// Removes the results of a container.
    pub fn remove(&mut self, container: &ContainerId) {
        self.results.retain(|(id, _), _| id != container);
    }
}

/// A running container that is probed.
#[derive(Debug, Clone)]
pub(crate) struct ProbedContainer {
    pub(crate) pod: Arc<Pod>,
    pub(crate) name: String,
    pub(crate) id: ContainerId,
    /// The address of its pod, if it has its own.
    pub(crate) ip: Option<IpAddr>,
    /// When it started, by tokio's clock.
    pub(crate) since: Instant,
    /// What its probes have said in an earlier run.
    pub(crate) remembered: Option<ProbeMemory>,
}

/// The probes of one pod. Dropping it stops them.
#[derive(Debug)]
pub(crate) struct PodProber {
    executor: RuntimeExecutor,
    results: Arc<Mutex<ProbeResults>>,
    metrics: NodeMetrics,
    counts: ProbeCounts,
    /// Wakes the pod worker.
    wake: Arc<Notify>,
    /// The pod, once it was probed.
    pod: Option<PodUid>,
    tasks: BTreeMap<ContainerId, JoinHandle<()>>,
}

impl PodProber {
    pub(crate) fn new(
        executor: RuntimeExecutor,
        results: Arc<Mutex<ProbeResults>>,
        metrics: NodeMetrics,
        counts: ProbeCounts,
        wake: Arc<Notify>,
    ) -> Self {
        Self {
            executor,
            results,
            metrics,
            counts,
            wake,
            pod: None,
            tasks: BTreeMap::new(),
        }
    }

    /// Probes these containers and no others: starts and stops tasks accordingly.
    pub(crate) fn probe_only(&mut self, running: Vec<ProbedContainer>) {
        let results = &self.results;
        self.tasks.retain(|id, task| {
            let stays = running.iter().any(|probed| probed.id == *id);
            if !stays {
                task.abort();
                results.lock().remove(id);
            }
            stays
        });
        for probed in running {
            let Some(container) = probed.pod.spec.container(&probed.name) else {
                continue;
            };
            let has_probes = ProbeKind::ALL.into_iter().any(|kind| container.probe(kind).is_some());
            if !has_probes || self.tasks.contains_key(&probed.id) {
                continue;
            }
            if let Some(remembered) = &probed.remembered {
                let mut results = self.results.lock();
                for (kind, success) in [
                    (ProbeKind::Startup, remembered.started),
                    (ProbeKind::Readiness, remembered.ready),
                ] {
                    if success && container.probe(kind).is_some() {
                        results.set(&probed.id, kind, true);
                    }
                }
            }
            let prober = ContainerProber {
                container: container.clone(),
                executor: self.executor.clone(),
                results: Arc::clone(&self.results),
                metrics: self.metrics.clone(),
                counts: self.counts.clone(),
                wake: Arc::clone(&self.wake),
                probed,
            };
            let id = prober.probed.id.clone();
            self.pod.get_or_insert_with(|| prober.probed.pod.id.uid.clone());
            self.tasks.insert(id, tokio::spawn(prober.run()));
        }
    }
}

impl Drop for PodProber {
    fn drop(&mut self) {
        self.probe_only(Vec::new());
        if let Some(uid) = &self.pod {
            self.counts.forget(uid);
        }
    }
}

/// The probes of one container.
struct ContainerProber {
    probed: ProbedContainer,
    container: Container,
    executor: RuntimeExecutor,
    results: Arc<Mutex<ProbeResults>>,
    metrics: NodeMetrics,
    counts: ProbeCounts,
    wake: Arc<Notify>,
}

impl ContainerProber {
    async fn run(self) {
        let has_started = self.results.lock().get(&self.probed.id, ProbeKind::Startup) == Some(true);
        if self.container.startup.is_some() && !has_started && !self.probe_until_final(ProbeKind::Startup).await {
            return;
        }
        tokio::join!(
            self.probe_until_final(ProbeKind::Liveness),
            self.probe_until_final(ProbeKind::Readiness)
        );
    }

    /// Probes until a result is final: a startup probe that settled, or a liveness probe that failed. Returns whether it succeeded.
    async fn probe_until_final(&self, kind: ProbeKind) -> bool {
        let Some(probe) = self.container.probe(kind) else {
            return true;
        };
        tokio::time::sleep_until(self.probed.since + probe.initial_delay).await;
        // How often in a row the last answer came.
        let (mut in_a_row, mut last) = (0_u32, None);
        let mut was_unknown = false;
        loop {
            let began = Instant::now();
            let answer = run_probe(&self.executor, &self.probed, probe).await;
            self.tell(kind, &answer);
            if let Err(error) = answer.as_ref()
                && error.is_unknown()
            {
                self.count(kind, None);
                if !std::mem::replace(&mut was_unknown, true) {
                    let (pod, container) = (&self.probed.pod.id, &self.probed.name);
                    warn!(%pod, container, "{} probe could not be run: {}", kind.name(), with_causes(error));
                }
                tokio::time::sleep_until(began + probe.period).await;
                continue;
            }
            was_unknown = false;
            let success = answer.is_ok();
            self.count(kind, Some(success));
            in_a_row = if last == Some(success) {
                in_a_row.saturating_add(1)
            } else {
                1
            };
            last = Some(success);
            if in_a_row >= threshold(probe, success) {
                self.settle(kind, probe, answer);
                if kind == ProbeKind::Startup || (kind == ProbeKind::Liveness && !success) {
                    return success;
                }
            }
            tokio::time::sleep_until(began + probe.period).await;
        }
    }

    fn count(&self, kind: ProbeKind, success: Option<bool>) {
        self.metrics.probe(kind, success);
        let (pod, container) = (&self.probed.pod.id, &self.probed.name);
        self.counts.count(pod, container, kind, success);
    }

    /// Each answer that is not a plain success is an event, whatever the thresholds say.
    fn tell(&self, kind: ProbeKind, answer: &Result<ProbeSuccess, ProbeError>) {
        let probe = wording::probe(kind);
        let (reason, message) = match answer {
            Ok(ProbeSuccess { warning: None }) => return,
            Ok(ProbeSuccess { warning: Some(warning) }) => {
                ("ProbeWarning", format!("{probe} probe warning: {warning}"))
            }
            Err(error) if error.is_unknown() => {
                let error = with_causes(error);
                (
                    "Unhealthy",
                    format!("{probe} probe errored and resulted in unknown state: {error}"),
                )
            }
            Err(error) => ("Unhealthy", format!("{probe} probe failed: {}", error.output())),
        };
        let events = self.executor.events();
        events.container_warning(&self.probed.pod, &self.probed.name, reason, &message);
    }

    /// Records a settled result and wakes the pod worker, if the result changed.
    fn settle(&self, kind: ProbeKind, probe: &Probe, answer: Result<ProbeSuccess, ProbeError>) {
        if !self.results.lock().set(&self.probed.id, kind, answer.is_ok()) {
            return;
        }
        let (pod, container) = (&self.probed.pod.id, &self.probed.name);
        match answer {
            Ok(_) => debug!(%pod, container, "{} probe succeeded", kind.name()),
            Err(error) => {
                let (times, error) = (probe.failure_threshold, with_causes(&error));
                warn!(%pod, container, times, "{} probe failed: {error}", kind.name());
            }
        }
        self.wake.notify_one();
    }
}

fn threshold(probe: &Probe, success: bool) -> u32 {
    if success {
        probe.success_threshold
    } else {
        probe.failure_threshold
    }
}
