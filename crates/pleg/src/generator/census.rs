//! The gauges of pods and containers by state, and when they follow the records.

use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::model::ContainerState;
use crate::records::Records;

/// How often the gauges follow what relists of single pods bring.
const PAUSE: Duration = Duration::from_secs(1);

/// Counts what is in the records.
#[derive(Debug)]
pub(super) struct Census {
    /// The records have changed since the last count.
    outdated: bool,
    counted: Instant,
    /// Containers that were listed as exited at the last count.
    dead: usize,
}

impl Census {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            outdated: false,
            counted: now,
            dead: 0,
        }
    }

    /// A relist of single pods was taken in; `changed`: it brought news.
    pub(super) fn note(&mut self, changed: bool) {
        self.outdated |= changed;
    }

    pub(super) fn is_outdated(&self) -> bool {
        self.outdated
    }

    /// Containers that were listed as exited at the last count.
    pub(super) fn dead(&self) -> usize {
        self.dead
    }

    /// When the gauges are to follow the records.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.outdated.then(|| self.counted + PAUSE)
    }

    /// Brings the gauges up to date with the records.
    pub(super) fn count(&mut self, records: &Records, metrics: &Metrics) {
        let (states, pods) = records.census();
        metrics.census(states, pods);
        (self.outdated, self.counted) = (false, Instant::now());
        self.dead = states[ContainerState::Exited as usize];
    }
}
