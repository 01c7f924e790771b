//! What a simulator is started with.

use std::time::Duration;

use pleg_cri::{ApiVersion, Endpoint};

use crate::clock::Clock;
use crate::control::Step;
use crate::flavour::Flavour;
use crate::world::Script;

/// About what containerd 1.7 takes to report an exit.
const EXIT_LAG: Duration = Duration::from_millis(60);

/// What a simulator is started with. `SimConfig { pods: 100, ..Default::default() }` reads best.
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// Pods that are there from the start, named `default/web-0` and on.
    pub pods: usize,
    /// Containers of each of these pods.
    pub containers: usize,
    /// Dead earlier attempts of each of these containers.
    pub dead: usize,
    /// What the containers of these pods do by themselves.
    pub script: Script,
    /// Ids, names and choices follow from it: the same seed and the same steps give the same world.
    pub seed: u64,
    /// Changes a second, 0 for none.
    pub churn: f64,
    /// Every call takes at least this long.
    pub latency: Duration,
    /// Up to this much is added to the latency, evenly.
    pub jitter: Duration,
    /// The API that is served; the other one is UNIMPLEMENTED.
    pub api: ApiVersion,
    /// Which runtime it imitates.
    pub flavour: Flavour,
    /// Serve `StreamPodSandboxes` and `StreamContainers`.
    pub streaming_lists: bool,
    /// Events that a subscriber may be behind; then the newest are dropped and counted.
    pub event_queue: usize,
    /// Events kept for the next subscriber while there is none, if the flavour does not keep more.
    pub event_backlog: usize,
    /// How long a pull takes, beyond the latency.
    pub pull_time: Duration,
    /// Give every running container a real process in a cgroup of its own.
    pub processes: bool,
    /// How long after the death of its process a container ends.
    pub exit_lag: Duration,
    /// Where timestamps come from.
    pub clock: Clock,
    /// Where the control API listens, if it is wanted.
    pub control: Option<Endpoint>,
    /// What happens by itself, counted from the start.
    pub steps: Vec<Step>,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            pods: 0,
            containers: 2,
            dead: 0,
            script: Script::default(),
            seed: 1,
            churn: 0.0,
            latency: Duration::ZERO,
            jitter: Duration::ZERO,
            api: ApiVersion::V1,
            flavour: Flavour::default(),
            streaming_lists: false,
            event_queue: 4096,
            event_backlog: 0,
            pull_time: Duration::ZERO,
            processes: false,
            exit_lag: EXIT_LAG,
            clock: Clock::system(),
            control: None,
            steps: Vec::new(),
        }
    }
}
