//! What each container does, did before, and whether it is ready.

use jiff::Timestamp;
use pleg_cri::error::seconds;

use super::Sources;
use super::types::{ContainerStatus, State};
use crate::manifest::{Container, ProbeKind, RestartPolicy, Role};
use crate::reconcile::history::{Ending, Failure};
use crate::reconcile::observed::{Observed, Standing};

/// Those of `initContainers` first, each in the order of the manifest.
pub(super) fn statuses(from: &Sources<'_>, seen: &Observed<'_>) -> Vec<ContainerStatus> {
    from.pod
        .spec
        .all_containers()
        .map(|container| status(from, seen, container))
        .collect()
}

fn status(from: &Sources<'_>, seen: &Observed<'_>, container: &Container) -> ContainerStatus {
    let name = &container.name;
    let memory = from.memory.container(name);
    let newest = seen.newest(name);
    let standing = seen.standing(name);
    let ending = |ending: &Ending| terminated(from, ending);
    // Endings of attempts before the newest.
    let before = |attempt: Option<u32>| {
        let endings = memory.map(|memory| memory.endings.as_slice()).unwrap_or_default();
        endings.iter().find(|ending| Some(ending.attempt) < attempt).map(ending)
    };
    let attempt = newest
        .map(|container| container.attempt)
        .max(memory.and_then(|memory| memory.attempt));
    let state = match &standing {
        Standing::Absent => None,
        Standing::Created(_) => Some(waiting("ContainerCreating", String::new())),
        Standing::Running(running) | Standing::Stray(running) => Some(State::Running {
            started_at: running.started_at,
        }),
        Standing::Unknown(unknown) => Some(ending(&Ending {
            reason: "ContainerStatusUnknown".into(),
            message: "The runtime reports the container state as unknown".into(),
            ..seen.ending(unknown)
        })),
        Standing::Ended { ending: how, .. } => Some(ending(how)),
    };
    let not_running = !matches!(standing, Standing::Running(_) | Standing::Stray(_));
    // What has ended for good waits for nothing, whatever failed at last.
    let for_good = match &standing {
        Standing::Ended { ending, .. } => !seen.should_restart(container, ending),
        _ => false,
    };
    let awaits = (not_running && !for_good).then(|| why_waiting(from, name)).flatten();
    // Killed so that the next attempt takes its place: an end with 0 is no success then.
    let replaced = |state: &State| state.exit_code() == Some(0) && !for_good && container.role == Role::Main;
    let awaits = awaits.or_else(|| {
        let replaced = from.pod.spec.restart_policy == RestartPolicy::OnFailure && state.as_ref().is_some_and(replaced);
        replaced.then(|| waiting("ContainerCreating", String::new()))
    });
    let (state, last_state) = match (state, awaits) {
        // What ended and is to be started again waits; how it ended is what was before.
        (Some(ended @ State::Terminated { .. }), Some(awaits)) => (awaits, Some(ended)),
        (_, Some(awaits)) => (awaits, before(attempt.map(|attempt| attempt.saturating_add(1)))),
        (Some(state), None) => (state, before(attempt)),
        (None, None) => (waiting(default_reason(from), String::new()), before(attempt)),
    };
    let started = is_started(from, container, &standing);
    ContainerStatus {
        name: name.clone(),
        ready: is_ready(from, container, &standing, started),
        last_state,
        restart_count: attempt.unwrap_or_default(),
        // As it is written: the runtime was asked for the image by its id.
        image: container.image.clone(),
        image_id: newest.map(|newest| newest.image_ref.to_string()).unwrap_or_default(),
        container_id: newest.map(|newest| id(from, newest.id.as_str())),
        started,
        state,
    }
}

/// What an absent container waits for, if nothing else is known.
fn default_reason<'a>(from: &Sources<'a>) -> &'a str {
    if let Some(refusal) = from.refusal {
        &refusal.reason
    } else if from.pod.spec.init_containers.is_empty() {
        "ContainerCreating"
    } else {
        "PodInitializing"
    }
}

fn waiting(reason: &str, message: String) -> State {
    State::Waiting {
        reason: reason.to_owned(),
        message,
    }
}

/// Why a container is not started, if it is about to be and something is in the way.
fn why_waiting(from: &Sources<'_>, name: &str) -> Option<State> {
    // A pod that failed waits for nothing.
    if from.memory.failed.is_some() {
        return None;
    }
    let memory = from.memory.container(name);
    if let Some(until) = from.held.get(name) {
        let delay = memory
            .and_then(|memory| memory.back_off.as_ref())
            .map(|back_off| seconds(back_off.delay));
        let message = format!(
            "back-off {} restarting failed container={name} pod={}, until {}",
            delay.unwrap_or_default(),
            from.pod.id,
            whole(*until)
        );
        return Some(waiting("CrashLoopBackOff", message));
    }
    let failure = memory.and_then(|memory| memory.failure.as_ref())?;
    Some(failed(failure, from.now))
}

/// A failed start; one of an image that is waited for has a name of its own.
fn failed(failure: &Failure, now: Timestamp) -> State {
    let until = failure.until(now);
    if failure.reason == "ErrImagePull" && failure.count > 1 && until > now {
        let message = format!("{}; next attempt at {}", failure.message, whole(until));
        return waiting("ImagePullBackOff", message);
    }
    waiting(&failure.reason, failure.message.clone())
}

fn whole(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn terminated(from: &Sources<'_>, ending: &Ending) -> State {
    State::Terminated {
        exit_code: ending.exit_code,
        reason: ending.reason.to_string(),
        message: ending.message.to_string(),
        started_at: ending.started_at,
        finished_at: ending.finished_at,
        container_id: (!ending.id.is_empty()).then(|| id(from, &ending.id)),
    }
}

/// A container's id as Kubernetes writes it: `containerd://…`.
fn id(from: &Sources<'_>, id: &str) -> String {
    format!("{}://{id}", from.node.runtime)
}

fn is_started(from: &Sources<'_>, container: &Container, standing: &Standing<'_>) -> bool {
    let Standing::Running(running) = standing else {
        return false;
    };
    if container.post_start.is_some() && from.busy.contains(&container.name) {
        // Its hook runs.
        return false;
    }
    container.startup.is_none() || from.probes.get(&running.id, ProbeKind::Startup) == Some(true)
}

fn is_ready(from: &Sources<'_>, container: &Container, standing: &Standing<'_>, started: bool) -> bool {
    match (container.role, standing) {
        (Role::Init, Standing::Ended { ending, .. }) => ending.exit_code == 0,
        (Role::Init, _) => false,
        (_, Standing::Running(running)) if started => {
            container.readiness.is_none() || from.probes.get(&running.id, ProbeKind::Readiness) == Some(true)
        }
        _ => false,
    }
}
