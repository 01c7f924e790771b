//! Terminal phases: reported once nothing of the pod can run, and final. Nothing is started in a pod that has failed.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use pleg::PodUid;
use pleg_cri::Rpc;
use pleg_cri::v1::ContainerState;
use pleg_node::PodReports;
use pleg_node::status::Phase;

use crate::machine::{Machine, Running, is_ready, spec};

/// Waits for a terminal phase. Until then nothing may look like one, and then nothing may run.
async fn until_over(machine: &Machine, node: &Running, uid: &PodUid, phase: Phase) -> PodStatus {
    let is = |reports: &PodReports| {
        let Some(report) = reports.get(uid) else { return false };
        let over = matches!(report.phase(), Phase::Failed | Phase::Succeeded);
        assert!(
            !(over && machine.runs(uid)),
            "{:?} while a container runs",
            report.phase()
        );
        report.phase() == phase
    };
    node.until("a terminal phase", is).await;
    // It is final.
    let is_other = |reports: &PodReports| reports.get(uid).is_some_and(|report| report.phase() != phase);
    let changed = tokio::time::timeout(Duration::from_mins(3), node.reports.wait_for(is_other)).await;
    assert!(changed.is_err(), "{phase:?} is not final");
    let report = node.reports.get(uid).unwrap();
    let ready = &report.conditions()[2];
    let reason = if phase == Phase::Failed {
        "PodFailed"
    } else {
        "PodCompleted"
    };
    assert_eq!((&*ready.status, ready.reason.as_deref()), ("False", Some(reason)));
    PodStatus::clone(&report.status)
}

#[tokio::test(start_paused = true)]
async fn a_failed_pod_is_failed_once_nothing_runs() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let stubborn = spec(
        "p",
        "activeDeadlineSeconds: 10, terminationGracePeriodSeconds: 30, \
         containers: [{name: app, image: i, command: [ignore-term]}, {name: b, image: i}]",
    );
    let uid = node.want(&[stubborn]).await.remove(0);
    node.until_ready(&uid).await;
    let began = tokio::time::Instant::now();
    let status = until_over(&machine, &node, &uid, Phase::Failed).await;
    assert!(began.elapsed() >= Duration::from_secs(39), "{:?}", began.elapsed());
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(node.state(&uid, "app"), "Terminated 137");
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_pod_succeeds_once_its_sidecars_have_ended() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let job = spec(
        "p",
        "restartPolicy: OnFailure, terminationGracePeriodSeconds: 20, \
         initContainers: [{name: s, image: i, restartPolicy: Always, command: [ignore-term]}], \
         containers: [{name: app, image: i, command: [sleep-exit, 5s, '0']}]",
    );
    let uid = node.want(&[job]).await.remove(0);
    let began = tokio::time::Instant::now();
    until_over(&machine, &node, &uid, Phase::Succeeded).await;
    assert!(began.elapsed() >= Duration::from_secs(24), "{:?}", began.elapsed());
    node.stop().await;
    machine.check();
}

/// The container of a failed pod still uses its host port.
#[tokio::test(start_paused = true)]
async fn a_host_port_is_kept_until_nothing_runs() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let with = |name: &str, more: &str| {
        let port = "ports: [{containerPort: 80, hostPort: 8080}]";
        // The second container ends at once, which is a reason to look at the pod again.
        let container =
            format!("containers: [{{name: app, image: i, command: [ignore-term], {port}}}, {{name: b, image: i}}]");
        spec(name, &format!("{more} terminationGracePeriodSeconds: 40, {container}"))
    };
    let manifests = [with("a", "activeDeadlineSeconds: 10,"), with("b", "")];
    let first = node.want(&manifests[..1]).await.remove(0);
    node.until_ready(&first).await;
    let uids = node.want(&manifests).await;
    let began = tokio::time::Instant::now();
    node.until("the next holder", |reports| {
        assert!(
            !(machine.runs(&uids[0]) && machine.runs(&uids[1])),
            "both run on one port"
        );
        is_ready(reports, &uids[1])
    })
    .await;
    assert!(began.elapsed() >= Duration::from_secs(45), "{:?}", began.elapsed());
    node.stop().await;
    machine.check();
}

