//! Decisions, as tables.

use super::*;
use crate::testing::{Case, at};

/// `run s1 for s0`, `start app#1 in s0`, `kill app0 (startup) 30`, `stop s0`, `remove s0`; then `until 1010`, and the stage unless it runs.
fn words(decision: &Decision) -> Vec<String> {
    let mut words: Vec<String> = decision.actions.iter().map(word).collect();
    words.sort();
    words.extend(
        decision
            .until
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
            made,
        } => match made {
            Some(made) => format!("start made {made} in {sandbox}"),
            None => format!("start {name}#{attempt} in {sandbox}"),
        },
        Action::Kill { id, grace, why, .. } => format!("kill {id} {why:?} {}", grace.as_secs()),
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

/// What happened, to which pod, and what is decided with each policy.
type Row = (&'static str, fn(Case) -> Case, [&'static [&'static str]; 3]);

/// The restart matrix, as far as it is decided: 3 policies × what happened to a container that ran.
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
        // The container, and then what comes of it.
        (
            "sandbox killed",
            |c| c.sandbox(false, 0).exited("app", 999, 137),
            [&["run s1 for [s0]"], &["run s1 for [s0]"], &["finished"]],
        ),
        (
            "sandbox killed after it was done",
            |c| c.sandbox(false, 0).exited("app", 999, 0),
            [&["run s1 for [s0]"], &["finished"], &["finished"]],
        ),
        (
            "and the new sandbox is there",
            |c| c.sandbox(false, 0).exited("app", 999, 137).sandbox(true, 1000),
            [&["start app#1 in s1"], &["start app#1 in s1"], &["stop s1", "finished"]],
        ),
        (
            "sandbox gone, container alive",
            |c| c.sandbox(false, 0).running("app", 1),
            [
                &["kill app0 Sandbox 30"],
                &["kill app0 Sandbox 30"],
                &["kill app0 Finished 30", "finished"],
            ],
        ),
        (
            "the runtime lost track of it",
            |c| c.sandbox(true, 0).unknown("app", 1),
            [
                &["kill app0 Unknown 30"],
                &["kill app0 Unknown 30"],
                &["kill app0 Unknown 30"],
            ],
        ),
        // What a runtime says about what died while it was away.
        (
            "runtime restarted",
            |c| c.sandbox(true, 0).exited("app", 999, 255),
            [&["start app#1 in s0"], &["start app#1 in s0"], &["stop s0", "finished"]],
        ),
        (
            "everything was cleaned away behind our back",
            |c| c.sandbox(true, 0).running("app", 1).learnt().cleaned(),
            [&["run s0 for []"], &["run s0 for []"], &["finished"]],
        ),
        (
            "cleaned away after it was done",
            |c| c.sandbox(true, 0).exited("app", 999, 0).learnt().cleaned(),
            [&["run s0 for []"], &["finished"], &["finished"]],
        ),
        // A node that was started again remembers nothing of what it did, and sees all of it.
        (
            "made and not started",
            |c| c.sandbox(true, 0).created("app", 1),
            [
                &["start made app0 in s0"],
                &["start made app0 in s0"],
                &["start made app0 in s0"],
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
        // Once is enough.
        assert_eq!(words(&live.busy("app").decide()), [""; 0], "{policy}");
        let startup = case.clone().probe("app0", ProbeKind::Startup, false);
        assert_eq!(words(&startup.decide()), ["kill app0 Probe(Startup) 3"], "{policy}");
        // Not ready is no reason to die, nor is what was found about another attempt.
        let ready = case
            .probe("app0", ProbeKind::Readiness, false)
            .probe("app1", ProbeKind::Liveness, false);
        assert_eq!(words(&ready.decide()), [""; 0], "{policy}");
    }
}

/// Who is killed so that its next attempt takes its place is started again, however politely it ended.
#[test]
fn a_kill_for_a_restart_is_no_success() {
    for (policy, wanted) in [
        ("Always", &["start app#1 in s0"][..]),
        ("OnFailure", &["start app#1 in s0"]),
        ("Never", &["stop s0", "finished"]),
    ] {
        let mut case = with(policy, APP).sandbox(true, 0).exited("app", 999, 0).learnt();
        case.memory.containers.get_mut("app").unwrap().replacing(0);
        assert_eq!(words(&case.decide()), wanted, "{policy}");
        // The next one that ends by itself has succeeded.
        let case = case.exited("app", 1000, 0).learnt();
        let done = words(&case.decide()).contains(&"finished".to_owned());
        assert_eq!(done, policy != "Always", "{policy}");
    }
}

/// The clock was set back between two sandboxes: their numbers, and what is remembered of containers, tell what is newer.
#[test]
fn a_clock_that_is_set_back_makes_no_sandbox_older() {
    let back = |mut case: Case| {
        // Newest first by their times.
        case.status.sandboxes.reverse();
        case
    };
    let made_in = |mut case: Case, attempt: u32, sandbox: &str| {
        let memory = case.memory.containers.entry("app".to_owned()).or_default();
        memory.making(attempt, &sandbox.into());
        case
    };
    let case = || back(with("Always", APP).sandbox(false, 900).sandbox(true, 100));
    assert_eq!(words(&case().decide()), ["start app#0 in s1"]);
    // In the newest sandbox, by memory alone; and in the one before.
    assert_eq!(words(&made_in(case().running("app", 50), 0, "s1").decide()), [""; 0]);
    assert_eq!(
        words(&made_in(case().running("app", 950), 0, "s0").decide()),
        ["kill app0 Sandbox 30"]
    );
    // An init container of the new sandbox is not taken for done because a container of the old one ended later.
    let case = back(with("Always", INIT).sandbox(false, 900).sandbox(true, 100)).exited("app", 950, 1);
    let case = made_in(case, 0, "s0").learnt();
    assert_eq!(words(&case.decide()), ["start i#0 in s1"]);
    // One that is gone is replaced by the next number.
    let case = back(with("Always", APP).sandbox(false, 900).sandbox(false, 100));
    assert_eq!(words(&case.decide()), ["run s2 for [s1]"]);
}

/// The power went between the making of a container and its start.
#[test]
fn what_was_made_and_never_started_did_not_run() {
    let case = with("Never", APP).sandbox(false, 0).created("app", 1);
    assert_eq!(words(&case.decide()), ["run s1 for [s0]"]);
    let case = case.sandbox(true, 10);
    assert_eq!(words(&case.decide()), ["start app#1 in s1"]);
}

/// Dead attempts that are cleaned away meanwhile are another matter.
fn without_removals(mut decision: Decision) -> Decision {
    decision
        .actions
        .retain(|action| !matches!(action, Action::RemoveContainer { .. }));
    decision
}

/// What happens over time to a container that ends with 3 right after each start.
#[test]
fn a_crash_loop_backs_off() {
    let mut case = with("Always", APP).sandbox(true, 0).exited("app", 1000, 3).learnt();
    let mut starts = Vec::new();
    while starts.len() < 9 {
        let decision = without_removals(case.decide());
        if let Some(until) = decision.until {
            assert_eq!((decision.actions.len(), decision.held.get("app")), (0, Some(&until)));
            case.now = until.duration_since(at(0)).as_secs();
            continue;
        }
        assert_eq!(decision.actions.len(), 1);
        starts.push(case.now);
        let memory = case.memory.containers.entry("app".to_owned()).or_default();
        memory.starting(at(case.now));
        case = case.clone().exited("app", case.now, 3).learnt();
    }
    let waits: Vec<i64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300, 300]);
    // It runs for ten minutes and more, and begins anew.
    let end = case.now + 700;
    let case = case.exited("app", end, 3).at(end);
    assert_eq!(words(&without_removals(case.decide())), ["start app#11 in s0"]);
}

#[test]
fn containers_are_independent_of_each_other() {
    let case = with("OnFailure", TWO).sandbox(true, 0);
    assert_eq!(words(&case.decide()), ["start a#0 in s0", "start b#0 in s0"]);
    assert_eq!(words(&case.clone().busy("a").decide()), ["start b#0 in s0"]);
    let half = case.clone().exited("a", 999, 0).running("b", 1);
    assert_eq!(words(&half.decide()), [""; 0], "one is done, the other runs");
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
        // Once a container of this sandbox is there, what became of the others is of no interest.
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
    // Also if the runtime forgets the init containers: memory has them, with their time.
    let mut case = case.learnt();
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
    // Its post-start hook runs: the next one waits.
    assert_eq!(words(&case.clone().busy("s").decide()), [""; 0]);
    // It died, whatever the code: it is started again, and the next one waits for it.
    let mut died = case.clone();
    died.status.containers[1].state = ContainerState::Exited;
    died.status.containers[1].exit_code = Some(0);
    died.status.containers[1].finished_at = Some(at(990));
    assert_eq!(words(&died.decide()), ["start s#1 in s0"]);
    // Later too, and the others do not care.
    let died = died.exited("j", 991, 0).running("app", 992);
    assert_eq!(words(&died.decide()), ["start s#1 in s0"]);
    // All containers are done: the sidecar ends, then the sandbox.
    let done = case.exited("j", 5, 0).exited("app", 6, 0);
    assert_eq!(words(&done.decide()), ["kill s0 Finished 30", "finished"]);
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
    assert_eq!(words(&case.decide()), ["kill app0 Double 30"]);
    // In two sandboxes.
    let case = with("Always", APP)
        .sandbox(true, 0)
        .running("app", 1)
        .sandbox(true, 500)
        .running("app", 501);
    assert_eq!(words(&case.decide()), ["kill app0 Double 30", "stop s0"]);
    // Only in the old one: it ends before it is started in the new one.
    let case = with("Always", APP)
        .sandbox(false, 0)
        .running("app", 1)
        .sandbox(true, 500);
    assert_eq!(words(&case.decide()), ["kill app0 Sandbox 30"]);
    // A create of ours that timed out took effect after all.
    let case = with("Always", APP)
        .sandbox(true, 0)
        .exited("app", 900, 1)
        .created("app", 950);
    assert_eq!(words(&case.decide()), ["start made app1 in s0"]);
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
    let mut busy = case.clone();
    busy.busy.removals.insert("a0".into());
    assert_eq!(words(&busy.decide()), [""; 0]);
    // Thousands of them, of whatever made them: a few at a time (kubernetes/kubernetes#64507).
    let many = (5..100).fold(case, |case, end| case.exited("b", end, 0));
    assert_eq!(
        many.decide()
            .actions
            .iter()
            .filter(|action| matches!(action, Action::RemoveContainer { .. }))
            .count(),
        MOST_REMOVALS
    );
}

#[test]
fn of_sandboxes_that_died_one_is_kept() {
    let case = with("Always", APP)
        .sandbox(false, 0)
        .sandbox(false, 1)
        .sandbox(false, 2);
    assert_eq!(words(&case.decide()), ["run s3 for [s2]"], "first things first");
    let case = case.sandbox(true, 3).running("app", 4);
    assert_eq!(words(&case.decide()), ["remove old s0"]);
    let mut busy = case.clone();
    busy.busy.old_sandboxes.insert("s0".into());
    assert_eq!(words(&busy.decide()), [""; 0]);
    let mut two = case;
    two.status.sandboxes = two.status.sandboxes.into_iter().take(2).collect();
    assert_eq!(words(&two.decide()), [""; 0]);
}

/// The clock was set back between the making of the sandbox and that of its container: it is no stranger there.
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
    case.memory.sandbox_failure = Some(crate::reconcile::history::Failure::after(
        None,
        "CreatePodSandboxError",
        "no",
        at(1000),
    ));
    assert_eq!(words(&case.decide()), ["until 1001"]);
    assert_eq!(words(&case.clone().at(1001).decide()), ["run s0 for []"]);
    let mut case = case.sandbox(true, 1001).at(1002);
    let app = case.memory.containers.entry("app".to_owned()).or_default();
    app.failed("ErrImagePull", "no such image", at(1002));
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
        ["kill app0 Finished 30", "finished", "DeadlineExceeded"]
    );
    // It stays so, and nothing comes back.
    late.memory.failed = late.decide().failed;
    let late = late.cleaned().sandbox(true, 0).exited("app", 2001, 137).at(2002);
    assert_eq!(words(&late.decide()), ["stop s0", "finished"]);
    // One that was done in time has not failed.
    let done = with("Never", &spec).sandbox(true, 0).exited("app", 1500, 0).at(3000);
    assert_eq!(words(&done.decide()), ["stop s0", "finished"]);
}

