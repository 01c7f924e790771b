//! Counts entries one by one into parts that may be shorter than an hour, the same way the file sums its hours.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::entry::Entry;
use crate::hours::{Hour, HourSums};

/// Parts that are kept; what lies in others is not counted.
const MOST_PARTS: usize = 1500;

/// Entries by parts of a window.
#[derive(Debug)]
pub struct BucketCounts {
    seconds: i64,
    parts: BTreeMap<i64, HourSums>,
}

impl BucketCounts {
    /// Parts of this length, aligned as [`ReportBuilder`](super::ReportBuilder) aligns them.
    pub fn new(part: Duration) -> Self {
        Self {
            seconds: i64::try_from(part.as_secs()).unwrap_or(i64::MAX).max(1),
            parts: BTreeMap::new(),
        }
    }

    /// Counts one.
    pub fn add(&mut self, entry: &Entry) {
        let part = entry.time().as_second().div_euclid(self.seconds);
        if self.parts.len() < MOST_PARTS || self.parts.contains_key(&part) {
            self.parts.entry(part).or_default().add(&entry.record);
        }
    }

    /// The sums, the oldest first.
    pub fn finish(self) -> Vec<Hour> {
        let (seconds, parts) = (self.seconds, self.parts);
        parts
            .into_iter()
            .map(|(part, sums)| Hour {
                start: Timestamp::from_second(part.saturating_mul(seconds)).unwrap_or_default(),
                ..sums.finish(part)
            })
            .collect()
    }
}
