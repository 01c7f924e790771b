//! The metrics. They have the kubelet's names and types where the meaning is the same, so that its dashboards and alerts work, and
//! `pleg_*` elsewhere. Every label has few, fixed values: no pod and no container is ever a label.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use pleg_cri::{InFlight, Observer, Outcome, Rpc};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::evented::{Mode, ModeReport};
use crate::health::Report;
use crate::health::diagnosis::Trouble;
use crate::model::ContainerState;
use crate::model::event::EventType;
use crate::recorder::CallTimes;
use crate::records::snapshot::Oddities;
use crate::witness::WitnessReport;

/// From a millisecond to beyond the health threshold: the kubelet's end at 10 s, where a stall only begins.
const BUCKETS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 300.0,
];

/// The metrics cannot be registered or rendered, which is a bug.
#[derive(Debug, thiserror::Error)]
#[error("cannot register or render the metrics")]
pub struct MetricsError(#[source] prometheus::Error);

/// Told of relists as they begin and end, for traces.
pub trait RelistObserver: Send + Sync + std::fmt::Debug {
    /// The lists of a relist are sent: of everything, or of single pods.
    fn relist_started(&self, is_full: bool);

    /// It ended: one of everything with its last inspection, one of single pods with their lists. `error`: why it failed, if it did.
    fn relist_ended(&self, is_full: bool, error: Option<&str>);
}

/// The metrics of one generator and its client. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    registry: Registry,
    /// Not a metric: what the flight recorder records of calls.
    calls: CallTimes,
    /// Not a metric: those who want to know of relists. Held to tell them, which takes no time.
    relists: RwLock<Vec<Arc<dyn RelistObserver>>>,
    relist_duration: Histogram,
    relist_interval: Histogram,
    last_seen: Gauge,
    discard_events: IntCounter,
    running_pods: IntGauge,
    running_containers: IntGaugeVec,
    operations: IntCounterVec,
    operation_errors: IntCounterVec,
    operation_duration: HistogramVec,
    stream_connections: IntCounter,
    stream_failures: IntCounter,
    stream_latency: Histogram,
    stream_events: IntCounter,
    missed_changes: IntCounter,
    full_relist_period: Gauge,
    witness_complete: IntGauge,
    witness_watched: IntGaugeVec,
    mode: IntGaugeVec,
    events: IntCounterVec,
    list_bytes: IntGauge,
    relist_errors: IntCounterVec,
    quarantined: IntGauge,
    hung_shims: IntGauge,
    oddities: IntGaugeVec,
    inspections_limit: IntGauge,
    inspections_bounds: IntGaugeVec,
    troubles: IntGaugeVec,
    cached_pods: IntGauge,
    waiters: IntGauge,
    node_ready: IntGauge,
    inflight: IntGaugeVec,
    inflight_oldest: GaugeVec,
}

/// Makes metrics and registers them, so that each stands in one line below.
struct Make<'a>(&'a Registry);

impl Make<'_> {
    fn add<M: prometheus::core::Collector + Clone + 'static>(&self, metric: M) -> prometheus::Result<M> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    fn counter(&self, name: &str, help: &str) -> prometheus::Result<IntCounter> {
        self.add(IntCounter::new(name, help)?)
    }

    fn counters(&self, name: &str, help: &str, label: &str) -> prometheus::Result<IntCounterVec> {
        self.add(IntCounterVec::new(Opts::new(name, help), &[label])?)
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.add(IntGauge::new(name, help)?)
    }

    fn gauges(&self, name: &str, help: &str, label: &str) -> prometheus::Result<IntGaugeVec> {
        self.add(IntGaugeVec::new(Opts::new(name, help), &[label])?)
    }

    fn histogram(&self, name: &str, help: &str) -> prometheus::Result<Histogram> {
        self.add(Histogram::with_opts(
            HistogramOpts::new(name, help).buckets(BUCKETS.to_vec()),
        )?)
    }

    fn histograms(&self, name: &str, help: &str, label: &str) -> prometheus::Result<HistogramVec> {
        self.add(HistogramVec::new(
            HistogramOpts::new(name, help).buckets(BUCKETS.to_vec()),
            &[label],
        )?)
    }
}

impl Metrics {
    /// All metrics at zero. Fails only if two of them had one name, which is a bug.
    pub fn new() -> Result<Self, MetricsError> {
        Self::register().map_err(MetricsError)
    }

