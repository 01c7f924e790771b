//! A pod in a few words, as `kubectl get pods` would show it, from what a runtime knows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ContainerStatus, PodStatus};
use crate::model::{ContainerState, SandboxState};

/// A pod in a few words. Each container counts once, by its newest attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// What the pod is doing, in a word; see [`PodStatus::summary`].
    pub state: Box<str>,
    /// Containers that run.
    pub running: usize,
    /// Containers there are. A runtime does not know which of them are init containers, so those count too.
    pub total: usize,
    /// How often containers were started again.
    pub restarts: u64,
}

impl PodStatus {
    /// The pod in a few words.
    ///
    /// The state is that of the first of these that is so:
    ///
    /// | state | when |
    /// |---|---|
    /// | the runtime's reason, such as `OOMKilled` or `Error`; `ExitCode:N` without one | a container exited with another code than 0 |
    /// | `Unknown` | the runtime does not know what a container does |
    /// | `NotReady` | the sandbox is not ready, or there is none, though not all containers have exited |
    /// | `Created` | a container has not started |
    /// | `Running` | a container runs; all others have exited with 0 |
    /// | `Exited` | all containers have exited, one of them with a code that is not known yet |
    /// | `Completed` | all containers have exited with 0 |
    /// | `NoContainers` | there is a ready sandbox and nothing in it |
    ///
    /// `CrashLoopBackOff`, `Terminating`, `Pending` and readiness by probes are known to a kubelet only.
    pub fn summary(&self) -> Summary {
        let mut newest: BTreeMap<&str, &ContainerStatus> = BTreeMap::new();
        for container in &self.containers {
            let known = newest.entry(&container.name).or_insert(container);
            if (container.attempt, container.created_at) >= (known.attempt, known.created_at) {
                *known = container;
            }
        }
        let running = |container: &&&ContainerStatus| container.state == ContainerState::Running;
        Summary {
            state: self.state(&newest),
            running: newest.values().filter(running).count(),
            total: newest.len(),
            restarts: newest.values().map(|container| u64::from(container.attempt)).sum(),
        }
    }

    fn state(&self, newest: &BTreeMap<&str, &ContainerStatus>) -> Box<str> {
        // In the order of the status, oldest first: of several failures the first one is shown.
        let is_newest = |container: &&ContainerStatus| {
            let newest = newest.get(&*container.name);
            newest.is_some_and(|newest| std::ptr::eq(*newest, *container))
        };
        if let Some(word) = self.containers.iter().filter(is_newest).find_map(failure) {
            return word;
        }
        let any = |state: ContainerState| newest.values().any(|container| container.state == state);
        let sandbox_is_ready = self
            .sandboxes
            .first()
            .is_some_and(|sandbox| sandbox.state == SandboxState::Ready);
        let all_exited = newest
            .values()
            .all(|container| container.state == ContainerState::Exited);
        let word = match () {
            () if any(ContainerState::Unknown) => "Unknown",
            () if !sandbox_is_ready && (newest.is_empty() || !all_exited) => "NotReady",
            () if newest.is_empty() => "NoContainers",
            () if any(ContainerState::Created) => "Created",
            () if any(ContainerState::Running) => "Running",
            () if newest.values().any(|container| container.exit_code.is_none()) => "Exited",
            () => "Completed",
        };
        word.into()
    }
}

/// How a container failed, in a word; none if it has not.
fn failure(container: &ContainerStatus) -> Option<Box<str>> {
    let code = container.exit_code.filter(|code| *code != 0);
    match (container.state, code) {
        (ContainerState::Exited, Some(_)) if !container.reason.is_empty() => Some((*container.reason).into()),
        (ContainerState::Exited, Some(code)) => Some(format!("ExitCode:{code}").into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::SandboxStatus;
    use super::*;
    use crate::model::{ContainerRef, PodRef};

    fn container(name: &str, attempt: u32, state: ContainerState, exit: Option<(i32, &str)>) -> ContainerStatus {
        let container = ContainerRef {
            id: format!("{name}-{attempt}").as_str().into(),
            name: name.into(),
            attempt,
        };
        ContainerStatus {
            exit_code: exit.map(|(code, _)| code),
            reason: exit.map_or("", |(_, reason)| reason).into(),
            ..ContainerStatus::listed(&container, state, 1)
        }
    }

    #[test]
    fn a_pod_in_a_word() {
        use ContainerState::{Created, Exited, Running, Unknown};
        let up = |name| container(name, 0, Running, None);
        let ended = |name, code, reason| container(name, 0, Exited, Some((code, reason)));
        let (ready, not_ready) = (Some(SandboxState::Ready), Some(SandboxState::NotReady));
        for (sandbox, containers, state, running, restarts) in [
            (ready, vec![up("a"), up("b")], "Running", 2, 0),
            (ready, vec![ended("a", 0, "Completed"), up("b")], "Running", 1, 0),
            (ready, vec![ended("a", 137, "OOMKilled"), up("b")], "OOMKilled", 1, 0),
            (
                ready,
                vec![ended("a", 3, "Error"), ended("b", 137, "OOMKilled")],
                "Error",
                0,
                0,
            ),
            (ready, vec![ended("a", 3, "")], "ExitCode:3", 0, 0),
            (not_ready, vec![ended("a", 0, "Completed")], "Completed", 0, 0),
            (not_ready, vec![ended("a", 1, "Error")], "Error", 0, 0),
            (not_ready, vec![up("a")], "NotReady", 1, 0),
            (None, vec![up("a")], "NotReady", 1, 0),
            (not_ready, vec![], "NotReady", 0, 0),
            (ready, vec![], "NoContainers", 0, 0),
            (ready, vec![up("a"), container("b", 0, Created, None)], "Created", 1, 0),
            (ready, vec![up("a"), container("b", 0, Unknown, None)], "Unknown", 1, 0),
            // Only the newest attempt counts.
            (
                ready,
                vec![ended("a", 1, "Error"), container("a", 2, Running, None)],
                "Running",
                1,
                2,
            ),
            // A state that only the lists have shown.
            (ready, vec![container("a", 0, Exited, None)], "Exited", 0, 0),
        ] {
            let pod = PodRef {
                uid: "u".into(),
                namespace: "ns".into(),
                name: "web".into(),
            };
            let sandboxes = sandbox.map(|state| SandboxStatus::listed(&"s".into(), state, 0, 1));
            let status = PodStatus {
                sandboxes: sandboxes.into_iter().collect(),
                containers: containers.into(),
                ..PodStatus::empty(pod)
            };
            let summary = status.summary();
            let found = (&*summary.state, summary.running, summary.restarts);
            assert_eq!(found, (state, running, restarts), "{status:?}");
        }
    }
}
