//! Metrics of a node: the kubelet's names where the meaning is the same, else `pleg_node_*`. Pods are never labels.

use std::collections::BTreeSet;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::eviction::signals::Signal;
use crate::manifest::{ProbeKind, Role};
use crate::reconcile::action::KillReason;
use crate::sources::SourceProblem;

/// Up to the longest grace periods in use.
const BUCKETS: [f64; 14] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
];

/// The metrics of a node cannot be registered.
#[derive(Debug, thiserror::Error)]
#[error("cannot register the metrics of the node; does the registry have those of another node?")]
pub struct MetricsError(#[from] prometheus::Error);

/// All metrics of a node. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct NodeMetrics {
    pod_start: Histogram,
    worker: HistogramVec,
    desired: IntGaugeVec,
    active: IntGauge,
    orphans: IntCounter,
    started_pods: IntCounter,
    started_pods_errors: IntCounter,
    started_containers: IntCounterVec,
    started_containers_errors: IntCounterVec,
    restarts: IntCounter,
    kills: IntCounterVec,
    probes: IntCounterVec,
    refused: IntGauge,
    refusals: IntCounter,
    skips: IntCounterVec,
    stale: IntGauge,
    worker_panics: IntCounter,
    rotations: IntCounterVec,
    images_collected: IntCounterVec,
    image_gc_failures: IntCounter,
    evictions: IntCounterVec,
}

/// What the actions of a pod worker are part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// The start of a pod.
    Create,
    /// A change of a running pod.
    Sync,
    /// The termination of a pod.
    Terminate,
}

/// Why no decision was made about a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skip {
    /// This pod cannot be observed.
    Quarantined,
    /// The runtime cannot be observed.
    Runtime,
}

fn container_type(role: Role) -> &'static str {
    match role {
        Role::Main => "container",
        Role::Ephemeral => "ephemeral_container",
        Role::Init | Role::Sidecar => "init_container",
    }
}

/// The value of the label `why`.
fn kill_label(reason: KillReason) -> &'static str {
    match reason {
        KillReason::Probe(kind) => kind.name(),
        KillReason::PostStartHook => "hook",
        KillReason::SandboxUnusable => "sandbox",
        KillReason::Duplicate => "double",
        KillReason::StateUnknown => "unknown",
        KillReason::ImageChanged => "image",
        KillReason::ResourcesChanged => "resources",
        KillReason::PodFinished => "finished",
        KillReason::PodTerminating => "end",
    }
}

