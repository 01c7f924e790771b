//! Terminal phases, and the containers of pods that are over.

use super::*;
use crate::reconcile::history::PodFailure;

/// A pod, what is observed of it, and its status.
type Row = (&'static str, fn(Case) -> Case, String);

#[test]
fn a_failed_pod_stays_failed() {
    let mut case = Case::new(&format!("activeDeadlineSeconds: 5, {APP}"))
        .sandbox(true, 0)
        .running("app", 1);
    case.history.failed = Some(PodFailure {
        reason: "DeadlineExceeded".to_owned(),
        message: "too long".to_owned(),
    });
    let shown = |case: &Case, before: Option<&ApiPodStatus>| {
        let status = compute_with(case, None, before);
        (
            status.phase,
            status.reason.clone(),
            false_conditions(&status).join(", "),
        )
    };
    let not_ready = "Ready=False PodFailed, ContainersReady=False PodFailed";
    // While it runs, it is not ready, and its phase is withheld.
    assert_eq!(shown(&case, None), (Phase::Running, None, not_ready.to_owned()));
    // A container that is being started or killed may run too.
    let deadline = Some("DeadlineExceeded".to_owned());
    case.status.containers[0].state = pleg::ContainerState::Exited;
    assert_eq!(shown(&case.clone().in_flight("app"), None).0, Phase::Running);
    assert_eq!(shown(&case, None), (Phase::Failed, deadline, not_ready.to_owned()));
    // It never goes back.
    let failed = status(&case);
    case.history.failed = None;
    assert_eq!(shown(&case, None).0, Phase::Running);
    assert_eq!(shown(&case, Some(&failed)).0, Phase::Failed);
}

/// Once a pod is over, the kubelet shows no container as waiting that had its turn.
#[test]
fn containers_of_a_failed_pod_are_located() {
    let lost = "Terminated:ContainerStatusUnknown:137";
    let rows: [Row; 5] = [
        (APP, |c| c, format!("Failed; app={lost}")),
        (
            APP,
            |c| c.sandbox(false, 0).created("app", 1),
            format!("Failed; app={lost}"),
        ),
        (INIT, |c| c, format!("Failed; i={lost}; app=Waiting:PodInitializing")),
        (
            INIT,
            |c| c.sandbox(false, 0).exited("i", 1, 0),
            format!("Failed; i=Terminated:Completed:0 ready; app={lost}"),
        ),
        (
            "initContainers: [{name: i, image: img}, {name: j, image: img}], containers: [{name: app, image: img}]",
            |c| c.sandbox(false, 0).exited("i", 1, 1),
            "Failed; i=Terminated:Error:1; j=Waiting:PodInitializing; app=Waiting:PodInitializing".to_owned(),
        ),
    ];
    for (spec, case, wanted) in rows {
        let mut case = case(Case::new(spec));
        case.history.failed = Some(PodFailure {
            reason: "DeadlineExceeded".to_owned(),
            message: "too long".to_owned(),
        });
        assert_eq!(words(&status(&case)), wanted, "{spec}");
    }
}

/// An init container that exits with 0 because it is stopped has not completed: the others were not their turn.
#[test]
fn an_init_container_that_is_stopped_with_its_pod_has_not_completed() {
    for (exited, wanted) in [
        (989, "Terminated:ContainerStatusUnknown:137"),
        (990, "Waiting:PodInitializing"),
        (991, "Waiting:PodInitializing"),
    ] {
        let mut case = Case::new(INIT).sandbox(false, 0).exited("i", exited, 0);
        case.history.finishing_since = Some(at(990));
        case.history.failed = Some(PodFailure {
            reason: "DeadlineExceeded".to_owned(),
            message: "too long".to_owned(),
        });
        let wanted = format!("Failed; i=Terminated:Completed:0 ready; app={wanted}");
        assert_eq!(words(&status(&case)), wanted, "{exited}");
    }
}
