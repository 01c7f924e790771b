//! How a pod terminates: because it has finished, or because it is no longer desired.

use std::time::Duration;

use jiff::Timestamp;
use pleg::{ContainerState, SandboxState};

use super::decide::{Action, Stage, Step, Why};
use crate::manifest::Role;

/// Shortest grace period of a container, even if others have used up the time of the pod.
const LEAST_GRACE: Duration = Duration::from_secs(2);

impl Step<'_> {
    /// The pod has finished: its sidecars end, then its sandbox is stopped. What is left tells how it ended.
    pub(super) fn finish(&mut self) {
        self.decision.stage = Stage::Finished;
        self.decision.held.clear();
        let grace = self.it.pod.spec.termination_grace;
        if !self.kill_next(grace, Why::Finished) {
            return;
        }
        for sandbox in &self.it.status.sandboxes {
            if sandbox.state == SandboxState::Ready {
                self.act(Action::StopSandbox(sandbox.id.clone()));
            }
        }
    }

    /// The pod shall end, and leave nothing behind.
    pub(super) fn end(&mut self, since: Timestamp, grace: Duration) {
        self.decision.stage = Stage::Ending;
        let used = Duration::try_from(self.it.now.duration_since(since)).unwrap_or_default();
        // A grace period of zero is respected.
        let least = LEAST_GRACE.min(grace);
        let left = grace.saturating_sub(used).max(least);
        if !self.kill_next(left, Why::End) {
            return;
        }
        for sandbox in &self.it.status.sandboxes {
            self.act(Action::RemoveSandbox(sandbox.id.clone()));
        }
        // A container whose sandbox is gone cannot be: a runtime that shows one will show it gone with the next relist.
        if self.it.status.sandboxes.is_empty() && self.it.busy.containers.is_empty() {
            self.decision.stage = Stage::Gone;
        }
    }

    /// Kills containers, and when those have ended sidecars, the last one first. Returns whether none runs.
    fn kill_next(&mut self, grace: Duration, why: Why) -> bool {
        let role = |name: &str| {
            self.it
                .pod
                .spec
                .container(name)
                .map_or(Role::Main, |container| container.role)
        };
        let runs = |state| matches!(state, ContainerState::Running | ContainerState::Unknown);
        let running = self
            .it
            .status
            .containers
            .iter()
            .filter(|container| runs(container.state));
        let (sidecars, others): (Vec<_>, Vec<_>) =
            running.partition(|container| role(&container.name) == Role::Sidecar);
        let next = if others.is_empty() {
            let place = |name: &str| {
                self.it
                    .pod
                    .spec
                    .init_containers
                    .iter()
                    .position(|other| other.name == name)
            };
            let last = sidecars.iter().map(|container| place(&container.name)).max();
            sidecars
                .into_iter()
                .filter(|container| Some(place(&container.name)) == last)
                .collect()
        } else {
            others
        };
        let none = next.is_empty() && self.it.busy.containers.is_empty();
        for container in next {
            self.act(Action::Kill {
                id: container.id.clone(),
                name: container.name.to_string(),
                grace,
                why,
            });
        }
        none
    }
}
