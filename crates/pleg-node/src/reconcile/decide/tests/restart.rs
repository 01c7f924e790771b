//! Restarts: restart policy, probes, back-off.

use super::*;
use crate::manifest::ProbeKind;

/// What happened, the pod, and the decision with each policy.
type Row = (&'static str, fn(Case) -> Case, [&'static [&'static str]; 3]);

/// The decision, without the removal of exited attempts.
fn without_removals(mut decision: Decision) -> Decision {
    decision
        .actions
        .retain(|action| !matches!(action, Action::RemoveContainer { .. }));
    decision
}

/// What happened to a container, and the decision with each policy.
const MATRIX: &[Row] = &[
    ("it runs", |c| c.sandbox(true, 0).running("app", 1), [&[], &[], &[]]),
    (
        "exit 0",
        |c| c.sandbox(true, 0).exited("app", 999, 0),
        [
            &["start app#1 in s0"],
            &["stop s0", "finished"],
            &["stop s0", "finished"],
        ],
    ),
    (
        "exit 3",
        |c| c.sandbox(true, 0).exited("app", 999, 3),
        [&["start app#1 in s0"], &["start app#1 in s0"], &["stop s0", "finished"]],
    ),
    (
        "OOM",
        |c| c.sandbox(true, 0).exited("app", 999, 137),
        [&["start app#1 in s0"], &["start app#1 in s0"], &["stop s0", "finished"]],
    ),
    (
        "sandbox killed",
        |c| c.sandbox(false, 0).exited("app", 999, 137),
        [&["run s1 for [s0]"], &["run s1 for [s0]"], &["finished"]],
    ),
    (
        "sandbox killed after the container had completed",
        |c| c.sandbox(false, 0).exited("app", 999, 0),
        [&["run s1 for [s0]"], &["finished"], &["finished"]],
    ),
    (
        "sandbox killed, and the new one is ready",
        |c| c.sandbox(false, 0).exited("app", 999, 137).sandbox(true, 1000),
        [&["start app#1 in s1"], &["start app#1 in s1"], &["stop s1", "finished"]],
    ),
    (
        "sandbox gone, container alive",
        |c| c.sandbox(false, 0).running("app", 1),
        [
            &["kill app0 SandboxUnusable 30"],
            &["kill app0 SandboxUnusable 30"],
            &["kill app0 PodFinished 30", "finished"],
        ],
    ),
    (
        "the runtime lost track of it",
        |c| c.sandbox(true, 0).unknown("app", 1),
        [
            &["kill app0 StateUnknown 30"],
            &["kill app0 StateUnknown 30"],
            &["kill app0 StateUnknown 30"],
        ],
    ),
    // containerd reports 255 for containers that died while it was down.
    (
        "runtime restarted",
        |c| c.sandbox(true, 0).exited("app", 999, 255),
        [&["start app#1 in s0"], &["start app#1 in s0"], &["stop s0", "finished"]],
    ),
    (
        "everything was removed behind our back",
        |c| c.sandbox(true, 0).running("app", 1).observed().cleaned(),
        [&["run s0 for []"], &["run s0 for []"], &["finished"]],
    ),
    (
        "removed after the container had completed",
        |c| c.sandbox(true, 0).exited("app", 999, 0).observed().cleaned(),
        [&["run s0 for []"], &["finished"], &["finished"]],
    ),
    (
        "sandbox killed, one container completed and the other failed",
        |c| {
            let mut case = c.sandbox(false, 0).exited("app", 998, 0).exited("b", 999, 1);
            case.pod = crate::testing::pod(&format!(
                "restartPolicy: {:?}, containers: [{{name: app, image: img}}, {{name: b, image: img}}]",
                case.pod.spec.restart_policy
            ));
            case.sandbox(true, 1000)
        },
        [&["start app#1 in s1"], &["start b#1 in s1"], &["stop s1", "finished"]],
    ),
    // What a restarted `pleg node` without a history finds.
    (
        "created and not started",
        |c| c.sandbox(true, 0).created("app", 1),
        [
            &["start created app0 in s0"],
            &["start created app0 in s0"],
            &["start created app0 in s0"],
        ],
    ),
    (
        "nothing yet",
        |c| c,
        [&["run s0 for []"], &["run s0 for []"], &["run s0 for []"]],
    ),
    (
        "a sandbox only",
        |c| c.sandbox(true, 0),
        [&["start app#0 in s0"], &["start app#0 in s0"], &["start app#0 in s0"]],
    ),
    (
        "a dead sandbox only",
        |c| c.sandbox(false, 0),
        [&["run s1 for [s0]"], &["run s1 for [s0]"], &["run s1 for [s0]"]],
    ),
];

/// The restart matrix: 3 policies × what happened to a container.
#[test]
fn the_restart_matrix() {
    for (what, case, wanted) in MATRIX {
        for (policy, wanted) in ["Always", "OnFailure", "Never"].into_iter().zip(wanted) {
            let case = case(with(policy, APP));
            assert_eq!(words(&case.decide()), *wanted, "{policy}: {what}");
        }
    }
}

#[test]
fn probes_kill_and_policy_restarts() {
    let spec = "terminationGracePeriodSeconds: 7, containers: [{name: app, image: img,
        startupProbe: {exec: {command: [x]}, terminationGracePeriodSeconds: 3},
        livenessProbe: {exec: {command: [x]}}, readinessProbe: {exec: {command: [x]}}}]";
    for policy in ["Always", "OnFailure", "Never"] {
        let case = with(policy, spec).sandbox(true, 0).running("app", 1);
        assert_eq!(words(&case.decide()), [""; 0]);
        let live = case.clone().probe("app0", ProbeKind::Liveness, false);
        assert_eq!(words(&live.decide()), ["kill app0 Probe(Liveness) 7"], "{policy}");
        // It is killed once.
        assert_eq!(words(&live.in_flight("app").decide()), [""; 0], "{policy}");
        let startup = case.clone().probe("app0", ProbeKind::Startup, false);
        assert_eq!(words(&startup.decide()), ["kill app0 Probe(Startup) 3"], "{policy}");
        // Neither a failed readiness probe nor a result of another attempt is a reason to kill it.
        let ready = case
            .probe("app0", ProbeKind::Readiness, false)
            .probe("app1", ProbeKind::Liveness, false);
        assert_eq!(words(&ready.decide()), [""; 0], "{policy}");
    }
}

