//! How a pod terminates: because it has finished, or because it is no longer desired.
//!
//! All its containers share one grace period. Pre-stop hooks begin at once, also those of sidecars. Main, init and ephemeral containers are
//! stopped at once; sidecars after the main containers, the last one first. When the grace period is over, nothing waits for its turn any more.

use std::time::Duration;

use jiff::Timestamp;
use pleg::{ContainerId, ContainerState, ContainerStatus, SandboxState};

use super::action::{Action, KillReason};
use super::backoff::later;
use super::decide::{Decider, Stage};
use crate::manifest::Role;

impl<'a> Decider<'a> {
    /// The pod has finished: kills its sidecars, then stops its sandbox. Exited containers stay, so that their exits can be read.
    pub(super) fn finish(&mut self) {
        self.decision.stage = Stage::Finished;
        self.decision.backing_off.clear();
        let since = self.input.history.finishing_since.unwrap_or(self.input.now);
        let evicted = self.input.history.eviction_grace;
        let grace = evicted.unwrap_or(self.input.pod.spec.termination_grace);
        if !self.stop_containers(since, grace, KillReason::PodFinished) {
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
        if !self.stop_containers(since, grace, KillReason::PodTerminating) {
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

    /// Stops all containers, each in its turn, within a grace period that began at `since`. Returns whether none is left.
    fn stop_containers(&mut self, since: Timestamp, grace: Duration, reason: KillReason) -> bool {
        let used = Duration::try_from(self.input.now.duration_since(since)).unwrap_or_default();
        let left = grace.saturating_sub(used);
        let running = self.running();
        for container in &running {
            let (id, name) = (container.id.clone(), container.name.to_string());
            let pre_stop = !left.is_zero() && self.has_pre_stop(&id, &name);
            if left.is_zero() || self.is_its_turn(&name, &running) {
                self.act(Action::Kill {
                    id,
                    name,
                    grace: left,
                    pre_stop,
                    reason,
                });
                continue;
            }
            if pre_stop {
                self.act(Action::PreStop { id, name, grace: left });
            }
            self.wait_until(later(since, grace));
        }
        running.is_empty() && self.input.in_flight.containers.is_empty()
    }

    /// Containers that run, or may run.
    fn running(&self) -> Vec<&'a ContainerStatus> {
        let may_run = |state| matches!(state, ContainerState::Running | ContainerState::Unknown);
        let all = self.input.status.containers.iter();
        all.filter(|container| may_run(container.state)).collect()
    }

    /// A sidecar waits for the main containers, and for the sidecars after it.
    fn is_its_turn(&self, name: &str, running: &[&ContainerStatus]) -> bool {
        let spec = &self.input.pod.spec;
        let Some(own) = spec.init_containers.iter().position(|other| other.name == *name) else {
            return true;
        };
        if spec.init_containers[own].role != Role::Sidecar {
            return true;
        }
        let later_sidecars = spec.init_containers[own + 1..].iter();
        let later_sidecars = later_sidecars.filter(|other| other.role == Role::Sidecar);
        let mut before = spec.containers.iter().chain(later_sidecars);
        !before.any(|other| {
            let runs = running.iter().any(|container| *container.name == *other.name);
            runs || self.input.in_flight.starts.contains(&other.name)
        })
    }

    /// Whether a container has a pre-stop hook that has not run yet.
    pub(super) fn has_pre_stop(&self, id: &ContainerId, name: &str) -> bool {
        let history = self.input.history.container(name);
        let ran = history.and_then(|history| history.pre_stopped.as_deref()) == Some(id.as_str());
        let container = self.input.pod.spec.container(name);
        !ran && container.is_some_and(|container| container.pre_stop.is_some())
    }
}
