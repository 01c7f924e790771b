//! The simulated runtime's state: pure and synchronous, so that it can be tested without a socket.
//!
//! | module | job |
//! |---|---|
//! | `object` | sandboxes and containers, and their statuses |
//! | `table` | objects by id |
//! | `lifecycle` | what CRI calls do: run, create, start, stop, remove |
//! | `own` | the simulator's own pods, managed as a kubelet does: add, exit, restart, remove, storm |
//! | `template` | what those pods look like: names, labels, annotations |
//! | `churn` | spontaneous changes at a rate per second |
//! | `schedule` | exits and restarts to come, and when |
//! | [`script`] | what a container does by itself |
//! | `process` | the processes of containers, if they have any |
//! | `encode` | list items kept encoded |
//! | `list` | list answers |
//! | `events` | the event stream: subscribers and delivery |
//! | `queue` | what waits for one subscriber |
//! | `logs` | what containers write to their logs |
//! | `usage` | what containers and pods use: CPU, memory, disk, network |
//! | `network` | the addresses of pods |
//! | `shim` | shims that hang |
//! | `images` | the image store |
//! | `odd` | objects for hostile-input tests |
//! | `truth` | everything, for comparison |

mod churn;
mod encode;
mod events;
mod images;
mod lifecycle;
mod list;
mod logs;
mod network;
mod object;
mod odd;
mod own;
mod process;
mod queue;
mod schedule;
pub mod script;
mod shim;
mod table;
mod template;
#[cfg(test)]
mod tests;
mod truth;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use rustc_hash::FxHashMap;
use tokio::sync::watch;

pub use events::EventStats;
pub use lifecycle::Stopping;
pub(crate) use list::ListAnswer;
pub(crate) use logs::LogText;
pub use odd::Odd;
pub use own::{ContainerSpec, PodSpec};
pub use queue::Subscription;
pub use script::{Ending, Output, Script};
pub use truth::{ContainerTruth, SandboxTruth, Truth};
pub(crate) use usage::IMAGE_ROOT;

use crate::clock::{Clock, nanos};
use crate::config::SimConfig;
use crate::processes::Processes;
use events::Events;
use images::Images;
use object::{Container, Sandbox};
use schedule::{Due, Schedule};
use table::Table;

/// Sandboxes at most: twenty times the largest node anyone runs.
const MOST_SANDBOXES: usize = 100_000;
/// Containers at most.
const MOST_CONTAINERS: usize = 200_000;
/// Labels and annotations of one object at most, in bytes; Kubernetes allows 256 KiB of annotations.
const MOST_TEXT: usize = 512 * 1024;
/// All encoded objects together, in bytes.
const MOST_BYTES: usize = 1 << 30;
/// How long one [`World::tick`] may take: every call waits meanwhile. A process takes milliseconds to start, so that a tick which does all
/// that is due falls behind, and the next one has more to do.
const LONGEST_TICK: Duration = Duration::from_millis(20);

/// Why the world refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// There is no such object.
    #[error("{kind} {}: not found", pleg_cri::error::quoted(.name))]
    NotFound {
        /// The kind of object.
        kind: &'static str,
        /// Its name or id in the request.
        name: String,
    },
    /// No pod of that name; the selector of a person.
    #[error("no pod {0}; `pleg sim ctl pods` lists them")]
    NoPod(String),
    /// No container of that name in the pod.
    #[error("pod {pod} has no container {container}; it has {has}")]
    NoContainer {
        /// The pod.
        pod: String,
        /// The container that is not there.
        container: String,
        /// Those that are.
        has: String,
    },
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The request is valid, but not in the current state.
    #[error("{0}")]
    Refused(String),
    /// The process of a container cannot be started.
    #[error("no process for the container: {0}")]
    Process(String),
    /// A limit of the simulator.
    #[error("the simulator holds at most {1} {0}")]
    Full(&'static str, usize),
}

/// A pod: what its sandboxes and containers have in common.
#[derive(Debug)]
struct Pod {
    namespace: String,
    name: String,
    /// Oldest first.
    sandboxes: Vec<Arc<str>>,
    /// Oldest first; all attempts.
    containers: Vec<Arc<str>>,
    /// Set for the simulator's own pods: what to restart.
    own: Option<own::Own>,
    shim: shim::Shim,
}

/// How much there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pods, by UID.
    pub pods: usize,
    /// Pod sandboxes, ready or not.
    pub sandboxes: usize,
    /// Containers, in every state.
    pub containers: usize,
}

/// What `Status` says of the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    /// `RuntimeReady`.
    pub runtime: bool,
    /// `NetworkReady`.
    pub network: bool,
}

impl Default for Readiness {
    fn default() -> Self {
        Self {
            runtime: true,
            network: true,
        }
    }
}

