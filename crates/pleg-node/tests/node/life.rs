//! The life of pods: they start, run, are edited and terminate.

use std::time::Duration;

use pleg_cri::v1::ContainerState;
use pleg_node::status::Phase;
use pleg_sim::{Ending, SimConfig};

use crate::machine::{Machine, is_ready, pod, spec};

const SECOND: i64 = 1_000_000_000;

#[tokio::test(start_paused = true)]
async fn a_pod_comes_runs_and_goes() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let uids = node.want(&[pod("web", "serve")]).await;
    node.until_ready(&uids[0]).await;
    let report = node.reports.get(&uids[0]).unwrap();
    assert_eq!((report.phase(), machine.running().len()), (Phase::Running, 1));
    assert!(report.status.pod_ip.is_some());
    assert!(machine.dir.path().join("logs").read_dir().unwrap().next().is_some());

    node.want(&[]).await;
    node.until_gone().await;
    assert_eq!(
        (machine.sandboxes().len(), machine.sim.truth().containers.len()),
        (0, 0)
    );
    assert!(machine.dir.path().join("logs").read_dir().unwrap().next().is_none());
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_keeps_its_times() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let uid = node.want(&[pod("web", "sleep-exit, 2s, '3'")]).await.remove(0);
    // When each attempt was created and exited, while the runtime still has it.
    let attempts = std::sync::Mutex::new(std::collections::BTreeMap::new());
    let is = |reports: &pleg_node::PodReports| {
        for container in machine.attempts(&uid) {
            let times = (container.created_at, container.finished_at);
            attempts.lock().unwrap().insert(container.attempt, times);
        }
        reports
            .get(&uid)
            .is_some_and(|pod| pod.containers()[0].restart_count >= 8)
    };
    node.until("8 restarts", is).await;
    assert!(machine.attempts(&uid).len() <= 3, "dead ones are cleaned away");
    let attempts = attempts.into_inner().unwrap();
    let waits: Vec<i64> = attempts
        .values()
        .zip(attempts.values().skip(1))
        .map(|(one, next)| (next.0 - one.1 + SECOND / 2) / SECOND)
        .collect();
    // Each exit is observed within a second; then the back-off is the kubelet's.
    assert!(waits[0] <= 1, "{waits:?}");
    assert_eq!(waits[1..8], [10, 20, 40, 80, 160, 300, 300]);
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn init_containers_and_sidecars_have_their_order() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let manifest = spec(
        "p",
        "terminationGracePeriodSeconds: 4, initContainers: [{name: one, image: i, command: [sleep, '3']}, \
         {name: side, image: i, restartPolicy: Always}, {name: two, image: i, command: [sleep, '3']}], \
         containers: [{name: app, image: i}]",
    );
    let uid = node.want(&[manifest]).await.remove(0);
    node.until_ready(&uid).await;
    let attempts = machine.attempts(&uid);
    let names: Vec<&str> = attempts.iter().map(|container| container.name.as_str()).collect();
    assert_eq!(names, ["one", "side", "two", "app"]);
    assert!(attempts[1].created_at >= attempts[0].finished_at && attempts[3].created_at >= attempts[2].finished_at);
    // A sidecar that exits is restarted, and no other container is touched.
    let world = machine
        .sim
        .world()
        .exit(&"default/p-n".parse().unwrap(), Some("side"), Ending::Exit(0));
    assert_eq!(world.unwrap(), 1);
    node.until("the sidecar again", |reports| {
        let status = reports.get(&uid).unwrap().init_containers()[1].clone();
        status.ready && status.restart_count == 1
    })
    .await;
    assert_eq!(machine.attempts(&uid).len(), 5);
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_dead_sandbox_is_replaced_with_all_that_was_in_it() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let uid = node.want(&[pod("web", "serve")]).await.remove(0);
    node.until_ready(&uid).await;
    let first = machine.sandboxes().remove(0);
    machine.sim.world().stop_sandbox(&first.id);
    node.until("a new sandbox", |reports| {
        is_ready(reports, &uid) && reports.get(&uid).unwrap().containers()[0].restart_count == 1
    })
    .await;
    let ready: Vec<_> = machine
        .sandboxes()
        .into_iter()
        .filter(|sandbox| sandbox.ready)
        .collect();
    assert_eq!((ready.len(), ready[0].attempt), (1, 1));
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn an_edited_manifest_replaces_its_pod() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    // It uses all of its grace period.
    let slow = |image: &str| {
        spec(
            "web",
            &format!(
                "terminationGracePeriodSeconds: 9, containers: [{{name: app, image: {image}, command: [ignore-term]}}]"
            ),
        )
    };
    let old = node.want(&[slow("v1")]).await.remove(0);
    node.until_ready(&old).await;
    let began = machine.sim.world().clock().now();
    let new = node.want(&[slow("v2")]).await.remove(0);
    node.until_ready(&new).await;
    let attempts = machine.attempts(&new);
    let waited = (attempts[0].created_at - began) / SECOND;
    assert!(
        (9..=12).contains(&waited),
        "the old one has its 9 s, and the new one comes right after: {waited}"
    );
    assert_eq!((machine.sandboxes().len(), node.reports.get(&old).is_none()), (1, true));
    // Edited twice while the old pod terminates: only the last version starts.
    node.want(&[slow("v3")]).await;
    let last = node.want(&[slow("v4")]).await.remove(0);
    node.until_ready(&last).await;
    assert_eq!((machine.sandboxes().len(), machine.running().len()), (1, 1));
    // Back to a version that is terminating: it terminates, and starts again.
    node.want(&[]).await;
    let again = node.want(&[slow("v4")]).await.remove(0);
    assert_eq!(again, last);
    node.until("gone and back", |reports| {
        reports
            .get(&again)
            .is_some_and(|pod| pod.stage == pleg_node::reconcile::decide::Stage::Running)
            && is_ready(reports, &again)
    })
    .await;
    node.stop().await;
    machine.check();
}