#[test]
fn the_end_is_orderly() {
    let end = |mut case: Case, now| {
        case.goal = Goal::End {
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
    assert_eq!(words(&case.decide()), ["kill app0 End 30", "ending"]);
    assert_eq!(words(&case.clone().busy("app").decide()), ["ending"]);
    // The sidecar gets what is left, and at least two seconds.
    let mut case = case.at(1010);
    case.status.containers[2].state = ContainerState::Exited;
    assert_eq!(words(&case.decide()), ["kill s0 End 20", "ending"]);
    assert_eq!(words(&case.clone().at(1029).decide()), ["kill s0 End 2", "ending"]);
    case.status.containers[1].state = ContainerState::Exited;
    assert_eq!(words(&case.decide()), ["remove s0", "ending"]);
    assert_eq!(words(&end(case.cleaned(), 1011).decide()), ["gone"]);
    // Sidecars end last first.
    let spec = "initContainers: [{name: s, image: i, restartPolicy: Always}, {name: t, image: i, restartPolicy: Always}], \
                containers: [{name: app, image: i}]";
    let two = end(
        with("Always", spec).sandbox(true, 0).running("s", 1).running("t", 2),
        1000,
    );
    assert_eq!(words(&two.decide()), ["kill t0 End 30", "ending"]);
    // Nothing is started any more, and what is at work on the sandbox is waited for.
    assert_eq!(
        words(&end(with("Always", APP).sandbox(true, 0), 1000).decide()),
        ["remove s0", "ending"]
    );
    let mut busy = end(with("Always", APP), 1000);
    busy.busy.sandbox = true;
    assert_eq!(words(&busy.decide()), ["ending"]);
    // Old sandboxes go too.
    let old = end(with("Always", APP).sandbox(false, 0).sandbox(false, 5), 1000);
    assert_eq!(words(&old.decide()), ["remove s0", "remove s1", "ending"]);
}
