//! Durations by how often they occurred, small enough to be stored every minute and added up over a day.
//!
//! Buckets are logarithmic, four to a doubling: a quantile is at most 19 % above the real one, and never below it. Empty buckets are not
//! stored.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// Buckets to a doubling.
const STEPS: u32 = 4;
/// The bucket of everything longer than 2^36 µs, which is 19 hours.
const LAST: u8 = 36 * 4;

/// How often durations occurred. In JSON: `{"count":3,"max_seconds":0.5,"buckets":{"42":2,"60":1}}`, where bucket `n` holds durations up to
/// 2^(n/4) microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// How many there were.
    pub count: u64,
    /// The longest one.
    pub max_seconds: f64,
    /// By bucket.
    #[serde(deserialize_with = "from_texts")]
    pub buckets: BTreeMap<u8, u64>,
}

/// Names of a JSON object are texts. serde reads them as numbers only where it has not buffered the object, as it does in an enum with a
/// tag.
fn from_texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u8, u64>, D::Error> {
    let texts = BTreeMap::<String, u64>::deserialize(deserializer)?;
    let number = |(text, count): (String, u64)| text.parse().map(|bucket| (bucket, count)).map_err(D::Error::custom);
    texts.into_iter().map(number).collect()
}

impl Histogram {
    /// Counts one.
    pub fn add(&mut self, duration: Duration) {
        self.count += 1;
        self.max_seconds = self.max_seconds.max(micros(duration));
        *self.buckets.entry(bucket(duration)).or_default() += 1;
    }

    /// Counts all of the other one.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.max_seconds = self.max_seconds.max(other.max_seconds);
        for (&bucket, &count) in &other.buckets {
            let own = self.buckets.entry(bucket).or_default();
            *own = own.saturating_add(count);
        }
    }

    /// It counts nothing.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The duration that this share of all (0.5, 0.99, …) do not exceed; none if there are none. In seconds.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let total: u64 = self.buckets.values().sum();
        let wanted = (total as f64 * share.clamp(0.0, 1.0)).ceil().max(1.0);
        let mut below = 0;
        for (&bucket, &count) in &self.buckets {
            below += count;
            if below as f64 >= wanted {
                return Some(upper(bucket).min(self.max_seconds));
            }
        }
        None
    }
}

/// The bucket of a duration: the first whose limit is not below it.
fn bucket(duration: Duration) -> u8 {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    if micros <= 1 {
        return 0;
    }
    // From the doubling below, at most 5 comparisons.
    let doubling = (micros - 1).ilog2() * STEPS;
    let first = u8::try_from(doubling).unwrap_or(LAST);
    let seconds = micros as f64 / 1e6;
    (first..=LAST).find(|&bucket| seconds <= upper(bucket)).unwrap_or(LAST)
}

/// The longest duration of a bucket, in seconds.
fn upper(bucket: u8) -> f64 {
    (f64::from(bucket) / f64::from(STEPS)).exp2() / 1e6
}

/// In seconds, to the microsecond.
fn micros(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near_and_never_below() {
        let mut all = Histogram::default();
        for ms in 1..=1000 {
            all.add(Duration::from_millis(ms));
        }
        for (share, real) in [(0.5, 0.5), (0.9, 0.9), (0.99, 0.99), (1.0, 1.0)] {
            let found = all.quantile(share).unwrap();
            assert!(found >= real && found <= real * 1.19, "{share}: {found}");
        }
        assert_eq!(all.quantile(1.0), Some(1.0));
        assert_eq!(Histogram::default().quantile(0.5), None);
    }

    #[test]
    fn absurd_durations_are_counted() {
        let mut all = Histogram::default();
        for duration in [Duration::ZERO, Duration::from_micros(1), Duration::MAX] {
            all.add(duration);
        }
        assert_eq!(all.buckets, BTreeMap::from([(0, 2), (LAST, 1)]));
        assert_eq!(all.quantile(0.5), Some(1e-6));
    }

    /// As a note is stored: an object in an enum with a tag.
    #[test]
    fn one_in_a_note_is_read_back() {
        let mut relists = Histogram::default();
        relists.add(Duration::from_millis(7));
        let note = crate::What::Sample(crate::Sample {
            from: jiff::Timestamp::UNIX_EPOCH,
            relists: relists.clone(),
            failed_relists: 2,
            lag: Histogram::default(),
        });
        let text = serde_json::to_string(&note).unwrap();
        assert_eq!(serde_json::from_str::<crate::What>(&text).unwrap(), note, "{text}");
        let text = serde_json::to_string(&relists).unwrap();
        assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), relists, "{text}");
    }

    #[test]
    fn two_are_added_up() {
        let (mut a, mut b, mut both) = (Histogram::default(), Histogram::default(), Histogram::default());
        for ms in [1, 5, 5, 80] {
            a.add(Duration::from_millis(ms));
            both.add(Duration::from_millis(ms));
        }
        for ms in [2, 5, 4000] {
            b.add(Duration::from_millis(ms));
            both.add(Duration::from_millis(ms));
        }
        a.merge(&b);
        assert_eq!(a, both);
    }
}
