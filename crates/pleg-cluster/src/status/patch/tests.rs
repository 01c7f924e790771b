use serde_json::json;

use super::*;

fn status(value: Value) -> core::PodStatus {
    serde_json::from_value(value).unwrap()
}

#[test]
fn only_what_differs_is_sent() {
    let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"});
    let gate = json!({"type": "example.com/gate", "status": "False"});
    // What the API server has, what it should have, and the patch of the status.
    for (old, new, expected) in [
        (json!({}), json!({}), Value::Null),
        (
            json!({"phase": "Pending"}),
            json!({"phase": "Running"}),
            json!({"phase": "Running"}),
        ),
        (
            json!({"phase": "Failed", "reason": "Evicted"}),
            json!({"phase": "Failed"}),
            json!({"reason": null}),
        ),
        // An API server fills in what is empty.
        (
            json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "lastState": {}}]}),
            json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0}], "podIPs": []}),
            Value::Null,
        ),
        // Conditions of others are not in it, ours only if they differ.
        (
            json!({"conditions": [gate, ready]}),
            json!({"conditions": [{"type": "example.com/gate", "status": "True"}, ready]}),
            Value::Null,
        ),
        (
            json!({"conditions": [gate, {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "no"}]}),
            json!({"conditions": [gate, ready]}),
            json!({"conditions": [{
                "type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z", "reason": null, "message": null,
            }]}),
        ),
        // One that is there only while it holds.
        (
            json!({"conditions": [gate, ready]}),
            json!({"conditions": [gate, ready, {"type": "PodResizeInProgress", "status": "True"}]}),
            json!({"conditions": [{"type": "PodResizeInProgress", "status": "True"}]}),
        ),
        (
            json!({"conditions": [{"type": "PodResizeInProgress", "status": "True"}, gate, ready]}),
            json!({"conditions": [gate, ready]}),
            json!({"conditions": [{"$patch": "delete", "type": "PodResizeInProgress"}]}),
        ),
        // Addresses are merged by address, so they have to be replaced.
        (
            json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}),
            json!({"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]}),
            json!({"podIP": "10.0.0.2", "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}]}),
        ),
    ] {
        let patch = patch(&"u".into(), &status(old), &status(new));
        let found = patch.as_ref().map_or(&Value::Null, |patch| &patch["status"]);
        assert_eq!(*found, expected);
        if let Some(patch) = patch {
            assert_eq!(patch["metadata"], json!({"uid": "u"}));
        }
    }
}

/// A running container without a start time is an empty object, which means something.
#[test]
fn nothing_is_left_out_of_what_is_sent() {
    let container =
        json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"running": {}}});
    let new = json!({"containerStatuses": [container]});
    let patch = patch(&"u".into(), &status(json!({})), &status(new.clone())).unwrap();
    assert_eq!(patch["status"], new);
}
