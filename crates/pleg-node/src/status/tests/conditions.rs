//! Conditions, their reasons, and since when they hold.

use super::*;

#[test]
fn conditions_tell_what_is_missing() {
    let rows: &[(&str, Case, &[&str])] = &[
        (
            "nothing yet",
            Case::new(INIT),
            &[
                "PodReadyToStartContainers=False PodSandboxNotReady",
                "Initialized=False ContainersNotInitialized",
                "Ready=False ContainersNotReady",
                "ContainersReady=False ContainersNotReady",
            ],
        ),
        (
            "initialised",
            Case::new(INIT).sandbox(true, 0).exited("i", 1, 0),
            &[
                "Ready=False ContainersNotReady",
                "ContainersReady=False ContainersNotReady",
            ],
        ),
        (
            "all is well",
            Case::new(INIT).sandbox(true, 0).exited("i", 1, 0).running("app", 2),
            &[],
        ),
        (
            "init was cleaned away",
            Case::new(INIT).sandbox(true, 0).running("app", 2),
            &[],
        ),
        (
            "done",
            Case::new(&format!("restartPolicy: Never, {APP}"))
                .sandbox(false, 0)
                .exited("app", 1, 0),
            &[
                "PodReadyToStartContainers=False PodSandboxNotReady",
                "Ready=False PodCompleted",
                "ContainersReady=False PodCompleted",
            ],
        ),
        (
            "failed",
            Case::new(&format!("restartPolicy: Never, {APP}"))
                .sandbox(false, 0)
                .exited("app", 1, 1),
            &[
                "PodReadyToStartContainers=False PodSandboxNotReady",
                "Ready=False PodFailed",
                "ContainersReady=False PodFailed",
            ],
        ),
        (
            "a sidecar exited",
            Case::new(SIDECAR).sandbox(true, 0).exited("s", 5, 1).running("app", 2),
            &[
                "Ready=False ContainersNotReady",
                "ContainersReady=False ContainersNotReady",
            ],
        ),
        (
            "a sidecar has ended with its pod",
            Case::new(&format!("restartPolicy: Never, {SIDECAR}"))
                .sandbox(false, 0)
                .exited("s", 3, 0)
                .exited("app", 2, 6),
            &[
                "PodReadyToStartContainers=False PodSandboxNotReady",
                "Ready=False PodFailed",
                "ContainersReady=False PodFailed",
            ],
        ),
        (
            "a new sandbox is not initialised yet",
            Case::new(SIDECAR)
                .sandbox(false, 0)
                .exited("s", 3, 0)
                .exited("app", 2, 6)
                .sandbox(true, 500),
            &[
                "Initialized=False ContainersNotInitialized",
                "Ready=False ContainersNotReady",
                "ContainersReady=False ContainersNotReady",
            ],
        ),
    ];
    for (what, case, wanted) in rows {
        assert_eq!(false_conditions(&status(case)), *wanted, "{what}");
    }
    let message = status(&Case::new("containers: [{name: a, image: i}, {name: b, image: i}]")).conditions[2]
        .message
        .clone();
    assert_eq!(message.as_deref(), Some("containers with unready status: [a b]"));
}

#[test]
fn a_sandbox_that_cannot_be_used_says_why() {
    let mut without_ip = Case::new(APP).sandbox(true, 0);
    without_ip.status.sandboxes[0].ips = Box::default();
    for (case, wanted) in [
        (Case::new(APP), Some("no pod sandbox exists")),
        (Case::new(APP).sandbox(false, 0), Some("pod sandbox is not ready")),
        (without_ip, Some("pod sandbox has no IP address")),
        (Case::new(APP).sandbox(true, 0), None),
    ] {
        assert_eq!(status(&case).conditions[0].message.as_deref(), wanted);
    }
}

#[test]
fn conditions_keep_their_time_while_they_hold() {
    let case = Case::new(APP).sandbox(true, 0).running("app", 1);
    let first = status(&case);
    let later = compute_with(&case.clone().at(2000), None, Some(&first));
    assert_eq!(later.conditions, first.conditions);
    let fallen = compute_with(&Case::new(APP).sandbox(true, 0).at(3000), None, Some(&later));
    let time = |status: &ApiPodStatus, n: usize| {
        status.conditions[n]
            .last_transition_time
            .duration_since(at(0))
            .as_secs()
    };
    // The sandbox is still there, the container is not; the pod was scheduled when it was accepted.
    assert_eq!([time(&fallen, 0), time(&fallen, 2), time(&fallen, 4)], [1000, 3000, 0]);
}

/// Containers that are ready make a pod ready only with the conditions that others set.
#[test]
fn readiness_gates_hold_the_pod() {
    let gated = format!("readinessGates: [{{conditionType: example.com/lb}}], {APP}");
    let mut case = Case::new(&gated).sandbox(true, 0).running("app", 1);
    let told = |case: &Case| {
        let status = status(case);
        let ready = &status.conditions[2];
        (
            false_conditions(&status).join(", "),
            ready.message.clone().unwrap_or_default(),
        )
    };
    let not_ready = "Ready=False ReadinessGatesNotReady";
    let missing = "corresponding condition of pod readiness gate \"example.com/lb\" does not exist.";
    assert_eq!(told(&case), (not_ready.to_owned(), missing.to_owned()));
    for (value, wanted) in [
        (
            "False",
            (
                not_ready,
                "the status of pod readiness gate \"example.com/lb\" is not \"True\", but False",
            ),
        ),
        ("True", ("", "")),
    ] {
        let mut pod = (*case.pod).clone();
        let mut object = (*pod.object).clone();
        let condition = core::PodCondition {
            type_: "example.com/lb".to_owned(),
            status: value.to_owned(),
            ..Default::default()
        };
        object.status.get_or_insert_default().conditions = Some(vec![condition]);
        pod.object = object.into();
        case.pod = pod.into();
        let (conditions, message) = told(&case);
        assert_eq!((&*conditions, &*message), wanted, "{value}");
    }
}