/// An image arrives after the deadline of its pod.
#[tokio::test(start_paused = true)]
async fn nothing_starts_in_a_pod_that_has_failed() {
    for late in [Rpc::PullImage, Rpc::CreateContainer] {
        let machine = Machine::start().await;
        let node = machine.node().await;
        let faults = machine.sim.faults();
        faults.set_latency(Some(late), Duration::from_mins(1), Duration::ZERO);
        let pod = spec(
            "p",
            "activeDeadlineSeconds: 10, containers: [{name: app, image: slow, imagePullPolicy: Always}]",
        );
        let uid = node.want(&[pod]).await.remove(0);
        let status = until_over(&machine, &node, &uid, Phase::Failed).await;
        assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
        tokio::time::sleep(Duration::from_mins(3)).await;
        let started = machine.attempts(&uid);
        let started = started.iter().any(|app| app.state != ContainerState::ContainerCreated);
        assert!(!started, "{late}: it was started");
        assert_eq!(node.state(&uid, "app"), "Terminated 137", "{late}");
        node.stop().await;
        machine.check();
    }
}

/// The hook would run for a day.
#[tokio::test(start_paused = true)]
async fn a_deadline_does_not_wait_for_a_hook() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let hook = "lifecycle: {postStart: {exec: {command: [sleep, '80000']}}}";
    let pod = spec(
        "p",
        &format!(
            "activeDeadlineSeconds: 10, terminationGracePeriodSeconds: 5, containers: [{{name: app, image: i, {hook}}}]"
        ),
    );
    let uid = node.want(&[pod]).await.remove(0);
    let began = tokio::time::Instant::now();
    node.until("its end", |_| !machine.attempts(&uid).is_empty() && !machine.runs(&uid))
        .await;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    until_over(&machine, &node, &uid, Phase::Failed).await;
    node.stop().await;
    machine.check();
}

/// The init container has completed, and the image of the main container is being pulled when the sandbox dies.
#[tokio::test(start_paused = true)]
async fn a_pod_that_may_not_restart_fails_with_its_sandbox() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let manifest = spec(
        "p",
        "restartPolicy: Never, initContainers: [{name: i, image: i, command: [exit, '0']}], \
         containers: [{name: app, image: missing}]",
    );
    let uid = node.want(&[manifest]).await.remove(0);
    node.until("the image", |_| node.state(&uid, "app") == "ErrImagePull")
        .await;
    let sandbox = machine.sandboxes().remove(0);
    machine.sim.world().stop_sandbox(&sandbox.id);
    let status = until_over(&machine, &node, &uid, Phase::Failed).await;
    assert_eq!(status.reason.as_deref(), Some("SandboxLost"));
    assert_eq!(
        (node.state(&uid, "i").as_str(), node.state(&uid, "app").as_str()),
        ("Terminated 0", "Terminated 137")
    );
    assert_eq!(machine.sandboxes().len(), 1, "it is not replaced");
    node.stop().await;
    machine.check();
}

/// `pleg node` restarts, or is killed, while the containers of a failed pod end: the phase is still withheld.
#[tokio::test(start_paused = true)]
async fn a_restart_does_not_show_a_failed_pod_as_failed_too_early() {
    for gently in [true, false] {
        let machine = Machine::start().await;
        let node = machine.node().await;
        let stubborn = spec(
            "p",
            "activeDeadlineSeconds: 10, terminationGracePeriodSeconds: 60, \
             containers: [{name: app, image: i, command: [ignore-term]}]",
        );
        let uid = node.want(std::slice::from_ref(&stubborn)).await.remove(0);
        node.until_ready(&uid).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(machine.runs(&uid));
        if gently {
            node.stop().await;
        } else {
            node.kill().await;
        }
        let node = machine.node().await;
        node.want(&[stubborn]).await;
        let status = until_over(&machine, &node, &uid, Phase::Failed).await;
        assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
        node.stop().await;
        machine.check();
    }
}
