//! Decisions, as tables.

use pleg::SandboxId;

use super::*;
use crate::manifest::ProbeKind;
use crate::testing::{Case, at};

/// The actions (`run s1 for [s0]`, `start app#1 in s0`, `kill app0 Duplicate 30`, `stop s0`, `remove s0`), then `until 1010`, and the stage
/// unless that is Running.
fn words(decision: &Decision) -> Vec<String> {
    let mut words: Vec<String> = decision.actions.iter().map(word).collect();
    words.sort();
    words.extend(
        decision
            .next_at
            .map(|until| format!("until {}", until.duration_since(at(0)).as_secs())),
    );
    if decision.stage != Stage::Running {
        words.push(format!("{:?}", decision.stage).to_lowercase());
    }
    words.extend(decision.failed.as_ref().map(|failed| failed.reason.clone()));
    words
}

fn word(action: &Action) -> String {
    match action {
        Action::RunSandbox { attempt, replaces } => {
            let replaces: Vec<&str> = replaces.iter().map(SandboxId::as_str).collect();
            format!("run s{attempt} for [{}]", replaces.join(" "))
        }
        Action::StopSandbox(id) => format!("stop {id}"),
        Action::RemoveSandbox(id) => format!("remove {id}"),
        Action::RemoveOldSandbox(id) => format!("remove old {id}"),
        Action::RemoveContainer { id, .. } => format!("remove {id}"),
        Action::Start {
            name,
            attempt,
            sandbox,
            created,
        } => match created {
            Some(created) => format!("start created {created} in {sandbox}"),
            None => format!("start {name}#{attempt} in {sandbox}"),
        },
        Action::Kill { id, grace, reason, .. } => format!("kill {id} {reason:?} {}", grace.as_secs()),
    }
}

const APP: &str = "containers: [{name: app, image: img}]";
const TWO: &str = "containers: [{name: a, image: img}, {name: b, image: img}]";
const INIT: &str =
    "initContainers: [{name: i, image: img}, {name: j, image: img}], containers: [{name: app, image: img}]";
const SIDECAR: &str = "initContainers: [{name: i, image: img}, {name: s, image: img, restartPolicy: Always}, {name: j, image: img}], \
    containers: [{name: app, image: img}]";

fn with(policy: &str, spec: &str) -> Case {
    Case::new(&format!("restartPolicy: {policy}, {spec}"))
}

