use std::sync::Arc;

use pleg_node::StuckCall;
use pleg_node::manifest::Pod;
use pleg_node::reconcile::decide::{Goal, Stage};
use serde_json::{Value, json};

use super::*;
use crate::status::patch::patch;

fn status(value: Value) -> core::PodStatus {
    serde_json::from_value(value).unwrap()
}

fn report(policy: &str, value: Value) -> Report {
    let object = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u"},
        "spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": policy},
    });
    Report {
        pod: Arc::new(Pod::from_object(serde_json::from_value(object).unwrap()).unwrap()),
        status: Arc::new(status(value)),
        stage: Stage::Running,
        goal: Goal::Run,
        stale: None,
        stuck: None,
    }
}

fn container(state: &Value) -> Value {
    json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state}])
}

/// One field of what the API server should have.
fn merged(policy: &str, api: &Value, new: &Value, field: &str) -> Value {
    let merged = merge(&report(policy, new.clone()), &status(api.clone()));
    serde_json::to_value(merged).unwrap()[field].clone()
}

#[test]
fn what_is_final_stays() {
    let (exited, failed) = (
        json!({"terminated": {"exitCode": 0, "containerID": "x://1"}}),
        json!({"terminated": {"exitCode": 1, "containerID": "x://1"}}),
    );
    let lost = json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}});
    let (running, waiting) = (json!({"running": {}}), json!({"waiting": {}}));
    for (what, policy, phase, old, new, expected) in [
        ("runs again", "Always", "Running", &exited, &running, &running),
        ("is final", "Never", "Running", &exited, &waiting, &exited),
        ("is final", "Never", "Running", &failed, &running, &failed),
        ("is final", "OnFailure", "Running", &exited, &waiting, &exited),
        ("runs again", "OnFailure", "Running", &failed, &running, &running),
        ("the pod is over", "Always", "Failed", &failed, &waiting, &failed),
        ("less is known", "Always", "Running", &failed, &lost, &failed),
        ("more is known", "Always", "Running", &lost, &failed, &failed),
    ] {
        let api = json!({"phase": phase, "containerStatuses": container(old)});
        let new = json!({"phase": phase, "containerStatuses": container(new)});
        let found = merged(policy, &api, &new, "containerStatuses");
        assert_eq!(found, container(expected), "{what} {policy} {phase}");
    }
}

#[test]
fn fields_that_never_go_back() {
    for (field, api, new, expected) in [
        (
            "phase",
            json!({"phase": "Succeeded"}),
            json!({"phase": "Running"}),
            json!("Succeeded"),
        ),
        (
            "phase",
            json!({"phase": "Failed"}),
            json!({"phase": "Succeeded"}),
            json!("Failed"),
        ),
        (
            "phase",
            json!({"phase": "Running"}),
            json!({"phase": "Failed"}),
            json!("Failed"),
        ),
        (
            "reason",
            json!({"phase": "Failed", "reason": "Evicted"}),
            json!({"phase": "Failed"}),
            json!("Evicted"),
        ),
        (
            "reason",
            json!({"phase": "Running", "reason": "Old"}),
            json!({"phase": "Running"}),
            Value::Null,
        ),
        (
            "reason",
            json!({}),
            json!({"phase": "Running", "reason": "StatusStale"}),
            Value::Null,
        ),
        (
            "observedGeneration",
            json!({"observedGeneration": 3}),
            json!({"observedGeneration": 2}),
            json!(3),
        ),
        (
            "observedGeneration",
            json!({"observedGeneration": 3}),
            json!({"observedGeneration": 4}),
            json!(4),
        ),
        (
            "qosClass",
            json!({"qosClass": "Burstable"}),
            json!({"qosClass": "BestEffort"}),
            json!("Burstable"),
        ),
        ("podIP", json!({"podIP": "10.0.0.1"}), json!({}), json!("10.0.0.1")),
        ("resize", json!({"resize": "Deferred"}), json!({}), json!("Deferred")),
        (
            "startTime",
            json!({"startTime": "2027-01-15T08:00:00Z"}),
            json!({"startTime": "2027-01-15T09:00:00Z"}),
            json!("2027-01-15T08:00:00Z"),
        ),
    ] {
        assert_eq!(merged("Always", &api, &new, field), expected, "{field} {api} {new}");
    }
}

#[test]
fn conditions_of_others_stay_and_times_move_with_the_status() {
    let (early, late) = ("2027-01-15T08:00:00Z", "2027-01-15T09:00:00Z");
    let condition =
        |kind: &str, status: &str, at: &str| json!({"type": kind, "status": status, "lastTransitionTime": at});
    let api = json!({"conditions": [
        condition("example.com/gate", "True", early),
        condition("Ready", "True", early),
        condition("ContainersReady", "False", early),
        {"type": "PodScheduled", "status": "True", "observedGeneration": 1, "lastTransitionTime": early},
    ]});
    let new = json!({"observedGeneration": 2, "conditions": [
        condition("Ready", "True", late),
        condition("ContainersReady", "True", late),
        condition("PodScheduled", "True", late),
    ]});
    assert_eq!(
        merged("Always", &api, &new, "conditions"),
        json!([
            condition("example.com/gate", "True", early),
            {"type": "Ready", "status": "True", "observedGeneration": 2, "lastTransitionTime": early},
            {"type": "ContainersReady", "status": "True", "observedGeneration": 2, "lastTransitionTime": late},
            {"type": "PodScheduled", "status": "True", "observedGeneration": 1, "lastTransitionTime": early},
        ])
    );
}