/// A container that was killed to be replaced is restarted, even if it exited with 0.
#[test]
fn a_kill_for_a_restart_is_no_success() {
    for (policy, wanted) in [
        ("Always", &["start app#1 in s0"][..]),
        ("OnFailure", &["start app#1 in s0"]),
        ("Never", &["stop s0", "finished"]),
    ] {
        let mut case = with(policy, APP).sandbox(true, 0).exited("app", 999, 0).observed();
        case.history.containers.get_mut("app").unwrap().record_replacement(0);
        assert_eq!(words(&case.decide()), wanted, "{policy}");
        // The next attempt exits by itself, so its 0 is a success.
        let case = case.exited("app", 1000, 0).observed();
        let done = words(&case.decide()).contains(&"finished".to_owned());
        assert_eq!(done, policy != "Always", "{policy}");
    }
}

/// A container that exits with 3 right after each start.
#[test]
fn a_crash_loop_backs_off() {
    let mut case = with("Always", APP).sandbox(true, 0).exited("app", 1000, 3).observed();
    let mut starts = Vec::new();
    while starts.len() < 9 {
        let decision = without_removals(case.decide());
        if let Some(until) = decision.next_at {
            assert_eq!(
                (decision.actions.len(), decision.backing_off.get("app")),
                (0, Some(&until))
            );
            case.now = until.duration_since(at(0)).as_secs();
            continue;
        }
        assert_eq!(decision.actions.len(), 1);
        starts.push(case.now);
        let history = case.history.containers.entry("app".to_owned()).or_default();
        history.record_start(at(case.now));
        case = case.clone().exited("app", case.now, 3).observed();
    }
    let waits: Vec<i64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300, 300]);
    // It runs for more than ten minutes: the back-off is reset.
    let end = case.now + 700;
    let case = case.exited("app", end, 3).at(end);
    assert_eq!(words(&without_removals(case.decide())), ["start app#11 in s0"]);
}

#[test]
fn containers_are_independent_of_each_other() {
    let case = with("OnFailure", TWO).sandbox(true, 0);
    let half = case.clone().exited("a", 999, 0).running("b", 1);
    assert_eq!(words(&half.decide()), [""; 0], "one has completed, the other runs");
    let both = case.clone().exited("a", 999, 0).exited("b", 999, 0);
    assert_eq!(words(&both.decide()), ["stop s0", "finished"]);
    let failed = case.exited("a", 999, 0).exited("b", 999, 1);
    assert_eq!(words(&failed.decide()), ["start b#1 in s0"]);
}

