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
