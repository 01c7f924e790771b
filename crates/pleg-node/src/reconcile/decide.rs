//! What to do next about a pod. Pure: what is wanted, seen, remembered and probed goes in; actions, and until when to wait, come out.
//!
//! A decision is made anew from a fresh status after every action, so it only ever says what can be done *now*: a container is killed
//! in one decision and started in a later one, once it is seen to have ended. Actions of one decision are about different containers
//! and may be done at once; whatever is busy with an earlier action is left out.
//!
//! | situation | decision |
//! |---|---|
//! | no usable sandbox | kill what runs, stop the old one, make a new one; not if nothing would be started in it |
//! | init containers to run | the next one; sidecars in their turn, once those before them have started |
//! | a container that is not running | start it if the policy says so, after its back-off |
//! | a container that failed its liveness or startup probe | kill it |
//! | two containers of one name, or one in an old sandbox | kill the older one |
//! | ended attempts beyond the last two, sandboxes before the last two | remove them |
//! | all ended and none to restart, or past its deadline | kill sidecars, stop the sandbox: finished |
//! | it shall end | kill containers, then sidecars, last first; stop and remove the sandboxes |

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use pleg::{ContainerId, ContainerState, PodStatus, SandboxId, SandboxState, SandboxStatus};

use crate::manifest::{Container, Pod, ProbeKind, RestartPolicy, Role};
use crate::probes::Results;
use crate::reconcile::history::{BackOff, Ending, PodFailure, PodHistory, later};
use crate::reconcile::observed::{Observed, Standing};

/// Attempts of a container that are kept: what it does, and how the one before ended.
const KEPT_ATTEMPTS: usize = 2;
/// Removals of one pod at once: nobody waits for them.
const MOST_REMOVALS: usize = 4;

/// Something to do through the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Make a sandbox; before that stop those it replaces, which frees their network.
    RunSandbox {
        /// Its number.
        attempt: u32,
        /// The old ones.
        replaces: Vec<SandboxId>,
    },
    /// Stop a sandbox that is no longer needed.
    StopSandbox(SandboxId),
    /// Stop a sandbox and remove it, with its containers.
    RemoveSandbox(SandboxId),
    /// Remove a sandbox that was replaced long ago. Nobody waits for it.
    RemoveOldSandbox(SandboxId),
    /// Remove a container that has ended, with its log.
    RemoveContainer {
        /// Which.
        id: ContainerId,
        /// Its name.
        name: String,
        /// Its number.
        attempt: u32,
    },
    /// Start a container: fetch its image, make it, start it, run its post-start hook.
    Start {
        /// Its name.
        name: String,
        /// Its number.
        attempt: u32,
        /// In which sandbox.
        sandbox: SandboxId,
        /// It was made already, and only has to be started.
        made: Option<ContainerId>,
    },
    /// Stop a container: run its pre-stop hook, then end it within its grace period.
    Kill {
        /// Which.
        id: ContainerId,
        /// Its name.
        name: String,
        /// How long it may take.
        grace: Duration,
        /// Why.
        why: Why,
    },
}

impl Action {
    /// The container that nothing else may be done about meanwhile; none where it is the sandbox, or one that has ended.
    pub fn container(&self) -> Option<&str> {
        match self {
            Self::Start { name, .. } | Self::Kill { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// Why a container is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It failed a probe.
    Probe(ProbeKind),
    /// Its sandbox is not usable any more.
    Sandbox,
    /// Another of its name is newer.
    Double,
    /// The runtime cannot tell whether it runs.
    Unknown,
    /// The pod has finished without it.
    Finished,
    /// The pod shall end.
    End,
}

impl std::fmt::Display for Why {
    /// As in "because …".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Probe(kind) => write!(f, "its {} probe failed", kind.name()),
            Self::Sandbox => f.write_str("its sandbox cannot be used any more"),
            Self::Double => f.write_str("there is a newer one of its name"),
            Self::Unknown => f.write_str("the runtime does not know whether it runs"),
            Self::Finished => f.write_str("the pod has finished"),
            Self::End => f.write_str("the pod is to end"),
        }
    }
}

impl Why {
    /// The container is to run on, as its next attempt. By the others it has ended for good.
    pub fn replaces(self) -> bool {
        match self {
            Self::Probe(_) | Self::Sandbox | Self::Unknown | Self::Double => true,
            Self::Finished | Self::End => false,
        }
    }
}

/// What is wanted of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// It shall run, as its manifest says.
    Run,
    /// It shall end, and leave nothing behind.
    End {
        /// Since when.
        since: Timestamp,
        /// How long it may take.
        grace: Duration,
    },
}