    #[rustfmt::skip]
    fn register() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let make = Make(&registry);
        let inner = Inner {
            // The kubelet's.
            relist_duration: make.histogram("kubelet_pleg_relist_duration_seconds", "Duration in seconds of a full relist including its inspections; failed relists are counted too.")?,
            relist_interval: make.histogram("kubelet_pleg_relist_interval_seconds", "Interval in seconds between the starts of full relists.")?,
            last_seen: make.add(Gauge::new("kubelet_pleg_last_seen_seconds", "Unix time in seconds of the last complete relist.")?)?,
            discard_events: make.counter("kubelet_pleg_discard_events", "Times a subscriber fell behind the feed and received a Gap or PodSync instead of events.")?,
            running_pods: make.gauge("kubelet_running_pods", "Pods that have a ready sandbox.")?,
            running_containers: make.gauges("kubelet_running_containers", "Containers by state.", "container_state")?,
            operations: make.counters("kubelet_runtime_operations_total", "Runtime calls, by type.", "operation_type")?,
            operation_errors: make.counters("kubelet_runtime_operations_errors_total", "Runtime calls that failed, by type.", "operation_type")?,
            operation_duration: make.histograms("kubelet_runtime_operations_duration_seconds", "Duration in seconds of runtime calls, by type.", "operation_type")?,
            stream_connections: make.counter("kubelet_evented_pleg_connection_success_count", "Times the runtime's event stream was established.")?,
            stream_failures: make.counter("kubelet_evented_pleg_connection_error_count", "Times the runtime's event stream ended or could not be established.")?,
            stream_latency: make.histogram("kubelet_evented_pleg_connection_latency_seconds", "Latency in seconds from the creation of an event, by the runtime's clock, to its arrival.")?,
            // Ours.
            stream_events: make.counter("pleg_evented_events_total", "Events received from the runtime.")?,
            missed_changes: make.counter("pleg_evented_missed_changes_total", "Pods that a full relist found changed although the runtime sent no event for the change.")?,
            witness_complete: make.add(IntGauge::new(
                "pleg_witness_complete",
                "1 if the kernel announces what happens to every running container.",
            )?)?,
            witness_watched: make.add(IntGaugeVec::new(
                Opts::new("pleg_witness_watched", "What is watched in the kernel, by kind."),
                &["kind"],
            )?)?,
            full_relist_period: make.add(Gauge::new("pleg_full_look_period_seconds", "Current pause between full relists.")?)?,
            mode: make.gauges("pleg_mode", "How changes are found: 1 for the current mode.", "mode")?,
            events: make.counters("pleg_events_total", "Events published, by type.", "type")?,
            list_bytes: make.gauge("pleg_list_bytes", "Size of both lists in the last complete relist; a kubelet fails beyond 16 MiB each.")?,
            relist_errors: make.counters("pleg_relist_errors_total", "Full relists that failed, by cause.", "cause")?,
            quarantined: make.gauge("pleg_quarantined_pods", "Pods whose inspection fails.")?,
            hung_shims: make.gauge("pleg_hung_shims", "Pods whose shim does not answer while the runtime does.")?,
            oddities: make.gauges("pleg_odd_objects", "Objects in the runtime with missing or contradictory metadata, by kind.", "kind")?,
            inspections_bounds: make.gauges("pleg_inspections_limit_bounds", "Bounds of the adaptive limit of inspection calls.", "bound")?,
            troubles: make.gauges("pleg_troubles", "Causes of degraded or unhealthy state, and warnings, by trouble.", "trouble")?,
            inspections_limit: make.gauge("pleg_inspections_limit", "Current limit of inspection calls in flight.")?,
            cached_pods: make.gauge("pleg_cached_pods", "Pods in the status cache.")?,
            waiters: make.gauge("pleg_cache_waiters", "Callers waiting for a status newer than their token.")?,
            node_ready: make.gauge("pleg_node_ready", "1 if a kubelet would report the node as Ready now.")?,
            inflight: make.gauges("pleg_inflight_calls", "Runtime calls in flight, by call.", "rpc")?,
            inflight_oldest: make.add(GaugeVec::new(Opts::new("pleg_inflight_oldest_seconds", "Age of the oldest runtime call in flight, by call; the event stream, which has no deadline, is left out."), &["rpc"])?)?,
            registry,
            calls: CallTimes::default(),
            relists: RwLock::default(),
        };
        // Every series exists from the start, so that a first event is an increase.
        for state in ContainerState::ALL {
            inner.running_containers.with_label_values(&[state.label()]).set(0);
        }
        for kind in EventType::ALL {
            inner.events.with_label_values(&[kind.name()]).inc_by(0);
        }
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Everything in Prometheus' text format. `inflight` is read now, so that ages move while a call is stuck.
    pub fn render(&self, inflight: &InFlight) -> Result<String, MetricsError> {
        let m = &self.inner;
        m.inflight.reset();
        m.inflight_oldest.reset();
        // Oldest first: the first call of a kind is its oldest.
        for call in inflight.calls() {
            let rpc = &[call.rpc.name()];
            m.inflight.with_label_values(rpc).inc();
            // A stream is meant to last: its age is no sign of trouble, and would hide that of others in an alert.
            if call.deadline.is_none() {
                continue;
            }
            let oldest = m.inflight_oldest.with_label_values(rpc);
            if oldest.get() == 0.0 {
                oldest.set(call.since.elapsed().as_secs_f64());
            }
        }
        TextEncoder::new()
            .encode_to_string(&m.registry.gather())
            .map_err(MetricsError)
    }

