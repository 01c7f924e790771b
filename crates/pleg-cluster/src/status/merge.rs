//! The status that the API server should have: what the node reports, without taking back what is final and without touching what belongs to
//! others. Pure.
//!
//! | part | rule |
//! |---|---|
//! | conditions of other types | as the API server has them |
//! | our conditions | as reported; the transition time stays while the status stays |
//! | `PodResizeInProgress`, `PodResizePending` | gone once they are not reported |
//! | `Ready`, `ContainersReady` while the pod cannot be observed | as the API server has them: not to know is no reason to take a pod out of service |
//! | phase | Succeeded and Failed are final, with their reason and message |
//! | containers that have exited and are not restarted | stay so, and an exit that is known is not replaced by "could not be located" |
//! | `startTime`, `qosClass` | never change once set |
//! | `podIPs` | the last known ones stay |
//! | `observedGeneration` | never goes back |
//! | everything else (resize, claims, nominated node) | as the API server has it |

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pleg_node::Report;
use pleg_node::status::STALE;

/// The type of the condition of a pod that the runtime does not answer about.
pub const STUCK: &str = "pleg.io/Stuck";

/// The types of the conditions that a node writes.
const OWN: [&str; 8] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    STUCK,
    TRANSIENT[0],
    TRANSIENT[1],
];
/// Those of them that are there only while they hold.
const TRANSIENT: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

/// Whether a condition is removed when it no longer holds.
pub(super) fn is_transient(kind: &str) -> bool {
    TRANSIENT.contains(&kind)
}

/// Whether a condition belongs to somebody else.
pub(crate) fn is_foreign(condition: &core::PodCondition) -> bool {
    !OWN.contains(&condition.type_.as_str())
}

/// The status that the API server should have, given what it has.
pub(crate) fn merge(report: &Report, api: &core::PodStatus) -> core::PodStatus {
    let new = &*report.status;
    let was_over = is_over(api);
    // A stale status says so by its reason, which `kubectl get` would show instead of the phase.
    let is_stale = new.reason.as_deref() == Some(STALE);
    let (phase, reason, message) = if was_over {
        (api.phase.clone(), api.reason.clone(), api.message.clone())
    } else if is_stale {
        (new.phase.clone(), None, None)
    } else {
        (new.phase.clone(), new.reason.clone(), new.message.clone())
    };
    let spec = &report.pod.spec;
    let by_policy = |name: &str, code: i32| {
        let container = spec.container(name);
        container.map_or(spec.restart_policy.restarts(code), |container| {
            spec.restarts(container, code)
        })
    };
    core::PodStatus {
        conditions: Some(conditions(report, api)),
        container_statuses: containers(&new.container_statuses, &api.container_statuses, was_over, by_policy),
        // Sidecars are restarted whatever the policy of the pod, and init containers with a new sandbox.
        init_container_statuses: containers(
            &new.init_container_statuses,
            &api.init_container_statuses,
            was_over,
            |_, _| true,
        ),
        ephemeral_container_statuses: containers(
            &new.ephemeral_container_statuses,
            &api.ephemeral_container_statuses,
            was_over,
            |_, _| false,
        ),
        host_ip: new.host_ip.clone().or_else(|| api.host_ip.clone()),
        host_ips: new.host_ips.clone().or_else(|| api.host_ips.clone()),
        pod_ip: new.pod_ip.clone().or_else(|| api.pod_ip.clone()),
        pod_ips: new.pod_ips.clone().or_else(|| api.pod_ips.clone()),
        observed_generation: new.observed_generation.max(api.observed_generation),
        qos_class: api.qos_class.clone().or_else(|| new.qos_class.clone()),
        start_time: api.start_time.clone().or_else(|| new.start_time.clone()),
        message,
        phase,
        reason,
        // Not ours.
        ..api.clone()
    }
}

