//! Messages of terminated containers.

use super::*;

/// The message of the first container of a pod with that many containers, whose runtime and which itself left these.
fn message(containers: usize, runtimes: &str, own: Option<&str>) -> String {
    let all: Vec<String> = (0..containers).map(|n| format!("{{name: c{n}, image: i}}")).collect();
    let mut case = Case::new(&format!("restartPolicy: Never, containers: [{}]", all.join(", ")));
    case = case.sandbox(true, 0).exited("c0", 900, 1);
    case.status.containers[0].message = runtimes.into();
    let now = at(case.now);
    if let Some(own) = own {
        let container = case.status.containers[0].clone();
        let history = case.history.container_mut("c0");
        history.record_termination_message(&container, own, now);
    }
    let status = status(&case);
    match &status.container_statuses[0].state {
        ApiContainerState::Terminated { message, .. } => message.clone(),
        state => panic!("{state:?}"),
    }
}

#[test]
fn the_containers_own_comes_after_the_runtimes() {
    for (runtimes, own, wanted) in [
        ("", None, ""),
        ("", Some(""), ""),
        ("", Some("mine"), "mine"),
        ("oci error", Some(""), "oci error"),
        ("oci error", Some("mine"), "oci error: mine"),
    ] {
        assert_eq!(message(1, runtimes, own), wanted);
    }
}

/// 12 KiB, shared by all containers of the pod, and never half a character.
#[test]
fn messages_share_a_limit() {
    let long = "ü".repeat(2048);
    assert_eq!(message(3, "", Some(&long)).len(), 4096);
    assert_eq!(message(4, "", Some(&long)).len(), 3072);
    assert_eq!(message(5, "", Some(&long)).len(), 2456);
}
