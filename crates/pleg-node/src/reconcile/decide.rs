//! What to do next about a pod. Pure: desired, observed, history and probe results go in; actions and the time of the next decision come
//! out.
//!
//! Each decision is made on a fresh status, after every action, so it only says what can be done *now*: a container is killed in one
//! decision and started in a later one, once its exit is observed. The actions of one decision are about different objects and may run in
//! parallel; objects of actions in flight are left alone.
//!
//! | situation | decision |
//! |---|---|
//! | no usable sandbox | kill what runs, stop the old sandbox, create a new one; unless nothing would be started in it |
//! | init containers left | start the next one; sidecars in order, each once those before it have started |
//! | an ephemeral container has never run | start it, whatever the others do |
//! | a container is not running | start it if the restart policy says so, after its back-off |
//! | main containers are to be started | one after the other: each waits for the post-start hook of the one before |
//! | a container failed its liveness or startup probe, or its post-start hook | kill it |
//! | the resources of a running container changed in its pod | resize it, or kill it if its policy wants a restart |
//! | two containers of one name, or one in an old sandbox | kill the older one |
//! | exited attempts beyond the last two, sandboxes before the last two | remove them |
//! | all containers exited and none is restarted, or past the deadline | kill sidecars, stop the sandbox: finished |
//! | the sandbox was lost before all containers began, and the policy is `Never` | failed |
//! | no longer desired | run all pre-stop hooks, kill containers, then sidecars in reverse order; remove the sandboxes |

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use pleg::{ContainerId, ContainerState, PodStatus, SandboxState, SandboxStatus};

use super::action::{Action, InFlight, KillReason};
use super::backoff::later;
use super::history::{PodFailure, PodHistory};
use super::observed::{ObservedContainer, ObservedPod};
use super::restart::should_restart;
use crate::manifest::{Container, Pod, RestartPolicy, Role};
use crate::probes::ProbeResults;

/// Attempts that are kept of a container: the newest, and the one before it.
const KEPT_ATTEMPTS: usize = 2;
/// Most containers of one pod that are removed at once. Nothing waits for removals.
const MAX_REMOVALS: usize = 4;

/// What is desired of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// It runs, as its manifest says.
    Run,
    /// It terminates, and leaves nothing behind.
    Terminate {
        /// Since when.
        since: Timestamp,
        /// Its grace period.
        grace: Duration,
    },
}

impl Goal {
    /// It is to end.
    pub fn is_terminating(&self) -> bool {
        matches!(self, Self::Terminate { .. })
    }
}

/// Everything that a decision depends on.
#[derive(Debug, Clone, Copy)]
pub struct DecisionInput<'a> {
    /// The manifest.
    pub pod: &'a Pod,
    /// What is desired.
    pub goal: Goal,
    /// What the runtime shows. Must be newer than the last completed action.
    pub status: &'a PodStatus,
    /// The history, with `status` recorded in it: [`PodHistory::observe`].
    pub history: &'a PodHistory,
    /// Probe results.
    pub probes: &'a ProbeResults,
    /// Actions that are not done yet.
    pub in_flight: &'a InFlight,
    /// The time, by the wall clock.
    pub now: Timestamp,
}

/// Where a pod is in its life.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Stage {
    /// It runs, or starts.
    #[default]
    Running,
    /// It ran, and none of its containers is started again.
    Finished,
    /// Its containers are being stopped, because it is no longer desired.
    Terminating,
    /// Nothing of it is left in the runtime.
    Terminated,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// What to do now, in any order.
    pub actions: Vec<Action>,
    /// When to decide again, if nothing else happens before.
    pub next_at: Option<Timestamp>,
    /// Containers in back-off, and until when.
    pub backing_off: BTreeMap<String, Timestamp>,
    /// Where the pod is in its life.
    pub stage: Stage,
    /// Set if the pod failed as a whole just now.
    pub failed: Option<PodFailure>,
}

/// Decides what to do about a pod.
pub fn decide(input: &DecisionInput<'_>) -> Decision {
    let mut decider = Decider {
        input: *input,
        observed: ObservedPod {
            pod: input.pod,
            status: input.status,
            history: input.history,
        },
        decision: Decision::default(),
        starts_held: false,
    };
    match input.goal {
        _ if input.in_flight.sandbox => decider.decision.stage = decider.stage_while_sandbox_in_flight(),
        Goal::Terminate { since, grace } => decider.terminate(since, grace),
        Goal::Run => decider.run(),
    }
    decider.decision
}

