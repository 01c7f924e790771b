//! How the history does: its metrics, and what health says of it.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge, Registry};
use serde::{Deserialize, Serialize};

use crate::volume::Volume;

/// Whether the history is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HistoryState {
    /// It is.
    On,
    /// It cannot be written for now: what happens waits in memory, and is missing later if that lasts.
    Behind,
    /// There is no file to write to for now.
    Off,
}

/// How the history does. Its JSON is `history` of the health report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryStatus {
    /// Whether it is written.
    pub state: HistoryState,
    /// The file.
    pub file: String,
    /// Why it is not written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// Events that are missing in it because it could not be written, since the start of the daemon.
    pub dropped_events: u64,
}

/// What history reports of itself. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    // Held to read or write the status.
    status: Arc<Mutex<HistoryStatus>>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct Metrics {
    up: IntGauge,
    bytes: IntGauge,
    entries: IntGauge,
    oldest: IntGauge,
    written: IntCounter,
    write_errors: IntCounter,
    dropped: IntCounter,
}

impl Health {
    pub(crate) fn new(path: &Path) -> Result<Self, prometheus::Error> {
        let metrics = Metrics {
            up: IntGauge::new(
                "pleg_history_up",
                "Whether history is written: 1, or 0 while it is behind or off.",
            )?,
            bytes: IntGauge::new("pleg_history_bytes", "Disk space that the history file uses.")?,
            entries: IntGauge::new("pleg_history_entries", "Entries in the history.")?,
            oldest: IntGauge::new(
                "pleg_history_oldest_timestamp_seconds",
                "When the oldest entry in the history happened, in seconds since 1970.",
            )?,
            written: IntCounter::new("pleg_history_written_entries_total", "Entries written to the history.")?,
            write_errors: IntCounter::new(
                "pleg_history_write_errors_total",
                "Attempts to open or write the history file that failed.",
            )?,
            dropped: IntCounter::new(
                "pleg_history_dropped_events_total",
                "Events that are missing in the history because it could not be written in time.",
            )?,
        };
        let status = HistoryStatus {
            state: HistoryState::Off,
            file: path.display().to_string(),
            reason: None,
            since: Timestamp::now(),
            dropped_events: 0,
        };
        Ok(Self {
            status: Arc::new(Mutex::new(status)),
            metrics: Arc::new(metrics),
        })
    }

    pub(crate) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let metrics = &self.metrics;
        for gauge in [&metrics.up, &metrics.bytes, &metrics.entries, &metrics.oldest] {
            registry.register(Box::new(gauge.clone()))?;
        }
        for counter in [&metrics.written, &metrics.write_errors, &metrics.dropped] {
            registry.register(Box::new(counter.clone()))?;
        }
        Ok(())
    }

    pub(crate) fn status(&self) -> HistoryStatus {
        self.status.lock().clone()
    }

    /// It works. Returns whether it did not before.
    pub(crate) fn works(&self) -> bool {
        self.metrics.up.set(1);
        self.change(HistoryState::On, None)
    }

    /// It does not work. Returns whether that is news.
    pub(crate) fn fails(&self, state: HistoryState, reason: String) -> bool {
        self.metrics.up.set(0);
        self.metrics.write_errors.inc();
        self.change(state, Some(reason))
    }

    fn change(&self, state: HistoryState, reason: Option<String>) -> bool {
        let mut status = self.status.lock();
        let is_news = status.state != state || status.reason.is_some() != reason.is_some();
        if is_news {
            status.since = Timestamp::now();
        }
        (status.state, status.reason) = (state, reason);
        is_news
    }

    pub(crate) fn dropped(&self, events: u64) {
        self.metrics.dropped.inc_by(events);
        self.status.lock().dropped_events += events;
    }

    /// What is in the file now, of which so many entries are new.
    pub(crate) fn written(&self, volume: &Volume, entries: usize) {
        use std::os::unix::fs::MetadataExt as _;
        let segments = volume.segments.read();
        let first = segments.first_id().unwrap_or_default();
        let count = segments.next_id().unwrap_or_default().saturating_sub(first);
        let oldest = segments.oldest_time().unwrap_or_default() / 1_000_000_000;
        drop(segments);
        let metrics = &self.metrics;
        metrics.written.inc_by(entries as u64);
        metrics.entries.set(i64::try_from(count).unwrap_or(i64::MAX));
        metrics.oldest.set(oldest);
        if let Ok(data) = volume.file.metadata() {
            let bytes = data.blocks().saturating_mul(512);
            metrics.bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }
}
