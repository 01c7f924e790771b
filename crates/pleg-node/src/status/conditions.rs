//! What holds of a pod, and since when.

use super::phase::has_begun;
use super::types::{Condition, ConditionKind, ContainerStatus, Phase, Truth};
use super::{STALE, Sources, Stale};
use crate::manifest::Role;
use crate::reconcile::observed::Observed;

/// What is found about a condition: whether, why not, in which words.
type Found = (Truth, Option<&'static str>, Option<String>);

const HOLDS: Found = (Truth::True, None, None);

/// All conditions, in their order.
pub(super) fn conditions(
    from: &Sources<'_>,
    seen: &Observed<'_>,
    phase: Phase,
    init: &[ContainerStatus],
    main: &[ContainerStatus],
) -> Vec<Condition> {
    let sandbox = Truth::from(seen.usable_sandbox().is_some());
    let mut ready = containers_ready(from, phase, init, main);
    if let Some(stale) = from.stale {
        ready = unknown(stale);
    }
    let all = [
        (ConditionKind::PodReadyToStartContainers, (sandbox, None, None)),
        (ConditionKind::Initialized, initialized(from, phase, init, main)),
        // Without readiness gates, which nobody here could set, the pod is ready if its containers are.
        (ConditionKind::Ready, ready.clone()),
        (ConditionKind::ContainersReady, ready),
        (ConditionKind::PodScheduled, HOLDS),
    ];
    let with_time = |(kind, (status, reason, message))| {
        let before = from
            .before
            .and_then(|before| before.conditions.iter().find(|other| other.kind == kind));
        let first = from.memory.started_at.filter(|_| kind == ConditionKind::PodScheduled);
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

fn unknown(stale: &Stale) -> Found {
    (Truth::Unknown, Some(STALE), Some(stale.to_string()))
}

fn containers_ready(from: &Sources<'_>, phase: Phase, init: &[ContainerStatus], main: &[ContainerStatus]) -> Found {
    match phase {
        Phase::Succeeded => return (Truth::False, Some("PodCompleted"), None),
        Phase::Failed => return (Truth::False, Some("PodFailed"), None),
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
    (Truth::False, Some("ContainersNotReady"), Some(message))
}

fn initialized(from: &Sources<'_>, phase: Phase, init: &[ContainerStatus], main: &[ContainerStatus]) -> Found {
    if phase == Phase::Succeeded {
        return (Truth::True, Some("PodCompleted"), None);
    }
    let is_done = |role, status: &ContainerStatus| {
        if role == Role::Sidecar {
            status.started
        } else {
            status.ready
        }
    };
    let pairs = from.pod.spec.init_containers.iter().zip(init);
    let incomplete = pairs.filter(|(container, status)| !is_done(container.role, status));
    let names: Vec<&str> = incomplete.map(|(_, status)| &*status.name).collect();
    // What was complete once stays so, until a new sandbox begins anew.
    if names.is_empty() || (has_begun(main) && main.iter().any(|status| status.state.is_running())) {
        return HOLDS;
    }
    let message = format!("containers with incomplete status: [{}]", names.join(" "));
    (Truth::False, Some("ContainersNotInitialized"), Some(message))
}
