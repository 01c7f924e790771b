//! What a pod's containers are doing: the runtime's word about each, and memory's where the runtime has forgotten.

use jiff::Timestamp;
use pleg::{ContainerState, ContainerStatus, PodStatus, SandboxState, SandboxStatus};

use crate::manifest::{Container, Pod, RestartPolicy, Role};
use crate::reconcile::history::{Ending, PodHistory};

/// Where a container stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Standing<'a> {
    /// It was never created, as far as is known; or it was created, never started, and its sandbox is gone.
    Absent,
    /// Made in the current sandbox, not started.
    Created(&'a ContainerStatus),
    /// Runs, in the current sandbox.
    Running(&'a ContainerStatus),
    /// Runs, in a sandbox that is not the newest.
    Stray(&'a ContainerStatus),
    /// The runtime cannot tell; it may run.
    Unknown(&'a ContainerStatus),
    /// It ended.
    Ended {
        /// How.
        ending: Ending,
        /// In the current sandbox.
        current: bool,
    },
}

/// A pod, as it is seen and remembered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observed<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) status: &'a PodStatus,
    pub(crate) memory: &'a PodHistory,
}

impl<'a> Observed<'a> {
    /// The sandboxes, newest first: by their numbers, which are ours. When they were made is told by a clock that may be set back.
    pub(crate) fn sandboxes(&self) -> Vec<&'a SandboxStatus> {
        newest_first(self.status)
    }

    /// The newest sandbox, whatever its state.
    pub(crate) fn newest_sandbox(&self) -> Option<&'a SandboxStatus> {
        self.sandboxes().into_iter().next()
    }

    /// The sandbox that containers can be started in.
    pub(crate) fn usable_sandbox(&self) -> Option<&'a SandboxStatus> {
        self.newest_sandbox().filter(|sandbox| {
            // A sandbox without a network is of no use.
            sandbox.state == SandboxState::Ready && (self.pod.spec.host_network || !sandbox.ips.is_empty())
        })
    }

    /// The newest attempt of a container that the runtime has.
    pub(crate) fn newest(&self, name: &str) -> Option<&'a ContainerStatus> {
        let of = self
            .status
            .containers
            .iter()
            .filter(|container| *container.name == *name);
        of.max_by_key(|container| (container.attempt, container.created_at))
    }

    /// Whether an attempt that began then is of the current sandbox. The history knows in which one it was made; where it does not, the
    /// runtime's own clock tells, at both ends: a container is made after its sandbox.
    ///
    /// Where there is only one sandbox, what the runtime shows is of that one, whatever was done to the clock since.
    fn is_current(&self, name: &str, attempt: u32, began: Option<Timestamp>, shown: bool) -> bool {
        if shown && self.status.sandboxes.len() < 2 {
            return true;
        }
        let newest = self.newest_sandbox();
        let made_in = self.memory.container(name).and_then(|memory| memory.made_in.as_ref());
        if let (Some((made, sandbox)), Some(newest)) = (made_in, newest)
            && *made == attempt
        {
            return **sandbox == *newest.id.as_str();
        }
        match (newest.and_then(|sandbox| sandbox.created_at), began) {
            (Some(sandbox), Some(began)) => began >= sandbox,
            _ => true,
        }
    }

    pub(crate) fn standing(&self, name: &str) -> Standing<'a> {
        let newest = self.newest(name);
        let memory = self.memory.container(name);
        let remembered = memory.and_then(|memory| memory.last_ending());
        let is_newer = |ending: &&Ending| newest.is_none_or(|newest| newest.attempt < ending.attempt);
        if let Some(ending) = remembered.filter(is_newer) {
            return Standing::Ended {
                current: self.is_current(name, ending.attempt, ending.finished_at.or(ending.started_at), false),
                ending: ending.clone(),
            };
        }
        let Some(container) = newest else {
            return Standing::Absent;
        };
        let current = self.is_current(name, container.attempt, container.created_at, true);
        match container.state {
            ContainerState::Exited => Standing::Ended {
                ending: self.ending(container),
                current,
            },
            ContainerState::Created if current => Standing::Created(container),
            ContainerState::Created => Standing::Absent,
            ContainerState::Running if current => Standing::Running(container),
            ContainerState::Running => Standing::Stray(container),
            ContainerState::Unknown => Standing::Unknown(container),
        }
    }

    /// How a container that the runtime shows ended, with the time at which we noted it.
    pub(crate) fn ending(&self, container: &ContainerStatus) -> Ending {
        let known = self.memory.container(&container.name);
        let noted = known.and_then(|memory| memory.noted_at(container.attempt));
        let now = noted.or(container.finished_at).unwrap_or(Timestamp::UNIX_EPOCH);
        Ending {
            noted_at: noted,
            ..Ending::of(container, now)
        }
    }

    /// Whether a container that ended like this is started again: by the policy, or because it was killed for that.
    pub(crate) fn should_restart(&self, container: &Container, ending: &Ending) -> bool {
        let policy = self.pod.spec.restart_policy;
        let memory = self.memory.container(&container.name);
        let replaced = memory.is_some_and(|memory| memory.replaced == Some(ending.attempt));
        match (container.role, policy) {
            (Role::Sidecar, _) | (_, RestartPolicy::Always) => true,
            (_, RestartPolicy::OnFailure) => ending.exit_code != 0 || replaced,
            (_, RestartPolicy::Never) => false,
        }
    }

    /// The number of the next attempt.
    pub(crate) fn next_attempt(&self, name: &str) -> u32 {
        let seen = self.newest(name).map(|container| container.attempt);
        let known = self.memory.container(name).and_then(|memory| memory.attempt);
        seen.max(known).map_or(0, |attempt| attempt.saturating_add(1))
    }
}

/// The sandboxes of a pod, newest first: see [`Observed::sandboxes`].
pub(crate) fn newest_first(status: &PodStatus) -> Vec<&SandboxStatus> {
    let mut all: Vec<&SandboxStatus> = status.sandboxes.iter().collect();
    all.sort_by_key(|sandbox| std::cmp::Reverse((sandbox.attempt, sandbox.created_at)));
    all
}
