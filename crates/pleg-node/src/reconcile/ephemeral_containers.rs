//! Ephemeral containers are added to a pod to look into it. Each is started once, as soon as there is a sandbox: also while the pod is being
//! initialised, and whatever its other containers do. None is ever restarted, so none outlives its sandbox.

use pleg::SandboxId;

use super::action::KillReason;
use super::decide::Decider;
use super::observed::ObservedContainer;

impl Decider<'_> {
    /// Starts the ephemeral containers that have not been started yet.
    pub(super) fn start_ephemeral_containers(&mut self, sandbox: &SandboxId) {
        for container in &self.input.pod.spec.ephemeral_containers {
            let name = &container.name;
            match self.observed.container(name) {
                ObservedContainer::Absent => self.start(name, sandbox, None),
                ObservedContainer::Created(created) => self.start(name, sandbox, Some(created.id.clone())),
                ObservedContainer::InOldSandbox(running) => self.kill(&running.id, name, KillReason::SandboxUnusable),
                // One whose state the runtime does not know is not restarted either: killing it would gain nothing.
                ObservedContainer::Running(_) | ObservedContainer::Unknown(_) | ObservedContainer::Exited { .. } => {}
            }
        }
    }
}
