//! The pods of the chaos, which do the same on a simulated and on a real runtime.

use fastrand::Rng;
use pleg_e2e::image;
use serde_json::{Value, json};

/// Two names of the same image: an update of a pod goes from one to the other.
pub(crate) const IMAGES: [&str; 2] = [image::NAME, "docker.io/library/busybox:1.36"];
/// A config map that some of the pods mount.
pub(crate) const SETTINGS: &str = "settings";

const STAYS: &str = "while true; do sleep 1; done";
const POLITE: &str = "trap 'exit 0' TERM; while true; do sleep 1; done";

fn container(name: &str, script: &str) -> Value {
    json!({
        "name": name, "image": IMAGES[0], "imagePullPolicy": "IfNotPresent", "command": ["/bin/sh", "-c", script],
    })
}

fn with(mut value: Value, more: &Value) -> Value {
    if let (Some(fields), Some(more)) = (value.as_object_mut(), more.as_object()) {
        fields.extend(more.clone());
    }
    value
}

/// A pod of one of several kinds, bound to a node.
pub(crate) fn pod(rng: &mut Rng, name: &str, node: &str) -> Value {
    let probe =
        json!({ "exec": { "command": ["true"] }, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 100 });
    let spec = match rng.u8(..8) {
        0 | 1 => json!({ "containers": [container("app", STAYS)] }),
        2 => json!({ "containers": [container("app", POLITE), container("b", STAYS)] }),
        3 => json!({
            "initContainers": [container("first", "true"), with(container("side", STAYS), &json!({ "restartPolicy": "Always" }))],
            "containers": [container("app", POLITE)],
        }),
        4 => json!({
            "containers": [with(container("app", STAYS), &json!({ "readinessProbe": probe, "livenessProbe": probe }))],
        }),
        5 => json!({
            "containers": [with(container("app", STAYS), &json!({ "volumeMounts": [{ "name": "s", "mountPath": "/etc/s" }] }))],
            "volumes": [{ "name": "s", "configMap": { "name": SETTINGS } }],
            "automountServiceAccountToken": true,
        }),
        6 => {
            json!({ "restartPolicy": "Never", "containers": [container("app", &format!("sleep {}; exit 0", rng.u8(..6)))] })
        }
        _ => json!({
            "restartPolicy": "Never",
            "containers": [container("app", &format!("sleep {}; exit 3", rng.u8(..6))), container("b", POLITE)],
            "activeDeadlineSeconds": 15,
        }),
    };
    let common = json!({ "nodeName": node, "terminationGracePeriodSeconds": rng.u8(..4) });
    let spec = with(with(json!({ "automountServiceAccountToken": false }), &common), &spec);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
}

/// A static pod in one of several versions. It has the test's namespace, so that its mirror pod is seen with the others.
pub(crate) fn static_pod(rng: &mut Rng, name: &str, namespace: &str) -> Value {
    let version = rng.u8(..3).to_string();
    let app = with(
        container("app", STAYS),
        &json!({ "env": [{ "name": "VERSION", "value": version }] }),
    );
    let spec = json!({ "terminationGracePeriodSeconds": rng.u8(1..4), "containers": [app] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace }, "spec": spec })
}
