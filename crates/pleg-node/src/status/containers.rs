//! The status of each container: its state, its last state, and whether it is ready.

use jiff::Timestamp;
use pleg_cri::duration::seconds;

use super::model::{ApiContainerState, ApiContainerStatus};
use super::{StatusInput, resources};
use crate::manifest::{Container, ProbeKind, RestartPolicy, Role};
use crate::reconcile::backoff::{PULL_FAILED, StartFailure};
use crate::reconcile::history::Exit;
use crate::reconcile::observed::{ObservedContainer, ObservedPod};
use crate::reconcile::restart::should_restart;

/// Bytes of messages of terminated containers in the status of a pod.
const MAX_MESSAGES: usize = 12 << 10;

/// Of `initContainers` first, then of `containers`, in the order of the manifest.
pub(super) fn statuses(from: &StatusInput<'_>, observed: &ObservedPod<'_>) -> Vec<ApiContainerStatus> {
    from.pod
        .spec
        .all_containers()
        .map(|container| status(from, observed, container))
        .collect()
}

/// Of `ephemeralContainers`. Neither the phase nor a condition depends on them.
pub(super) fn ephemeral_statuses(from: &StatusInput<'_>, observed: &ObservedPod<'_>) -> Vec<ApiContainerStatus> {
    let all = from.pod.spec.ephemeral_containers.iter();
    all.map(|container| status(from, observed, container)).collect()
}

fn status(from: &StatusInput<'_>, observed: &ObservedPod<'_>, container: &Container) -> ApiContainerStatus {
    let name = &container.name;
    let history = from.history.container(name);
    let newest = observed.newest(name);
    let now = observed.container(name);
    let attempt = newest
        .map(|container| container.attempt)
        .max(history.and_then(|history| history.attempt));
    let exit_before = |attempt: Option<u32>| {
        let exits = history.map(|history| history.exits.as_slice()).unwrap_or_default();
        let exit = exits.iter().find(|exit| Some(exit.attempt) < attempt);
        exit.map(|exit| terminated(from, exit))
    };
    let state = observed_state(from, observed, &now);
    let waits = waiting_for_start(from, observed, container, &now, state.as_ref());
    let (state, last_state) = match (state, waits) {
        // An exited container that is about to be restarted waits; its exit is the last state.
        (Some(exited @ ApiContainerState::Terminated { .. }), Some(waits)) => (waits, Some(exited)),
        (_, Some(waits)) => (waits, exit_before(attempt.map(|attempt| attempt.saturating_add(1)))),
        (Some(state), None) => (state, exit_before(attempt)),
        (None, None) => (waiting(default_reason(from), String::new()), exit_before(attempt)),
    };
    let started = is_started(from, container, &now);
    ApiContainerStatus {
        name: name.clone(),
        ready: is_ready(from, container, &now, started),
        last_state,
        restart_count: attempt.unwrap_or_default(),
        // As in the manifest: the runtime was given the id of the image.
        image: container.image.clone(),
        image_id: newest.map(|newest| newest.image_ref.to_string()).unwrap_or_default(),
        container_id: newest.map(|newest| id(from, newest.id.as_str())),
        started,
        state,
        resources: resources::of_container(from, container, &now),
        allocated_resources: resources::allocated(from, container, &now),
    }
}

/// The state that the runtime shows, or the history; none if the container was never created.
fn observed_state(
    from: &StatusInput<'_>,
    observed: &ObservedPod<'_>,
    now: &ObservedContainer<'_>,
) -> Option<ApiContainerState> {
    match now {
        ObservedContainer::Absent => None,
        ObservedContainer::Created(_) => Some(waiting(default_reason(from), String::new())),
        ObservedContainer::Running(running) | ObservedContainer::InOldSandbox(running) => {
            Some(ApiContainerState::Running {
                started_at: running.started_at,
            })
        }
        ObservedContainer::Unknown(unknown) => Some(terminated(
            from,
            &Exit {
                reason: "ContainerStatusUnknown".into(),
                message: "The runtime reports the container state as unknown".into(),
                ..observed.exit(unknown)
            },
        )),
        ObservedContainer::Exited { exit, .. } => Some(terminated(from, exit)),
    }
}

/// The state of a container that is about to be started, and why it is not yet; none if it runs, or its exit is final.
fn waiting_for_start(
    from: &StatusInput<'_>,
    observed: &ObservedPod<'_>,
    container: &Container,
    now: &ObservedContainer<'_>,
    state: Option<&ApiContainerState>,
) -> Option<ApiContainerState> {
    match now {
        ObservedContainer::Running(_) | ObservedContainer::InOldSandbox(_) => return None,
        ObservedContainer::Exited { exit, .. } if !should_restart(observed, container, exit) => return None,
        _ => {}
    }
    // Killed to be replaced: its exit code 0 is not a success.
    let is_replaced = from.pod.spec.restart_policy_of(container) == RestartPolicy::OnFailure
        && container.role == Role::Main
        && state.and_then(ApiContainerState::exit_code) == Some(0);
    let replaced = || is_replaced.then(|| waiting("ContainerCreating", String::new()));
    why_waiting(from, container).or_else(replaced)
}

/// The reason of an absent container, if nothing else is known.
fn default_reason<'a>(from: &StatusInput<'a>) -> &'a str {
    if let Some(refusal) = from.not_admitted {
        &refusal.reason
    } else if from.pod.spec.init_containers.is_empty() {
        "ContainerCreating"
    } else {
        "PodInitializing"
    }
}

fn waiting(reason: &str, message: String) -> ApiContainerState {
    ApiContainerState::Waiting {
        reason: reason.to_owned(),
        message,
    }
}