impl NodeMetrics {
    /// All at zero. Fails only if the registry already has the metrics of another node.
    #[rustfmt::skip]
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let make = Make(registry);
        let all = Self {
            // The kubelet's.
            pod_start: make.histogram("kubelet_pod_start_duration_seconds", "Time from a pod being desired to all its containers running. Adopted pods are not counted.")?,
            worker: make.add(HistogramVec::new(HistogramOpts::new("kubelet_pod_worker_duration_seconds", "Time to carry out one decision about a pod, by operation: create, sync, terminate.").buckets(BUCKETS.to_vec()), &["operation_type"])?)?,
            desired: make.add(IntGaugeVec::new(Opts::new("kubelet_desired_pods", "Pods desired by manifests."), &["static"])?)?,
            active: make.gauge("kubelet_active_pods", "Pods that have a pod worker: desired or terminating.")?,
            orphans: make.counter("kubelet_orphaned_runtime_pods_total", "Orphaned pods found in the runtime or on disk.")?,
            started_pods: make.counter("kubelet_started_pods_total", "Attempts to create a sandbox.")?,
            started_pods_errors: make.counter("kubelet_started_pods_errors_total", "Sandboxes that could not be created.")?,
            started_containers: make.counters("kubelet_started_containers_total", "Attempts to start a container.", &["container_type"])?,
            started_containers_errors: make.counters("kubelet_started_containers_errors_total", "Containers that could not be started, by the reason in the pod status.", &["container_type", "code"])?,
            images_collected: make.counters("kubelet_image_garbage_collected_total", "Images removed because nobody used them, by reason.", &["reason"])?,
            evictions: make.counters("kubelet_evictions", "Evicted pods, by the signal whose threshold was met.", &["eviction_signal"])?,
            // Ours.
            image_gc_failures: make.counter("pleg_node_image_gc_failures_total", "Image collections that failed or freed too little.")?,
            restarts: make.counter("pleg_node_container_restarts_total", "Container restarts.")?,
            kills: make.counters("pleg_node_container_kills_total", "Containers that were stopped, by reason.", &["why"])?,
            probes: make.counters("pleg_node_probes_total", "Probe results.", &["probe_type", "result"])?,
            refused: make.gauge("pleg_node_manifests_refused", "Manifest problems that exist now; /api/v1/node/complaints lists them.")?,
            refusals: make.counter("pleg_node_manifest_refusals_total", "New manifest problems.")?,
            skips: make.counters("pleg_node_sync_skips_total", "Decisions skipped because the observed status is not fresh: of one pod (quarantined) or of all (runtime, counted once a second).", &["reason"])?,
            stale: make.gauge("pleg_node_stale", "1 if pod statuses are stale because the runtime cannot be observed.")?,
            worker_panics: make.counter("pleg_node_worker_falls_total", "Pod workers that panicked and were restarted.")?,
            rotations: make.counters("pleg_node_log_rotations_total", "Container log rotations, by result.", &["result"])?,
        };
        for signal in Signal::ALL {
            all.evictions.with_label_values(&[signal.name()]).inc_by(0);
        }
        all.images_collected.with_label_values(&["space"]).inc_by(0);
        for operation in ["create", "sync", "terminate"] {
            all.worker.with_label_values(&[operation]);
        }
        for kind in ["container", "init_container"] {
            all.started_containers.with_label_values(&[kind]).inc_by(0);
        }
        for reason in ["quarantined", "runtime"] {
            all.skips.with_label_values(&[reason]).inc_by(0);
        }
        for result in ["successful", "failed"] {
            all.rotations.with_label_values(&[result]).inc_by(0);
        }
        all.desired(0);
        Ok(all)
    }

    pub(crate) fn pod_started(&self, took: Duration) {
        self.pod_start.observe(took.as_secs_f64());
    }

    pub(crate) fn operation(&self, operation: Operation, took: Duration) {
        let name = match operation {
            Operation::Create => "create",
            Operation::Sync => "sync",
            Operation::Terminate => "terminate",
        };
        self.worker.with_label_values(&[name]).observe(took.as_secs_f64());
    }

    pub(crate) fn desired(&self, pods: usize) {
        let pods = i64::try_from(pods).unwrap_or(i64::MAX);
        self.desired.with_label_values(&["true"]).set(pods);
    }

    pub(crate) fn active(&self, pods: usize) {
        self.active.set(i64::try_from(pods).unwrap_or(i64::MAX));
    }

    pub(crate) fn orphan(&self) {
        self.orphans.inc();
    }

    pub(crate) fn sandbox(&self, made: bool) {
        self.started_pods.inc();
        self.started_pods_errors.inc_by(u64::from(!made));
    }

    /// A start of a container, and the reason if it failed.
    pub(crate) fn container(&self, role: Role, attempt: u32, failed: Option<&'static str>) {
        let kind = container_type(role);
        self.started_containers.with_label_values(&[kind]).inc();
        match failed {
            Some(reason) => self.started_containers_errors.with_label_values(&[kind, reason]).inc(),
            None if attempt > 0 => self.restarts.inc(),
            None => {}
        }
    }

    pub(crate) fn kill(&self, reason: KillReason) {
        self.kills.with_label_values(&[kill_label(reason)]).inc();
    }

    /// A probe succeeded or failed; none if the runtime could not run it.
    pub(crate) fn probe(&self, kind: ProbeKind, success: Option<bool>) {
        let result = match success {
            Some(true) => "successful",
            Some(false) => "failed",
            None => "unknown",
        };
        self.probes.with_label_values(&[kind.name(), result]).inc();
    }

    /// Manifest problems now, and before.
    pub(crate) fn problems(&self, before: &[SourceProblem], now: &[SourceProblem]) {
        self.refused.set(i64::try_from(now.len()).unwrap_or(i64::MAX));
        let before: BTreeSet<&SourceProblem> = before.iter().collect();
        let new = now.iter().filter(|problem| !before.contains(problem)).count();
        self.refusals.inc_by(u64::try_from(new).unwrap_or(u64::MAX));
    }

    pub(crate) fn skip(&self, skip: Skip) {
        let reason = match skip {
            Skip::Quarantined => "quarantined",
            Skip::Runtime => "runtime",
        };
        self.skips.with_label_values(&[reason]).inc();
    }

    pub(crate) fn stale(&self, stale: bool) {
        self.stale.set(i64::from(stale));
    }

    pub(crate) fn rotation(&self, success: bool) {
        let result = if success { "successful" } else { "failed" };
        self.rotations.with_label_values(&[result]).inc();
    }

    pub(crate) fn image_collected(&self) {
        self.images_collected.with_label_values(&["space"]).inc();
    }

    /// `signal` is one of a fixed set.
    pub(crate) fn evicted(&self, signal: &str) {
        self.evictions.with_label_values(&[signal]).inc();
    }

    pub(crate) fn image_gc_failure(&self) {
        self.image_gc_failures.inc();
    }

    pub(crate) fn worker_panic(&self) {
        self.worker_panics.inc();
    }
}

/// Creates and registers metrics, so that each is one line above.
struct Make<'a>(&'a Registry);

impl Make<'_> {
    fn add<M: Collector + Clone + 'static>(&self, metric: M) -> prometheus::Result<M> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::new(name, help)?)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.add(IntGauge::new(name, help)?)
    }

    fn histogram(&self, name: &str, help: &str) -> prometheus::Result<Histogram> {
        self.add(Histogram::with_opts(
            HistogramOpts::new(name, help).buckets(BUCKETS.to_vec()),
        )?)
    }
}
