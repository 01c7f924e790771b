//! The conditions of a pod, and since when they hold.

use k8s_openapi::api::core::v1 as core;
use pleg::SandboxState;

use super::model::{ApiContainerStatus, Condition, ConditionKind, ConditionStatus, Phase};
use super::{STALE, Stale, StatusInput, resources};
use crate::manifest::Role;
use crate::reconcile::observed::{ObservedContainer, ObservedPod};

/// The value of a condition: status, reason and message.
pub(super) type Value = (ConditionStatus, Option<&'static str>, Option<String>);

const HOLDS: Value = (ConditionStatus::True, None, None);

/// All conditions, in their order.
pub(super) fn conditions(
    from: &StatusInput<'_>,
    observed: &ObservedPod<'_>,
    phase: Phase,
    init: &[ApiContainerStatus],
    main: &[ApiContainerStatus],
) -> Vec<Condition> {
    let mut ready = containers_ready(from, phase, init, main);
    if let Some(stale) = from.stale {
        ready = unknown(stale);
    }
    let mut all = vec![
        (ConditionKind::PodReadyToStartContainers, ready_to_start(from, observed)),
        (ConditionKind::Initialized, initialized(from, observed, phase, init)),
        (ConditionKind::Ready, gated(from, ready.clone())),
        (ConditionKind::ContainersReady, ready),
        (ConditionKind::PodScheduled, HOLDS),
    ];
    all.extend(resources::resizing(from, observed).map(|resizing| (ConditionKind::PodResizeInProgress, resizing)));
    let with_time = |(kind, (status, reason, message)): (ConditionKind, Value)| {
        let mut all_before = from
            .before
            .iter()
            .filter_map(|before| before.conditions.as_ref())
            .flatten();
        let before = all_before.find(|other| other.type_ == kind.name());
        let first = from.history.started_at.filter(|_| kind == ConditionKind::PodScheduled);
        let since = match before {
            Some(core::PodCondition {
                status: old,
                last_transition_time: Some(since),
                ..
            }) if old == status.name() => since.0,
            _ => first.unwrap_or(from.now),
        };
        let stale = from.stale.filter(|_| reason == Some(STALE));
        Condition {
            kind,
            status,
            last_probe_time: stale.and_then(|stale| stale.as_of),
            last_transition_time: since,
            reason,
            message,
        }
    };
    all.into_iter().map(with_time).collect()
}

/// Containers can be started once there is a sandbox with a network.
fn ready_to_start(from: &StatusInput<'_>, observed: &ObservedPod<'_>) -> Value {
    if observed.usable_sandbox().is_some() && !from.terminated {
        return HOLDS;
    }
    let message = match observed.newest_sandbox() {
        None => "no pod sandbox exists",
        Some(_) if from.terminated => "pod sandbox is not ready",
        Some(sandbox) if sandbox.state == SandboxState::Ready => "pod sandbox has no IP address",
        Some(_) => "pod sandbox is not ready",
    };
    (
        ConditionStatus::False,
        Some("PodSandboxNotReady"),
        Some(message.to_owned()),
    )
}

/// A pod whose containers are ready is ready once others have set the conditions that it waits for.
fn gated(from: &StatusInput<'_>, containers: Value) -> Value {
    if containers.0 != ConditionStatus::True {
        return containers;
    }
    let status = from.pod.object.status.as_ref();
    let conditions = status
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    let missing = |gate: &String| match conditions.iter().find(|condition| condition.type_ == *gate) {
        Some(condition) if condition.status == "True" => None,
        Some(condition) => Some(format!(
            "the status of pod readiness gate \"{gate}\" is not \"True\", but {}",
            condition.status
        )),
        None => Some(format!(
            "corresponding condition of pod readiness gate \"{gate}\" does not exist."
        )),
    };
    let missing: Vec<String> = from.pod.spec.readiness_gates.iter().filter_map(missing).collect();
    if missing.is_empty() {
        return containers;
    }
    (
        ConditionStatus::False,
        Some("ReadinessGatesNotReady"),
        Some(missing.join(", ")),
    )
}

fn unknown(stale: &Stale) -> Value {
    (ConditionStatus::Unknown, Some(STALE), Some(stale.to_string()))
}

fn containers_ready(
    from: &StatusInput<'_>,
    phase: Phase,
    init: &[ApiContainerStatus],
    main: &[ApiContainerStatus],
) -> Value {
    match phase {
        Phase::Succeeded => return (ConditionStatus::False, Some("PodCompleted"), None),
        Phase::Failed => return (ConditionStatus::False, Some("PodFailed"), None),
        Phase::Pending | Phase::Running => {}
    }
    let sidecars = from.pod.spec.init_containers.iter().zip(init);
    let sidecars = sidecars
        .filter(|(container, _)| container.role == Role::Sidecar)
        .map(|(_, status)| status);
    let unready: Vec<&str> = sidecars
        .chain(main)
        .filter(|status| !status.ready)
        .map(|status| &*status.name)
        .collect();
    if unready.is_empty() {
        return HOLDS;
    }
    let message = format!("containers with unready status: [{}]", unready.join(" "));
    (ConditionStatus::False, Some("ContainersNotReady"), Some(message))
}

fn initialized(from: &StatusInput<'_>, observed: &ObservedPod<'_>, phase: Phase, init: &[ApiContainerStatus]) -> Value {
    if phase == Phase::Succeeded {
        return (ConditionStatus::True, Some("PodCompleted"), None);
    }
    let is_done = |role, status: &ApiContainerStatus| {
        if role == Role::Sidecar {
            status.started
        } else {
            status.ready
        }
    };
    let pairs = from.pod.spec.init_containers.iter().zip(init);
    let incomplete = pairs.filter(|(container, status)| !is_done(container.role, status));
    let names: Vec<&str> = incomplete.map(|(_, status)| &*status.name).collect();
    // Once complete it stays complete, until a new sandbox is initialised: sidecars may be restarted, or have ended with the pod.
    let began = |name: &str| match observed.container(name) {
        ObservedContainer::Absent | ObservedContainer::Created(_) => false,
        ObservedContainer::Running(_) | ObservedContainer::InOldSandbox(_) | ObservedContainer::Unknown(_) => true,
        ObservedContainer::Exited { current, .. } => current,
    };
    let mut main = from.pod.spec.containers.iter();
    if names.is_empty() || main.any(|container| began(&container.name)) {
        return HOLDS;
    }
    let message = format!("containers with incomplete status: [{}]", names.join(" "));
    (ConditionStatus::False, Some("ContainersNotInitialized"), Some(message))
}
