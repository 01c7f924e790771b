//! Init containers: one after another, each to completion; sidecars start in order and keep running.

use pleg::SandboxId;

use super::decide::Step;
use crate::manifest::{Container, ProbeKind, Role};
use crate::reconcile::observed::Standing;

impl Step<'_> {
    /// Takes the next step of initialisation. Returns whether it is complete, so that containers may run.
    pub(super) fn init(&mut self, sandbox: &SandboxId) -> bool {
        let pod = self.it.pod;
        // A container of this sandbox proves that all was done before it, whatever was cleaned away since.
        let began = |container: &Container| {
            let standing = self.seen.standing(&container.name);
            match standing {
                Standing::Created(_) | Standing::Running(_) | Standing::Unknown(_) => true,
                Standing::Ended { current, .. } => current,
                Standing::Absent | Standing::Stray(_) => false,
            }
        };
        let initialised = pod.spec.containers.iter().any(began);
        for container in &pod.spec.init_containers {
            let done = match container.role {
                Role::Sidecar => self.sidecar(container, sandbox),
                // After initialisation only sidecars matter.
                _ => initialised || self.init_container(container, sandbox),
            };
            if !done && !initialised {
                return false;
            }
        }
        true
    }

    /// Whether the next one may begin.
    fn sidecar(&mut self, container: &Container, sandbox: &SandboxId) -> bool {
        if !self.keep_running(container, sandbox) {
            return false;
        }
        let Standing::Running(running) = self.seen.standing(&container.name) else {
            return false;
        };
        // Busy with its post-start hook: not started yet.
        let busy = self.it.busy.containers.contains(&container.name);
        let probed = container.startup.is_none() || self.it.probes.get(&running.id, ProbeKind::Startup) == Some(true);
        probed && !busy
    }

    /// Whether it has run to a good end.
    fn init_container(&mut self, container: &Container, sandbox: &SandboxId) -> bool {
        match self.seen.standing(&container.name) {
            Standing::Ended { ending, current: true } if ending.exit_code == 0 => return true,
            // Of an earlier sandbox: all begins anew.
            Standing::Ended { ending, current: false } if ending.exit_code == 0 => {
                self.start(&container.name, sandbox, None);
            }
            // Policy Never has been dealt with: the pod has finished.
            Standing::Ended { ending, .. } => self.restart_after_backoff(&container.name, sandbox, &ending),
            _ => {
                self.keep_running(container, sandbox);
            }
        }
        false
    }
}
