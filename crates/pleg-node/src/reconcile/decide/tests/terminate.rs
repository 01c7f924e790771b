//! How pods finish and terminate.

use super::*;

#[test]
fn a_pod_past_its_deadline_fails_whatever_its_policy() {
    let spec = format!("activeDeadlineSeconds: 2000, {APP}");
    let case = with("Always", &spec).sandbox(true, 0).running("app", 1);
    assert_eq!(words(&case.decide()), ["until 2000"]);
    let mut late = case.clone().at(2000);
    assert_eq!(
        words(&late.decide()),
        ["kill app0 PodFinished 30", "finished", "DeadlineExceeded"]
    );
    // It stays failed, and nothing is restarted.
    late.history.failed = late.decide().failed;
    let late = late.cleaned().sandbox(true, 0).exited("app", 2001, 137).at(2002);
    assert_eq!(words(&late.decide()), ["stop s0", "finished"]);
    // A pod that completed in time has not failed.
    let done = with("Never", &spec).sandbox(true, 0).exited("app", 1500, 0).at(3000);
    assert_eq!(words(&done.decide()), ["stop s0", "finished"]);
}

#[test]
fn the_end_is_orderly() {
    let end = |mut case: Case, now| {
        case.goal = Goal::Terminate {
            since: at(1000),
            grace: Duration::from_secs(30),
        };
        case.at(now)
    };
    let case = with("Always", SIDECAR)
        .sandbox(true, 0)
        .exited("i", 2, 0)
        .running("s", 3)
        .running("app", 4);
    let case = end(case, 1000);
    assert_eq!(
        words(&case.decide()),
        ["kill app0 PodTerminating 30", "until 1030", "terminating"]
    );
    assert_eq!(
        words(&case.clone().in_flight("app").decide()),
        ["until 1030", "terminating"]
    );
    // When the grace period is over, nothing waits for its turn. (Two seconds are left to each: the executor sees to that.)
    assert_eq!(
        words(&case.clone().at(1030).decide()),
        ["kill app0 PodTerminating 0", "kill s0 PodTerminating 0", "terminating"]
    );
    // The sidecar gets what is left of the grace period.
    let mut case = case.at(1010);
    case.status.containers[2].state = ContainerState::Exited;
    assert_eq!(words(&case.decide()), ["kill s0 PodTerminating 20", "terminating"]);
    assert_eq!(
        words(&case.clone().at(1029).decide()),
        ["kill s0 PodTerminating 1", "terminating"]
    );
    case.status.containers[1].state = ContainerState::Exited;
    assert_eq!(words(&case.decide()), ["remove s0", "terminating"]);
    assert_eq!(words(&end(case.cleaned(), 1011).decide()), ["terminated"]);
    // Sidecars are killed in reverse order.
    let spec = "initContainers: [{name: s, image: i, restartPolicy: Always}, {name: t, image: i, restartPolicy: Always}], \
                containers: [{name: app, image: i}]";
    let two = end(
        with("Always", spec).sandbox(true, 0).running("s", 1).running("t", 2),
        1000,
    );
    assert_eq!(
        words(&two.decide()),
        ["kill t0 PodTerminating 30", "until 1030", "terminating"]
    );
    // Nothing is started any more, and actions on the sandbox are awaited.
    assert_eq!(
        words(&end(with("Always", APP).sandbox(true, 0), 1000).decide()),
        ["remove s0", "terminating"]
    );
    let mut with_action = end(with("Always", APP), 1000);
    with_action.in_flight.sandbox = true;
    assert_eq!(words(&with_action.decide()), ["terminating"]);
    // Old sandboxes are removed too.
    let old = end(with("Always", APP).sandbox(false, 0).sandbox(false, 5), 1000);
    assert_eq!(words(&old.decide()), ["remove s0", "remove s1", "terminating"]);
}

/// The pre-stop hooks of all containers begin at once, and each runs once.
#[test]
fn hooks_do_not_wait_for_their_turn() {
    let hook = "lifecycle: {preStop: {exec: {command: [x]}}}";
    let spec = format!(
        "initContainers: [{{name: s, image: i, restartPolicy: Always, {hook}}}], containers: [{{name: app, image: i, {hook}}}]"
    );
    let mut case = with("Always", &spec).sandbox(true, 0).running("s", 1).running("app", 2);
    case.goal = Goal::Terminate {
        since: at(1000),
        grace: Duration::from_secs(30),
    };
    assert_eq!(
        words(&case.decide()),
        [
            "pre-stop and kill app0 PodTerminating 30",
            "pre-stop s0 30",
            "until 1030",
            "terminating"
        ]
    );
    // The hook of the sidecar has run before it is its turn, or not.
    case.status.containers[1].state = ContainerState::Exited;
    case.now = 1012;
    assert_eq!(
        words(&case.decide()),
        ["pre-stop and kill s0 PodTerminating 18", "terminating"]
    );
    assert_eq!(words(&case.clone().in_flight("s").decide()), ["terminating"]);
    let s = case.history.containers.entry("s".to_owned()).or_default();
    s.record_pre_stop(&"s0".into());
    assert_eq!(words(&case.decide()), ["kill s0 PodTerminating 18", "terminating"]);
    // Without time left, no hook begins.
    let late = |mut case: Case| {
        case.history = crate::reconcile::history::PodHistory::default();
        case.at(1031)
    };
    assert_eq!(words(&late(case).decide()), ["kill s0 PodTerminating 0", "terminating"]);
}

/// Also if the pod has finished: the grace period began with the first decision about its end.
#[test]
fn a_finished_pod_has_one_grace_period() {
    let spec = "initContainers: [{name: s, image: i, restartPolicy: Always}, {name: t, image: i, restartPolicy: Always}], \
                containers: [{name: app, image: i}]";
    let case = with("Never", spec).sandbox(true, 0).running("s", 1).running("t", 2);
    let mut case = case.exited("app", 1000, 0);
    assert_eq!(
        words(&case.decide()),
        ["kill t0 PodFinished 30", "until 1030", "finished"]
    );
    case.history.finishing_since = Some(at(1000));
    case.status.containers[1].state = ContainerState::Exited;
    case.now = 1020;
    assert_eq!(words(&case.decide()), ["kill s0 PodFinished 10", "finished"]);
}

/// With policy `Never`, a sandbox that is lost is not replaced: what has not begun never will.
#[test]
fn a_pod_that_lost_its_sandbox_before_it_began_has_failed() {
    let done = |policy| with(policy, INIT).sandbox(false, 0).exited("i", 1, 0).exited("j", 2, 0);
    assert_eq!(words(&done("Never").decide()), ["finished", "SandboxLost"]);
    assert_eq!(words(&done("OnFailure").decide()), ["run s1 for [s0]"]);
    assert_eq!(words(&done("Always").decide()), ["run s1 for [s0]"]);
    // An init container failed before: that is why.
    let failed = with("Never", INIT).sandbox(false, 0).exited("i", 1, 1);
    assert_eq!(words(&failed.decide()), ["finished"]);
    // Of two main containers one has run.
    let half = with("Never", TWO).sandbox(false, 0).exited("a", 1, 0);
    assert_eq!(words(&half.decide()), ["finished", "SandboxLost"]);
    let whole = half.exited("b", 1, 0);
    assert_eq!(words(&whole.decide()), ["finished"]);
}
