//! Why the generator is not healthy: makes a cause of everything that fails, waits too long or does not answer.

use std::time::Duration;

use pleg_cri::{Call, Rpc};
use tokio::time::Instant;

use super::SLOW_CALL;
use super::cause::{Cause, Seen, Stage, Who, of_list};
use super::diagnosis::Trouble;
use super::state::{HealthState, Quarantined};

/// A call of the generator itself. Others share the table: a pull or a stop may take its minutes, a stream is meant to last.
pub(super) fn is_generator_rpc(rpc: Rpc) -> bool {
    match rpc {
        Rpc::Version
        | Rpc::ListPodSandbox
        | Rpc::StreamPodSandboxes
        | Rpc::ListContainers
        | Rpc::StreamContainers
        | Rpc::PodSandboxStatus
        | Rpc::ContainerStatus => true,
        Rpc::Status
        | Rpc::RuntimeConfig
        | Rpc::RunPodSandbox
        | Rpc::StopPodSandbox
        | Rpc::RemovePodSandbox
        | Rpc::CreateContainer
        | Rpc::StartContainer
        | Rpc::StopContainer
        | Rpc::RemoveContainer
        | Rpc::UpdateContainerResources
        | Rpc::ReopenContainerLog
        | Rpc::ExecSync
        | Rpc::Exec
        | Rpc::Attach
        | Rpc::PortForward
        | Rpc::ContainerStats
        | Rpc::ListContainerStats
        | Rpc::PodSandboxStats
        | Rpc::ListPodSandboxStats
        | Rpc::UpdateRuntimeConfig
        | Rpc::GetContainerEvents
        | Rpc::ListImages
        | Rpc::ImageStatus
        | Rpc::PullImage
        | Rpc::RemoveImage
        | Rpc::ImageFsInfo => false,
    }
}

/// The causes, with what they are found from.
struct Causes<'a> {
    state: &'a HealthState,
    now: Instant,
    endpoint: Option<&'a str>,
    /// Others answer while a list does not: it is not the runtime as a whole.
    others_answer: bool,
    found: Vec<Cause>,
}

/// Every cause there is. `calls`: those in flight.
pub(super) fn collect(state: &HealthState, calls: Vec<Call>, now: Instant, endpoint: Option<&str>) -> Vec<Cause> {
    let mut causes = Causes {
        state,
        now,
        endpoint,
        others_answer: false,
        found: Vec::new(),
    };
    let waits = |rpcs: [Rpc; 2]| {
        calls
            .iter()
            .any(|call| rpcs.contains(&call.rpc) && causes.age(call.since) >= causes.patience(true))
    };
    let sandboxes_wait = waits([Rpc::ListPodSandbox, Rpc::StreamPodSandboxes]);
    causes.others_answer =
        state.others_answer || !sandboxes_wait && waits([Rpc::ListContainers, Rpc::StreamContainers]);
    causes.failed_list();
    for call in calls {
        causes.late_call(call);
    }
    causes.suspects();
    causes.quarantined();
    causes.hung_shims();
    causes.stuck_containers();
    causes.disagreements();
    causes.stream();
    causes.found
}

