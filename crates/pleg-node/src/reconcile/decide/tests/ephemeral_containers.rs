//! Ephemeral containers: started once, and without effect on the other containers.

use super::*;

/// What is observed of a pod with the ephemeral container `debug`, and what is done.
type Row = (&'static str, &'static str, fn(Case) -> Case, &'static [&'static str]);

const ROWS: &[Row] = &[
    ("no sandbox", APP, |c| c, &["run s0 for []"]),
    (
        "beside the first container",
        APP,
        |c| c.sandbox(true, 0),
        &["start app#0 in s0", "start debug#0 in s0"],
    ),
    (
        "while the pod is initialised",
        INIT,
        |c| c.sandbox(true, 0).running("i", 1),
        &["start debug#0 in s0"],
    ),
    (
        "while a main container is being started",
        TWO,
        |c| c.sandbox(true, 0).starting("a"),
        &["start debug#0 in s0"],
    ),
    (
        "it does not hold up main containers",
        TWO,
        |c| c.sandbox(true, 0).running("a", 1).starting("debug"),
        &["start b#0 in s0"],
    ),
    (
        "created, and the answer was lost",
        APP,
        |c| c.sandbox(true, 0).running("app", 1).created("debug", 2),
        &["start created debug0 in s0"],
    ),
    (
        "it runs",
        APP,
        |c| c.sandbox(true, 0).running("app", 1).running("debug", 2),
        &[],
    ),
    (
        "done",
        APP,
        |c| c.sandbox(true, 0).running("app", 1).exited("debug", 2, 0),
        &[],
    ),
    (
        "failed",
        APP,
        |c| c.sandbox(true, 0).running("app", 1).exited("debug", 2, 1),
        &[],
    ),
    (
        "not known",
        APP,
        |c| c.sandbox(true, 0).running("app", 1).unknown("debug", 2),
        &[],
    ),
    (
        "it ran, and was removed",
        APP,
        |c| {
            let c = c.sandbox(true, 0).exited("debug", 2, 1).observed().cleaned();
            c.sandbox(true, 0).running("app", 1)
        },
        &[],
    ),
    (
        "its sandbox was replaced",
        APP,
        |c| {
            c.sandbox(false, 0)
                .running("debug", 1)
                .sandbox(true, 500)
                .running("app", 501)
        },
        &["kill debug0 SandboxUnusable 30"],
    ),
    (
        "and it is not started in the new one",
        APP,
        |c| {
            c.sandbox(false, 0)
                .exited("debug", 1, 137)
                .sandbox(true, 500)
                .running("app", 501)
        },
        &[],
    ),
];

#[test]
fn it_is_started_once() {
    for (what, spec, case, wanted) in ROWS {
        for policy in ["Always", "OnFailure", "Never"] {
            let case = case(with(policy, spec).ephemeral("debug"));
            assert_eq!(words(&case.decide()), *wanted, "{policy}: {what}");
        }
    }
}

/// A start that failed, such as that of an image that cannot be pulled, is tried again later.
#[test]
fn a_start_that_failed_backs_off() {
    let mut case = with("Never", APP).ephemeral("debug").sandbox(true, 0).running("app", 1);
    let debug = case.history.containers.entry("debug".to_owned()).or_default();
    debug.record_failure("CreateContainerError", "no", at(1000));
    let [until] = &words(&case.decide())[..] else {
        panic!("it is not started at once");
    };
    assert!(until.starts_with("until "), "{until}");
    assert_eq!(words(&case.at(2000).decide()), ["start debug#0 in s0"]);
}

/// It neither keeps a pod from finishing nor makes it finish, and it ends with the main containers.
#[test]
fn it_ends_with_its_pod() {
    let done = with("Never", APP)
        .ephemeral("debug")
        .sandbox(true, 0)
        .exited("app", 9, 0);
    assert_eq!(words(&done.decide()), ["stop s0", "finished"]);
    let done = done.running("debug", 2);
    assert_eq!(words(&done.decide()), ["kill debug0 PodFinished 30", "finished"]);
    // What ran of a pod that lost its sandbox was only this: a new sandbox is created.
    let lost = with("Never", APP)
        .ephemeral("debug")
        .sandbox(false, 0)
        .exited("debug", 9, 0);
    assert_eq!(words(&lost.decide()), ["run s1 for [s0]"]);
    let mut end = with("Always", SIDECAR).ephemeral("debug").sandbox(true, 0);
    end = end
        .exited("i", 2, 0)
        .running("s", 3)
        .running("debug", 4)
        .running("app", 5);
    end.goal = Goal::Terminate {
        since: at(1000),
        grace: Duration::from_secs(30),
    };
    assert_eq!(
        words(&end.decide()),
        [
            "kill app0 PodTerminating 30",
            "kill debug0 PodTerminating 30",
            "until 1030",
            "terminating"
        ]
    );
}