    /// The registry, for the metrics of `pleg-node`. Hidden: the version of its crate is not part of the API.
    #[doc(hidden)]
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// Tells `observer` of relists from now on.
    pub fn observe_relists(&self, observer: Arc<dyn RelistObserver>) {
        self.inner.relists.write().push(observer);
    }

    pub(crate) fn relist_started(&self, is_full: bool) {
        for observer in &*self.inner.relists.read() {
            observer.relist_started(is_full);
        }
    }

    pub(crate) fn relist_ended(&self, is_full: bool, error: Option<&str>) {
        for observer in &*self.inner.relists.read() {
            observer.relist_ended(is_full, error);
        }
    }

    pub(crate) fn calls(&self) -> CallTimes {
        self.inner.calls.clone()
    }

    pub(crate) fn overflows(&self) -> IntCounter {
        self.inner.discard_events.clone()
    }

    pub(crate) fn relist_done(&self, duration: Duration, bytes: usize, at: jiff::Timestamp) {
        self.inner.relist_duration.observe(duration.as_secs_f64());
        self.inner.list_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.inner.last_seen.set(at.as_millisecond() as f64 / 1e3);
    }

    pub(crate) fn relist_interval(&self, interval: Duration) {
        self.inner.relist_interval.observe(interval.as_secs_f64());
    }

    pub(crate) fn relist_failed(&self, duration: Duration, cause: &'static str) {
        self.inner.relist_duration.observe(duration.as_secs_f64());
        self.inner.relist_errors.with_label_values(&[cause]).inc();
    }

    pub(crate) fn event(&self, kind: EventType) {
        self.inner.events.with_label_values(&[kind.name()]).inc();
    }

    pub(crate) fn stream_up(&self) {
        self.inner.stream_connections.inc();
    }

    pub(crate) fn stream_failed(&self) {
        self.inner.stream_failures.inc();
    }

    /// An event came that says it was made then. What no clock can have meant is not counted.
    pub(crate) fn stream_event(&self, made: Option<jiff::Timestamp>) {
        self.inner.stream_events.inc();
        let lag = made.and_then(|made| Duration::try_from(jiff::Timestamp::now().duration_since(made)).ok());
        if let Some(lag) = lag.filter(|lag| *lag < Duration::from_hours(1)) {
            self.inner.stream_latency.observe(lag.as_secs_f64());
        }
    }

    pub(crate) fn missed_changes(&self, n: u64) {
        self.inner.missed_changes.inc_by(n);
    }

    pub(crate) fn mode(&self, report: &ModeReport) {
        self.inner.full_relist_period.set(report.full_relist_period_seconds);
        for mode in [Mode::Generic, Mode::Evented] {
            let is = i64::from(mode == report.mode);
            self.inner.mode.with_label_values(&[mode.name()]).set(is);
        }
    }

    pub(crate) fn witness(&self, report: &WitnessReport) {
        self.inner.witness_complete.set(i64::from(report.complete));
        for (kind, n) in [("process", report.processes), ("cgroup", report.cgroups)] {
            let n = i64::try_from(n).unwrap_or(i64::MAX);
            self.inner.witness_watched.with_label_values(&[kind]).set(n);
        }
    }

    pub(crate) fn census(&self, states: [usize; 4], pods: usize) {
        for (state, n) in ContainerState::ALL.into_iter().zip(states) {
            self.inner
                .running_containers
                .with_label_values(&[state.label()])
                .set(i64::try_from(n).unwrap_or(i64::MAX));
        }
        self.inner.running_pods.set(i64::try_from(pods).unwrap_or(i64::MAX));
    }

    pub(crate) fn odd(&self, odd: &Oddities) {
        for (kind, n) in odd.counts() {
            self.inner.oddities.with_label_values(&[kind]).set(i64::from(n));
        }
    }

    pub(crate) fn waiters(&self, waiters: usize) {
        self.inner.waiters.set(i64::try_from(waiters).unwrap_or(i64::MAX));
    }

    pub(crate) fn node_ready(&self, ready: bool) {
        self.inner.node_ready.set(i64::from(ready));
    }

    pub(crate) fn inspections_bounds(&self, least: usize, most: usize) {
        for (bound, n) in [("least", least), ("most", most)] {
            let n = i64::try_from(n).unwrap_or(i64::MAX);
            self.inner.inspections_bounds.with_label_values(&[bound]).set(n);
        }
    }