/// Why a container that is about to be started has not been, if that is known.
fn why_waiting(from: &StatusInput<'_>, container: &Container) -> Option<ApiContainerState> {
    let name = container.name.as_str();
    // Nothing of a failed or terminated pod is started.
    if from.history.failed.is_some() || from.terminated {
        return None;
    }
    let history = from.history.container(name);
    if let Some(until) = from.backing_off.get(name) {
        let delay = history
            .and_then(|history| history.back_off.as_ref())
            .map(|back_off| seconds(back_off.delay));
        let message = format!(
            "back-off {} restarting failed container={name} pod={}, until {}",
            delay.unwrap_or_default(),
            from.pod.id,
            whole(*until)
        );
        return Some(waiting("CrashLoopBackOff", message));
    }
    let failure = history.and_then(|history| history.failure.as_ref())?;
    Some(failed(failure, &container.image, from.now))
}

/// A failed start. An image pull that fails is shown as `ErrImagePull` at first, and until it is tried again as `ImagePullBackOff`.
fn failed(failure: &StartFailure, image: &str, now: Timestamp) -> ApiContainerState {
    let StartFailure { reason, message, .. } = failure;
    if reason == PULL_FAILED && failure.changes_at(now).is_none() {
        let message = format!("Back-off pulling image \"{image}\": {reason}: {message}");
        return waiting("ImagePullBackOff", message);
    }
    waiting(reason, message.clone())
}

/// Nothing of the pod runs any more: containers whose end is not known are shown as terminated, as in the kubelet. Those that were not their
/// turn yet, because initialisation was not complete, still wait.
pub(super) fn locate_all(from: &StatusInput<'_>, init: &mut [ApiContainerStatus], main: &mut [ApiContainerStatus]) {
    let began = |status: &ApiContainerStatus| {
        status.last_state.is_some() || !matches!(status.state, ApiContainerState::Waiting { .. })
    };
    let last_init = from.pod.spec.init_containers.last();
    let is_initialised = last_init.is_none_or(|last| main.iter().any(began) || has_completed(from, last));
    // The first init container has always had its turn.
    let turns = init.iter().rposition(began).unwrap_or(0) + 1;
    let missing = init.iter_mut().take(turns);
    for status in missing.chain(main.iter_mut().filter(|_| is_initialised)) {
        if !matches!(status.state, ApiContainerState::Terminated { .. }) {
            status.state = ApiContainerState::Terminated {
                exit_code: 137,
                reason: "ContainerStatusUnknown".to_owned(),
                message: "The container could not be located when the pod was terminated".to_owned(),
                started_at: None,
                finished_at: None,
                container_id: None,
            };
            status.ready = false;
            status.started = false;
        }
    }
}

/// Whether an init container has succeeded by itself. One that exits with 0 because it is stopped with its pod has not done its work.
fn has_completed(from: &StatusInput<'_>, container: &Container) -> bool {
    let history = from.history.container(&container.name);
    let mut exits = history.iter().flat_map(|history| &history.exits);
    let in_time = |exit: &Exit| match (exit.noted_at, from.stopping_since) {
        (Some(exited), Some(since)) => exited < since,
        _ => true,
    };
    container.role == Role::Init && exits.any(|exit| exit.exit_code == 0 && in_time(exit))
}

fn whole(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn terminated(from: &StatusInput<'_>, exit: &Exit) -> ApiContainerState {
    ApiContainerState::Terminated {
        exit_code: exit.exit_code,
        reason: exit.reason.to_string(),
        message: termination_message(from, exit),
        started_at: exit.started_at,
        finished_at: exit.finished_at,
        container_id: (!exit.id.is_empty()).then(|| id(from, &exit.id)),
    }
}

/// The runtime's message, and then the container's own. All containers of a pod share what a status may have of them.
fn termination_message(from: &StatusInput<'_>, exit: &Exit) -> String {
    let own = exit.termination_message.as_deref().unwrap_or_default();
    let separator = if own.is_empty() || exit.message.is_empty() {
        ""
    } else {
        ": "
    };
    let mut message = format!("{}{separator}{own}", exit.message);
    let spec = &from.pod.spec;
    let containers = spec.all_containers().count() + spec.ephemeral_containers.len();
    let mut end = MAX_MESSAGES / containers.max(1);
    if message.len() > end {
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
    }
    message
}

/// A container id as Kubernetes writes it: `containerd://…`.
fn id(from: &StatusInput<'_>, id: &str) -> String {
    format!("{}://{id}", from.node.runtime)
}

fn is_started(from: &StatusInput<'_>, container: &Container, now: &ObservedContainer<'_>) -> bool {
    let ObservedContainer::Running(running) = now else {
        return false;
    };
    let history = from.history.container(&container.name);
    let hook_failed = history.is_some_and(|history| history.hook_failed(running.attempt));
    if hook_failed || (container.post_start.is_some() && from.in_flight.contains(&container.name)) {
        // Its post-start hook runs, or it is about to be killed because of its hook.
        return false;
    }
    container.startup.is_none() || from.probes.get(&running.id, ProbeKind::Startup) == Some(true)
}

fn is_ready(from: &StatusInput<'_>, container: &Container, now: &ObservedContainer<'_>, started: bool) -> bool {
    match (container.role, now) {
        (Role::Init, ObservedContainer::Exited { exit, .. }) => exit.exit_code == 0,
        (Role::Init | Role::Ephemeral, _) => false,
        (_, ObservedContainer::Running(running)) if started => {
            container.readiness.is_none() || from.probes.get(&running.id, ProbeKind::Readiness) == Some(true)
        }
        _ => false,
    }
}