#[test]
fn what_failed_is_tried_again_later() {
    let mut case = with("Always", APP);
    case.history.sandbox_failure = Some(crate::reconcile::backoff::StartFailure::after(
        None,
        "CreatePodSandboxError",
        "no",
        at(1000),
    ));
    assert_eq!(words(&case.decide()), ["until 1001"]);
    assert_eq!(words(&case.clone().at(1001).decide()), ["run s0 for []"]);
    let mut case = case.sandbox(true, 1001).at(1002);
    let app = case.history.containers.entry("app".to_owned()).or_default();
    app.record_failure("ErrImagePull", "no such image", at(1002));
    // First its status changes, from the error to the back-off.
    assert_eq!(words(&case.decide()), ["until 1007"]);
    assert_eq!(words(&case.clone().at(1007).decide()), ["until 1012"]);
    assert_eq!(words(&case.at(1012).decide()), ["start app#0 in s0"]);
}

/// Main containers start in the order of the manifest, each after the post-start hook of the one before.
#[test]
fn main_containers_start_in_order() {
    let case = with("Always", TWO).sandbox(true, 0);
    assert_eq!(words(&case.decide()), ["start a#0 in s0"]);
    assert_eq!(words(&case.clone().starting("a").decide()), [""; 0]);
    let hooked = case.clone().running("a", 1);
    assert_eq!(words(&hooked.clone().starting("a").decide()), [""; 0], "its hook runs");
    assert_eq!(words(&hooked.decide()), ["start b#0 in s0"]);
    // One that is killed, or that waits for its next start, delays no other container.
    assert_eq!(words(&hooked.in_flight("a").decide()), ["start b#0 in s0"]);
    let mut failed = case.clone();
    let a = failed.history.containers.entry("a".to_owned()).or_default();
    a.record_failure("ErrImagePull", "no such image", at(1000));
    assert_eq!(words(&failed.decide()), ["start b#0 in s0", "until 1005"]);
    // A restart does not wait for a hook of one after it.
    let again = case.exited("a", 999, 1).running("b", 1).starting("b");
    assert_eq!(words(&again.decide()), ["start a#1 in s0"]);
}

/// A container whose post-start hook failed is killed, however often that is tried. The next attempt is another matter.
#[test]
fn a_failed_hook_kills_its_container() {
    for policy in ["Always", "OnFailure", "Never"] {
        let mut case = with(policy, APP).sandbox(true, 0).running("app", 1);
        case.history
            .containers
            .entry("app".to_owned())
            .or_default()
            .record_failed_hook(0);
        assert_eq!(words(&case.decide()), ["kill app0 PostStartHook 30"], "{policy}");
        case.status.containers[0].state = ContainerState::Exited;
        case.status.containers[0].exit_code = Some(0);
        let again = words(&case.decide()).contains(&"start app#1 in s0".to_owned());
        assert_eq!(again, policy != "Never", "{policy}");
        let next = case.running("app", 2);
        assert_eq!(words(&next.decide()), [""; 0], "{policy}");
    }
}

/// What a container says of its restarts replaces what its pod says.
#[test]
fn a_container_has_a_restart_policy_of_its_own() {
    let app = |own: &str| format!("containers: [{{name: app, image: img, {own}}}]");
    let on_42 =
        "restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]";
    let restarted: &[&str] = &["start app#1 in s0"];
    let finished: &[&str] = &["stop s0", "finished"];
    for (policy, own, code, expected) in [
        ("Never", on_42, 42, restarted),
        ("Never", on_42, 1, finished),
        ("Always", "restartPolicy: Never", 1, finished),
        ("Never", "restartPolicy: Always", 0, restarted),
        ("Never", "restartPolicy: OnFailure", 0, finished),
    ] {
        let case = with(policy, &app(own)).sandbox(true, 0).exited("app", 999, code);
        assert_eq!(words(&case.decide()), expected, "{policy}, {own}: exit {code}");
    }
    // A lost sandbox is replaced for those that are restarted.
    let lost = |own: &str| with("Never", &app(own)).sandbox(false, 0).exited("app", 999, 1);
    assert_eq!(words(&lost("restartPolicy: Always").decide()), ["run s1 for [s0]"]);
    assert_eq!(words(&lost("restartPolicy: Never").decide()), ["finished"]);
    // An init container too: it is tried again, or fails the pod.
    let init = |policy: &str, own: &str| {
        let spec = format!("initContainers: [{{name: i, image: img, {own}}}], {APP}");
        words(&with(policy, &spec).sandbox(true, 0).exited("i", 999, 1).decide())
    };
    assert_eq!(init("Never", "restartPolicy: OnFailure"), ["start i#1 in s0"]);
    assert_eq!(init("Always", "restartPolicy: Never"), finished);
}
