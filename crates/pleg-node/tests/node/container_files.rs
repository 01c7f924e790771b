//! What containers get of the node, and leave there: hosts files, termination messages; and pods that the node must not run.

use std::fs;
use std::path::PathBuf;

use pleg::PodUid;
use pleg_node::manifest::Pod;
use pleg_node::status::Phase;

use crate::machine::{Machine, Running, pod, snapshot, spec};

fn pod_directory(machine: &Machine, uid: &PodUid) -> PathBuf {
    machine.dir.path().join("pods").join(uid.as_str())
}

/// The message of the terminated state of the only container.
fn message(node: &Running, uid: &PodUid) -> String {
    let status = node.reports.get(uid).unwrap().status;
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let state = containers[0].state.as_ref().and_then(|state| state.terminated.as_ref());
    state
        .expect("the container is not terminated")
        .message
        .clone()
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn what_a_container_left_is_the_message_of_its_exit() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let manifest = spec(
        "web",
        "restartPolicy: Never, containers: [{name: app, image: img, command: [sleep-exit, 60s, '3']}]",
    );
    let uid = node.want(std::slice::from_ref(&manifest)).await.remove(0);
    node.until_ready(&uid).await;
    let file = pod_directory(&machine, &uid).join("containers/app/0");
    fs::write(&file, "out of luck").unwrap();
    node.until_phase(&uid, Phase::Failed).await;
    assert_eq!(message(&node, &uid), "out of luck");
    node.stop().await;
    // The file is no longer needed, not even by another run of the node.
    fs::remove_file(&file).unwrap();
    let node = machine.node().await;
    node.want(&[manifest]).await;
    node.until_phase(&uid, Phase::Failed).await;
    assert_eq!(message(&node, &uid), "out of luck");
    node.want(&[]).await;
    node.until_gone().await;
    assert!(!pod_directory(&machine, &uid).exists());
    node.stop().await;
    machine.check();
}

/// A node that was not there when the container exited reads what it left.
#[tokio::test(start_paused = true)]
async fn a_message_waits_for_the_node() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let manifest = spec(
        "web",
        "restartPolicy: Never, containers: [{name: app, image: img, command: [sleep-exit, 60s, '3']}]",
    );
    let uid = node.want(std::slice::from_ref(&manifest)).await.remove(0);
    node.until_ready(&uid).await;
    node.stop().await;
    fs::write(pod_directory(&machine, &uid).join("containers/app/0"), "alone").unwrap();
    tokio::time::sleep(std::time::Duration::from_mins(2)).await;
    let node = machine.node().await;
    node.want(&[manifest]).await;
    node.until_phase(&uid, Phase::Failed).await;
    assert_eq!(message(&node, &uid), "alone");
    node.stop().await;
    machine.check();
}

/// Files of messages do not pile up.
#[tokio::test(start_paused = true)]
async fn files_of_messages_go_with_their_containers() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let uid = node.want(&[pod("web", "sleep-exit, 2s, '3'")]).await.remove(0);
    let restarts = |reports: &pleg_node::PodReports| {
        let report = reports.get(&uid);
        report.is_some_and(|pod| pod.status.container_statuses.as_deref().unwrap_or_default()[0].restart_count >= 5)
    };
    node.until("5 restarts", restarts).await;
    let files = fs::read_dir(pod_directory(&machine, &uid).join("containers/app")).unwrap();
    assert!(files.count() <= 3);
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_pod_has_a_hosts_file() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let uid = node.want(&[pod("web", "serve")]).await.remove(0);
    node.until_ready(&uid).await;
    let ip = node.reports.get(&uid).unwrap().status.pod_ip.clone().unwrap();
    let hosts = fs::read_to_string(pod_directory(&machine, &uid).join("etc-hosts")).unwrap();
    assert!(hosts.contains(&format!("\n{ip}\tweb-n\n")), "{hosts}");
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_forbidden_sysctl_fails_and_is_not_started() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let mut wanted = snapshot(&[pod("web", "serve")]);
    let mut unsafe_pod = Pod::clone(&wanted.pods[0].pod);
    let name = "net.core.somaxconn".to_owned();
    unsafe_pod.spec.security.sysctls = vec![(name, "1".to_owned())];
    let uid = unsafe_pod.id.uid.clone();
    wanted.pods[0].pod = unsafe_pod.into();
    node.wants.send(wanted).await.unwrap();
    node.until_phase(&uid, Phase::Failed).await;
    let status = node.reports.get(&uid).unwrap().status;
    assert_eq!(status.reason.as_deref(), Some("SysctlForbidden"));
    let message = status.message.clone().unwrap();
    assert!(
        message.starts_with("Pod was rejected: forbidden sysctl: \"net.core.somaxconn\""),
        "{message}"
    );
    assert!(machine.sandboxes().is_empty());
    node.stop().await;
    machine.check();
}