/// Pods of another owner on the same runtime.
#[tokio::test(start_paused = true)]
async fn others_pods_are_not_touched() {
    let machine = Machine::start_with(SimConfig {
        pods: 5,
        ..SimConfig::default()
    })
    .await;
    let before = machine.sim.truth();
    let node = machine.node().await;
    let uids = node.want(&[pod("web", "serve")]).await;
    node.until_ready(&uids[0]).await;
    node.want(&[]).await;
    node.until_gone().await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(machine.sim.truth(), before);
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_hundred_pods_at_once_come_up() {
    let machine = Machine::start_with(SimConfig {
        latency: Duration::from_millis(20),
        ..SimConfig::default()
    })
    .await;
    let node = machine.node().await;
    let manifests: Vec<String> = (0..100).map(|n| pod(&format!("web-{n}"), "serve")).collect();
    let uids = node.want(&manifests).await;
    node.until("100 pods", |reports| uids.iter().all(|uid| is_ready(reports, uid)))
        .await;
    assert_eq!((machine.running().len(), machine.sandboxes().len()), (100, 100));
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_container_removed_behind_our_back_comes_back() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let uid = node.want(&[pod("web", "serve")]).await.remove(0);
    node.until_ready(&uid).await;
    let container = machine.attempts(&uid).remove(0);
    machine.sim.world().kill_container(&container.id);
    machine.sim.world().remove_container(&container.id);
    node.until("the next attempt", |reports| {
        is_ready(reports, &uid) && reports.get(&uid).unwrap().containers()[0].restart_count == 1
    })
    .await;
    assert_eq!(machine.attempts(&uid)[0].state, ContainerState::ContainerRunning);
    node.stop().await;
    machine.check();
}

/// Of two pods with the same host port, the one that has it keeps it; the other one is not admitted until the port is free.
#[tokio::test(start_paused = true)]
async fn a_host_port_has_one_pod() {
    let machine = Machine::start().await;
    let with = |name: &str| {
        let of = "containers: [{name: app, image: i, ports: [{containerPort: 80, hostPort: 8080}]}]";
        spec(name, of)
    };
    let node = machine.node().await;
    let b = node.want(&[with("b")]).await.remove(0);
    node.until_ready(&b).await;
    let uids = node.want(&[with("a"), with("b")]).await;
    let refused = |reports: &pleg_node::PodReports| {
        let status = reports.get(&uids[0]).map(|report| report.status);
        status.is_some_and(|status| status.reason.as_deref() == Some("HostPortConflict"))
    };
    node.until("the refusal", refused).await;
    let report = node.reports.get(&uids[0]).unwrap();
    assert_eq!(
        report.status.message.as_deref(),
        Some("host port 8080/TCP of pod default/a-n is already used by pod default/b-n: change or remove one of them")
    );
    assert_eq!(
        (report.phase(), node.state(&uids[0], "app").as_str()),
        (Phase::Pending, "HostPortConflict")
    );
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!((machine.sandboxes().len(), machine.runs(&b)), (1, true));
    // Also after a restart of `pleg node`, whichever manifest is read first.
    node.stop().await;
    let node = machine.node().await;
    node.want(&[with("a"), with("b")]).await;
    node.until("the refusal", refused).await;
    node.until_ready(&b).await;
    assert_eq!(machine.attempts(&b).len(), 1);
    node.want(&[with("a")]).await;
    node.until_ready(&uids[0]).await;
    assert_eq!((machine.sandboxes().len(), machine.running().len()), (1, 1));
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn what_happens_is_counted() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let crash = pod("crash", "sleep-exit, 1s, '3'");
    let missing = spec("missing", "containers: [{name: app, image: missing}]");
    let uids = node.want(&[pod("web", "serve"), crash, missing]).await;
    node.until("two restarts", |reports| {
        let of = |n: usize| reports.get(&uids[n]).map_or(0, |pod| pod.containers()[0].restart_count);
        of(1) >= 2 && node.state(&uids[2], "app") == "ImagePullBackOff"
    })
    .await;
    let counted = |name: &str| {
        let text = node.pleg.render_metrics().unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        let value = line
            .as_ref()
            .and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    assert!((counted("kubelet_pod_start_duration_seconds_count") - 2.0).abs() < 0.1);
    assert!((counted("kubelet_desired_pods{static=\"true\"}") - 3.0).abs() < 0.1);
    assert!((counted("kubelet_active_pods") - 3.0).abs() < 0.1);
    assert!((counted("kubelet_started_pods_total") - 3.0).abs() < 0.1);
    assert!((counted("kubelet_running_pods") - 3.0).abs() < 0.1);
    assert!(counted("kubelet_started_containers_total{container_type=\"container\"}") >= 4.0);
    let pulls = "kubelet_started_containers_errors_total{code=\"ErrImagePull\",container_type=\"container\"}";
    assert!(counted(pulls) >= 1.0);
    assert!(counted("pleg_node_container_restarts_total") >= 2.0);
    assert!(counted("kubelet_pod_worker_duration_seconds_count{operation_type=\"create\"}") >= 3.0);
    node.want(&[]).await;
    node.until_gone().await;
    assert!(counted("kubelet_pod_worker_duration_seconds_count{operation_type=\"terminate\"}") >= 3.0);
    assert!(counted("pleg_node_container_kills_total{why=\"end\"}") >= 1.0);
    assert!(counted("kubelet_active_pods").abs() < 0.1);
    node.stop().await;
    machine.check();
}

/// Longer than the deadline of any other call.
#[tokio::test(start_paused = true)]
async fn a_long_grace_period_is_waited_out() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let stubborn = "terminationGracePeriodSeconds: 900, containers: [{name: app, image: i, command: [ignore-term]}]";
    let uid = node.want(&[spec("p", stubborn)]).await.remove(0);
    node.until_ready(&uid).await;
    let began = tokio::time::Instant::now();
    node.want(&[]).await;
    node.until_gone().await;
    let took = began.elapsed().as_secs();
    assert!((900..=902).contains(&took), "{took} s");
    assert_eq!(machine.sim.stats().of(pleg_cri::Rpc::StopContainer).calls, 1);
    node.stop().await;
    machine.check();
}
