//! Statuses, as tables.

mod conditions;
mod ephemeral_containers;
mod messages;
mod terminal;

use super::model::{ApiContainerState, ConditionStatus};
use super::*;
use crate::manifest::ProbeKind;
use crate::reconcile::backoff::BackOff;
use crate::testing::{Case, at};

fn node() -> NodeInfo {
    NodeInfo {
        ips: vec!["192.0.2.1".parse().unwrap()],
        runtime: "containerd".to_owned(),
    }
}

fn compute_with(case: &Case, stale: Option<&Stale>, before: Option<&ApiPodStatus>) -> ApiPodStatus {
    let before: Option<core::PodStatus> = before.cloned().map(core::PodStatus::from);
    let case = case.clone().observed();
    let decision = case.decide();
    compute_model(&StatusInput {
        pod: &case.pod,
        status: &case.status,
        history: &case.history,
        probes: &case.probes,
        backing_off: &decision.backing_off,
        in_flight: &case.in_flight.containers,
        not_admitted: None,
        terminated: false,
        stopping_since: case.history.finishing_since,
        stale,
        before: before.as_ref(),
        node: &node(),
        now: at(case.now),
    })
}

fn status(case: &Case) -> ApiPodStatus {
    compute_with(case, None, None)
}

/// `Running`, `Waiting:CrashLoopBackOff`, `Terminated:Error:3`.
fn state(state: &ApiContainerState) -> String {
    match state {
        ApiContainerState::Waiting { reason, .. } => format!("Waiting:{reason}"),
        ApiContainerState::Running { .. } => "Running".to_owned(),
        ApiContainerState::Terminated { exit_code, reason, .. } => format!("Terminated:{reason}:{exit_code}"),
    }
}

/// The phase, then for each container: state, last state, restarts, and `ready`.
fn words(status: &ApiPodStatus) -> String {
    let mut words = vec![format!("{:?}", status.phase)];
    for container in status.init_container_statuses.iter().chain(&status.container_statuses) {
        let last = container
            .last_state
            .as_ref()
            .map(|last| format!(" after {}", state(last)));
        let restarts = Some(container.restart_count)
            .filter(|&count| count > 0)
            .map(|count| format!(" x{count}"));
        words.push(format!(
            "{}={}{}{}{}",
            container.name,
            state(&container.state),
            last.unwrap_or_default(),
            restarts.unwrap_or_default(),
            if container.ready { " ready" } else { "" }
        ));
    }
    words.join("; ")
}

/// The conditions that do not hold, with their reasons.
fn false_conditions(status: &ApiPodStatus) -> Vec<String> {
    let not = status
        .conditions
        .iter()
        .filter(|condition| condition.status != ConditionStatus::True);
    not.map(|condition| {
        format!(
            "{:?}={:?} {}",
            condition.kind,
            condition.status,
            condition.reason.unwrap_or_default()
        )
    })
    .collect()
}

const APP: &str = "containers: [{name: app, image: img}]";
const INIT: &str = "initContainers: [{name: i, image: img}], containers: [{name: app, image: img}]";
const SIDECAR: &str =
    "initContainers: [{name: s, image: img, restartPolicy: Always}], containers: [{name: app, image: img}]";