/// What happened, the pod, and the decision with each policy.
type Row = (&'static str, fn(Case) -> Case, [&'static [&'static str]; 3]);

/// The restart matrix: 3 policies × what happened to a container.
#[test]
fn the_restart_matrix() {
    let rows: &[Row] = &[
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
    for (what, case, wanted) in rows {
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

/// The clock was set back between two sandboxes: their numbers and the history of containers decide which is newer.
#[test]
fn a_clock_that_is_set_back_makes_no_sandbox_older() {
    let back = |mut case: Case| {
        // Newest first by their timestamps.
        case.status.sandboxes.reverse();
        case
    };
    let made_in = |mut case: Case, attempt: u32, sandbox: &str| {
        let history = case.history.containers.entry("app".to_owned()).or_default();
        history.record_sandbox(attempt, &sandbox.into());
        case
    };
    let case = || back(with("Always", APP).sandbox(false, 900).sandbox(true, 100));
    assert_eq!(words(&case().decide()), ["start app#0 in s1"]);
    // In the newest sandbox by the history alone, and in the one before it.
    assert_eq!(words(&made_in(case().running("app", 50), 0, "s1").decide()), [""; 0]);
    assert_eq!(
        words(&made_in(case().running("app", 950), 0, "s0").decide()),
        ["kill app0 SandboxUnusable 30"]
    );
    // An init container is not skipped because a container of the old sandbox exited later.
    let case = back(with("Always", INIT).sandbox(false, 900).sandbox(true, 100)).exited("app", 950, 1);
    let case = made_in(case, 0, "s0").observed();
    assert_eq!(words(&case.decide()), ["start i#0 in s1"]);
    // A sandbox that is not ready is replaced by one with the next number.
    let case = back(with("Always", APP).sandbox(false, 900).sandbox(false, 100));
    assert_eq!(words(&case.decide()), ["run s2 for [s1]"]);
}

/// The machine lost power after a container was created and before it was started.
#[test]
fn what_was_made_and_never_started_did_not_run() {
    let case = with("Never", APP).sandbox(false, 0).created("app", 1);
    assert_eq!(words(&case.decide()), ["run s1 for [s0]"]);
    let case = case.sandbox(true, 10);
    assert_eq!(words(&case.decide()), ["start app#1 in s1"]);
}

/// The decision, without the removal of exited attempts.
fn without_removals(mut decision: Decision) -> Decision {
    decision
        .actions
        .retain(|action| !matches!(action, Action::RemoveContainer { .. }));
    decision
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
    assert_eq!(words(&case.decide()), ["start a#0 in s0", "start b#0 in s0"]);
    assert_eq!(words(&case.clone().in_flight("a").decide()), ["start b#0 in s0"]);
    let half = case.clone().exited("a", 999, 0).running("b", 1);
    assert_eq!(words(&half.decide()), [""; 0], "one has completed, the other runs");
    let both = case.clone().exited("a", 999, 0).exited("b", 999, 0);
    assert_eq!(words(&both.decide()), ["stop s0", "finished"]);
    let failed = case.exited("a", 999, 0).exited("b", 999, 1);
    assert_eq!(words(&failed.decide()), ["start b#1 in s0"]);
}

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

#[test]
fn nothing_runs_twice() {
    let case = with("Always", APP).sandbox(true, 0).running("app", 1).running("app", 2);
    assert_eq!(words(&case.decide()), ["kill app0 Duplicate 30"]);
    // In two sandboxes.
    let case = with("Always", APP)
        .sandbox(true, 0)
        .running("app", 1)
        .sandbox(true, 500)
        .running("app", 501);
    assert_eq!(words(&case.decide()), ["kill app0 Duplicate 30", "stop s0"]);
    // Only in the old one: it is killed before it is started in the new one.
    let case = with("Always", APP)
        .sandbox(false, 0)
        .running("app", 1)
        .sandbox(true, 500);
    assert_eq!(words(&case.decide()), ["kill app0 SandboxUnusable 30"]);
    // A CreateContainer call that timed out took effect after all.
    let case = with("Always", APP)
        .sandbox(true, 0)
        .exited("app", 900, 1)
        .created("app", 950);
    assert_eq!(words(&case.decide()), ["start created app1 in s0"]);
}

#[test]
fn of_a_crash_loop_two_attempts_are_kept() {
    let case = with("Always", TWO)
        .sandbox(true, 0)
        .exited("a", 1, 1)
        .exited("a", 2, 1)
        .running("b", 3);
    assert_eq!(words(&case.decide()), ["start a#2 in s0"]);
    let case = case.running("a", 4);
    assert_eq!(words(&case.decide()), ["remove a0"]);
    let mut with_action = case.clone();
    with_action.in_flight.removals.insert("a0".into());
    assert_eq!(words(&with_action.decide()), [""; 0]);
    // Thousands of exited containers are removed a few at a time (kubernetes/kubernetes#64507).
    let many = (5..100).fold(case, |case, end| case.exited("b", end, 0));
    assert_eq!(
        many.decide()
            .actions
            .iter()
            .filter(|action| matches!(action, Action::RemoveContainer { .. }))
            .count(),
        MAX_REMOVALS
    );
}

#[test]
fn of_sandboxes_that_died_one_is_kept() {
    let case = with("Always", APP)
        .sandbox(false, 0)
        .sandbox(false, 1)
        .sandbox(false, 2);
    assert_eq!(
        words(&case.decide()),
        ["run s3 for [s2]"],
        "the new sandbox comes before removals"
    );
    let case = case.sandbox(true, 3).running("app", 4);
    assert_eq!(words(&case.decide()), ["remove old s0"]);
    let mut with_action = case.clone();
    with_action.in_flight.old_sandboxes.insert("s0".into());
    assert_eq!(words(&with_action.decide()), [""; 0]);
    let mut two = case;
    two.status.sandboxes = two.status.sandboxes.into_iter().take(2).collect();
    assert_eq!(words(&two.decide()), [""; 0]);
}

/// The clock was set back between the creation of the sandbox and that of its container: the container still belongs to it.
#[test]
fn a_clock_that_is_set_back_makes_no_stray() {
    let case = with("Always", APP).sandbox(true, 900).running("app", 5);
    assert_eq!(words(&case.decide()), [""; 0]);
}

#[test]
fn a_sandbox_without_an_address_is_replaced() {
    let mut case = with("Always", APP).sandbox(true, 0);
    case.status.sandboxes[0].ips = Box::default();
    assert_eq!(words(&case.decide()), ["run s1 for [s0]"]);
    let mut host = with("Always", &format!("hostNetwork: true, {APP}")).sandbox(true, 0);
    host.status.sandboxes[0].ips = Box::default();
    assert_eq!(words(&host.decide()), ["start app#0 in s0"]);
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
    assert_eq!(words(&case.decide()), ["until 1012"]);
    assert_eq!(words(&case.at(1012).decide()), ["start app#0 in s0"]);
}

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
