//! Thresholds of signals, as the kubelet's flags write them: `memory.available<100Mi,nodefs.available<10%`. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;

use super::message::{Quantity as Shown, binary};
use super::signals::{Observation, Signal};
use crate::manifest::Quantity;

/// The kubelet's default of `--eviction-hard`.
pub const DEFAULT_HARD: &str =
    "memory.available<100Mi,nodefs.available<10%,nodefs.inodesFree<5%,imagefs.available<15%,imagefs.inodesFree<5%";

/// Why a threshold is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    /// It is not written as one.
    #[error("{0:?} is not a threshold; expected a list such as memory.available<100Mi,nodefs.available<10%")]
    Syntax(String),
    /// A grace period is not written as one.
    #[error("{0:?} is not a grace period; expected a list such as memory.available=1m30s")]
    GraceSyntax(String),
    /// There is no such signal.
    #[error(
        "{0:?} is not a signal; expected memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, imagefs.inodesFree or \
         pid.available"
    )]
    Signal(String),
    /// The value is not positive, or more than everything.
    #[error("{0}: expected more than 0, and at most 100%")]
    Value(String),
    /// A soft threshold has no grace period.
    #[error("the soft threshold of {0} has no grace period; set one with --eviction-soft-grace-period {0}=DURATION")]
    NoGrace(&'static str),
}

/// The value of a threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Amount {
        units: u64,
        is_binary: bool,
    },
    /// Of the capacity, in millionths.
    Share(u64),
}

/// Less than this is pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Threshold {
    /// What is measured.
    pub signal: Signal,
    value: Value,
    /// How long it has to be met before pods are evicted; zero for a hard threshold.
    pub grace: Duration,
}

impl Threshold {
    /// Parses a list of hard thresholds. `0%` and `100%` disable a signal, as in the kubelet.
    pub fn parse_hard(text: &str) -> Result<Vec<Self>, ThresholdError> {
        let mut found: BTreeMap<Signal, Self> = BTreeMap::new();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item
                .split_once('<')
                .ok_or_else(|| ThresholdError::Syntax(item.to_owned()))?;
            let signal = signal(name)?;
            if let Some(value) = parse_value(item, value)? {
                let grace = Duration::ZERO;
                found.insert(signal, Self { signal, value, grace });
            }
        }
        Ok(found.into_values().collect())
    }

    /// Parses a list of soft thresholds and that of their grace periods.
    pub fn parse_soft(text: &str, grace: &str) -> Result<Vec<Self>, ThresholdError> {
        let mut periods = BTreeMap::new();
        for item in grace.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let bad = || ThresholdError::GraceSyntax(item.to_owned());
            let (name, period) = item.split_once('=').ok_or_else(bad)?;
            let period: SignedDuration = period.parse().map_err(|_| bad())?;
            periods.insert(signal(name)?, Duration::try_from(period).map_err(|_| bad())?);
        }
        let mut soft = Self::parse_hard(text)?;
        for threshold in &mut soft {
            let period = periods.get(&threshold.signal);
            threshold.grace = *period.ok_or(ThresholdError::NoGrace(threshold.signal.name()))?;
        }
        Ok(soft)
    }

    /// Whether less than this is left.
    pub(crate) fn is_met(&self, observed: &Observation) -> bool {
        observed.available < self.units(observed.capacity)
    }

    pub(super) fn units(&self, capacity: u64) -> u64 {
        match self.value {
            Value::Amount { units, .. } => units,
            Value::Share(millionths) => {
                let share = u128::from(capacity) * u128::from(millionths) / 1_000_000;
                u64::try_from(share).unwrap_or(u64::MAX)
            }
        }
    }

    /// Its value, as Kubernetes writes it.
    pub(crate) fn shown(&self, capacity: u64) -> String {
        let units = self.units(capacity);
        match self.value {
            Value::Amount { is_binary: false, .. } => Shown::decimal(units),
            _ => binary(units),
        }
    }

    /// Whether pods are evicted at once.
    pub(crate) fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }
}

fn signal(name: &str) -> Result<Signal, ThresholdError> {
    let found = Signal::ALL.into_iter().find(|signal| signal.name() == name.trim());
    found.ok_or_else(|| ThresholdError::Signal(name.trim().to_owned()))
}

fn parse_value(item: &str, text: &str) -> Result<Option<Value>, ThresholdError> {
    let (text, bad) = (text.trim(), || ThresholdError::Value(item.to_owned()));
    if let Some(percent) = text.strip_suffix('%') {
        let milli = Quantity::parse(percent).map_err(|_| bad())?.milli();
        return match u64::try_from(milli) {
            Ok(0 | 100_000) => Ok(None),
            Ok(milli) if milli < 100_000 => Ok(Some(Value::Share(milli * 10))),
            _ => Err(bad()),
        };
    }
    let units = Quantity::parse(text).map_err(|_| bad())?.units();
    match u64::try_from(units) {
        Ok(units) if units > 0 => Ok(Some(Value::Amount {
            units,
            is_binary: text.ends_with('i'),
        })),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelets_syntax() {
        let defaults = Threshold::parse_hard(DEFAULT_HARD).unwrap();
        let seen = |available: u64, capacity: u64| Observation { capacity, available };
        let met: Vec<(&str, bool, bool)> = defaults
            .iter()
            .map(|threshold| {
                let limit = threshold.units(1 << 30);
                (
                    threshold.signal.name(),
                    threshold.is_met(&seen(limit - 1, 1 << 30)),
                    threshold.is_met(&seen(limit, 1 << 30)),
                )
            })
            .collect();
        assert_eq!(met.len(), 5);
        assert!(met.iter().all(|(_, below, at)| *below && !at), "{met:?}");
        assert_eq!(defaults[0].shown(0), "100Mi");
        assert_eq!(defaults[1].shown(1000), "100");
        assert!(defaults.iter().all(Threshold::is_hard));

        assert_eq!(Threshold::parse_hard("").unwrap(), []);
        assert_eq!(
            Threshold::parse_hard("memory.available<0%,pid.available<100%").unwrap(),
            []
        );
        let fraction = Threshold::parse_hard(" memory.available<0.5% , pid.available<1k").unwrap();
        assert_eq!((fraction[0].units(1000), fraction[1].shown(0)), (5, "1k".to_owned()));
    }

    #[test]
    fn soft_thresholds_have_grace_periods() {
        let soft = Threshold::parse_soft("memory.available<1Gi", "memory.available=1m30s,pid.available=1s").unwrap();
        assert_eq!((soft.len(), soft[0].grace), (1, Duration::from_secs(90)));
        let error = Threshold::parse_soft("memory.available<1Gi", "")
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "the soft threshold of memory.available has no grace period; set one with --eviction-soft-grace-period \
             memory.available=DURATION"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, error) in [
            ("memory.available=1Gi", "\"memory.available=1Gi\" is not a threshold"),
            ("memory<1Gi", "\"memory\" is not a signal"),
            ("memory.available<0", "memory.available<0: expected more than 0"),
            (
                "memory.available<101%",
                "memory.available<101%: expected more than 0, and at most 100%",
            ),
            ("memory.available<x", "memory.available<x: expected"),
        ] {
            let found = Threshold::parse_hard(text).unwrap_err().to_string();
            assert!(found.starts_with(error), "{found}");
        }
        let found = Threshold::parse_soft("", "memory.available=soon")
            .unwrap_err()
            .to_string();
        assert!(
            found.starts_with("\"memory.available=soon\" is not a grace period"),
            "{found}"
        );
    }
}
