//! The phase of a pod.

use super::types::{ApiContainerState, ApiContainerStatus, Phase};
use crate::manifest::{RestartPolicy, Role, Spec};

/// The phase, by the kubelet's rules.
pub(super) fn phase(spec: &Spec, init: &[ApiContainerStatus], main: &[ApiContainerStatus], failed: bool) -> Phase {
    if failed {
        return Phase::Failed;
    }
    let (mut pending_init, mut pending_sidecars, mut failed_init) = (0, 0, 0);
    for (container, status) in spec.init_containers.iter().zip(init) {
        let ended = status
            .state
            .exit_code()
            .or(status.last_state.as_ref().and_then(ApiContainerState::exit_code));
        match (container.role, &status.state, ended) {
            (Role::Sidecar, ApiContainerState::Running { .. }, _) if status.started => {}
            // A sidecar that is being restarted does not hold up the pod.
            (Role::Sidecar, ApiContainerState::Waiting { .. } | ApiContainerState::Terminated { .. }, Some(_)) => {}
            (Role::Sidecar, ..) => pending_sidecars += 1,
            (_, ApiContainerState::Terminated { .. }, Some(0)) => {}
            (
                _,
                ApiContainerState::Terminated { .. } | ApiContainerState::Waiting { .. },
                Some(1.. | i32::MIN..=-1),
            ) => failed_init += 1,
            _ => pending_init += 1,
        }
    }
    let (mut running, mut waiting, mut stopped, mut succeeded) = (0, 0, 0, 0);
    for status in main {
        match (&status.state, &status.last_state) {
            (ApiContainerState::Running { .. }, _) => running += 1,
            (ApiContainerState::Terminated { exit_code, .. }, _) => {
                stopped += 1;
                succeeded += usize::from(*exit_code == 0);
            }
            (ApiContainerState::Waiting { .. }, Some(_)) => stopped += 1,
            (ApiContainerState::Waiting { .. }, None) => waiting += 1,
        }
    }
    if failed_init > 0 && spec.restart_policy == RestartPolicy::Never {
        return Phase::Failed;
    }
    let pending = pending_init > 0 || failed_init > 0 || (pending_sidecars > 0 && !was_initialised(main));
    match spec.restart_policy {
        _ if pending || waiting > 0 => Phase::Pending,
        _ if running > 0 => Phase::Running,
        // All containers are about to be restarted.
        RestartPolicy::Always => Phase::Running,
        _ if stopped == succeeded => Phase::Succeeded,
        RestartPolicy::Never => Phase::Failed,
        RestartPolicy::OnFailure => Phase::Running,
    }
}

/// Whether any main container was started: then initialisation was complete.
pub(super) fn was_initialised(main: &[ApiContainerStatus]) -> bool {
    let began = |status: &ApiContainerStatus| {
        status.last_state.is_some()
            || matches!(
                status.state,
                ApiContainerState::Running { .. } | ApiContainerState::Terminated { .. }
            )
    };
    main.iter().any(began)
}