/// A decision in the making. Its steps are here, in `restart`, `init_containers`,
/// `ephemeral_containers` and `terminate`.
pub(super) struct Decider<'a> {
    pub(super) input: DecisionInput<'a>,
    pub(super) observed: ObservedPod<'a>,
    pub(super) decision: Decision,
    /// A main container is being started: those after it wait.
    pub(super) starts_held: bool,
}

impl Decider<'_> {
    fn run(&mut self) {
        self.kill_duplicates();
        self.remove_exited();
        if self.is_over() {
            return self.finish();
        }
        let Some(sandbox) = self.observed.usable_sandbox() else {
            return self.replace_sandbox();
        };
        for old in self.observed.sandboxes().into_iter().skip(1) {
            if old.state == SandboxState::Ready {
                self.act(Action::StopSandbox(old.id.clone()));
            }
        }
        self.remove_old_sandbox();
        self.start_ephemeral_containers(&sandbox.id);
        if self.initialise(&sandbox.id) {
            for container in &self.input.pod.spec.containers {
                self.keep_running(container, &sandbox.id);
                self.starts_held |= self.is_starting(&container.name);
            }
        }
    }

    /// Whether a container is being started, or about to be.
    fn is_starting(&self, name: &str) -> bool {
        let mut decided = self.decision.actions.iter();
        self.input.in_flight.starts.contains(name)
            || decided.any(|action| matches!(action, Action::Start { name: other, .. } if other == name))
    }

    /// Whether none of its containers is started any more. Says so if the pod has failed as a whole just now.
    fn is_over(&mut self) -> bool {
        if self.input.history.failed.is_some() || self.input.pod.is_over_in_api() {
            return true;
        }
        if !self.is_finished() {
            return self.is_past_deadline();
        }
        if !self.init_failed()
            && self.lost_its_sandbox()
            && self.input.pod.spec.containers.iter().any(|c| self.never_began(c))
        {
            self.decision.failed = Some(PodFailure {
                reason: "SandboxLost".to_owned(),
                message: "The sandbox was lost before all containers had started, and restartPolicy is Never"
                    .to_owned(),
            });
        }
        true
    }

    fn stage_while_sandbox_in_flight(&self) -> Stage {
        match self.input.goal {
            Goal::Terminate { .. } => Stage::Terminating,
            Goal::Run
                if self.input.history.failed.is_some() || self.input.pod.is_over_in_api() || self.is_finished() =>
            {
                Stage::Finished
            }
            Goal::Run => Stage::Running,
        }
    }

    /// Adds an action, unless another one is about the same container.
    pub(super) fn act(&mut self, action: Action) {
        let is_taken = |name: &str| {
            let mut decided = self.decision.actions.iter().filter_map(Action::container);
            self.input.in_flight.containers.contains(name) || decided.any(|other| other == name)
        };
        if !action.container().is_some_and(is_taken) {
            self.decision.actions.push(action);
        }
    }

    /// Decides again at that time at the latest.
    pub(super) fn wait_until(&mut self, at: Timestamp) {
        let next = &mut self.decision.next_at;
        *next = Some(next.map_or(at, |next| next.min(at)));
    }

    pub(super) fn kill(&mut self, id: &ContainerId, name: &str, reason: KillReason) {
        let spec = &self.input.pod.spec;
        let probe = match reason {
            KillReason::Probe(kind) => spec.container(name).and_then(|container| container.probe(kind)),
            _ => None,
        };
        let grace = probe
            .and_then(|probe| probe.termination_grace)
            .unwrap_or(spec.termination_grace);
        self.act(Action::Kill {
            id: id.clone(),
            name: name.to_owned(),
            grace,
            pre_stop: self.has_pre_stop(id, name),
            reason,
        });
    }

    /// No container runs twice: of several attempts only the newest may run.
    fn kill_duplicates(&mut self) {
        for container in &self.input.status.containers {
            let newest = self.observed.newest(&container.name);
            let is_older = newest.is_some_and(|newest| newest.id != container.id);
            if is_older && container.state == ContainerState::Running {
                self.kill(&container.id, &container.name, KillReason::Duplicate);
            }
        }
    }

    /// Removes exited containers, except the attempts that a pod status shows: the newest, and the last exited one before it.
    fn remove_exited(&mut self) {
        let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
        let mut newest_first: Vec<_> = self.input.status.containers.iter().collect();
        newest_first.sort_by_key(|container| std::cmp::Reverse((container.attempt, container.created_at)));
        let mut surplus = Vec::new();
        for container in newest_first {
            let kept = kept.entry(&container.name).or_default();
            if *kept >= KEPT_ATTEMPTS && container.state == ContainerState::Exited {
                surplus.push(container);
            } else {
                *kept += 1;
            }
        }
        surplus.retain(|container| !self.input.in_flight.removals.contains(&container.id));
        let room = MAX_REMOVALS.saturating_sub(self.input.in_flight.removals.len());
        for container in surplus.into_iter().take(room) {
            self.act(Action::RemoveContainer {
                id: container.id.clone(),
                name: container.name.to_string(),
                attempt: container.attempt,
            });
        }
    }

    /// Removes old sandboxes, one at a time. The newest stays, and the one before it, whose containers a pod status may show.
    fn remove_old_sandbox(&mut self) {
        let old = self.observed.sandboxes().into_iter().skip(2);
        let oldest = old.rev().find(|old| old.state != SandboxState::Ready);
        if let (Some(oldest), true) = (oldest, self.input.in_flight.old_sandboxes.is_empty()) {
            self.act(Action::RemoveOldSandbox(oldest.id.clone()));
        }
    }

    /// Whether the pod has run past its `activeDeadlineSeconds`. If not, decides again at the deadline.
    fn is_past_deadline(&mut self) -> bool {
        let (Some(deadline), Some(started)) = (self.input.pod.spec.active_deadline, self.input.history.started_at)
        else {
            return false;
        };
        let end = later(started, deadline);
        if end > self.input.now {
            self.wait_until(end);
            return false;
        }
        self.decision.failed = Some(PodFailure {
            reason: "DeadlineExceeded".to_owned(),
            message: "Pod was active on the node longer than the specified deadline".to_owned(),
        });
        true
    }

    /// Whether no container will be started again: all exits are final, or an init container has failed for good.
    fn is_finished(&self) -> bool {
        let spec = &self.input.pod.spec;
        let is_final = |container: &Container| match self.observed.container(&container.name) {
            ObservedContainer::Exited { exit, .. } => !should_restart(&self.observed, container, &exit),
            _ => false,
        };
        if spec.containers.iter().all(is_final) {
            return true;
        }
        self.init_failed() || self.lost_its_sandbox()
    }

    /// Whether an init container has failed that is not restarted.
    fn init_failed(&self) -> bool {
        let spec = &self.input.pod.spec;
        let failed = |container: &Container| {
            let observed = self.observed.container(&container.name);
            container.role == Role::Init
                && matches!(observed, ObservedContainer::Exited { exit, .. }
                    if exit.exit_code != 0 && !spec.restarts(container, exit.exit_code))
        };
        spec.init_containers.iter().any(failed)
    }

    /// With policy `Never`, a sandbox is not replaced once a container was started in it, unless one of them has another policy. Creating
    /// one does not count.
    fn lost_its_sandbox(&self) -> bool {
        let spec = &self.input.pod.spec;
        spec.restart_policy == RestartPolicy::Never
            && spec.containers.iter().all(|container| spec.never_restarts(container))
            && self.observed.usable_sandbox().is_none()
            && spec.all_containers().any(|container| !self.never_began(container))
    }

    fn never_began(&self, container: &Container) -> bool {
        let observed = self.observed.container(&container.name);
        matches!(observed, ObservedContainer::Absent | ObservedContainer::Created(_))
    }

    fn replace_sandbox(&mut self) {
        let mut any_runs = false;
        for container in &self.input.status.containers {
            if matches!(container.state, ContainerState::Running | ContainerState::Unknown) {
                self.kill(&container.id, &container.name, KillReason::SandboxUnusable);
                any_runs = true;
            }
        }
        if any_runs || !self.input.in_flight.containers.is_empty() {
            return;
        }
        if let Some(failure) = &self.input.history.sandbox_failure {
            let until = failure.until(self.input.now);
            if until > self.input.now {
                return self.wait_until(until);
            }
        }
        let all = self.observed.sandboxes();
        // Sandboxes before the newest were replaced earlier; one that is ready nevertheless has to be stopped.
        let is_replaced = |(n, sandbox): &(usize, &SandboxStatus)| *n == 0 || sandbox.state == SandboxState::Ready;
        let replaces = all.iter().copied().enumerate().filter(is_replaced);
        self.act(Action::RunSandbox {
            attempt: all.first().map_or(0, |sandbox| sandbox.attempt.saturating_add(1)),
            replaces: replaces.map(|(_, sandbox)| sandbox.id.clone()).collect(),
        });
    }
}

#[cfg(test)]
mod tests;
