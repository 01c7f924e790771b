//! Answers that are made up: what a real runtime would know from its processes.

use std::time::Duration;

use pleg_cri::{Rpc, v1};
use tonic::Status;

use crate::world::{Readiness, Script};

/// What `Status` says.
pub(super) fn conditions(readiness: Readiness) -> Vec<v1::RuntimeCondition> {
    let condition = |kind: &str, status: bool, reason: &str, message: &str| v1::RuntimeCondition {
        r#type: kind.to_owned(),
        status,
        reason: if status { String::new() } else { reason.to_owned() },
        message: if status { String::new() } else { message.to_owned() },
    };
    vec![
        condition(
            "RuntimeReady",
            readiness.runtime,
            "RuntimeNotReady",
            "set to not ready by the simulator",
        ),
        condition(
            "NetworkReady",
            readiness.network,
            "NetworkPluginNotReady",
            "Network plugin returns error: cni plugin not initialized",
        ),
    ]
}

/// The verbose status of a container, as far as clients read it. Only a running container with a process has a pid.
pub(super) fn container_info(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!(r#"{{"pid":{pid},"runtimeType":"pleg-sim"}}"#),
        None => r#"{"runtimeType":"pleg-sim"}"#.to_owned(),
    }
}

/// The verbose status of a sandbox as containerd reports it, as far as clients read it. No machine can have a process with this pid.
pub(super) fn sandbox_info(id: &str, process: &str) -> String {
    let pid = id
        .bytes()
        .fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let info = serde_json::json!({
        "pid": 5_000_000 + pid % 1_000_000,
        "processStatus": process,
        "netNamespaceClosed": false,
        "image": "registry.k8s.io/pause:3.10",
        "snapshotter": "overlayfs",
        "runtimeHandler": "",
        "runtimeType": "io.containerd.runc.v2",
    });
    info.to_string()
}

/// What a command in a container does.
pub(super) struct Exec {
    pub(super) takes: Duration,
    pub(super) answer: v1::ExecSyncResponse,
}

/// The command is a script: what it writes is the answer, and one that never ends counts as success.
pub(super) fn exec(cmd: &[String]) -> Exec {
    let mut answer = v1::ExecSyncResponse::default();
    let script = Script::parse(cmd.iter().map(String::as_str));
    if let Some(output) = script.output {
        answer.stdout = output.text.into_bytes();
    }
    let takes = script.ends.map_or(Duration::ZERO, |(takes, ending)| {
        answer.exit_code = ending.code();
        takes
    });
    Exec { takes, answer }
}

/// The error of a Go server for a call that it does not implement.
pub(super) fn unimplemented(rpc: Rpc) -> Status {
    Status::unimplemented(format!("unknown method {rpc} for service runtime.v1.RuntimeService"))
}
