//! The conditions of a pod, and since when they hold.

use super::phase::was_initialised;
use super::types::{ApiContainerStatus, Condition, ConditionKind, ConditionStatus, Phase};
use super::{STALE, Stale, StatusInput};
use crate::manifest::Role;
use crate::reconcile::observed::ObservedPod;

/// The value of a condition: status, reason and message.
type Value = (ConditionStatus, Option<&'static str>, Option<String>);

const HOLDS: Value = (ConditionStatus::True, None, None);

/// All conditions, in their order.
pub(super) fn conditions(
    from: &StatusInput<'_>,
    observed: &ObservedPod<'_>,
    phase: Phase,
    init: &[ApiContainerStatus],
    main: &[ApiContainerStatus],
) -> Vec<Condition> {
    let sandbox = ConditionStatus::from(observed.usable_sandbox().is_some());
    let mut ready = containers_ready(from, phase, init, main);
    if let Some(stale) = from.stale {
        ready = unknown(stale);
    }
    let all = [
        (ConditionKind::PodReadyToStartContainers, (sandbox, None, None)),
        (ConditionKind::Initialized, initialized(from, phase, init, main)),
        // Without readiness gates, which are not supported, the pod is ready if its containers are.
        (ConditionKind::Ready, ready.clone()),
        (ConditionKind::ContainersReady, ready),
        (ConditionKind::PodScheduled, HOLDS),
    ];
    let with_time = |(kind, (status, reason, message))| {
        let before = from
            .before
            .and_then(|before| before.conditions.iter().find(|other| other.kind == kind));
        let first = from.history.started_at.filter(|_| kind == ConditionKind::PodScheduled);
        let since = match before {
            Some(before) if before.status == status => before.last_transition_time,
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

fn initialized(
    from: &StatusInput<'_>,
    phase: Phase,
    init: &[ApiContainerStatus],
    main: &[ApiContainerStatus],
) -> Value {
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
    // Once complete it stays complete, until a new sandbox is initialised.
    if names.is_empty() || (was_initialised(main) && main.iter().any(|status| status.state.is_running())) {
        return HOLDS;
    }
    let message = format!("containers with incomplete status: [{}]", names.join(" "));
    (ConditionStatus::False, Some("ContainersNotInitialized"), Some(message))
}
