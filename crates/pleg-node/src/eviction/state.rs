//! The state of pressure: observations in, conditions and the threshold to act on out. Pure: callers pass in the time.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::signals::{Observations, Pressure};
use super::thresholds::Threshold;

/// Which thresholds are met and since when, and when each condition was last seen.
#[derive(Debug)]
pub(crate) struct PressureState {
    thresholds: Vec<Threshold>,
    /// A condition stays this long after it was last seen.
    transition: Duration,
    /// Since when each threshold has been met, in the order of `thresholds`.
    met_since: Vec<Option<Instant>>,
    last_seen: BTreeMap<Pressure, Instant>,
}

/// What follows from an observation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Verdict {
    /// Conditions that hold.
    pub(crate) conditions: Vec<Pressure>,
    /// The threshold to act on: met for its grace period. Memory before all others.
    pub(crate) act_on: Option<Threshold>,
}

impl PressureState {
    pub(crate) fn new(thresholds: Vec<Threshold>, transition: Duration) -> Self {
        Self {
            met_since: vec![None; thresholds.len()],
            thresholds,
            transition,
            last_seen: BTreeMap::new(),
        }
    }

    /// Whether nothing is watched.
    pub(crate) fn is_idle(&self) -> bool {
        self.thresholds.is_empty()
    }

    /// Whether any threshold is met by these observations.
    pub(crate) fn any_met(&self, observations: &Observations) -> bool {
        self.thresholds.iter().any(|threshold| is_met(threshold, observations))
    }

    /// Takes in an observation.
    pub(crate) fn step(&mut self, observations: &Observations, now: Instant) -> Verdict {
        let mut due: Vec<&Threshold> = Vec::new();
        for (threshold, since) in self.thresholds.iter().zip(&mut self.met_since) {
            if !is_met(threshold, observations) {
                *since = None;
                continue;
            }
            let since = *since.get_or_insert(now);
            // The condition holds from the start of the grace period.
            self.last_seen.insert(threshold.signal.condition(), now);
            if now.saturating_duration_since(since) >= threshold.grace {
                due.push(threshold);
            }
        }
        let transition = self.transition;
        self.last_seen
            .retain(|_, seen| *seen == now || now.saturating_duration_since(*seen) < transition);
        // Hard thresholds before soft ones of the same signal.
        due.sort_by_key(|threshold| (threshold.signal, threshold.grace));
        Verdict {
            conditions: self.last_seen.keys().copied().collect(),
            act_on: due.first().map(|threshold| **threshold),
        }
    }
}

fn is_met(threshold: &Threshold, observations: &Observations) -> bool {
    let observed = observations.get(&threshold.signal);
    observed.is_some_and(|observed| threshold.is_met(observed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::signals::{Observation, Signal};

    const MIB: u64 = 1 << 20;

    fn state(hard: &str, soft: &str, grace: &str) -> PressureState {
        let mut thresholds = Threshold::parse_hard(hard).unwrap();
        thresholds.extend(Threshold::parse_soft(soft, grace).unwrap());
        PressureState::new(thresholds, Duration::from_mins(5))
    }

    fn memory(mib: u64) -> Observations {
        let seen = Observation {
            capacity: 8192 * MIB,
            available: mib * MIB,
        };
        Observations::from([(Signal::MemoryAvailable, seen)])
    }

    fn signal(verdict: &Verdict) -> Option<Signal> {
        verdict.act_on.map(|threshold| threshold.signal)
    }

    #[tokio::test(start_paused = true)]
    async fn a_condition_outlasts_its_cause() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut state = state("memory.available<100Mi", "", "");
        assert_eq!(state.step(&memory(100), at(0)), Verdict::default());
        let verdict = state.step(&memory(99), at(10));
        assert_eq!(
            (verdict.conditions.as_slice(), signal(&verdict)),
            (&[Pressure::Memory][..], Some(Signal::MemoryAvailable))
        );
        // Enough again: nothing to act on, but the condition holds for five more minutes.
        let verdict = state.step(&memory(500), at(20));
        assert_eq!((verdict.conditions.len(), signal(&verdict)), (1, None));
        assert_eq!(state.step(&memory(500), at(309)).conditions.len(), 1);
        assert_eq!(state.step(&memory(500), at(310)), Verdict::default());
        // A signal that cannot be read decides nothing.
        assert_eq!(state.step(&Observations::new(), at(320)), Verdict::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_soft_threshold_waits_for_its_grace_period() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut state = state(
            "memory.available<100Mi",
            "memory.available<500Mi",
            "memory.available=30s",
        );
        let verdict = state.step(&memory(400), at(0));
        assert_eq!((verdict.conditions.len(), signal(&verdict)), (1, None));
        assert_eq!(signal(&state.step(&memory(400), at(29))), None);
        let acted = state.step(&memory(400), at(30)).act_on.unwrap();
        assert!(!acted.is_hard());
        // Met again after a pause: the period starts again.
        state.step(&memory(600), at(40));
        assert_eq!(signal(&state.step(&memory(400), at(50))), None);
        assert!(state.step(&memory(50), at(60)).act_on.unwrap().is_hard());
    }

    #[tokio::test(start_paused = true)]
    async fn memory_comes_first() {
        let mut state = state("pid.available<10%,nodefs.available<10%,memory.available<1Gi", "", "");
        let mut all = memory(10);
        let short = Observation {
            capacity: 1000,
            available: 1,
        };
        all.extend([(Signal::PidAvailable, short), (Signal::NodeFsAvailable, short)]);
        let verdict = state.step(&all, Instant::now());
        assert_eq!(verdict.conditions, Pressure::ALL);
        assert_eq!(signal(&verdict), Some(Signal::MemoryAvailable));
        all.remove(&Signal::MemoryAvailable);
        assert!(state.any_met(&all));
        assert_eq!(signal(&state.step(&all, Instant::now())), Some(Signal::NodeFsAvailable));
    }
}