/// The simulated runtime's state.
#[derive(Debug)]
pub struct World {
    clock: Clock,
    /// The last timestamp given out: no two are the same, so that "newest" has one answer.
    last_stamp: i64,
    /// Ids and choices. Only steps of the world draw from it, so reading does not change what happens.
    rng: Rng,
    /// Orders of lists and maps.
    shuffle: Rng,
    sandboxes: Table<Sandbox>,
    containers: Table<Container>,
    /// By UID, or `namespace/name` where there is none.
    pods: FxHashMap<Arc<str>, Pod>,
    /// `namespace/name` to the key in `pods`; the latest of that name.
    names: FxHashMap<String, Arc<str>>,
    /// Names and attempts in use, as runtimes reserve them.
    reserved: FxHashMap<String, Arc<str>>,
    schedule: Schedule,
    churn: churn::Churn,
    events: Events,
    /// Notified when a shim hangs or recovers.
    shims: watch::Sender<()>,
    readiness: Readiness,
    pod_cidr: network::PodCidr,
    images: Images,
    /// What was written to logs and is not yet in their files.
    log_texts: Vec<LogText>,
    extra: odd::Extra,
    template: own::Template,
    /// Bytes of all encoded objects.
    bytes: usize,
    /// The processes of containers; none if the configuration wants none.
    processes: Option<Processes>,
    /// How long after the death of a process its container ends.
    exit_lag: Duration,
}

impl World {
    /// A world with the pods of the configuration.
    pub fn new(config: &SimConfig) -> Result<Self, WorldError> {
        let mut world = Self {
            clock: config.clock.clone(),
            last_stamp: 0,
            rng: Rng::with_seed(config.seed),
            shuffle: Rng::with_seed(config.seed ^ 0x5eed),
            sandboxes: Table::default(),
            containers: Table::default(),
            pods: FxHashMap::default(),
            names: FxHashMap::default(),
            reserved: FxHashMap::default(),
            schedule: Schedule::default(),
            churn: churn::Churn::default(),
            events: Events::new(config),
            shims: watch::Sender::new(()),
            readiness: Readiness::default(),
            pod_cidr: network::PodCidr::default(),
            images: Images::default(),
            log_texts: Vec::new(),
            extra: odd::Extra::default(),
            template: own::Template::new(config),
            bytes: 0,
            processes: config.processes.then(Processes::start).transpose()?,
            exit_lag: config.exit_lag,
        };
        for image in template::IMAGES {
            world.images.add(image);
        }
        world.add_pods(config.pods)?;
        world.set_churn(config.churn);
        Ok(world)
    }

    /// The clock that timestamps come from.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// How much there is.
    pub fn counts(&self) -> Counts {
        Counts {
            pods: self.pods.len(),
            sandboxes: self.sandboxes.len(),
            containers: self.containers.len(),
        }
    }

    /// What `Status` says.
    pub fn readiness(&self) -> Readiness {
        self.readiness
    }

    /// What `Status` says from now on.
    pub fn set_readiness(&mut self, readiness: Readiness) {
        self.readiness = readiness;
    }

    /// When the next scheduled change is due.
    pub fn next_due(&self) -> Option<i64> {
        [self.schedule.next(), self.churn.next()].into_iter().flatten().min()
    }

    /// Applies what is due: all of it, unless that takes longer than `LONGEST_TICK` on a running clock. What is left is due at once
    /// ([`World::next_due`]).
    pub fn tick(&mut self) {
        let now = self.clock.now();
        let until = now.saturating_add(nanos(LONGEST_TICK));
        while let Some(due) = self.schedule.pop(now) {
            match due {
                Due::End { id, ending } => {
                    if let Some(container) = self.containers.get_mut(&id) {
                        container.due = None;
                    }
                    self.finish(&id, ending);
                }
                Due::Exited { id, ending } => _ = self.finish_now(&id, ending),
                Due::Write { id } => self.write_log(&id),
                Due::Restart { pod, container } => self.restart_due(&pod, &container),
            }
            if self.clock.now() > until {
                return;
            }
        }
        self.run_churn(now, until);
    }

    /// True once after the time of [`World::next_due`] may have changed.
    pub(crate) fn take_rescheduled(&mut self) -> bool {
        std::mem::take(&mut self.schedule.changed)
    }

    /// Now, and later than every timestamp before it.
    fn stamp(&mut self) -> i64 {
        self.last_stamp = self.clock.now().max(self.last_stamp.saturating_add(1));
        self.last_stamp
    }

    /// An id as runtimes make them: 64 hexadecimal digits.
    fn new_id(&mut self) -> Arc<str> {
        format!("{:032x}{:032x}", self.rng.u128(..), self.rng.u128(..)).into()
    }

    /// A UID as the API server makes them.
    fn new_uid(&mut self) -> String {
        let bits = self.rng.u128(..) & !(0xf << 76) | (4 << 76);
        let bits = bits & !(0b11 << 62) | (0b10 << 62);
        let hex = format!("{bits:032x}");
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
    }
}
