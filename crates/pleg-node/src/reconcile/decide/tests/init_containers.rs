//! Init containers and sidecars.

use super::*;
use crate::manifest::ProbeKind;

#[test]
fn init_containers_run_one_after_the_other() {
    for policy in ["Always", "OnFailure", "Never"] {
        let case = with(policy, INIT).sandbox(true, 0);
        assert_eq!(words(&case.decide()), ["start i#0 in s0"]);
        assert_eq!(words(&case.clone().running("i", 1).decide()), [""; 0]);
        let case = case.exited("i", 2, 0);
        assert_eq!(words(&case.decide()), ["start j#0 in s0"]);
        let failed = case.clone().exited("j", 999, 1);
        let wanted: &[&str] = if policy == "Never" {
            &["stop s0", "finished"]
        } else {
            &["start j#1 in s0"]
        };
        assert_eq!(words(&failed.decide()), wanted, "{policy}");
        let case = case.exited("j", 3, 0);
        assert_eq!(words(&case.decide()), ["start app#0 in s0"]);
        // Once a main container exists in this sandbox, the init containers no longer matter.
        let case = with(policy, INIT).sandbox(true, 0).running("app", 4);
        assert_eq!(words(&case.decide()), [""; 0]);
    }
}

#[test]
fn a_new_sandbox_is_initialised_anew() {
    let case = with("Always", INIT)
        .sandbox(false, 0)
        .exited("i", 2, 0)
        .exited("j", 3, 0)
        .exited("app", 500, 137);
    assert_eq!(words(&case.decide()), ["run s1 for [s0]"]);
    let case = case.sandbox(true, 600);
    assert_eq!(words(&case.decide()), ["start i#1 in s1"]);
    let case = case.exited("i", 700, 0);
    assert_eq!(words(&case.decide()), ["start j#1 in s1"]);
    let case = case.exited("j", 710, 0);
    assert_eq!(words(&case.decide()), ["start app#1 in s1"]);
    // Also if the init containers were removed from the runtime: the history has their exits.
    let mut case = case.observed();
    let mut containers = case.status.containers.to_vec();
    containers.retain(|container| &*container.name == "app");
    case.status.containers = containers.into();
    assert_eq!(words(&case.decide()), ["start app#1 in s1"]);
}

#[test]
fn sidecars_start_in_their_turn_and_stay() {
    let case = with("OnFailure", SIDECAR).sandbox(true, 0).exited("i", 2, 0);
    assert_eq!(words(&case.decide()), ["start s#0 in s0"]);
    let case = case.running("s", 3);
    assert_eq!(words(&case.decide()), ["start j#0 in s0"]);
    // While its post-start hook runs, the next container waits.
    assert_eq!(words(&case.clone().in_flight("s").decide()), [""; 0]);
    // If it exits, with any code, it is restarted, and the next container waits for it.
    let mut died = case.clone();
    died.status.containers[1].state = ContainerState::Exited;
    died.status.containers[1].exit_code = Some(0);
    died.status.containers[1].finished_at = Some(at(990));
    assert_eq!(words(&died.decide()), ["start s#1 in s0"]);
    // Also after initialisation, without an effect on the other containers.
    let died = died.exited("j", 991, 0).running("app", 992);
    assert_eq!(words(&died.decide()), ["start s#1 in s0"]);
    // All containers have completed: the sidecar is killed, then the sandbox is stopped.
    let done = case.exited("j", 5, 0).exited("app", 6, 0);
    assert_eq!(words(&done.decide()), ["kill s0 PodFinished 30", "finished"]);
    let mut ended = done.clone();
    ended.status.containers[1].state = ContainerState::Exited;
    assert_eq!(words(&ended.decide()), ["stop s0", "finished"]);
}

#[test]
fn a_sidecar_with_a_startup_probe_holds_up_the_next() {
    let spec = SIDECAR.replace(
        "restartPolicy: Always",
        "restartPolicy: Always, startupProbe: {exec: {command: [x]}}",
    );
    let case = with("Always", &spec).sandbox(true, 0).exited("i", 2, 0).running("s", 3);
    assert_eq!(words(&case.decide()), [""; 0]);
    let up = case.clone().probe("s0", ProbeKind::Startup, true);
    assert_eq!(words(&up.decide()), ["start j#0 in s0"]);
    let down = case.probe("s0", ProbeKind::Startup, false);
    assert_eq!(words(&down.decide()), ["kill s0 Probe(Startup) 30"]);
}