/// What is being done about a pod at the moment.
#[derive(Debug, Clone, Default)]
pub struct Busy {
    /// Something about its sandbox: nothing else can be decided.
    pub sandbox: bool,
    /// Something about these containers.
    pub containers: BTreeSet<String>,
    /// These are being removed.
    pub removals: BTreeSet<ContainerId>,
    /// And these, which were replaced long ago.
    pub old_sandboxes: BTreeSet<SandboxId>,
}

/// All that a decision depends on.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The manifest.
    pub pod: &'a Pod,
    /// What is wanted.
    pub goal: Goal,
    /// What the runtime shows. Has to be newer than the last action that was completed.
    pub status: &'a PodStatus,
    /// What is remembered; has learnt from `status`.
    pub memory: &'a PodHistory,
    /// What probes found.
    pub probes: &'a Results,
    /// What is being done.
    pub busy: &'a Busy,
    /// The time, by the wall clock.
    pub now: Timestamp,
}

/// Where a pod is on its way.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Stage {
    /// It runs, or is to.
    #[default]
    Running,
    /// It ran, and nothing of it will be started again.
    Finished,
    /// It is about to end.
    Ending,
    /// It has ended, and nothing of it is left.
    Gone,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// Now, in any order.
    pub actions: Vec<Action>,
    /// Decide again then, if nothing else happens before.
    pub until: Option<Timestamp>,
    /// Containers that wait before they are started again, and until when.
    pub held: BTreeMap<String, Timestamp>,
    /// Where the pod is.
    pub stage: Stage,
    /// The pod failed as a whole, just now.
    pub failed: Option<PodFailure>,
}

/// Decides.
pub fn decide(situation: &Situation<'_>) -> Decision {
    let mut step = Step {
        it: *situation,
        seen: Observed {
            pod: situation.pod,
            status: situation.status,
            memory: situation.memory,
        },
        decision: Decision::default(),
    };
    if situation.busy.sandbox {
        step.decision.stage = match situation.goal {
            Goal::End { .. } => Stage::Ending,
            Goal::Run if situation.memory.failed.is_some() || step.is_finished() => Stage::Finished,
            Goal::Run => Stage::Running,
        };
        return step.decision;
    }
    match situation.goal {
        Goal::End { since, grace } => step.end(since, grace),
        Goal::Run => step.run(),
    }
    step.decision
}

/// A decision that is being made.
pub(super) struct Step<'a> {
    pub(super) it: Situation<'a>,
    pub(super) seen: Observed<'a>,
    pub(super) decision: Decision,
}

