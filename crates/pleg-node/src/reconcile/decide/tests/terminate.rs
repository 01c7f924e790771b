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
    assert_eq!(words(&case.decide()), ["kill app0 PodTerminating 30", "terminating"]);
    assert_eq!(words(&case.clone().in_flight("app").decide()), ["terminating"]);
    // The sidecar gets what is left of the grace period, and at least two seconds.
    let mut case = case.at(1010);
    case.status.containers[2].state = ContainerState::Exited;
    assert_eq!(words(&case.decide()), ["kill s0 PodTerminating 20", "terminating"]);
    assert_eq!(
        words(&case.clone().at(1029).decide()),
        ["kill s0 PodTerminating 2", "terminating"]
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
    assert_eq!(words(&two.decide()), ["kill t0 PodTerminating 30", "terminating"]);
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