type Row = (&'static str, &'static str, fn(Case) -> Case, [&'static str; 3]);

/// What is observed, and the status with each policy.
const ROWS: &[Row] = &[
    ("nothing yet", APP, |c| c, ["Pending; app=Waiting:ContainerCreating"; 3]),
    (
        "a sandbox",
        APP,
        |c| c.sandbox(true, 0),
        ["Pending; app=Waiting:ContainerCreating"; 3],
    ),
    (
        "made",
        APP,
        |c| c.sandbox(true, 0).created("app", 1),
        ["Pending; app=Waiting:ContainerCreating"; 3],
    ),
    (
        "an init container is made",
        INIT,
        |c| c.sandbox(true, 0).created("i", 1),
        ["Pending; i=Waiting:PodInitializing; app=Waiting:PodInitializing"; 3],
    ),
    (
        "it runs",
        APP,
        |c| c.sandbox(true, 0).running("app", 1),
        ["Running; app=Running ready"; 3],
    ),
    (
        "it ended well",
        APP,
        |c| c.sandbox(true, 0).exited("app", 9, 0),
        [
            "Running; app=Terminated:Completed:0",
            "Succeeded; app=Terminated:Completed:0",
            "Succeeded; app=Terminated:Completed:0",
        ],
    ),
    (
        "it ended badly",
        APP,
        |c| c.sandbox(true, 0).exited("app", 9, 3),
        [
            "Running; app=Terminated:Error:3",
            "Running; app=Terminated:Error:3",
            "Failed; app=Terminated:Error:3",
        ],
    ),
    (
        "it runs again",
        APP,
        |c| c.sandbox(true, 0).exited("app", 9, 3).running("app", 10),
        ["Running; app=Running after Terminated:Error:3 x1 ready"; 3],
    ),
    (
        "it crashed again",
        APP,
        |c| c.sandbox(true, 0).exited("app", 9, 3).exited("app", 20, 4),
        [
            "Running; app=Terminated:Error:4 after Terminated:Error:3 x1",
            "Running; app=Terminated:Error:4 after Terminated:Error:3 x1",
            "Failed; app=Terminated:Error:4 after Terminated:Error:3 x1",
        ],
    ),
    (
        "it is gone, and history has it",
        APP,
        |c| c.sandbox(true, 0).exited("app", 9, 3).observed().cleaned(),
        [
            "Running; app=Terminated:Error:3",
            "Running; app=Terminated:Error:3",
            "Failed; app=Terminated:Error:3",
        ],
    ),
    (
        "it ran, and is gone",
        APP,
        |c| c.sandbox(true, 0).running("app", 1).observed().cleaned(),
        [
            "Running; app=Terminated:ContainerStatusUnknown:137",
            "Running; app=Terminated:ContainerStatusUnknown:137",
            "Failed; app=Terminated:ContainerStatusUnknown:137",
        ],
    ),
    (
        "initialising",
        INIT,
        |c| c.sandbox(true, 0).running("i", 1),
        ["Pending; i=Running; app=Waiting:PodInitializing"; 3],
    ),
    (
        "initialised",
        INIT,
        |c| c.sandbox(true, 0).exited("i", 1, 0),
        ["Pending; i=Terminated:Completed:0 ready; app=Waiting:PodInitializing"; 3],
    ),
    (
        "init failed",
        INIT,
        |c| c.sandbox(true, 0).exited("i", 1, 1),
        [
            "Pending; i=Terminated:Error:1; app=Waiting:PodInitializing",
            "Pending; i=Terminated:Error:1; app=Waiting:PodInitializing",
            "Failed; i=Terminated:Error:1; app=Waiting:PodInitializing",
        ],
    ),
    (
        "a sidecar is up",
        SIDECAR,
        |c| c.sandbox(true, 0).running("s", 1),
        ["Pending; s=Running ready; app=Waiting:PodInitializing"; 3],
    ),
    (
        "and the container",
        SIDECAR,
        |c| c.sandbox(true, 0).running("s", 1).running("app", 2),
        ["Running; s=Running ready; app=Running ready"; 3],
    ),
    (
        "the sidecar died",
        SIDECAR,
        |c| c.sandbox(true, 0).exited("s", 5, 1).running("app", 2),
        ["Running; s=Terminated:Error:1; app=Running ready"; 3],
    ),
    (
        "the container is done",
        SIDECAR,
        |c| c.sandbox(true, 0).running("s", 1).exited("app", 2, 0),
        [
            "Running; s=Running ready; app=Terminated:Completed:0",
            "Running; s=Running ready; app=Terminated:Completed:0",
            "Running; s=Running ready; app=Terminated:Completed:0",
        ],
    ),
    (
        "and the sidecar has ended",
        SIDECAR,
        |c| c.sandbox(true, 0).exited("s", 3, 143).exited("app", 2, 0),
        [
            "Running; s=Terminated:Error:143; app=Terminated:Completed:0",
            "Succeeded; s=Terminated:Error:143; app=Terminated:Completed:0",
            "Succeeded; s=Terminated:Error:143; app=Terminated:Completed:0",
        ],
    ),
];
#[test]
fn phases_and_states() {
    for (what, spec, case, wanted) in ROWS {
        for (policy, wanted) in ["Always", "OnFailure", "Never"].into_iter().zip(wanted) {
            let case = case(Case::new(&format!("restartPolicy: {policy}, {spec}")));
            assert_eq!(words(&status(&case)), *wanted, "{policy}: {what}");
        }
    }
}

/// A pod is over when no container of it is restarted, whatever its own policy.
#[test]
fn phases_follow_the_policies_of_containers() {
    let two = |own: &str| {
        format!("containers: [{{name: app, image: img, {own}}}, {{name: b, image: img, restartPolicy: Never}}]")
    };
    for (policy, own, code, expected) in [
        ("Never", "restartPolicy: Always", 0, Phase::Running),
        ("Never", "restartPolicy: OnFailure", 3, Phase::Running),
        ("Never", "restartPolicy: OnFailure", 0, Phase::Succeeded),
        ("Always", "restartPolicy: Never", 3, Phase::Failed),
        ("Always", "restartPolicy: Never", 0, Phase::Succeeded),
    ] {
        let case = Case::new(&format!("restartPolicy: {policy}, {}", two(own)));
        let case = case.sandbox(true, 0).exited("app", 999, code).exited("b", 999, 0);
        assert_eq!(status(&case).phase, expected, "{policy}, {own}: exit {code}");
    }
    let init = |policy: &str, own: &str| {
        let spec = format!("restartPolicy: {policy}, initContainers: [{{name: i, image: img, {own}}}], {APP}");
        status(&Case::new(&spec).sandbox(true, 0).exited("i", 999, 1)).phase
    };
    assert_eq!(init("Never", "restartPolicy: OnFailure"), Phase::Pending);
    assert_eq!(init("Always", "restartPolicy: Never"), Phase::Failed);
}

#[test]
fn a_crash_loop_says_until_when() {
    let mut case = Case::new(APP)
        .sandbox(true, 0)
        .exited("app", 990, 3)
        .exited("app", 995, 4)
        .observed();
    case.history.containers.get_mut("app").unwrap().back_off = Some(BackOff {
        delay: std::time::Duration::from_secs(20),
        since: at(994),
    });
    let status = status(&case);
    assert_eq!(
        words(&status),
        "Running; app=Waiting:CrashLoopBackOff after Terminated:Error:4 x1"
    );
    let ApiContainerState::Waiting { message, .. } = &status.container_statuses[0].state else {
        panic!("{status:?}");
    };
    assert_eq!(
        message,
        "back-off 20s restarting failed container=app pod=default/p-n, until 2027-01-15T08:16:55Z"
    );
}

#[test]
fn the_obstacle_to_a_start_is_reported() {
    let rows: &[(&[&str], &str)] = &[
        (&["ErrImagePull"], "Pending; app=Waiting:ErrImagePull"),
        (&["ErrImagePull", "ErrImagePull"], "Pending; app=Waiting:ErrImagePull"),
        (&["ErrImageNeverPull"], "Pending; app=Waiting:ErrImageNeverPull"),
        (&["CreateContainerError"], "Pending; app=Waiting:CreateContainerError"),
    ];
    for (failures, wanted) in rows {
        let mut case = Case::new(APP).sandbox(true, 0);
        for failure in *failures {
            case.history
                .containers
                .entry("app".into())
                .or_default()
                .record_failure(failure, "no", at(999));
        }
        assert_eq!(words(&status(&case)), *wanted);
        // It ran before: its last state is kept.
        let mut case = Case::new(APP).sandbox(true, 0).exited("app", 9, 3).observed();
        case.history
            .containers
            .get_mut("app")
            .unwrap()
            .record_failure(failures[0], "no", at(999));
        assert_eq!(
            words(&status(&case)),
            format!("Running; app=Waiting:{} after Terminated:Error:3", failures[0])
        );
    }
}

/// A failed pull is shown as such, then as back-off until it is tried again.
#[test]
fn an_image_that_cannot_be_pulled_backs_off() {
    let mut case = Case::new(APP).sandbox(true, 0);
    let app = case.history.containers.entry("app".into()).or_default();
    app.record_failure("ErrImagePull", "no such image", at(1000));
    for (now, wanted) in [
        (1000, "ErrImagePull: no such image"),
        (1004, "ErrImagePull: no such image"),
        (
            1005,
            "ImagePullBackOff: Back-off pulling image \"img\": ErrImagePull: no such image",
        ),
        (
            1009,
            "ImagePullBackOff: Back-off pulling image \"img\": ErrImagePull: no such image",
        ),
        // It is being pulled again.
        (
            1010,
            "ImagePullBackOff: Back-off pulling image \"img\": ErrImagePull: no such image",
        ),
    ] {
        let status = status(&case.clone().at(now));
        let ApiContainerState::Waiting { reason, message } = &status.container_statuses[0].state else {
            panic!("{status:?}");
        };
        assert_eq!(format!("{reason}: {message}"), wanted, "{now}");
    }
}

#[test]
fn probes_make_ready() {
    let spec = "containers: [{name: app, image: img, startupProbe: {exec: {command: [x]}}, readinessProbe: {exec: {command: [x]}}}]";
    let case = Case::new(spec).sandbox(true, 0).running("app", 1);
    let is = |case: &Case| {
        (
            status(case).container_statuses[0].started,
            status(case).container_statuses[0].ready,
        )
    };
    assert_eq!(is(&case), (false, false));
    let ready = case.clone().probe("app0", ProbeKind::Readiness, true);
    assert_eq!(is(&ready), (false, false), "not before it has started");
    let started = case.probe("app0", ProbeKind::Startup, true);
    assert_eq!(is(&started), (true, false));
    assert_eq!(
        is(&started.clone().probe("app0", ProbeKind::Readiness, false)),
        (true, false)
    );
    assert_eq!(is(&started.probe("app0", ProbeKind::Readiness, true)), (true, true));
}

/// A frozen runtime: a kubelet shows its pods as running and ready for minutes.
#[test]
fn what_is_stale_says_so() {
    let case = Case::new(APP).sandbox(true, 0).running("app", 1);
    let stale = Stale {
        as_of: Some(at(900)),
        why: "ListContainers has not answered for 40s".to_owned(),
    };
    let status = compute_with(&case, Some(&stale), None);
    assert_eq!(
        false_conditions(&status),
        ["Ready=Unknown StatusStale", "ContainersReady=Unknown StatusStale"]
    );
    assert_eq!(
        status.conditions[2].message.as_deref(),
        Some("Last observed at 2027-01-15T08:15:00Z; since then: ListContainers has not answered for 40s")
    );
}

#[test]
fn classes_of_service() {
    for (resources, class) in [
        ("", QosClass::BestEffort),
        ("limits: {cpu: 1, memory: 1Gi}", QosClass::Guaranteed),
        (
            "limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1, memory: 1Gi}",
            QosClass::Guaranteed,
        ),
        (
            "limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}",
            QosClass::Burstable,
        ),
        ("limits: {memory: 1Gi}", QosClass::Burstable),
        ("requests: {cpu: 1m}", QosClass::Burstable),
        ("requests: {cpu: 0}", QosClass::BestEffort),
    ] {
        let case = Case::new(&format!(
            "containers: [{{name: a, image: i, resources: {{{resources}}}}}]"
        ));
        assert_eq!(qos_class(&case.pod), class, "{resources}");
    }
}

/// A complete status, in the shape that kubectl reads.
#[test]
fn the_shape_is_that_of_kubernetes() {
    let case = Case::new(INIT)
        .sandbox(true, 0)
        .exited("i", 1, 0)
        .exited("app", 9, 3)
        .running("app", 10);
    let mut case = case;
    case.status.ips = Box::new(["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()]);
    insta::assert_json_snapshot!(core::PodStatus::from(status(&case)));
    // With hostNetwork the addresses are the host's.
    let host = Case::new(&format!("hostNetwork: true, {APP}"))
        .sandbox(true, 0)
        .running("app", 1);
    assert_eq!(
        core::PodStatus::from(status(&host)).pod_ip.as_deref(),
        Some("192.0.2.1")
    );
}

/// As in Kubernetes, a container has not started before its post-start hook is done.
#[test]
fn a_post_start_hook_is_part_of_the_start() {
    let hooked = "lifecycle: {postStart: {exec: {command: [x]}}}";
    for (spec, busy, ready) in [(hooked, false, true), (hooked, true, false), ("", true, true)] {
        let case = Case::new(&format!("containers: [{{name: app, image: i, {spec}}}]"));
        let case = case.sandbox(true, 0).running("app", 1).observed();
        let status = status(&if busy { case.in_flight("app") } else { case });
        let app = &status.container_statuses[0];
        assert_eq!((app.started, app.ready), (ready, ready), "{spec} {busy}");
        assert!(matches!(app.state, ApiContainerState::Running { .. }));
    }
}