impl Step<'_> {
    fn run(&mut self) {
        self.kill_doubles();
        self.remove_dead();
        if self.it.memory.failed.is_some() || self.is_finished() || self.is_past_deadline() {
            return self.finish();
        }
        let Some(sandbox) = self.seen.usable_sandbox() else {
            return self.replace_sandbox();
        };
        for old in self.seen.sandboxes().into_iter().skip(1) {
            if old.state == SandboxState::Ready {
                self.act(Action::StopSandbox(old.id.clone()));
            }
        }
        self.remove_old_sandbox();
        if self.init(&sandbox.id) {
            for container in &self.it.pod.spec.containers {
                self.keep_running(container, &sandbox.id);
            }
        }
    }

    pub(super) fn act(&mut self, action: Action) {
        let taken = |name: &str| {
            let others = self.decision.actions.iter().filter_map(Action::container);
            self.it.busy.containers.contains(name) || others.into_iter().any(|other| other == name)
        };
        if !action.container().is_some_and(taken) {
            self.decision.actions.push(action);
        }
    }

    /// Not before `at`.
    fn wait(&mut self, at: Timestamp) {
        let until = &mut self.decision.until;
        *until = Some(until.map_or(at, |until| until.min(at)));
    }

    fn kill(&mut self, id: &ContainerId, name: &str, why: Why) {
        let spec = &self.it.pod.spec;
        let probe = match why {
            Why::Probe(kind) => spec.container(name).and_then(|container| container.probe(kind)),
            _ => None,
        };
        let grace = probe
            .and_then(|probe| probe.termination_grace)
            .unwrap_or(spec.termination_grace);
        self.act(Action::Kill {
            id: id.clone(),
            name: name.to_owned(),
            grace,
            why,
        });
    }

    /// Nothing ever runs twice: of several attempts only the newest may.
    fn kill_doubles(&mut self) {
        for container in &self.it.status.containers {
            let newest = self.seen.newest(&container.name);
            let double = newest.is_some_and(|newest| newest.id != container.id);
            if double && container.state == ContainerState::Running {
                self.kill(&container.id, &container.name, Why::Double);
            }
        }
    }

    /// Of each container the newest attempt stays, and the last one that ended before it: those that a status tells of.
    fn remove_dead(&mut self) {
        let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
        let mut newest_first: Vec<_> = self.it.status.containers.iter().collect();
        newest_first.sort_by_key(|container| std::cmp::Reverse((container.attempt, container.created_at)));
        let mut dead = Vec::new();
        for container in newest_first {
            let kept = kept.entry(&container.name).or_default();
            if *kept >= KEPT_ATTEMPTS && container.state == ContainerState::Exited {
                dead.push(container);
            } else {
                *kept += 1;
            }
        }
        dead.retain(|container| !self.it.busy.removals.contains(&container.id));
        let room = MOST_REMOVALS.saturating_sub(self.it.busy.removals.len());
        for container in dead.into_iter().take(room) {
            self.act(Action::RemoveContainer {
                id: container.id.clone(),
                name: container.name.to_string(),
                attempt: container.attempt,
            });
        }
    }

    /// The newest sandbox stays, and the one before it, whose containers a status tells of. One of the others at a time: nobody waits.
    fn remove_old_sandbox(&mut self) {
        let old = self.seen.sandboxes().into_iter().skip(2);
        let oldest = old.rev().find(|old| old.state != SandboxState::Ready);
        if let (Some(oldest), true) = (oldest, self.it.busy.old_sandboxes.is_empty()) {
            self.act(Action::RemoveOldSandbox(oldest.id.clone()));
        }
    }

    /// Whether it has run for longer than it may. If not, decides again when it will have.
    fn is_past_deadline(&mut self) -> bool {
        let (Some(deadline), Some(started)) = (self.it.pod.spec.active_deadline, self.it.memory.started_at) else {
            return false;
        };
        let end = later(started, deadline);
        if end > self.it.now {
            self.wait(end);
            return false;
        }
        self.decision.failed = Some(PodFailure {
            reason: "DeadlineExceeded".to_owned(),
            message: "Pod was active on the node longer than the specified deadline".to_owned(),
        });
        true
    }

    /// Whether nothing of it will be started again: every container has ended for good, or an init container has failed for good.
    fn is_finished(&self) -> bool {
        let spec = &self.it.pod.spec;
        let ended_for_good = |container: &Container| match self.seen.standing(&container.name) {
            Standing::Ended { ending, .. } => !self.seen.should_restart(container, &ending),
            _ => false,
        };
        if spec.containers.iter().all(ended_for_good) {
            return true;
        }
        if spec.restart_policy != RestartPolicy::Never {
            return false;
        }
        let failed = |container: &Container| {
            let standing = self.seen.standing(&container.name);
            container.role == Role::Init && matches!(standing, Standing::Ended { ending, .. } if ending.exit_code != 0)
        };
        spec.init_containers.iter().any(failed) || self.lost_its_sandbox()
    }

    /// With `Never`, a sandbox is not replaced once something ran in it. What was only made did not.
    fn lost_its_sandbox(&self) -> bool {
        let began = |container: &Container| {
            let standing = self.seen.standing(&container.name);
            !matches!(standing, Standing::Absent | Standing::Created(_))
        };
        self.seen.usable_sandbox().is_none() && self.it.pod.spec.all_containers().any(began)
    }

    fn replace_sandbox(&mut self) {
        let mut runs = false;
        for container in &self.it.status.containers {
            if matches!(container.state, ContainerState::Running | ContainerState::Unknown) {
                self.kill(&container.id, &container.name, Why::Sandbox);
                runs = true;
            }
        }
        if runs || !self.it.busy.containers.is_empty() {
            return;
        }
        if let Some(failure) = &self.it.memory.sandbox_failure {
            let until = failure.until(self.it.now);
            if until > self.it.now {
                return self.wait(until);
            }
        }
        let all = self.seen.sandboxes();
        // One before the newest was replaced before; if it is ready all the same, it has to go.
        let replaced = |(n, sandbox): &(usize, &SandboxStatus)| *n == 0 || sandbox.state == SandboxState::Ready;
        let replaces = all.iter().copied().enumerate().filter(replaced);
        self.act(Action::RunSandbox {
            attempt: all.first().map_or(0, |sandbox| sandbox.attempt.saturating_add(1)),
            replaces: replaces.map(|(_, sandbox)| sandbox.id.clone()).collect(),
        });
    }

    /// Keeps a container or a sidecar running. Returns whether it is.
    pub(super) fn keep_running(&mut self, container: &Container, sandbox: &SandboxId) -> bool {
        let name = &container.name;
        match self.seen.standing(name) {
            Standing::Running(running) => {
                for kind in [ProbeKind::Startup, ProbeKind::Liveness] {
                    if container.probe(kind).is_some() && self.it.probes.get(&running.id, kind) == Some(false) {
                        self.kill(&running.id, name, Why::Probe(kind));
                        return false;
                    }
                }
                return true;
            }
            Standing::Stray(stray) => self.kill(&stray.id, name, Why::Sandbox),
            Standing::Unknown(unknown) => self.kill(&unknown.id, name, Why::Unknown),
            Standing::Absent => self.start(name, sandbox, None),
            Standing::Created(made) => self.start(name, sandbox, Some(made.id.clone())),
            Standing::Ended { ending, .. } if self.seen.should_restart(container, &ending) => {
                self.restart_after_backoff(name, sandbox, &ending);
            }
            Standing::Ended { .. } => {}
        }
        false
    }

    /// Starts a container that ended, when its back-off is over.
    pub(super) fn restart_after_backoff(&mut self, name: &str, sandbox: &SandboxId, ending: &Ending) {
        let back_off = self
            .it
            .memory
            .container(name)
            .and_then(|memory| memory.back_off.as_ref());
        let ended = ending.ended_at(self.it.now);
        match BackOff::until(back_off, ended, self.it.now) {
            Some(until) => {
                self.decision.held.insert(name.to_owned(), until);
                self.wait(until);
            }
            None => self.start(name, sandbox, None),
        }
    }

    /// Starts a container, unless that failed a moment ago.
    pub(super) fn start(&mut self, name: &str, sandbox: &SandboxId, made: Option<ContainerId>) {
        let failure = self
            .it
            .memory
            .container(name)
            .and_then(|memory| memory.failure.as_ref());
        if let Some(failure) = failure {
            let until = failure.until(self.it.now);
            if until > self.it.now {
                return self.wait(until);
            }
        }
        let attempt = match &made {
            // What is there has its number already.
            Some(_) => self.seen.newest(name).map_or(0, |container| container.attempt),
            None => self.seen.next_attempt(name),
        };
        self.act(Action::Start {
            name: name.to_owned(),
            attempt,
            sandbox: sandbox.clone(),
            made,
        });
    }
}
