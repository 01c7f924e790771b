//! Init containers run one after another, each to completion. Sidecars are started in the same order and keep running.

use pleg::SandboxId;

use super::decide::Decider;
use super::observed::ObservedContainer;
use crate::manifest::{Container, ProbeKind, Role};

impl Decider<'_> {
    /// Takes the next step of initialisation. Returns whether it is complete, so that the main containers may run.
    pub(super) fn initialise(&mut self, sandbox: &SandboxId) -> bool {
        let pod = self.input.pod;
        // A main container in this sandbox proves that initialisation was complete, even if the init containers were removed since.
        let was_started = |container: &Container| match self.observed.container(&container.name) {
            ObservedContainer::Created(_) | ObservedContainer::Running(_) | ObservedContainer::Unknown(_) => true,
            ObservedContainer::Exited { current, .. } => current,
            ObservedContainer::Absent | ObservedContainer::InOldSandbox(_) => false,
        };
        let initialised = pod.spec.containers.iter().any(was_started);
        for container in &pod.spec.init_containers {
            let done = match container.role {
                Role::Sidecar => self.sidecar_started(container, sandbox),
                // After initialisation only sidecars matter.
                _ => initialised || self.init_container_completed(container, sandbox),
            };
            if !done && !initialised {
                return false;
            }
        }
        true
    }

    /// Keeps a sidecar running. Returns whether the next init container may start.
    fn sidecar_started(&mut self, container: &Container, sandbox: &SandboxId) -> bool {
        if !self.keep_running(container, sandbox) {
            return false;
        }
        let ObservedContainer::Running(running) = self.observed.container(&container.name) else {
            return false;
        };
        // While its post-start hook runs, it is not started yet.
        let in_flight = self.input.in_flight.containers.contains(&container.name);
        let probed =
            container.startup.is_none() || self.input.probes.get(&running.id, ProbeKind::Startup) == Some(true);
        probed && !in_flight
    }

    /// Runs an init container. Returns whether it has succeeded.
    fn init_container_completed(&mut self, container: &Container, sandbox: &SandboxId) -> bool {
        match self.observed.container(&container.name) {
            ObservedContainer::Exited { exit, current: true } if exit.exit_code == 0 => return true,
            // It succeeded in an earlier sandbox: a new sandbox is initialised from the start.
            ObservedContainer::Exited { exit, current: false } if exit.exit_code == 0 => {
                self.start(&container.name, sandbox, None);
            }
            // With policy Never the pod has already finished.
            ObservedContainer::Exited { exit, .. } => self.restart_after_backoff(&container.name, sandbox, &exit),
            _ => {
                self.keep_running(container, sandbox);
            }
        }
        false
    }
}
