//! What state each container of a pod is in: from the cache, and from the history where the runtime has already removed it.

use jiff::Timestamp;
use pleg::{ContainerState, ContainerStatus, PodStatus, SandboxState, SandboxStatus};

use super::history::{Exit, PodHistory};
use crate::manifest::Pod;

/// The state of a container. "Current" is the pod's newest sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ObservedContainer<'a> {
    /// Never created, as far as is known; or created and never started, in a sandbox that was replaced.
    Absent,
    /// Created in the current sandbox, not started.
    Created(&'a ContainerStatus),
    /// Running in the current sandbox.
    Running(&'a ContainerStatus),
    /// Running in a sandbox that was replaced.
    InOldSandbox(&'a ContainerStatus),
    /// The runtime does not know its state; it may run.
    Unknown(&'a ContainerStatus),
    /// Exited.
    Exited {
        /// How.
        exit: Exit,
        /// Whether that was in the current sandbox.
        current: bool,
    },
}

/// A pod: desired, observed and its history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObservedPod<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) status: &'a PodStatus,
    pub(crate) history: &'a PodHistory,
}

impl<'a> ObservedPod<'a> {
    /// The sandboxes, newest first. They are ordered by number, which we assign; their timestamps come from a clock that may be set back.
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

    /// The newest attempt of a container that the runtime shows.
    pub(crate) fn newest(&self, name: &str) -> Option<&'a ContainerStatus> {
        let all = self.status.containers.iter();
        let attempts = all.filter(|container| *container.name == *name);
        attempts.max_by_key(|container| (container.attempt, container.created_at))
    }

    /// Whether an attempt belongs to the current sandbox. The history knows for attempts that we created; for others, the runtime's
    /// timestamps decide, because a container is created after its sandbox. If there is only one sandbox, a container that the runtime
    /// `shows` belongs to it, whatever was done to the clock.
    fn is_current(&self, name: &str, attempt: u32, created: Option<Timestamp>, shows: bool) -> bool {
        if shows && self.status.sandboxes.len() < 2 {
            return true;
        }
        let newest = self.newest_sandbox();
        let made_in = self
            .history
            .container(name)
            .and_then(|history| history.made_in.as_ref());
        if let (Some((made, sandbox)), Some(newest)) = (made_in, newest)
            && *made == attempt
        {
            return **sandbox == *newest.id.as_str();
        }
        match (newest.and_then(|sandbox| sandbox.created_at), created) {
            (Some(sandbox), Some(created)) => created >= sandbox,
            _ => true,
        }
    }

    /// The state of a container.
    pub(crate) fn container(&self, name: &str) -> ObservedContainer<'a> {
        let newest = self.newest(name);
        let last_exit = self.history.container(name).and_then(|history| history.last_exit());
        let is_newer = |exit: &&Exit| newest.is_none_or(|newest| newest.attempt < exit.attempt);
        if let Some(exit) = last_exit.filter(is_newer) {
            return ObservedContainer::Exited {
                current: self.is_current(name, exit.attempt, exit.finished_at.or(exit.started_at), false),
                exit: exit.clone(),
            };
        }
        let Some(container) = newest else {
            return ObservedContainer::Absent;
        };
        let current = self.is_current(name, container.attempt, container.created_at, true);
        match container.state {
            ContainerState::Exited => ObservedContainer::Exited {
                exit: self.exit(container),
                current,
            },
            ContainerState::Created if current => ObservedContainer::Created(container),
            ContainerState::Created => ObservedContainer::Absent,
            ContainerState::Running if current => ObservedContainer::Running(container),
            ContainerState::Running => ObservedContainer::InOldSandbox(container),
            ContainerState::Unknown => ObservedContainer::Unknown(container),
        }
    }

    /// The exit of a container that the runtime shows, with the time at which we first observed it.
    pub(crate) fn exit(&self, container: &ContainerStatus) -> Exit {
        let history = self.history.container(&container.name);
        let noted = history.and_then(|history| history.noted_at(container.attempt));
        let now = noted.or(container.finished_at).unwrap_or(Timestamp::UNIX_EPOCH);
        let message = history.and_then(|history| history.termination_message(container.attempt));
        Exit {
            noted_at: noted,
            termination_message: message.map(Into::into),
            ..Exit::of(container, now)
        }
    }

    /// The number of the next attempt.
    pub(crate) fn next_attempt(&self, name: &str) -> u32 {
        let shown = self.newest(name).map(|container| container.attempt);
        let known = self.history.container(name).and_then(|history| history.attempt);
        shown.max(known).map_or(0, |attempt| attempt.saturating_add(1))
    }
}

/// The sandboxes of a pod, newest first: see [`ObservedPod::sandboxes`].
pub(crate) fn newest_first(status: &PodStatus) -> Vec<&SandboxStatus> {
    let mut all: Vec<&SandboxStatus> = status.sandboxes.iter().collect();
    all.sort_by_key(|sandbox| std::cmp::Reverse((sandbox.attempt, sandbox.created_at)));
    all
}
