//! Pressure: when memory, disk or process ids become short, the node says so, and evicts pods before the kernel does worse.
//!
//! In: figures about this machine every ten seconds, and what pods use. Out: the conditions `MemoryPressure`, `DiskPressure` and
//! `PIDPressure`; images and dead containers removed; at most one evicted pod at a time. [`manager`] is the one task; it owns the state of
//! thresholds. Pods are evicted through their workers, which own their history.
//!
//! | module | job |
//! |---|---|
//! | [`signals`] | what is measured, and which condition it sets: pure |
//! | [`thresholds`] | the kubelet's flags: pure |
//! | [`state`] | which thresholds are met, for how long, and what follows: pure |
//! | [`ranking`] | which pod goes first: pure |
//! | [`message`] | what it says then: pure |
//! | [`storage_limits`] | which pod exceeds a limit of its own: pure, but for reading files |
//! | [`usage`] | what pods use, from the files of their cgroups and their directories: blocking |
//! | [`admission`] | which pods may start under pressure, and the published conditions |
//! | [`manager`] | the task |

pub(crate) mod admission;
pub(crate) mod manager;
pub(crate) mod message;
pub(crate) mod ranking;
pub(crate) mod signals;
pub(crate) mod state;
pub(crate) mod storage_limits;
pub(crate) mod thresholds;
pub(crate) mod usage;

use std::time::Duration;

use self::signals::Signal;
use self::thresholds::{DEFAULT_HARD, Threshold};

/// When pods are evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictionConfig {
    /// Hard and soft thresholds. None: nothing is watched.
    pub thresholds: Vec<Threshold>,
    /// How long a condition stays after its cause has gone.
    pub pressure_transition_period: Duration,
    /// Longest grace period of a pod that is evicted for a soft threshold.
    pub max_pod_grace_period: Duration,
}

impl EvictionConfig {
    /// How much of a capacity the hard threshold of a signal keeps free; 0 if it has none. Pods cannot have that.
    pub fn kept_free(&self, signal: Signal, capacity: u64) -> u64 {
        let hard = self.thresholds.iter().filter(|threshold| threshold.is_hard());
        let of_signal = hard.filter(|threshold| threshold.signal == signal);
        of_signal.map(|threshold| threshold.units(capacity)).max().unwrap_or(0)
    }
}

impl Default for EvictionConfig {
    /// The kubelet's defaults.
    fn default() -> Self {
        Self {
            // The text is ours, and a test parses it.
            thresholds: Threshold::parse_hard(DEFAULT_HARD).unwrap_or_default(),
            pressure_transition_period: Duration::from_mins(5),
            max_pod_grace_period: Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_thresholds_keep_something_free() {
        let config = EvictionConfig::default();
        assert_eq!(config.kept_free(Signal::MemoryAvailable, 8 << 30), 100 << 20);
        assert_eq!(config.kept_free(Signal::NodeFsAvailable, 1000), 100);
        assert_eq!(config.kept_free(Signal::PidAvailable, 1000), 0);
        let soft = Threshold::parse_soft("memory.available<1Gi", "memory.available=1m").unwrap();
        let config = EvictionConfig {
            thresholds: soft,
            ..config
        };
        assert_eq!(config.kept_free(Signal::MemoryAvailable, 8 << 30), 0);
    }
}
