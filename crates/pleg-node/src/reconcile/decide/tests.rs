//! Decisions, as tables.

mod ephemeral_containers;
mod init_containers;
mod resize;
mod restart;
mod terminate;

use pleg::SandboxId;

use super::*;
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
        Action::Resize { id, shrinks, .. } => format!("{} {id}", if *shrinks { "shrink" } else { "grow" }),
        Action::PreStop { id, grace, .. } => format!("pre-stop {id} {}", grace.as_secs()),
        Action::Kill {
            id,
            grace,
            reason,
            pre_stop: true,
            ..
        } => format!("pre-stop and kill {id} {reason:?} {}", grace.as_secs()),
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