    /// What the report names, by trouble; those it does not name are zero.
    pub(crate) fn troubles(&self, report: &Report) {
        for trouble in Trouble::ALL {
            let causes = report.causes.iter().filter(|cause| cause.trouble == trouble).count();
            let warnings = report
                .warnings
                .iter()
                .filter(|warning| warning.trouble == trouble)
                .count();
            let n = i64::try_from(causes + warnings).unwrap_or(i64::MAX);
            self.inner.troubles.with_label_values(&[trouble.name()]).set(n);
        }
    }

    pub(crate) fn hung_shims(&self, hung: usize) {
        self.inner.hung_shims.set(i64::try_from(hung).unwrap_or(i64::MAX));
    }

    pub(crate) fn gauges(&self, quarantined: usize, limit: usize, cached: usize) {
        let set = |gauge: &IntGauge, n: usize| gauge.set(i64::try_from(n).unwrap_or(i64::MAX));
        set(&self.inner.quarantined, quarantined);
        set(&self.inner.inspections_limit, limit);
        set(&self.inner.cached_pods, cached);
    }
}

impl Observer for Metrics {
    fn ended(&self, rpc: Rpc, elapsed: Duration, outcome: Outcome<'_>) {
        self.inner.calls.ended(rpc, elapsed, outcome);
        let operation = &[operation_type(rpc)];
        self.inner.operations.with_label_values(operation).inc();
        self.inner
            .operation_duration
            .with_label_values(operation)
            .observe(elapsed.as_secs_f64());
        if matches!(outcome, Outcome::Failed(_)) {
            self.inner.operation_errors.with_label_values(operation).inc();
        }
    }
}

/// The kubelet's name of a call.
fn operation_type(rpc: Rpc) -> &'static str {
    match rpc {
        Rpc::Version => "version",
        Rpc::Status => "status",
        Rpc::RuntimeConfig => "runtime_config",
        Rpc::RunPodSandbox => "run_podsandbox",
        Rpc::StopPodSandbox => "stop_podsandbox",
        Rpc::RemovePodSandbox => "remove_podsandbox",
        Rpc::PodSandboxStatus => "podsandbox_status",
        Rpc::ListPodSandbox => "list_podsandbox",
        Rpc::StreamPodSandboxes => "stream_podsandboxes",
        Rpc::CreateContainer => "create_container",
        Rpc::StartContainer => "start_container",
        Rpc::StopContainer => "stop_container",
        Rpc::RemoveContainer => "remove_container",
        Rpc::ListContainers => "list_containers",
        Rpc::StreamContainers => "stream_containers",
        Rpc::ContainerStatus => "container_status",
        Rpc::UpdateContainerResources => "update_container",
        Rpc::ReopenContainerLog => "reopen_container_log",
        Rpc::ExecSync => "exec_sync",
        Rpc::Exec => "exec",
        Rpc::Attach => "attach",
        Rpc::PortForward => "port_forward",
        Rpc::ContainerStats => "container_stats",
        Rpc::ListContainerStats => "list_container_stats",
        Rpc::PodSandboxStats => "podsandbox_stats",
        Rpc::ListPodSandboxStats => "list_podsandbox_stats",
        Rpc::UpdateRuntimeConfig => "update_runtime_config",
        Rpc::GetContainerEvents => "get_container_events",
        Rpc::ListImages => "list_images",
        Rpc::ImageStatus => "image_status",
        Rpc::PullImage => "pull_image",
        Rpc::RemoveImage => "remove_image",
        Rpc::ImageFsInfo => "image_fs_info",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ages_move_while_a_call_is_stuck() {
        let metrics = Metrics::new().unwrap();
        let inflight = InFlight::observed_by(Arc::new(metrics.clone()));
        let stream = inflight.begin(Rpc::GetContainerEvents, pleg_cri::Subject::NODE, None);
        let flight = inflight.begin(
            Rpc::ListContainers,
            pleg_cri::Subject::NODE,
            Some(Duration::from_mins(2)),
        );
        for seconds in [7, 14] {
            tokio::time::advance(Duration::from_secs(7)).await;
            let text = metrics.render(&inflight).unwrap();
            assert!(
                text.contains(&format!(
                    "pleg_inflight_oldest_seconds{{rpc=\"ListContainers\"}} {seconds}\n"
                )),
                "{text}"
            );
        }
        drop(flight);
        // A stream lasts as long as it is good.
        let text = metrics.render(&inflight).unwrap();
        assert!(
            text.contains("pleg_inflight_calls{rpc=\"GetContainerEvents\"} 1\n"),
            "{text}"
        );
        assert!(!text.contains("pleg_inflight_oldest_seconds{"), "{text}");
        drop(stream);
        assert!(
            text.contains("kubelet_runtime_operations_total{operation_type=\"list_containers\"} 1\n"),
            "{text}"
        );
    }
}
