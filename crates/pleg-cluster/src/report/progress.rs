//! How reporting goes: for `pleg health`, the HTTP API and the metrics.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge, Registry};
use serde::{Deserialize, Serialize};

/// What the cluster was told, and what keeps us from telling it more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportProgress {
    /// The name of the node.
    pub node: String,
    /// The address of the API server.
    pub server: String,
    /// What the condition of the node says; none before it was first written or read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<bool>,
    /// When it was last written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_at: Option<Timestamp>,
    /// Why the cluster cannot be told, with what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing_since: Option<Timestamp>,
    /// Rights that the API server says are missing, as `create events`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_rights: Vec<String>,
    /// Events that were not written: too many, too old, or refused.
    #[serde(default)]
    pub events_lost: u64,
}

/// Reads the progress of a reporter. Clones read the same.
#[derive(Debug, Clone, Default)]
pub struct ReportHandle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    // Held for a copy; never across an await.
    progress: Mutex<ReportProgress>,
    metrics: Mutex<Option<Metrics>>,
}

#[derive(Debug)]
struct Metrics {
    last_success: IntGauge,
    failing: IntGauge,
    stuck: IntGauge,
    events_lost: IntCounter,
}

impl Metrics {
    fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let events_lost = IntCounter::new(
            "pleg_report_events_lost_total",
            "Events for the cluster that were not written: too many, too old, or refused.",
        )?;
        registry.register(Box::new(events_lost.clone()))?;
        Ok(Self {
            last_success: gauge(
                "pleg_report_last_success_timestamp_seconds",
                "When the condition of the node was last written; 0 if it never was.",
            )?,
            failing: gauge(
                "pleg_report_failing",
                "Whether the last attempt to report to the cluster failed.",
            )?,
            stuck: gauge(
                "pleg_report_stuck",
                "Whether the cluster was last told that something on this node is stuck.",
            )?,
            events_lost,
        })
    }
}

impl ReportHandle {
    /// As of now.
    pub fn progress(&self) -> ReportProgress {
        self.0.progress.lock().clone()
    }

    /// Exports the metrics from now on.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        *self.0.metrics.lock() = Some(Metrics::new(registry)?);
        Ok(())
    }

    /// It has changed.
    pub(super) fn change(&self, change: impl FnOnce(&mut ReportProgress)) {
        let mut progress = self.0.progress.lock();
        let lost = progress.events_lost;
        change(&mut progress);
        if let Some(metrics) = &*self.0.metrics.lock() {
            metrics.failing.set(i64::from(progress.error.is_some()));
            metrics.stuck.set(i64::from(progress.stuck == Some(true)));
            metrics
                .last_success
                .set(progress.reported_at.map_or(0, Timestamp::as_second));
            metrics.events_lost.inc_by(progress.events_lost.saturating_sub(lost));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_follow() {
        let (handle, registry) = (ReportHandle::default(), Registry::new());
        handle.register(&registry).unwrap();
        handle.change(|progress| {
            progress.error = Some("away".to_owned());
            progress.events_lost = 3;
        });
        handle.change(|progress| {
            progress.error = None;
            progress.events_lost = 5;
            progress.stuck = Some(true);
            progress.reported_at = Some(Timestamp::from_second(7).unwrap());
        });
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        for line in [
            "pleg_report_events_lost_total 5",
            "pleg_report_failing 0",
            "pleg_report_stuck 1",
            "pleg_report_last_success_timestamp_seconds 7",
        ] {
            assert!(text.lines().any(|one| one == line), "no {line} in {text}");
        }
        assert!(handle.register(&registry).is_err());
    }
}
