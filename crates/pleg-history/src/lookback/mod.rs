//! What a history says: why a pod's containers died, and how the node's day was. Pure: entries in, answers out, no clock and no file.
//!
//! | module | job |
//! |---|---|
//! | `lives` | the lives of containers, from start to death |
//! | `troubles` | troubles, from start to end |
//! | `runs` | runs of the daemon, and the node's health in them |
//! | `explain` | why a pod died: [`explain`] |
//! | `report` | a window of time: [`ReportBuilder`] |
//!
//! All of them read entries in the order of their ids. A wall clock may go back; then durations are zero, never negative.

mod explain;
mod lives;
mod report;
mod runs;
#[cfg(test)]
mod testing;
mod troubles;

use std::time::Duration;

use jiff::Timestamp;
use pleg::Event;
use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

pub use explain::{
    ContainerSummary, Death, Evidence, EvidenceKind, ExitCount, Explanation, LONGEST_BEFORE, Lifetimes, Verdict,
    Window, explain,
};
pub use report::{
    Bucket, BucketCounts, LISTED_TROUBLES, NodeReport, PodSummary, ReasonCount, ReportBuilder, Totals, WORST_PODS,
};
pub use runs::{HealthSpan, HealthTimes, Run};
pub use troubles::TroubleSpan;

/// What many durations come to, in seconds. A percentile is at most 19 % above the real one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many there are.
    pub count: u64,
    /// Half of them are not longer.
    pub p50_seconds: f64,
    /// 90 of 100 are not longer.
    pub p90_seconds: f64,
    /// 99 of 100 are not longer.
    pub p99_seconds: f64,
    /// The longest.
    pub max_seconds: f64,
}

impl Percentiles {
    /// None if there are no durations.
    pub fn of(histogram: &Histogram) -> Option<Self> {
        Some(Self {
            count: histogram.count,
            p50_seconds: histogram.quantile(0.5)?,
            p90_seconds: histogram.quantile(0.9)?,
            p99_seconds: histogram.quantile(0.99)?,
            max_seconds: histogram.max_seconds,
        })
    }
}

/// When it happened, by the runtime's clock where that is known: the event itself came a little later.
fn happened(event: &Event) -> Timestamp {
    let lag = event.lag.unwrap_or_default();
    event.time.checked_sub(lag).unwrap_or(event.time)
}

/// From one time to a later one; zero if a clock went back.
fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// The same in seconds, to the millisecond.
fn seconds_between(from: Timestamp, to: Timestamp) -> f64 {
    rounded(between(from, to).as_secs_f64())
}

/// To the millisecond.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}
