//! Pods as `pleg node` serves them, Kubernetes objects, and what kubectl shows of them.
//!
//! JSON and YAML output is printed as the daemon sent it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize as _;
use serde_json::Value;

/// The state of a pod that was removed.
pub(crate) const REMOVED: &str = "Removed";

/// A pod: parsed, and as it was sent.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) view: View,
    pub(crate) raw: Value,
}

impl Pod {
    pub(crate) fn read(raw: Value) -> serde_json::Result<Self> {
        let core::Pod { metadata, spec, status } = core::Pod::deserialize(&raw)?;
        let view = View {
            metadata,
            spec: spec.unwrap_or_default(),
            status: status.unwrap_or_default(),
            removed: false,
        };
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

#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: core::PodSpec,
    pub(crate) status: core::PodStatus,
    /// The node no longer has it: this is what it was.
    pub(crate) removed: bool,
}

/// A text of the API that may be missing.
pub(crate) fn text(text: Option<&String>) -> &str {
    text.map(String::as_str).unwrap_or_default()
}

/// A time of the API that may be missing.
pub(crate) fn time(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|time| time.0)
}

/// A container that keeps running beside the other containers, though it is one of `initContainers`.
fn is_sidecar(container: &core::Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn terminated(state: Option<&core::ContainerState>) -> Option<&core::ContainerStateTerminated> {
    state?.terminated.as_ref()
}

fn runs(status: &core::ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.running.is_some())
}

impl View {
    pub(crate) fn name(&self) -> &str {
        text(self.metadata.name.as_ref())
    }

    pub(crate) fn namespace(&self) -> &str {
        text(self.metadata.namespace.as_ref())
    }

    pub(crate) fn uid(&self) -> &str {
        text(self.metadata.uid.as_ref())
    }

    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace(), self.name())
    }

    /// The statuses of `initContainers`.
    pub(crate) fn init_containers(&self) -> &[core::ContainerStatus] {
        self.status.init_container_statuses.as_deref().unwrap_or_default()
    }

    /// The statuses of `containers`.
    pub(crate) fn containers(&self) -> &[core::ContainerStatus] {
        self.status.container_statuses.as_deref().unwrap_or_default()
    }

    /// The statuses of `ephemeralContainers`.
    pub(crate) fn ephemeral_containers(&self) -> &[core::ContainerStatus] {
        self.status.ephemeral_container_statuses.as_deref().unwrap_or_default()
    }

    pub(crate) fn conditions(&self) -> &[core::PodCondition] {
        self.status.conditions.as_deref().unwrap_or_default()
    }

    /// Init containers with their statuses.
    fn init(&self) -> impl Iterator<Item = (&core::Container, &core::ContainerStatus)> {
        let containers = self.spec.init_containers.iter().flatten();
        containers.zip(self.init_containers())
    }

    /// The number of ready containers and of all containers, sidecars included.
    pub(crate) fn ready(&self) -> (usize, usize) {
        let sidecars = self.init().filter(|(container, _)| is_sidecar(container));
        let sidecars: Vec<&core::ContainerStatus> = sidecars.map(|(_, status)| status).collect();
        let main = self.containers().iter();
        let ready = main.chain(sidecars.iter().copied());
        let ready = ready.filter(|status| status.ready && !self.removed);
        (ready.count(), self.spec.containers.len() + sidecars.len())
    }

    /// The number of restarts and the time of the last one. Init containers count only while they run, sidecars always.
    pub(crate) fn restarts(&self) -> (u64, Option<Timestamp>) {
        let begun = self.is_initialised();
        let init = self.init().filter(|(container, _)| !begun || is_sidecar(container));
        let all = init.map(|(_, status)| status).chain(self.containers());
        all.fold((0, None), |(count, last), status| {
            let ended = terminated(status.last_state.as_ref());
            let at = ended
                .and_then(|ended| time(ended.finished_at.as_ref()))
                .filter(|_| status.restart_count > 0);
            (count + u64::from(status.restart_count.unsigned_abs()), last.max(at))
        })
    }

    /// All init containers have completed, or are sidecars that have started.
    fn is_initialised(&self) -> bool {
        self.unfinished_init().is_none()
    }

    /// The first init container that has not completed: its index and status.
    fn unfinished_init(&self) -> Option<(usize, &core::ContainerStatus)> {
        let done = |(container, status): &(&core::Container, &core::ContainerStatus)| {
            let ended = terminated(status.state.as_ref());
            let started = status.started == Some(true);
            ended.is_some_and(|ended| ended.exit_code == 0) || (is_sidecar(container) && started)
        };
        let (place, (_, status)) = self.init().enumerate().find(|(_, pair)| !done(pair))?;
        Some((place, status))
    }

    /// Set if the status is stale: since when, if known, and the message.
    pub(crate) fn stale(&self) -> Option<(Option<Timestamp>, &str)> {
        let stale = |condition: &&core::PodCondition| condition.reason.as_deref() == Some(pleg_node::status::STALE);
        let found = self.conditions().iter().find(stale).filter(|_| !self.removed)?;
        Some((time(found.last_probe_time.as_ref()), text(found.message.as_ref())))
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
        let whole = self.status.reason.as_ref().or(self.status.phase.as_ref());
        let begun = self.containers().iter().any(runs);
        if let (Some((place, status)), false) = (self.unfinished_init(), begun) {
            let total = self.spec.init_containers.as_ref().map_or(0, Vec::len);
            return match trouble(status.state.as_ref(), "PodInitializing") {
                Some(trouble) => format!("Init:{trouble}"),
                None => format!("Init:{place}/{total}"),
            };
        }
        // As in kubectl, the first of several counts.
        let mut word = text(whole).to_owned();
        let mut running = false;
        for status in self.containers().iter().rev() {
            if let Some(trouble) = trouble(status.state.as_ref(), "") {
                word = trouble;
            } else if status.ready && runs(status) {
                running = true;
            }
        }
        if word == "Completed" && running {
            let ready = |condition: &core::PodCondition| condition.type_ == "Ready" && condition.status == "True";
            let ready = self.conditions().iter().any(ready);
            return if ready { "Running" } else { "NotReady" }.to_owned();
        }
        word
    }
}

/// The reason why a container does not run, unless it is `but`.
fn trouble(state: Option<&core::ContainerState>, but: &str) -> Option<String> {
    let state = state?;
    if let Some(waiting) = &state.waiting {
        return waiting
            .reason
            .clone()
            .filter(|reason| !reason.is_empty() && reason != but);
    }
    let ended = state.terminated.as_ref()?;
    Some(match (text(ended.reason.as_ref()), ended.signal.unwrap_or_default()) {
        ("", 0) => format!("ExitCode:{}", ended.exit_code),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    })
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