#[test]
fn what_is_stale_takes_no_pod_out_of_service() {
    let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-15T08:00:00Z"});
    let api = json!({"phase": "Running", "conditions": [ready]});
    let stale = json!({
        "phase": "Running", "reason": "StatusStale", "message": "Last observed …",
        "conditions": [{"type": "Ready", "status": "Unknown", "reason": "StatusStale"}],
    });
    let report = report("Always", stale);
    let merged = merge(&report, &status(api.clone()));
    assert_eq!(patch(&"u".into(), &status(api), &merged), None);
}

#[test]
fn a_stuck_pod_says_so_until_it_answers() {
    let mut report = report("Always", json!({"phase": "Running"}));
    report.stuck = Some(StuckCall {
        rpc: "ContainerStatus".to_owned(),
        container: Some("app".to_owned()),
        since: "2027-01-15T08:00:00.5Z".parse().unwrap(),
        error: "no answer within 10s".to_owned(),
    });
    let api = merge(&report, &status(json!({"phase": "Running"})));
    let condition = &api.conditions.as_ref().unwrap()[0];
    assert_eq!(
        (condition.type_.as_str(), condition.status.as_str()),
        ("pleg.io/Stuck", "True")
    );
    assert_eq!(
        condition.message.as_deref(),
        Some("ContainerStatus of container app has failed since 2027-01-15T08:00:00Z: no answer within 10s")
    );
    assert_eq!(patch(&"u".into(), &api, &merge(&report, &api)), None);

    report.stuck = None;
    let answered = merge(&report, &api);
    let condition = &answered.conditions.as_ref().unwrap()[0];
    assert_eq!(
        (condition.status.as_str(), condition.message.as_deref()),
        ("False", None)
    );
    // A pod that was never stuck has no such condition.
    let never = merge(&report, &status(json!({})));
    assert_eq!(never.conditions, Some(Vec::new()));
}

/// What is merged once is merged: no patch follows a patch.
#[test]
fn merging_twice_changes_nothing() {
    let statuses = [
        json!({}),
        json!({"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "startTime": "2027-01-15T08:00:00Z"}),
        json!({"phase": "Failed", "reason": "Evicted", "message": "m", "containerStatuses": container(&json!({"terminated": {"exitCode": 1}}))}),
        json!({"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}, {"type": "x", "status": "True"}]}),
        json!({"phase": "Succeeded", "containerStatuses": container(&json!({"waiting": {"reason": "ContainerCreating"}}))}),
    ];
    for policy in ["Always", "OnFailure", "Never"] {
        for api in &statuses {
            for new in &statuses {
                let report = report(policy, new.clone());
                let once = merge(&report, &status(api.clone()));
                let twice = merge(&report, &once);
                assert_eq!(patch(&"u".into(), &once, &twice), None, "{policy} {api} {new}");
            }
        }
    }
}

/// A container that is restarted though its pod says never.
#[test]
fn the_exit_of_a_container_with_its_own_policy_is_not_final() {
    let (failed, running) = (
        json!({"terminated": {"exitCode": 1, "containerID": "x://1"}}),
        json!({"running": {}}),
    );
    for (own, expected) in [
        (json!("Always"), &running),
        (json!("Never"), &failed),
        (json!(null), &failed),
    ] {
        let mut report = report(
            "Never",
            json!({"phase": "Running", "containerStatuses": container(&running)}),
        );
        let mut object = (*report.pod.object).clone();
        let spec = object.spec.as_mut().unwrap();
        spec.containers[0].restart_policy = own.as_str().map(str::to_owned);
        report.pod = Arc::new(Pod::from_object(object).unwrap());
        let api = status(json!({"phase": "Running", "containerStatuses": container(&failed)}));
        let merged = serde_json::to_value(merge(&report, &api)).unwrap();
        assert_eq!(&merged["containerStatuses"][0]["state"], expected, "{own}");
    }
}

/// A resize that is over is not shown for ever.
#[test]
fn conditions_of_a_resize_come_and_go() {
    let types = |api: &Value, new: &Value| {
        let conditions = merged("Always", api, new, "conditions");
        let all = conditions.as_array().unwrap().iter();
        all.map(|condition| condition["type"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let (idle, resizing) = (
        json!({"conditions": [{"type": "Ready", "status": "True"}]}),
        json!({"conditions": [{"type": "Ready", "status": "True"}, {"type": "PodResizeInProgress", "status": "True"}]}),
    );
    assert_eq!(types(&idle, &resizing), ["Ready", "PodResizeInProgress"]);
    assert_eq!(types(&resizing, &resizing), ["Ready", "PodResizeInProgress"]);
    assert_eq!(types(&resizing, &idle), ["Ready"]);
}
