//! In-place resize: running containers follow the resources of their pod.

use super::*;
use crate::reconcile::resize::SetResources;

const MIB: i64 = (1 << 20) * 1000;

/// A pod of two running containers, `a` with this policy, that were started with 500m and 64Mi.
fn case(a: &str, b: &str, policy: crate::manifest::ResizePolicy) -> Case {
    let one = |name: &str, resources: &str| format!("{{name: {name}, image: i, resources: {{{resources}}}}}");
    let mut case = Case::new(&format!("containers: [{}, {}]", one("a", a), one("b", b)))
        .sandbox(true, 0)
        .running("a", 1)
        .running("b", 1);
    std::sync::Arc::make_mut(&mut case.pod).spec.containers[0].resize_policy = policy;
    let started = SetResources {
        cpu_request: Some(500),
        cpu_limit: Some(500),
        memory_request: Some(64 * MIB),
        memory_limit: Some(64 * MIB),
    };
    for name in ["a", "b"] {
        case.history.container_mut(name).record_resources(0, started);
    }
    case
}

#[test]
fn the_table() {
    let none = crate::manifest::ResizePolicy::default();
    let memory = crate::manifest::ResizePolicy {
        memory_restarts: true,
        ..none
    };
    let cpu = crate::manifest::ResizePolicy {
        cpu_restarts: true,
        ..none
    };
    let same = "limits: {cpu: 500m, memory: 64Mi}";
    let more_cpu = "limits: {cpu: 1, memory: 64Mi}";
    let more_memory = "limits: {cpu: 500m, memory: 128Mi}";
    let less_memory = "limits: {cpu: 500m, memory: 32Mi}";
    let less_request = "limits: {cpu: 500m, memory: 64Mi}, requests: {cpu: 100m}";
    for (a, b, policy, expected) in [
        (same, same, none, &[][..]),
        (more_cpu, same, none, &["grow a0"]),
        (less_request, same, none, &["grow a0"]),
        (more_memory, more_cpu, none, &["grow a0", "grow b0"]),
        (less_memory, same, none, &["shrink a0"]),
        // The room of what shrinks is needed by what grows.
        (more_memory, less_memory, none, &["shrink b0"]),
        (more_memory, same, memory, &["kill a0 ResourcesChanged 30"]),
        (more_cpu, same, memory, &["grow a0"]),
        (more_cpu, same, cpu, &["kill a0 ResourcesChanged 30"]),
    ] {
        let case = case(a, b, policy);
        assert_eq!(words(&case.decide()), expected, "{a}, {b}, {policy:?}");
    }
}

#[test]
fn a_resize_in_flight_is_not_repeated_and_one_that_failed_waits() {
    let policy = crate::manifest::ResizePolicy::default();
    let same = "limits: {cpu: 500m, memory: 64Mi}";
    let mut case = case("limits: {cpu: 1, memory: 64Mi}", same, policy).at(100);
    case.in_flight.resizes.insert("a".to_owned());
    assert_eq!(words(&case.decide()), [""; 0]);
    case.in_flight.resizes.clear();
    let history = case.history.container_mut("a");
    history.record_resize_failure("it uses more", at(100));
    assert_eq!(words(&case.decide()), ["until 101"]);
    let case = case.at(101);
    assert_eq!(words(&case.decide()), ["grow a0"]);
}

/// A container of an earlier release of `pleg node`, or of another attempt: what it was started with is not known.
#[test]
fn a_container_with_unknown_resources_is_not_resized() {
    let mut case = case(
        "limits: {cpu: 1, memory: 64Mi}",
        "limits: {cpu: 2}",
        crate::manifest::ResizePolicy::default(),
    );
    case.history.container_mut("a").resources = None;
    case.history
        .container_mut("b")
        .record_resources(7, SetResources::default());
    assert_eq!(words(&case.decide()), [""; 0]);
}
