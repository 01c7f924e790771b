//! The phase of a pod.
//!
//! `Succeeded` and `Failed` are final, and mean that nothing of the pod runs: they are withheld while a container may run.

use pleg::ContainerState;

use super::StatusInput;
use super::model::{ApiContainerState, ApiContainerStatus, Phase};
use crate::manifest::{RestartPolicy, Role, Spec};
use crate::reconcile::history::ContainerHistory;

/// The phase that the containers are in, and the one that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Phases {
    /// By the kubelet's rules. Conditions follow it: a pod that has failed is not ready, even if its phase is withheld.
    pub(super) computed: Phase,
    /// A terminal phase waits until nothing runs, and never goes back.
    pub(super) shown: Phase,
}

/// The phases of a pod.
pub(super) fn phases(from: &StatusInput<'_>, init: &[ApiContainerStatus], main: &[ApiContainerStatus]) -> Phases {
    let spec = &from.pod.spec;
    let by_containers = match phase(spec, init, main) {
        // A container that is replaced because its image changed has not ended by itself.
        terminal if is_terminal(terminal) && awaits_update(from) => Phase::Running,
        phase => phase,
    };
    let computed = if from.history.failed.is_some() {
        Phase::Failed
    } else if from.terminated && !is_terminal(by_containers) {
        // Whatever the restart policy: nothing is restarted.
        let succeeded = !main.is_empty() && main.iter().all(|status| last_exit(status) == Some(0));
        if succeeded { Phase::Succeeded } else { Phase::Failed }
    } else {
        by_containers
    };
    let before = from.before.and_then(Phase::of);
    if let Some(before) = before.filter(|before| is_terminal(*before)) {
        return Phases {
            computed: before,
            shown: before,
        };
    }
    if !is_terminal(computed) || !may_run(from) {
        return Phases {
            computed,
            shown: computed,
        };
    }
    let not_terminal = Some(by_containers).filter(|phase| !is_terminal(*phase));
    Phases {
        computed,
        shown: before.or(not_terminal).unwrap_or(Phase::Running),
    }
}

fn awaits_update(from: &StatusInput<'_>) -> bool {
    let mut histories = from
        .pod
        .spec
        .all_containers()
        .filter_map(|container| from.history.container(&container.name));
    histories.any(ContainerHistory::awaits_update)
}

/// The exit code of a container's last attempt.
fn last_exit(status: &ApiContainerStatus) -> Option<i32> {
    let last = status.last_state.as_ref().and_then(ApiContainerState::exit_code);
    status.state.exit_code().or(last)
}

/// Whether a phase is final.
pub(super) fn is_terminal(phase: Phase) -> bool {
    matches!(phase, Phase::Succeeded | Phase::Failed)
}

/// Whether a container of the pod runs, or may: the runtime does not know, or it is being started or killed.
fn may_run(from: &StatusInput<'_>) -> bool {
    let runs = |state| matches!(state, ContainerState::Running | ContainerState::Unknown);
    !from.in_flight.is_empty() || from.status.containers.iter().any(|container| runs(container.state))
}

/// The phase, by the kubelet's rules.
fn phase(spec: &Spec, init: &[ApiContainerStatus], main: &[ApiContainerStatus]) -> Phase {
    let (mut pending_init, mut pending_sidecars, mut failed_for_good) = (0, 0, 0);
    let (mut running, mut waiting, mut restarting, mut stopped, mut succeeded) = (0, 0, 0, 0, 0);
    for (container, status) in spec.init_containers.iter().zip(init) {
        let ended = last_exit(status);
        match (container.role, &status.state, ended) {
            (Role::Sidecar, ApiContainerState::Running { .. }, _) => {
                running += 1;
                pending_sidecars += usize::from(!status.started);
            }
            // A sidecar that is being restarted does not hold up the pod.
            (Role::Sidecar, ApiContainerState::Waiting { .. } | ApiContainerState::Terminated { .. }, Some(_)) => {}
            (Role::Sidecar, ..) => pending_sidecars += 1,
            (_, ApiContainerState::Terminated { .. }, Some(0)) => {}
            (
                _,
                ApiContainerState::Terminated { .. } | ApiContainerState::Waiting { .. },
                Some(code @ (1.. | i32::MIN..=-1)),
            ) if !spec.restarts(container, code) => failed_for_good += 1,
            _ => pending_init += 1,
        }
    }
    for (container, status) in spec.containers.iter().zip(main) {
        match (&status.state, &status.last_state) {
            (ApiContainerState::Running { .. }, _) => running += 1,
            (ApiContainerState::Terminated { exit_code, .. }, _) => {
                stopped += 1;
                succeeded += usize::from(*exit_code == 0);
                restarting += usize::from(spec.restarts(container, *exit_code));
            }
            (ApiContainerState::Waiting { .. }, Some(last)) => {
                stopped += 1;
                // One that was killed to be replaced may have exited with 0.
                let on_failure = spec.restart_policy_of(container) == RestartPolicy::OnFailure;
                let restarts = last.exit_code().is_some_and(|code| spec.restarts(container, code));
                restarting += usize::from(on_failure || restarts);
            }
            (ApiContainerState::Waiting { .. }, None) => waiting += 1,
        }
    }
    let pending = pending_init > 0 || (pending_sidecars > 0 && !was_initialised(main));
    if failed_for_good > 0 {
        Phase::Failed
    } else if pending || waiting > 0 {
        Phase::Pending
    } else if running > 0 || restarting > 0 {
        Phase::Running
    } else if stopped == succeeded {
        Phase::Succeeded
    } else {
        Phase::Failed
    }
}

/// Whether any main container was started: then initialisation was complete.
fn was_initialised(main: &[ApiContainerStatus]) -> bool {
    let began = |status: &ApiContainerStatus| {
        status.last_state.is_some()
            || matches!(
                status.state,
                ApiContainerState::Running { .. } | ApiContainerState::Terminated { .. }
            )
    };
    main.iter().any(began)
}
