//! The events of an action that failed. Pure.

use super::wording::{rpc_error, rpc_message};
use super::{Event, EventType};
use crate::error::with_causes;
use crate::executor::ActionError;
use crate::manifest::Pod;
use crate::reconcile::action::Action;

/// What to tell about an action that failed; nothing, if it was merely no longer needed.
pub(crate) fn of_failure(pod: &Pod, action: &Action, error: &ActionError, terminating: bool) -> Vec<Event> {
    match (action, error) {
        (_, ActionError::Cancelled) => Vec::new(),
        (Action::Start { name, .. }, _) => of_start(pod, name, error),
        (Action::RunSandbox { .. }, _) => vec![of_sandbox(pod, error)],
        (Action::Kill { .. } | Action::StopSandbox(_) | Action::RemoveSandbox(_), _) if terminating => {
            vec![failed_kill(pod, error)]
        }
        // The next try says more, or nobody misses what was to be removed.
        _ => Vec::new(),
    }
}

fn of_start(pod: &Pod, name: &str, error: &ActionError) -> Vec<Event> {
    let warning = |reason, message: &str| Event::container(pod, name, EventType::Warning, reason, message);
    let failed = |message: &str| warning("Failed", &format!("Error: {message}"));
    let image = pod.spec.container(name).map_or("", |container| &container.image);
    match error {
        ActionError::Call(call) if call.reason() == "ErrImagePull" => vec![
            warning(
                "Failed",
                &format!("Failed to pull image \"{image}\": {}", rpc_error(call.kind())),
            ),
            failed(call.reason()),
        ],
        ActionError::Call(call) if call.reason() == "ImageInspectError" => vec![
            warning(
                "InspectFailed",
                &format!("Failed to inspect image \"{image}\": {}", rpc_error(call.kind())),
            ),
            failed(call.reason()),
        ],
        // As in the kubelet, the container's id, which is another one each time, makes no new event each time.
        ActionError::Call(call) => {
            let message = rpc_message(call.kind());
            match call.subject_id() {
                Some(id) => vec![failed(&message.replace(id, name))],
                None => vec![failed(&message)],
            }
        }
        ActionError::ImageNeverPull(image) => vec![
            warning(
                "ErrImageNeverPull",
                &format!("Container image \"{image}\" is not present with pull policy of Never"),
            ),
            failed("ErrImageNeverPull"),
        ],
        // Without its output, which may contain secrets.
        ActionError::PostStartHook(_) => vec![warning("FailedPostStartHook", "PostStartHook failed")],
        other if other.reason() == "FailedMount" => vec![failed_mount(pod, other)],
        other => vec![failed(&with_causes(other))],
    }
}

fn of_sandbox(pod: &Pod, error: &ActionError) -> Event {
    let warning = |reason, message: String| Event::pod(&pod.id, EventType::Warning, reason, &message);
    match error {
        ActionError::Call(call) if call.reason() == "KillPodSandboxError" => failed_kill(pod, error),
        ActionError::Call(call) => warning(
            "FailedCreatePodSandBox",
            format!("Failed to create pod sandbox: {}", rpc_error(call.kind())),
        ),
        ActionError::Cgroup(_) => warning(
            "FailedCreatePodContainer",
            format!("unable to ensure pod container exists: {}", with_causes(error)),
        ),
        other if other.reason() == "FailedMount" => failed_mount(pod, other),
        other => warning(
            "FailedCreatePodSandBox",
            format!("Failed to create pod sandbox: {}", with_causes(other)),
        ),
    }
}

fn failed_mount(pod: &Pod, error: &ActionError) -> Event {
    let message = format!("Unable to attach or mount volumes: {}", with_causes(error));
    Event::pod(&pod.id, EventType::Warning, "FailedMount", &message)
}

fn failed_kill(pod: &Pod, error: &ActionError) -> Event {
    let why = match error {
        ActionError::Call(call) => rpc_error(call.kind()),
        other => with_causes(other),
    };
    Event::pod(
        &pod.id,
        EventType::Warning,
        "FailedKillPod",
        &format!("error killing pod: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::call_failed;
    use crate::testing::pod;

    fn call(reason: &'static str) -> ActionError {
        let error = pleg_cri::Error {
            rpc: pleg_cri::Rpc::StartContainer,
            subject: pleg_cri::Subject::container("default/p", "c", "abc123"),
            endpoint: pleg_cri::Endpoint::unix("/run/x.sock"),
            kind: pleg_cri::ErrorKind::Status {
                code: "UNKNOWN",
                message: "task abc123: no".to_owned(),
            },
        };
        call_failed(reason)(error)
    }

    /// An action, how it failed, and the events: reason and message.
    type Case<'a> = (Action, ActionError, Vec<(&'a str, &'a str)>);

    #[test]
    fn failures_have_the_reasons_of_the_kubelet() {
        let start = || Action::Start {
            name: "c".to_owned(),
            attempt: 0,
            sandbox: "s".into(),
            created: None,
        };
        let sandbox = || Action::RunSandbox {
            attempt: 0,
            replaces: Vec::new(),
        };
        let volume = || ActionError::VolumeObjects(crate::executor::objects::ObjectsError::NoApiServer("x".to_owned()));
        let stop = || Action::StopSandbox("s".into());
        let rpc = "rpc error: code = Unknown desc = task abc123: no";
        let pull = format!("Failed to pull image \"i\": {rpc}");
        let inspect = format!("Failed to inspect image \"i\": {rpc}");
        let create = format!("Failed to create pod sandbox: {rpc}");
        let kill = format!("error killing pod: {rpc}");
        let mount = "Unable to attach or mount volumes: x is an object of the API, and this node has no API server";
        let cases: Vec<Case<'_>> = vec![
            (start(), ActionError::Cancelled, vec![]),
            (
                start(),
                call("ErrImagePull"),
                vec![("Failed", &pull), ("Failed", "Error: ErrImagePull")],
            ),
            (
                start(),
                call("ImageInspectError"),
                vec![("InspectFailed", &inspect), ("Failed", "Error: ImageInspectError")],
            ),
            (
                start(),
                call("RunContainerError"),
                vec![("Failed", "Error: task c: no")],
            ),
            (
                start(),
                ActionError::ImageNeverPull("i".to_owned()),
                vec![
                    (
                        "ErrImageNeverPull",
                        "Container image \"i\" is not present with pull policy of Never",
                    ),
                    ("Failed", "Error: ErrImageNeverPull"),
                ],
            ),
            (start(), volume(), vec![("FailedMount", mount)]),
            (sandbox(), volume(), vec![("FailedMount", mount)]),
            (
                sandbox(),
                call("CreatePodSandboxError"),
                vec![("FailedCreatePodSandBox", &create)],
            ),
            (sandbox(), call("KillPodSandboxError"), vec![("FailedKillPod", &kill)]),
            (stop(), call("KillPodSandboxError"), vec![("FailedKillPod", &kill)]),
            (
                Action::RemoveOldSandbox("s".into()),
                call("KillPodSandboxError"),
                vec![],
            ),
        ];
        let pod = pod("containers: [{name: c, image: i}]");
        for (action, error, expected) in cases {
            let events = of_failure(&pod, &action, &error, true);
            let told: Vec<_> = events.iter().map(|event| (&*event.reason, &*event.message)).collect();
            assert_eq!(told, expected, "{action:?} {error}");
            assert!(events.iter().all(|event| event.kind == EventType::Warning));
        }
        // While the pod runs on, its sandbox is stopped again.
        assert_eq!(of_failure(&pod, &stop(), &call("KillPodSandboxError"), false), []);
    }
}
