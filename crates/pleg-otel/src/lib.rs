//! OpenTelemetry for `pleg`: traces of relists and calls, lifecycle events as log records, over OTLP with `http/protobuf`.
//!
//! Off unless the `OTEL_*` variables ask for it ([`Telemetry::from_env`]); then nothing of this crate is called, and no span is allocated. Metrics
//! are Prometheus' alone.
//!
//! # Map
//!
//! | part | job | kind |
//! |---|---|---|
//! | `config` | the `OTEL_*` variables | pure |
//! | `tracer` | spans of relists and calls | called by the generator and the client |
//! | `records` | lifecycle events as log records | pure, and one task that reads the feed |
//! | `queue`, `exporter` | what waits to be sent, bounded; one task for each signal sends it | tasks |
//! | `client` | one POST | calls |
//! | `proto` | the messages of OTLP that are sent | |

mod client;
mod config;
mod exporter;
mod proto;
mod queue;
mod records;
mod tracer;

use std::sync::Arc;

use pleg::{Metrics, Pleg};
use pleg_cri::Observer;
use prometheus::{IntCounterVec, Opts, Registry};
use tokio_util::sync::CancellationToken;

pub use config::ConfigError;
use config::{Config, SignalConfig};
use exporter::Exporter;
use proto::{LogRecord, Span};
use queue::Queue;
use tracer::{TracedCalls, Tracer};

/// What is sent to a collector: traces, log records, or both.
#[derive(Debug)]
pub struct Telemetry {
    config: Config,
    counts: Counts,
    tracer: Option<Arc<Tracer>>,
    spans: Arc<Queue<Span>>,
    records: Arc<Queue<LogRecord>>,
}

/// What became of spans and records.
#[derive(Debug, Clone)]
pub(crate) struct Counts(IntCounterVec);

impl Counts {
    fn new() -> Result<Self, prometheus::Error> {
        let about = Opts::new(
            "pleg_otel_items_total",
            "Spans and log records, by signal and result: sent, or dropped because of a full queue or a collector that does not take them.",
        );
        Ok(Self(IntCounterVec::new(about, &["signal", "result"])?))
    }

    pub(crate) fn add(&self, signal: &'static str, result: &'static str, count: usize) {
        if count > 0 {
            self.0.with_label_values(&[signal, result]).inc_by(count as u64);
        }
    }
}

impl Telemetry {
    /// What the variables ask for; none if they ask for nothing.
    pub fn from_env(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ConfigError> {
        let Some(config) = Config::from_env(variable)? else {
            return Ok(None);
        };
        let counts = Counts::new().map_err(|error| ConfigError::new("metrics", &error.to_string()))?;
        let size = |signal: &Option<SignalConfig>| signal.as_ref().map_or(1, |signal| signal.queue);
        let spans = Arc::new(Queue::new(size(&config.traces)));
        let records = Arc::new(Queue::new(size(&config.logs)));
        let tracer = config
            .traces
            .as_ref()
            .map(|_| Arc::new(Tracer::new(Arc::clone(&spans), config.sampler, counts.clone())));
        Ok(Some(Self {
            config,
            counts,
            tracer,
            spans,
            records,
        }))
    }

    /// What observes the calls of the client: the metrics, and if traces are sent the tracer too. Also lets the tracer observe relists.
    pub fn observe(&self, metrics: &Metrics) -> Arc<dyn Observer> {
        let Some(tracer) = &self.tracer else {
            return Arc::new(metrics.clone());
        };
        metrics.observe_relists(Arc::clone(tracer) as _);
        Arc::new(TracedCalls::new(metrics.clone(), Arc::clone(tracer)))
    }

    /// Exports the metrics about itself.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.counts.0.clone()))
    }

    /// Where it goes, for the log.
    pub fn describe(&self) -> String {
        let signals = [("traces", &self.config.traces), ("logs", &self.config.logs)];
        let to = signals
            .into_iter()
            .filter_map(|(name, signal)| Some(format!("{name} to {}", signal.as_ref()?.url)));
        to.collect::<Vec<_>>().join(", ")
    }

    /// Sends until shutdown, and then for a moment what is left.
    pub async fn run(self, pleg: Pleg, shutdown: CancellationToken) {
        let resource = self.config.resource;
        let exporter = |signal: Option<SignalConfig>, name| {
            signal.map(|signal| Exporter::new(name, signal, resource.clone(), self.counts.clone()))
        };
        let (traces, logs) = (
            exporter(self.config.traces, "traces"),
            exporter(self.config.logs, "logs"),
        );
        let reading = async {
            if logs.is_some() {
                let stop = shutdown.clone();
                stop.run_until_cancelled(records::read(&pleg, &self.records)).await;
            }
        };
        let sending_traces = async {
            if let Some(traces) = traces {
                traces.run(&self.spans, proto::traces, &shutdown).await;
            }
        };
        let sending_logs = async {
            if let Some(logs) = logs.as_ref() {
                logs.run(&self.records, proto::logs, &shutdown).await;
            }
        };
        tokio::join!(reading, sending_traces, sending_logs);
    }
}
