//! The pod in one word.

use super::types::{ContainerStatus, Phase, State};
use crate::manifest::{RestartPolicy, Role, Spec};

/// The phase, by the kubelet's rules.
pub(super) fn phase(spec: &Spec, init: &[ContainerStatus], main: &[ContainerStatus], failed: bool) -> Phase {
    if failed {
        return Phase::Failed;
    }
    let (mut pending_init, mut pending_sidecars, mut failed_init) = (0, 0, 0);
    for (container, status) in spec.init_containers.iter().zip(init) {
        let ended = status
            .state
            .exit_code()
            .or(status.last_state.as_ref().and_then(State::exit_code));
        match (container.role, &status.state, ended) {
            (Role::Sidecar, State::Running { .. }, _) if status.started => {}
            // One that ran before and will again is not what the pod waits for.
            (Role::Sidecar, State::Waiting { .. } | State::Terminated { .. }, Some(_)) => {}
            (Role::Sidecar, ..) => pending_sidecars += 1,
            (_, State::Terminated { .. }, Some(0)) => {}
            (_, State::Terminated { .. } | State::Waiting { .. }, Some(1.. | i32::MIN..=-1)) => failed_init += 1,
            _ => pending_init += 1,
        }
    }
    let (mut running, mut waiting, mut stopped, mut succeeded) = (0, 0, 0, 0);
    for status in main {
        match (&status.state, &status.last_state) {
            (State::Running { .. }, _) => running += 1,
            (State::Terminated { exit_code, .. }, _) => {
                stopped += 1;
                succeeded += usize::from(*exit_code == 0);
            }
            (State::Waiting { .. }, Some(_)) => stopped += 1,
            (State::Waiting { .. }, None) => waiting += 1,
        }
    }
    if failed_init > 0 && spec.restart_policy == RestartPolicy::Never {
        return Phase::Failed;
    }
    let pending = pending_init > 0 || failed_init > 0 || (pending_sidecars > 0 && !has_begun(main));
    match spec.restart_policy {
        _ if pending || waiting > 0 => Phase::Pending,
        _ if running > 0 => Phase::Running,
        // All are about to be started again.
        RestartPolicy::Always => Phase::Running,
        _ if stopped == succeeded => Phase::Succeeded,
        RestartPolicy::Never => Phase::Failed,
        RestartPolicy::OnFailure => Phase::Running,
    }
}

/// Whether any container ran: then initialisation was complete once.
pub(super) fn has_begun(main: &[ContainerStatus]) -> bool {
    let began = |status: &ContainerStatus| {
        status.last_state.is_some() || matches!(status.state, State::Running { .. } | State::Terminated { .. })
    };
    main.iter().any(began)
}
