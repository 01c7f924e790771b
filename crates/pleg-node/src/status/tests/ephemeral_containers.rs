//! Ephemeral containers have statuses of their own, and nothing else depends on them.

use super::*;

/// What is observed, the status of the ephemeral container `debug`, and that of the pod without it.
type Row = (&'static str, fn(Case) -> Case, &'static str, &'static str);

const ROWS: &[Row] = &[
    (
        "not yet",
        |c| c.sandbox(true, 0).running("app", 1),
        "Waiting:ContainerCreating",
        "Running; app=Running ready",
    ),
    (
        "it runs",
        |c| c.sandbox(true, 0).running("app", 1).running("debug", 2),
        "Running",
        "Running; app=Running ready",
    ),
    (
        "it runs before the container does",
        |c| c.sandbox(true, 0).running("debug", 2),
        "Running",
        "Pending; app=Waiting:ContainerCreating",
    ),
    (
        "it failed",
        |c| c.sandbox(true, 0).running("app", 1).exited("debug", 2, 1),
        "Terminated:Error:1",
        "Running; app=Running ready",
    ),
    (
        "it is gone, and history has it",
        |c| {
            let c = c.sandbox(true, 0).exited("debug", 2, 0).observed().cleaned();
            c.sandbox(true, 0).running("app", 1)
        },
        "Terminated:Completed:0",
        "Running; app=Running ready",
    ),
    (
        "it runs in a pod that is done",
        |c| c.sandbox(true, 0).exited("app", 1, 0).running("debug", 2),
        "Running",
        "Running; app=Terminated:Completed:0",
    ),
    (
        "it failed in a pod that is done",
        |c| c.sandbox(true, 0).exited("app", 1, 0).exited("debug", 2, 1),
        "Terminated:Error:1",
        "Succeeded; app=Terminated:Completed:0",
    ),
    (
        "never started in a pod that is done",
        |c| c.sandbox(true, 0).exited("app", 1, 0),
        "Waiting:ContainerCreating",
        "Succeeded; app=Terminated:Completed:0",
    ),
];

#[test]
fn nothing_depends_on_them() {
    for (what, case, debug, wanted) in ROWS {
        let case = case(Case::new(&format!("restartPolicy: Never, {APP}")).ephemeral("debug"));
        let computed = status(&case);
        assert_eq!(words(&computed), *wanted, "{what}");
        let [shown] = &computed.ephemeral_container_statuses[..] else {
            panic!("{what}: {computed:?}");
        };
        assert_eq!(
            (state(&shown.state), shown.ready),
            ((*debug).to_owned(), false),
            "{what}"
        );
        let object = core::PodStatus::from(computed);
        assert_eq!(object.ephemeral_container_statuses.unwrap()[0].started, None, "{what}");
    }
}

/// Why it is not started, as for other containers.
#[test]
fn the_obstacle_to_a_start_is_reported() {
    let mut case = Case::new(APP).ephemeral("debug").sandbox(true, 0).running("app", 1);
    let debug = case.history.containers.entry("debug".to_owned()).or_default();
    debug.record_failure("ErrImagePull", "no", at(999));
    let status = status(&case);
    assert_eq!(
        state(&status.ephemeral_container_statuses[0].state),
        "Waiting:ErrImagePull"
    );
    assert!(false_conditions(&status).is_empty());
}