impl Causes<'_> {
    fn age(&self, since: Instant) -> Duration {
        self.now.saturating_duration_since(since)
    }

    /// How long a call may take. For a list, that depends on what lists take on this node.
    fn patience(&self, list: bool) -> Duration {
        if list {
            SLOW_CALL.max(self.state.list_patience)
        } else {
            SLOW_CALL
        }
    }

    /// Full relists fail.
    fn failed_list(&mut self) {
        let Some(failure) = &self.state.failure else { return };
        let seen = Seen {
            stage: Stage::List,
            trouble: of_list(&failure.error, self.others_answer || failure.other_list_ok),
            rpc: failure.error.rpc.name().into(),
            who: Who::default(),
            age: self.age(failure.since),
        };
        let error = failure.error.to_string().into();
        self.found.push(seen.failed(&error, failure.attempts, self.endpoint));
    }

    /// A call that is still in flight has no error yet: its age is the cause, unless what it is about is one already.
    fn late_call(&mut self, call: Call) {
        let (waiting, list) = (self.age(call.since), call.subject.id.is_none());
        if waiting < self.patience(list) || !is_generator_rpc(call.rpc) || self.is_known(&call) {
            return;
        }
        let seen = Seen {
            stage: if list { Stage::List } else { Stage::Inspect },
            trouble: match list {
                true if self.others_answer => Trouble::LockedContainer,
                true => Trouble::RuntimeStuck,
                false => Trouble::StuckInspection,
            },
            rpc: call.rpc.name().into(),
            who: Who {
                pod: call.subject.pod,
                container: call.subject.container,
                id: call.subject.id,
                ..Who::default()
            },
            age: waiting,
        };
        self.found.push(seen.waiting(self.endpoint));
    }

    /// What the call is about is a cause already, or will be.
    fn is_known(&self, call: &Call) -> bool {
        let (id, rpc) = (&call.subject.id, call.rpc.name());
        let state = self.state;
        self.found.iter().any(|cause| cause.who.id == *id && cause.rpc == rpc)
            || state
                .quarantine
                .values()
                .any(|held| held.error.id == *id && held.error.rpc == rpc)
            || state.suspects.iter().any(|(who, _)| who.id.is_some() && who.id == *id)
            || state.stuck.has(id.as_ref())
    }

    /// Objects that do not answer by id while a list hangs: the first is named by the list's own cause, the others by theirs.
    fn suspects(&mut self) {
        for (n, (who, since)) in self.state.suspects.iter().enumerate() {
            let mut shims = self.state.hung_shims.values();
            let hung = shims.find(|hung| Some(hung.pod.full_name()) == who.pod);
            let who = Who {
                shim: hung.and_then(|hung| hung.shim),
                ..who.clone()
            };
            let list = self
                .found
                .iter_mut()
                .find(|cause| cause.trouble == Trouble::LockedContainer);
            if let Some(list) = list.filter(|_| n == 0) {
                list.name(&who, &format!("; {who} does not answer by id either"), self.endpoint);
                continue;
            }
            let rpc = if who.container.is_some() {
                Rpc::ContainerStatus
            } else {
                Rpc::PodSandboxStatus
            };
            let seen = Seen {
                stage: Stage::List,
                trouble: Trouble::LockedContainer,
                rpc: rpc.name().into(),
                age: self.age(*since),
                who,
            };
            self.found.push(seen.waiting(self.endpoint));
        }
    }

    /// What is in quarantine.
    fn quarantined(&mut self) {
        for Quarantined { pod, object, error } in self.state.quarantine.values() {
            let hung = self.state.hung_shims.get(&pod.uid);
            let seen = Seen {
                stage: Stage::Inspect,
                trouble: hung.map_or(error.trouble, |_| Trouble::HungShim),
                rpc: error.rpc.clone(),
                who: Who {
                    pod: Some(pod.full_name()),
                    container: error.container.clone(),
                    id: error.id.clone(),
                    sandbox: error.sandbox.clone(),
                    shim: hung.and_then(|hung| hung.shim),
                    about: Some((pod.clone(), object.clone())),
                },
                age: self.age(error.since.instant()),
            };
            self.found
                .push(seen.failed(&error.message, error.attempts, self.endpoint));
        }
    }

    fn hung_shims(&mut self) {
        for hung in self.state.hung_shims.values() {
            let seen = Seen {
                stage: Stage::Probe,
                trouble: Trouble::HungShim,
                rpc: Rpc::PodSandboxStatus.name().into(),
                who: hung.who(),
                age: self.age(hung.since),
            };
            let text = format!("{} (for {})", hung.text(), seen.for_long());
            self.found.push(seen.say(text, self.endpoint));
        }
    }

    /// Containers that do not change, and whose status hangs; unless they are named already.
    fn stuck_containers(&mut self) {
        let named: Vec<_> = self.found.iter().filter_map(|cause| cause.who.id.clone()).collect();
        let is_named = |id: &str| named.iter().any(|named| &**named == id);
        let stuck = self.state.stuck.causes(self.now, self.endpoint, is_named);
        self.found.extend(stuck);
    }

    /// The kernel and the runtime disagree.
    fn disagreements(&mut self) {
        let disagreements = self.state.disagreements.values();
        let causes: Vec<_> = disagreements
            .map(|disagreement| disagreement.cause(self.now, self.endpoint))
            .collect();
        self.found.extend(causes);
    }

    /// The event stream is down, or lossy.
    fn stream(&mut self) {
        let seen = |trouble: Trouble, since: Instant| Seen {
            stage: Stage::Stream,
            trouble,
            rpc: Rpc::GetContainerEvents.name().into(),
            who: Who::default(),
            age: self.age(since),
        };
        let (seen, text) = if let Some((error, since)) = &self.state.stream_down {
            let seen = seen(Trouble::StreamDown, *since);
            let text = format!("no events from the runtime for {}: {error}", seen.for_long());
            (seen, text)
        } else if let Some(missed) = &self.state.stream_lossy {
            (seen(Trouble::LossyStream, missed.since), missed.text(self.now))
        } else {
            return;
        };
        self.found.push(seen.say(text, self.endpoint));
    }
}
