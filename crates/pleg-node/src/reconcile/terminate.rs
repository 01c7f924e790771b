//! How a pod terminates: because it has finished, or because it is no longer desired.

use std::time::Duration;

use jiff::Timestamp;
use pleg::{ContainerState, ContainerStatus, SandboxState};

use super::action::{Action, KillReason};
use super::decide::{Decider, Stage};
use crate::manifest::Role;

/// Shortest grace period of a container, even if others have used up the time of the pod.
const MIN_GRACE: Duration = Duration::from_secs(2);

impl<'a> Decider<'a> {
    /// The pod has finished: kills its sidecars, then stops its sandbox. Exited containers stay, so that their exits can be read.
    pub(super) fn finish(&mut self) {
        self.decision.stage = Stage::Finished;
        self.decision.backing_off.clear();
        let evicted = self.input.history.eviction_grace;
        let grace = evicted.unwrap_or(self.input.pod.spec.termination_grace);
        if !self.kill_next(grace, KillReason::PodFinished) {
            return;
        }
        for sandbox in &self.input.status.sandboxes {
            if sandbox.state == SandboxState::Ready {
                self.act(Action::StopSandbox(sandbox.id.clone()));
            }
        }
    }

    /// The pod is no longer desired: kills its containers, then removes its sandboxes.
    pub(super) fn terminate(&mut self, since: Timestamp, grace: Duration) {
        self.decision.stage = Stage::Terminating;
        let used = Duration::try_from(self.input.now.duration_since(since)).unwrap_or_default();
        // A grace period of zero is respected.
        let min = MIN_GRACE.min(grace);
        let left = grace.saturating_sub(used).max(min);
        if !self.kill_next(left, KillReason::PodTerminating) {
            return;
        }
        for sandbox in &self.input.status.sandboxes {
            self.act(Action::RemoveSandbox(sandbox.id.clone()));
        }
        // A container cannot outlive its sandbox: if the runtime still shows one, the next relist does not.
        if self.input.status.sandboxes.is_empty() && self.input.in_flight.containers.is_empty() {
            self.decision.stage = Stage::Terminated;
        }
    }

    /// Kills the main and init containers; once those have exited, the sidecars, last one first. Returns whether none is left.
    fn kill_next(&mut self, grace: Duration, reason: KillReason) -> bool {
        let next = self.next_to_kill();
        let none = next.is_empty() && self.input.in_flight.containers.is_empty();
        for container in next {
            self.act(Action::Kill {
                id: container.id.clone(),
                name: container.name.to_string(),
                grace,
                reason,
            });
        }
        none
    }

    fn next_to_kill(&self) -> Vec<&'a ContainerStatus> {
        let spec = &self.input.pod.spec;
        let is_sidecar = |container: &&ContainerStatus| {
            let found = spec.container(&container.name);
            found.is_some_and(|found| found.role == Role::Sidecar)
        };
        let may_run = |state| matches!(state, ContainerState::Running | ContainerState::Unknown);
        let all = self.input.status.containers.iter();
        let running = all.filter(|container| may_run(container.state));
        let (sidecars, rest): (Vec<_>, Vec<_>) = running.partition(is_sidecar);
        if !rest.is_empty() {
            return rest;
        }
        let place = |name: &str| spec.init_containers.iter().position(|other| other.name == name);
        let last = sidecars.iter().map(|container| place(&container.name)).max();
        let is_last = |container: &&ContainerStatus| Some(place(&container.name)) == last;
        sidecars.into_iter().filter(is_last).collect()
    }
}
