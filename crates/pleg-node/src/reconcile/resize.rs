//! In-place resize: the CPU and memory of a running container follow those of its pod, without a restart where its `resizePolicy` allows
//! that. Pure.
//!
//! Every resize that the API server has accepted is carried out: this node does not compare requests with what it has.

use pleg::ContainerStatus;
use serde::{Deserialize, Serialize};

use super::action::{Action, KillReason};
use super::decide::Decider;
use super::history::ContainerHistory;
use crate::manifest::{Container, Quantity, ResizePolicy, Resources};

/// CPU and memory of a container, in thousandths of a core and of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SetResources {
    /// Request of CPU.
    pub cpu_request: Option<i64>,
    /// Limit of CPU.
    pub cpu_limit: Option<i64>,
    /// Request of memory.
    pub memory_request: Option<i64>,
    /// Limit of memory.
    pub memory_limit: Option<i64>,
}

impl From<&Resources> for SetResources {
    fn from(resources: &Resources) -> Self {
        let milli = |quantity: Option<Quantity>| quantity.map(Quantity::milli);
        Self {
            cpu_request: milli(resources.cpu_request),
            cpu_limit: milli(resources.cpu_limit),
            memory_request: milli(resources.memory_request),
            memory_limit: milli(resources.memory_limit),
        }
    }
}

/// How the resources of a running container differ from those that are desired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resize {
    cpu: bool,
    memory: bool,
    /// The memory limit becomes smaller.
    pub(crate) shrinks: bool,
}

impl Resize {
    /// None if there is nothing to do, or it is not known what the attempt was started with.
    pub(crate) fn pending(history: Option<&ContainerHistory>, attempt: u32, container: &Container) -> Option<Self> {
        let set = history?.set_resources(attempt)?;
        let desired = SetResources::from(&container.resources);
        let resize = Self {
            cpu: (set.cpu_request, set.cpu_limit) != (desired.cpu_request, desired.cpu_limit),
            memory: (set.memory_request, set.memory_limit) != (desired.memory_request, desired.memory_limit),
            shrinks: desired
                .memory_limit
                .is_some_and(|desired| set.memory_limit.is_none_or(|set| desired < set)),
        };
        (resize.cpu || resize.memory).then_some(resize)
    }

    fn restarts(self, policy: ResizePolicy) -> bool {
        self.cpu && policy.cpu_restarts || self.memory && policy.memory_restarts
    }
}

impl Decider<'_> {
    /// Resizes a running container if that is due. Returns whether it goes on running.
    pub(super) fn resize(&mut self, container: &Container, running: &ContainerStatus) -> bool {
        let history = self.input.history.container(&container.name);
        let Some(resize) = Resize::pending(history, running.attempt, container) else {
            return true;
        };
        if resize.restarts(container.resize_policy) {
            self.kill(&running.id, &container.name, KillReason::ResourcesChanged);
            return false;
        }
        if let Some(failure) = history.and_then(|history| history.resize_failure.as_ref()) {
            let until = failure.until(self.input.now);
            if until > self.input.now {
                self.wait_until(until);
                return true;
            }
        }
        // The pod's limit is the sum of its containers': what grows waits for the room of what shrinks.
        if !self.input.in_flight.resizes.contains(&container.name) && (resize.shrinks || !self.any_shrinks()) {
            self.act(Action::Resize {
                id: running.id.clone(),
                name: container.name.clone(),
                attempt: running.attempt,
                resources: SetResources::from(&container.resources),
                shrinks: resize.shrinks,
            });
        }
        true
    }

    /// Whether the memory limit of a running container has to become smaller.
    fn any_shrinks(&self) -> bool {
        let mut containers = self.input.pod.spec.all_containers();
        containers.any(|container| {
            let Some(newest) = self.observed.newest(&container.name) else {
                return false;
            };
            let history = self.input.history.container(&container.name);
            let resize = Resize::pending(history, newest.attempt, container);
            newest.state == pleg::ContainerState::Running && resize.is_some_and(|resize| resize.shrinks)
        })
    }
}
