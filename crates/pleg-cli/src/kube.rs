//! Pods as `pleg node` serves them: Kubernetes objects.
//!
//! JSON and YAML output is printed as the daemon sent it; only the fields that tables and texts show are parsed here.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// The state of a pod that was removed.
pub(crate) const REMOVED: &str = "Removed";

/// A pod: the parsed fields, and the whole object as it was sent.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) view: View,
    pub(crate) raw: Value,
}

impl Pod {
    pub(crate) fn read(raw: Value) -> serde_json::Result<Self> {
        let view = View::deserialize(&raw)?;
        Ok(Self { view, raw })
    }

    /// What is left to show of it once the node no longer has it.
    pub(crate) fn removed(mut self) -> Self {
        self.view.removed = true;
        if let Some(Value::Object(status)) = self.raw.get_mut("status") {
            status.insert("reason".to_owned(), REMOVED.into());
        }
        self
    }
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct View {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: Spec,
    pub(crate) status: Status,
    /// The node no longer has it: this is what it was.
    #[serde(skip)]
    pub(crate) removed: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) creation_timestamp: Option<Timestamp>,
    pub(crate) deletion_timestamp: Option<Timestamp>,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Spec {
    #[serde(default)]
    pub(crate) init_containers: Vec<InitContainer>,
    #[serde(default)]
    pub(crate) containers: Vec<Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InitContainer {
    pub(crate) restart_policy: Option<String>,
}

impl InitContainer {
    /// It keeps running beside the other containers.
    pub(crate) fn is_sidecar(&self) -> bool {
        self.restart_policy.as_deref() == Some("Always")
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    pub(crate) phase: String,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    #[serde(rename = "podIPs", default)]
    pub(crate) pod_ips: Vec<Ip>,
    #[serde(rename = "hostIP")]
    pub(crate) host_ip: Option<String>,
    pub(crate) start_time: Option<Timestamp>,
    pub(crate) qos_class: Option<String>,
    #[serde(default)]
    pub(crate) conditions: Vec<Condition>,
    #[serde(default)]
    pub(crate) init_container_statuses: Vec<Container>,
    #[serde(default)]
    pub(crate) container_statuses: Vec<Container>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Ip {
    pub(crate) ip: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) last_probe_time: Option<Timestamp>,
    pub(crate) last_transition_time: Option<Timestamp>,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Container {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) state: State,
    pub(crate) last_state: Option<State>,
    pub(crate) ready: bool,
    #[serde(default)]
    pub(crate) started: bool,
    pub(crate) restart_count: u64,
    #[serde(default)]
    pub(crate) image: String,
    #[serde(rename = "imageID", default)]
    pub(crate) image_id: String,
    #[serde(rename = "containerID", default)]
    pub(crate) id: String,
}

/// One of three.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct State {
    pub(crate) waiting: Option<Waiting>,
    pub(crate) running: Option<Running>,
    pub(crate) terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Waiting {
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Running {
    pub(crate) started_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Terminated {
    pub(crate) exit_code: i32,
    #[serde(default)]
    pub(crate) signal: i32,
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) message: String,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
}

impl View {
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    /// The number of ready containers and of all containers, sidecars included.
    pub(crate) fn ready(&self) -> (usize, usize) {
        let init = self
            .spec
            .init_containers
            .iter()
            .zip(&self.status.init_container_statuses);
        let sidecars = init.filter(|(container, _)| container.is_sidecar());
        let sidecars: Vec<&Container> = sidecars.map(|(_, status)| status).collect();
        let main = self.status.container_statuses.iter();
        let ready = main.chain(sidecars.iter().copied());
        let ready = ready.filter(|status| status.ready && !self.removed);
        (ready.count(), self.spec.containers.len() + sidecars.len())
    }

    /// The number of restarts and the time of the last one. Init containers count only while they run, sidecars always.
    pub(crate) fn restarts(&self) -> (u64, Option<Timestamp>) {
        let begun = self.is_initialised();
        let init = self
            .spec
            .init_containers
            .iter()
            .zip(&self.status.init_container_statuses);
        let init = init.filter(|(container, _)| !begun || container.is_sidecar());
        let all = init.map(|(_, status)| status).chain(&self.status.container_statuses);
        all.fold((0, None), |(count, last), status| {
            let ended = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
            let at = ended
                .and_then(|ended| ended.finished_at)
                .filter(|_| status.restart_count > 0);
            (count + status.restart_count, last.max(at))
        })
    }

    /// All init containers have completed, or are sidecars that have started.
    fn is_initialised(&self) -> bool {
        self.unfinished_init().is_none()
    }

    /// The first init container that has not completed: its index and status.
    fn unfinished_init(&self) -> Option<(usize, &Container)> {
        let init = self
            .spec
            .init_containers
            .iter()
            .zip(&self.status.init_container_statuses);
        let done = |(container, status): &(&InitContainer, &Container)| {
            let ended = status.state.terminated.as_ref();
            ended.is_some_and(|ended| ended.exit_code == 0) || (container.is_sidecar() && status.started)
        };
        let (place, (_, status)) = init.enumerate().find(|(_, pair)| !done(pair))?;
        Some((place, status))
    }

    /// Set if the status is stale: since when, if known, and the message.
    pub(crate) fn stale(&self) -> Option<(Option<Timestamp>, &str)> {
        let stale = |condition: &&Condition| condition.reason.as_deref() == Some(pleg_node::status::STALE);
        let found = self.status.conditions.iter().find(stale).filter(|_| !self.removed)?;
        Some((found.last_probe_time, found.message.as_deref().unwrap_or_default()))
    }

    /// The pod's state by kubectl's rules; a stale status takes precedence.
    pub(crate) fn word(&self) -> String {
        if self.removed {
            return REMOVED.to_owned();
        }
        if self.stale().is_some() {
            return pleg_node::status::STALE.to_owned();
        }
        if self.metadata.deletion_timestamp.is_some() {
            return "Terminating".to_owned();
        }
        let whole = self.status.reason.clone().unwrap_or_else(|| self.status.phase.clone());
        let begun = self
            .status
            .container_statuses
            .iter()
            .any(|status| status.state.running.is_some());
        if let (Some((place, status)), false) = (self.unfinished_init(), begun) {
            let total = self.spec.init_containers.len();
            return match status.state.trouble("PodInitializing") {
                Some(trouble) => format!("Init:{trouble}"),
                None => format!("Init:{place}/{total}"),
            };
        }
        // As in kubectl, the first of several counts.
        let mut word = whole;
        let mut running = false;
        for status in self.status.container_statuses.iter().rev() {
            if let Some(trouble) = status.state.trouble("") {
                word = trouble;
            } else if status.ready && status.state.running.is_some() {
                running = true;
            }
        }
        if word == "Completed" && running {
            let ready = |condition: &Condition| condition.kind == "Ready" && condition.status == "True";
            let ready = self.status.conditions.iter().any(ready);
            return if ready { "Running" } else { "NotReady" }.to_owned();
        }
        word
    }
}

impl State {
    /// The reason why a container does not run, unless it is `but`.
    fn trouble(&self, but: &str) -> Option<String> {
        if let Some(waiting) = &self.waiting {
            return Some(waiting.reason.clone()).filter(|reason| !reason.is_empty() && reason != but);
        }
        let ended = self.terminated.as_ref()?;
        Some(match (ended.reason.as_str(), ended.signal) {
            ("", 0) => format!("ExitCode:{}", ended.exit_code),
            ("", signal) => format!("Signal:{signal}"),
            (reason, _) => reason.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "json! in place reads best")]
    fn view(spec: Value, status: Value) -> View {
        let raw = json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": spec,
            "status": status,
        });
        Pod::read(raw).unwrap().view
    }

    #[expect(clippy::needless_pass_by_value, reason = "json! in place reads best")]
    fn container(state: Value, ready: bool, restarts: u64) -> Value {
        json!({"name": "c", "state": state, "ready": ready, "restartCount": restarts, "started": ready})
    }

    /// The words that kubectl has for them.
    #[test]
    fn a_pod_in_a_word() {
        let up = || json!({"running": {}});
        let waits = |reason: &str| json!({"waiting": {"reason": reason}});
        let ended = |code: i32, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason}});
        let none = Vec::new();
        for (phase, init, main, word, ready) in [
            ("Running", &none, vec![container(up(), true, 0)], "Running", (1, 1)),
            (
                "Pending",
                &none,
                vec![container(waits("ContainerCreating"), false, 0)],
                "ContainerCreating",
                (0, 1),
            ),
            (
                "Running",
                &none,
                vec![container(waits("CrashLoopBackOff"), false, 3)],
                "CrashLoopBackOff",
                (0, 1),
            ),
            (
                "Succeeded",
                &none,
                vec![container(ended(0, "Completed"), false, 0)],
                "Completed",
                (0, 1),
            ),
            (
                "Failed",
                &none,
                vec![container(ended(3, ""), false, 0)],
                "ExitCode:3",
                (0, 1),
            ),
            (
                "Running",
                &none,
                vec![container(ended(0, "Completed"), false, 0), container(up(), true, 0)],
                "NotReady",
                (1, 2),
            ),
            (
                "Pending",
                &vec![container(ended(0, "Completed"), true, 0), container(up(), false, 0)],
                vec![container(waits("PodInitializing"), false, 0)],
                "Init:1/2",
                (0, 1),
            ),
            (
                "Pending",
                &vec![container(waits("CrashLoopBackOff"), false, 2)],
                vec![container(waits("PodInitializing"), false, 0)],
                "Init:CrashLoopBackOff",
                (0, 1),
            ),
        ] {
            let spec = json!({
                "initContainers": vec![json!({"name": "i"}); init.len()],
                "containers": vec![json!({"name": "c"}); main.len()],
            });
            let status = json!({"phase": phase, "initContainerStatuses": init, "containerStatuses": main});
            let view = view(spec, status);
            assert_eq!((view.word().as_str(), view.ready()), (word, ready));
        }
    }

    #[test]
    fn restarts_are_those_that_matter() {
        let at = "2026-11-16T07:00:00Z";
        let last = |count| {
            let mut container = container(json!({"running": {}}), true, count);
            container["lastState"] = json!({"terminated": {"exitCode": 1, "finishedAt": at}});
            container
        };
        let spec = json!({
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
            "containers": [{"name": "c"}],
        });
        let done = container(json!({"terminated": {"exitCode": 0}}), true, 5);
        let status =
            json!({"phase": "Running", "initContainerStatuses": [done, last(1)], "containerStatuses": [last(2)]});
        let view = view(spec, status);
        assert_eq!(view.restarts(), (3, Some(at.parse().unwrap())));
        assert_eq!(view.ready(), (2, 2), "a sidecar is one of them");
    }
}
