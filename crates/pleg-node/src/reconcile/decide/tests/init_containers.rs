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
