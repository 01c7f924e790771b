//! Messages of events in the words of a kubelet v1.37, which people and their scripts search for.

use std::fmt::Write as _;
use std::time::Duration;

use pleg_cri::ErrorKind;

use crate::manifest::{Pod, ProbeKind, RestartPolicy};
use crate::reconcile::action::KillReason;

/// Why a container is killed, in the event `Killing`.
pub(crate) fn killing(pod: &Pod, name: &str, reason: KillReason) -> String {
    let restarts = |what: String| {
        let of_container = pod
            .spec
            .container(name)
            .map(|container| pod.spec.restart_policy_of(container));
        let never = of_container.unwrap_or(pod.spec.restart_policy) == RestartPolicy::Never;
        if never && reason != KillReason::ImageChanged {
            return what;
        }
        format!("{what}, will be restarted")
    };
    match reason {
        KillReason::Probe(kind) => restarts(format!("Container {name} failed {} probe", kind.name())),
        KillReason::ImageChanged => restarts(format!("Container {name} definition changed")),
        KillReason::ResourcesChanged => format!("Container {name} resize requires restart"),
        KillReason::PostStartHook => "FailedPostStartHook".to_owned(),
        KillReason::StateUnknown => "Container is in unknown state, try killing it before removal".to_owned(),
        KillReason::SandboxUnusable | KillReason::Duplicate | KillReason::PodFinished | KillReason::PodTerminating => {
            format!("Stopping container {name}")
        }
    }
}

/// A container waits before its next start.
pub(crate) fn back_off(pod: &Pod, name: &str) -> String {
    let id = &pod.id;
    format!(
        "Back-off restarting failed container {name} in pod {}_{}({})",
        id.name, id.namespace, id.uid
    )
}

/// An image was pulled: how long the pull took, and how long with waiting for its turn.
pub(crate) fn pulled(image: &str, pull: Duration, with_waiting: Duration, bytes: u64) -> String {
    format!(
        "Successfully pulled image \"{image}\" in {} ({} including waiting). Image size: {bytes} bytes.",
        go_duration(pull),
        go_duration(with_waiting)
    )
}

/// Image pull secrets that are pulled without.
pub(crate) fn missing_pull_secrets(names: &[String]) -> String {
    format!(
        "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
        names.join(", ")
    )
}

/// A pod wants the cluster's DNS, and this node does not know it.
pub(crate) fn missing_cluster_dns(pod: &Pod) -> String {
    let id = &pod.id;
    format!(
        "pod: \"{}_{}({})\". this node does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. \
         Falling back to \"Default\" policy.",
        id.name, id.namespace, id.uid
    )
}

/// The kind of a probe at the beginning of a sentence.
pub(crate) fn probe(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Liveness => "Liveness",
        ProbeKind::Readiness => "Readiness",
        ProbeKind::Startup => "Startup",
    }
}

/// A failed call as Go prints the error of a gRPC call.
pub(crate) fn rpc_error(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::Status { code, message } => format!("rpc error: code = {} desc = {message}", camel_case(code)),
        ErrorKind::NotFound(message) => format!("rpc error: code = NotFound desc = {message}"),
        ErrorKind::Deadline(_) => format!("rpc error: code = DeadlineExceeded desc = {kind}"),
        ErrorKind::Unreachable(message) => format!("rpc error: code = Unavailable desc = {message}"),
        other => other.to_string(),
    }
}

/// What the runtime said, without the code.
pub(crate) fn rpc_message(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::Status { message, .. } | ErrorKind::NotFound(message) => message.clone(),
        other => other.to_string(),
    }
}

/// `DEADLINE_EXCEEDED` as `DeadlineExceeded`.
fn camel_case(code: &str) -> String {
    let mut text = String::with_capacity(code.len());
    for word in code.split('_') {
        let mut letters = word.chars();
        text.extend(letters.next());
        text.extend(letters.map(|letter| letter.to_ascii_lowercase()));
    }
    text
}

/// Milliseconds as Go prints a duration: `532ms`, `1.2s`, `1m2.345s`.
fn go_duration(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    if seconds == 0 && millis > 0 {
        return format!("{millis}ms");
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let mut text = String::new();
    // Writing to a string cannot fail.
    if hours > 0 {
        let _ = write!(text, "{hours}h");
    }
    if seconds >= 60 {
        let _ = write!(text, "{minutes}m");
    }
    let _ = write!(text, "{}", seconds % 60);
    if millis > 0 {
        let fraction = format!("{millis:03}");
        let _ = write!(text, ".{}", fraction.trim_end_matches('0'));
    }
    text + "s"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    #[test]
    fn durations_look_like_those_of_go() {
        for (millis, expected) in [
            (0, "0s"),
            (7, "7ms"),
            (999, "999ms"),
            (1000, "1s"),
            (1200, "1.2s"),
            (62_345, "1m2.345s"),
            (3_600_000, "1h0m0s"),
            (3_661_050, "1h1m1.05s"),
        ] {
            assert_eq!(go_duration(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn kills_say_whether_the_container_comes_back() {
        let spec = |policy: &str| {
            pod(&format!(
                "restartPolicy: {policy}, initContainers: [{{name: s, image: i, restartPolicy: Always}}], \
                 containers: [{{name: c, image: i}}]"
            ))
        };
        let (always, never) = (spec("Always"), spec("Never"));
        let probe = KillReason::Probe(ProbeKind::Liveness);
        for (pod, name, reason, expected) in [
            (
                &always,
                "c",
                probe,
                "Container c failed liveness probe, will be restarted",
            ),
            (&never, "c", probe, "Container c failed liveness probe"),
            (
                &never,
                "s",
                probe,
                "Container s failed liveness probe, will be restarted",
            ),
            (
                &always,
                "c",
                KillReason::Probe(ProbeKind::Startup),
                "Container c failed startup probe, will be restarted",
            ),
            (
                &never,
                "c",
                KillReason::ImageChanged,
                "Container c definition changed, will be restarted",
            ),
            (&always, "c", KillReason::PodTerminating, "Stopping container c"),
            (&always, "c", KillReason::PostStartHook, "FailedPostStartHook"),
        ] {
            assert_eq!(killing(pod, name, reason), expected);
        }
    }

    #[test]
    fn errors_of_calls_look_like_those_of_go() {
        let status = ErrorKind::Status {
            code: "FAILED_PRECONDITION",
            message: "no".to_owned(),
        };
        assert_eq!(rpc_error(&status), "rpc error: code = FailedPrecondition desc = no");
        assert_eq!(rpc_message(&status), "no");
        let hang = ErrorKind::Deadline(Duration::from_mins(2));
        assert_eq!(
            rpc_error(&hang),
            "rpc error: code = DeadlineExceeded desc = no answer within 2m0s"
        );
    }
}