/// What happened, the pod, and the decision with each policy.
type Row = (&'static str, fn(Case) -> Case, [&'static [&'static str]; 3]);

/// `i` has completed, and `s` runs.
fn up(case: Case) -> Case {
    case.sandbox(true, 0).exited("i", 2, 0).running("s", 3)
}

/// What happened, and the decision with each policy.
const MATRIX: &[Row] = &[
    (
        "an init container fails",
        |c| up(c).exited("j", 999, 1),
        [
            &["start j#1 in s0"],
            &["start j#1 in s0"],
            &["kill s0 PodFinished 30", "finished"],
        ],
    ),
    (
        "the first init container fails",
        |c| c.sandbox(true, 0).exited("i", 999, 1),
        [&["start i#1 in s0"], &["start i#1 in s0"], &["stop s0", "finished"]],
    ),
    (
        "a sidecar exits before initialisation is complete",
        |c| c.sandbox(true, 0).exited("i", 2, 0).exited("s", 999, 0),
        [&["start s#1 in s0"], &["start s#1 in s0"], &["start s#1 in s0"]],
    ),
    (
        "a sidecar exits while an init container runs",
        |c| c.sandbox(true, 0).exited("i", 2, 0).exited("s", 999, 1).running("j", 4),
        [&["start s#1 in s0"], &["start s#1 in s0"], &["start s#1 in s0"]],
    ),
    (
        "a sidecar exits while the main container runs",
        |c| {
            let case = c.sandbox(true, 0).exited("i", 2, 0).exited("s", 999, 137);
            case.exited("j", 4, 0).running("app", 5)
        },
        [&["start s#1 in s0"], &["start s#1 in s0"], &["start s#1 in s0"]],
    ),
    (
        "the main container completes beside a sidecar",
        |c| up(c).exited("j", 4, 0).exited("app", 999, 0),
        [
            &["start app#1 in s0"],
            &["kill s0 PodFinished 30", "finished"],
            &["kill s0 PodFinished 30", "finished"],
        ],
    ),
    (
        "the main container fails beside a sidecar",
        |c| up(c).exited("j", 4, 0).exited("app", 999, 1),
        [
            &["start app#1 in s0"],
            &["start app#1 in s0"],
            &["kill s0 PodFinished 30", "finished"],
        ],
    ),
    (
        "a sidecar exits after the main container has completed",
        |c| {
            let case = c.sandbox(true, 0).exited("i", 2, 0).exited("s", 999, 0);
            case.exited("j", 4, 0).exited("app", 998, 0)
        },
        [
            &["start app#1 in s0", "start s#1 in s0"],
            &["stop s0", "finished"],
            &["stop s0", "finished"],
        ],
    ),
    (
        "the runtime does not know what an init container does",
        |c| up(c).unknown("j", 4),
        [
            &["kill j0 StateUnknown 30"],
            &["kill j0 StateUnknown 30"],
            &["kill j0 StateUnknown 30"],
        ],
    ),
    (
        "the sandbox is killed during initialisation",
        |c| c.sandbox(false, 0).exited("i", 2, 0).exited("s", 999, 137),
        [&["run s1 for [s0]"], &["run s1 for [s0]"], &["finished", "SandboxLost"]],
    ),
    (
        "a new sandbox is initialised from the start, with its sidecar",
        |c| {
            let case = c
                .sandbox(false, 0)
                .exited("i", 2, 0)
                .exited("s", 500, 137)
                .exited("j", 4, 0);
            case.exited("app", 500, 137).sandbox(true, 600)
        },
        [&["start i#1 in s1"], &["start i#1 in s1"], &["stop s1", "finished"]],
    ),
    (
        "the main container had completed when the sandbox was killed",
        |c| {
            let case = c
                .sandbox(false, 0)
                .exited("i", 2, 0)
                .exited("s", 999, 137)
                .exited("j", 4, 0);
            case.exited("app", 500, 0)
        },
        [&["run s1 for [s0]"], &["finished"], &["finished"]],
    ),
];

/// The restart matrix of init containers and sidecars. The pod has the init container `i`, the sidecar `s`, and then `j`.
#[test]
fn the_restart_matrix_of_init_containers() {
    for (what, case, wanted) in MATRIX {
        for (policy, wanted) in ["Always", "OnFailure", "Never"].into_iter().zip(wanted) {
            let case = case(with(policy, SIDECAR));
            let mut words = words(&case.decide());
            words.retain(|word| !word.starts_with("until "));
            assert_eq!(words, *wanted, "{policy}: {what}");
        }
    }
}

/// Probes of a sidecar kill it, and it is restarted whatever the policy is.
#[test]
fn a_sidecar_that_is_not_alive_is_restarted() {
    let spec = SIDECAR.replace(
        "restartPolicy: Always",
        "restartPolicy: Always, livenessProbe: {exec: {command: [x]}}",
    );
    for policy in ["Always", "OnFailure", "Never"] {
        let case = with(policy, &spec).sandbox(true, 0).exited("i", 2, 0).running("s", 3);
        let case = case.exited("j", 4, 0).running("app", 5);
        assert_eq!(words(&case.decide()), [""; 0], "{policy}");
        let dead = case.probe("s0", ProbeKind::Liveness, false);
        assert_eq!(words(&dead.decide()), ["kill s0 Probe(Liveness) 30"], "{policy}");
        let mut exited = dead;
        exited.status.containers[1].state = ContainerState::Exited;
        exited.status.containers[1].exit_code = Some(143);
        assert_eq!(words(&exited.decide()), ["start s#1 in s0"], "{policy}");
    }
}