fn is_over(status: &core::PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// Those of others first, as they are; then ours.
fn conditions(report: &Report, api: &core::PodStatus) -> Vec<core::PodCondition> {
    let old = api.conditions.as_deref().unwrap_or_default();
    let find = |kind: &str| old.iter().find(|condition| condition.type_ == kind);
    let mut all: Vec<core::PodCondition> = old.iter().filter(|condition| is_foreign(condition)).cloned().collect();
    let own = report.conditions().iter().cloned().chain(stuck(report, find(STUCK)));
    for mut condition in own {
        let before = find(&condition.type_);
        let is_scheduled = condition.type_ == "PodScheduled";
        match before {
            // The scheduler has written it, and knows more about it.
            Some(before) if is_scheduled && before.status == "True" => condition = before.clone(),
            Some(before) if condition.reason.as_deref() == Some(STALE) => condition = before.clone(),
            Some(before) if before.status == condition.status => {
                condition.last_transition_time.clone_from(&before.last_transition_time);
            }
            _ => {}
        }
        if !is_scheduled && condition.observed_generation.is_none() {
            condition.observed_generation = report.status.observed_generation;
        }
        all.push(condition);
    }
    all
}

/// The condition of a pod that the runtime does not answer about. False once it answers again; absent if it always did.
fn stuck(report: &Report, before: Option<&core::PodCondition>) -> Option<core::PodCondition> {
    Some(match &report.stuck {
        Some(stuck) => core::PodCondition {
            type_: STUCK.to_owned(),
            status: "True".to_owned(),
            reason: Some("RuntimeNotAnswering".to_owned()),
            message: Some(stuck.to_string()),
            last_transition_time: Some(whole_second(stuck.since)),
            ..core::PodCondition::default()
        },
        None => core::PodCondition {
            type_: STUCK.to_owned(),
            status: "False".to_owned(),
            reason: Some("RuntimeAnswers".to_owned()),
            last_transition_time: Some(whole_second(jiff::Timestamp::now())),
            message: None,
            ..before?.clone()
        },
    })
}

fn whole_second(at: jiff::Timestamp) -> Time {
    Time(jiff::Timestamp::from_second(at.as_second()).unwrap_or(at))
}

type Containers = Option<Vec<core::ContainerStatus>>;

/// The statuses of containers as reported, except for exits that are final or better known. `restarts` says whether the container of that
/// name is restarted after that exit code.
fn containers(new: &Containers, old: &Containers, was_over: bool, restarts: impl Fn(&str, i32) -> bool) -> Containers {
    let keeps = |old: &core::ContainerStatus, new: &core::ContainerStatus| {
        let restarts = |exit: &core::ContainerStateTerminated| restarts(&old.name, exit.exit_code);
        keeps(old, new, |exit| was_over || !restarts(exit))
    };
    let find = |name: &str| old.iter().flatten().find(|status| status.name == name);
    let merged = |status: &core::ContainerStatus| match find(&status.name) {
        Some(old) if keeps(old, status) => old.clone(),
        _ => status.clone(),
    };
    let Some(new) = new else { return old.clone() };
    if new.is_empty() {
        // A pod that was never looked at in detail: what is known of it stays.
        return old.clone();
    }
    Some(new.iter().map(merged).collect())
}

/// Whether the old status of a container stays: its exit is final, and the new status does not know it or knows less about it.
fn keeps(
    old: &core::ContainerStatus,
    new: &core::ContainerStatus,
    is_final: impl Fn(&core::ContainerStateTerminated) -> bool,
) -> bool {
    let Some(exit) = terminated(old) else { return false };
    match terminated(new) {
        // Nothing is known about this exit but that it happened.
        Some(other) if other.container_id.is_none() => exit.container_id.is_some(),
        Some(_) => false,
        None => is_final(exit),
    }
}

fn terminated(status: &core::ContainerStatus) -> Option<&core::ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

#[cfg(test)]
mod tests;
