//! Decides about restarts: whether a container that is not running is started (restart policy), whether a running one is killed to be
//! restarted (probes), and that a start waits for its back-off. The delays themselves are in [`backoff`](super::backoff).

use pleg::{ContainerId, SandboxId};

use super::action::{Action, KillReason};
use super::backoff::BackOff;
use super::decide::Decider;
use super::history::Exit;
use super::observed::{ObservedContainer, ObservedPod};
use crate::manifest::{Container, ProbeKind, RestartPolicy};

/// Whether a container that exited like this is restarted: by the restart policy, or because it was killed to be replaced.
pub(crate) fn should_restart(observed: &ObservedPod<'_>, container: &Container, exit: &Exit) -> bool {
    let history = observed.history.container(&container.name);
    let replaced = history.is_some_and(|history| history.replaced == Some(exit.attempt));
    if history.is_some_and(|history| history.updated == Some(exit.attempt)) {
        return true;
    }
    let spec = &observed.pod.spec;
    spec.restarts(container, exit.exit_code)
        || (replaced && spec.restart_policy_of(container) == RestartPolicy::OnFailure)
}

impl Decider<'_> {
    /// Keeps a container or a sidecar running. Returns whether it is.
    pub(super) fn keep_running(&mut self, container: &Container, sandbox: &SandboxId) -> bool {
        let name = &container.name;
        match self.observed.container(name) {
            ObservedContainer::Running(running) => {
                let history = self.input.history.container(name);
                if history.is_some_and(|history| history.hook_failed(running.attempt)) {
                    self.kill(&running.id, name, KillReason::PostStartHook);
                    return false;
                }
                if history.is_some_and(|history| history.has_other_image(running.attempt, &container.image)) {
                    self.kill(&running.id, name, KillReason::ImageChanged);
                    return false;
                }
                if !self.resize(container, running) {
                    return false;
                }
                for kind in [ProbeKind::Startup, ProbeKind::Liveness] {
                    if container.probe(kind).is_some() && self.input.probes.get(&running.id, kind) == Some(false) {
                        self.kill(&running.id, name, KillReason::Probe(kind));
                        return false;
                    }
                }
                return true;
            }
            ObservedContainer::InOldSandbox(running) => self.kill(&running.id, name, KillReason::SandboxUnusable),
            ObservedContainer::Unknown(unknown) => self.kill(&unknown.id, name, KillReason::StateUnknown),
            ObservedContainer::Absent => self.start(name, sandbox, None),
            ObservedContainer::Created(created) => self.start(name, sandbox, Some(created.id.clone())),
            ObservedContainer::Exited { exit, .. } if should_restart(&self.observed, container, &exit) => {
                self.restart_after_backoff(name, sandbox, &exit);
            }
            ObservedContainer::Exited { .. } => {}
        }
        false
    }

    /// Restarts an exited container once its back-off is over.
    pub(super) fn restart_after_backoff(&mut self, name: &str, sandbox: &SandboxId, exit: &Exit) {
        let history = self.input.history.container(name);
        let back_off = history.and_then(|history| history.back_off.as_ref());
        let exited = exit.exited_at(self.input.now);
        match BackOff::until(back_off, exited, self.input.now) {
            Some(until) => {
                self.decision.backing_off.insert(name.to_owned(), until);
                self.wait_until(until);
            }
            None => self.start(name, sandbox, None),
        }
    }

    /// Starts a container, unless its last start failed a moment ago, or one before it is being started.
    pub(super) fn start(&mut self, name: &str, sandbox: &SandboxId, created: Option<ContainerId>) {
        if self.starts_held {
            return;
        }
        let history = self.input.history.container(name);
        if let Some(failure) = history.and_then(|history| history.failure.as_ref()) {
            let until = failure.until(self.input.now);
            if until > self.input.now {
                // Its status may have to change before.
                return self.wait_until(failure.changes_at(self.input.now).unwrap_or(until));
            }
        }
        let attempt = match &created {
            Some(_) => self.observed.newest(name).map_or(0, |container| container.attempt),
            None => self.observed.next_attempt(name),
        };
        self.act(Action::Start {
            name: name.to_owned(),
            attempt,
            sandbox: sandbox.clone(),
            created,
        });
    }
}
