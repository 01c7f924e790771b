//! Probes and hooks while the runtime is away or hangs: what the runtime could not do is not the container's fault.

use std::time::Duration;

use pleg::PodUid;
use pleg_cri::Rpc;
use pleg_node::PodReports;

use crate::machine::{Machine, Running, is_ready, spec};

fn restarts(node: &Running, uid: &PodUid) -> i32 {
    let report = node.reports.get(uid);
    report.map_or(0, |pod| pod.containers()[0].restart_count)
}

/// Exec probes of each kind, each of which would fail within an outage of 14 s.
fn probed(name: &str) -> String {
    let probe = "{exec: {command: ['true']}, periodSeconds: 3, timeoutSeconds: 1, failureThreshold: 2}";
    spec(
        name,
        &format!(
            "terminationGracePeriodSeconds: 1, containers: [{{name: app, image: img, startupProbe: {probe}, \
             livenessProbe: {probe}, readinessProbe: {probe}}}]"
        ),
    )
}

#[tokio::test(start_paused = true)]
async fn an_outage_fails_no_probe() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let uid = node.want(&[probed("web")]).await.remove(0);
    node.until_ready(&uid).await;
    let stays_ready = |reports: &PodReports| {
        assert!(is_ready(reports, &uid), "what is not known changes nothing");
        false
    };
    let watched = async |length| {
        let _ = tokio::time::timeout(length, node.reports.wait_for(stays_ready)).await;
    };
    // It goes away; it is there and refuses; it does not answer.
    machine.sim.down(Duration::from_secs(14)).await;
    watched(Duration::from_mins(1)).await;
    machine.sim.wait_up().await;
    let faults = machine.sim.faults();
    for code in ["UNAVAILABLE", "UNKNOWN", "INTERNAL"] {
        faults.fail(Rpc::ExecSync, code.parse().unwrap(), 1.0).unwrap();
        watched(Duration::from_mins(1)).await;
        faults.clear();
    }
    faults.hang(Rpc::ExecSync, None, None).unwrap();
    watched(Duration::from_mins(1)).await;
    faults.clear();
    watched(Duration::from_mins(1)).await;
    assert_eq!((restarts(&node, &uid), machine.attempts(&uid).len()), (0, 1));
    node.stop().await;
    machine.check();
}

/// Before its startup probe was ever answered.
#[tokio::test(start_paused = true)]
async fn an_outage_does_not_kill_what_starts() {
    let machine = Machine::start().await;
    let faults = machine.sim.faults();
    faults.fail(Rpc::ExecSync, "UNAVAILABLE".parse().unwrap(), 1.0).unwrap();
    let node = machine.node().await;
    let uid = node.want(&[probed("web")]).await.remove(0);
    node.until("it runs", |_| node.state(&uid, "app") == "Running").await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(!is_ready(&node.reports, &uid));
    assert_eq!(machine.attempts(&uid).len(), 1);
    faults.clear();
    node.until_ready(&uid).await;
    assert_eq!(restarts(&node, &uid), 0);
    node.stop().await;
    machine.check();
}

/// A command that does not end in time is a failure: that is said by the runtime, which ended it.
#[tokio::test(start_paused = true)]
async fn a_command_that_takes_too_long_fails() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let slow = spec(
        "web",
        "terminationGracePeriodSeconds: 1, containers: [{name: app, image: img, livenessProbe: \
         {exec: {command: [sleep, '30']}, periodSeconds: 3, timeoutSeconds: 1, failureThreshold: 2}}]",
    );
    let uid = node.want(&[slow]).await.remove(0);
    node.until("a restart", |_| restarts(&node, &uid) >= 1).await;
    node.stop().await;
    machine.check();
}

/// A post-start hook that the runtime cannot run is tried again, and kills nothing.
#[tokio::test(start_paused = true)]
async fn an_outage_fails_no_hook() {
    let machine = Machine::start().await;
    let faults = machine.sim.faults();
    faults.fail(Rpc::ExecSync, "UNAVAILABLE".parse().unwrap(), 1.0).unwrap();
    let node = machine.node().await;
    let hooked = spec(
        "web",
        "containers: [{name: app, image: img, lifecycle: {postStart: {exec: {command: ['true']}}}}]",
    );
    let uid = node.want(&[hooked]).await.remove(0);
    node.until("it runs", |_| node.state(&uid, "app") == "Running").await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(!is_ready(&node.reports, &uid), "its hook has not run yet");
    assert_eq!((restarts(&node, &uid), machine.running().len()), (0, 1));
    faults.clear();
    node.until_ready(&uid).await;
    assert_eq!(machine.attempts(&uid).len(), 1);
    // The container exits while its hook cannot run: it is restarted, and the hook of the old attempt is given up.
    faults.fail(Rpc::ExecSync, "UNAVAILABLE".parse().unwrap(), 1.0).unwrap();
    let kill = || {
        let running = machine.running();
        machine.sim.world().kill_container(&running[0].id);
    };
    kill();
    node.until("the next attempt", |_| {
        restarts(&node, &uid) == 1 && machine.running().len() == 1
    })
    .await;
    kill();
    faults.clear();
    node.until("one that is ready", |reports| {
        restarts(&node, &uid) == 2 && is_ready(reports, &uid)
    })
    .await;
    node.stop().await;
    machine.check();
}

/// A pre-stop hook that hangs in the runtime takes the grace period, and not more.
#[tokio::test(start_paused = true)]
async fn a_hook_that_hangs_keeps_no_pod_from_its_end() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let hooked = |name: &str, grace: u32| {
        let hook = "lifecycle: {preStop: {exec: {command: ['true']}}}";
        let containers = format!("containers: [{{name: app, image: img, {hook}}}]");
        spec(name, &format!("terminationGracePeriodSeconds: {grace}, {containers}"))
    };
    for (fault, grace, most) in [("hang", 20, 23), ("away", 20, 3), ("hang", 0, 3)] {
        let uid = node.want(&[hooked("web", grace)]).await.remove(0);
        node.until_ready(&uid).await;
        let faults = machine.sim.faults();
        match fault {
            "hang" => faults.hang(Rpc::ExecSync, None, None).unwrap(),
            _ => faults.fail(Rpc::ExecSync, "UNAVAILABLE".parse().unwrap(), 1.0).unwrap(),
        }
        let began = tokio::time::Instant::now();
        node.want(&[]).await;
        node.until_gone().await;
        let took = began.elapsed();
        assert!(took <= Duration::from_secs(most), "{fault} {grace}: {took:?}");
        faults.clear();
    }
    node.stop().await;
    machine.check();
}

/// A container whose post-start hook failed is killed and never ready, also if the kill fails and `pleg node` restarts.
#[tokio::test(start_paused = true)]
async fn a_failed_hook_is_not_forgotten() {
    let machine = Machine::start().await;
    let faults = machine.sim.faults();
    faults
        .fail(Rpc::StopContainer, "INTERNAL".parse().unwrap(), 1.0)
        .unwrap();
    let bad = spec(
        "web",
        "terminationGracePeriodSeconds: 1, containers: [{name: app, image: img, command: [serve], \
         lifecycle: {postStart: {exec: {command: [exit, '7']}}}}]",
    );
    let node = machine.node().await;
    let uid = node.want(std::slice::from_ref(&bad)).await.remove(0);
    node.until("it runs", |_| node.state(&uid, "app") == "Running").await;
    let never_ready = async |node: &Running| {
        let ready = node.reports.wait_for(|reports| is_ready(reports, &uid));
        assert!(tokio::time::timeout(Duration::from_mins(2), ready).await.is_err());
    };
    never_ready(&node).await;
    let tries = machine.sim.stats().of(Rpc::StopContainer).calls;
    assert!(tries >= 3, "the kill is tried again: {tries}");
    node.stop().await;
    let node = machine.node().await;
    node.want(&[bad]).await;
    never_ready(&node).await;
    assert_eq!(machine.attempts(&uid).len(), 1);
    faults.clear();
    node.until("the next attempt", |_| restarts(&node, &uid) >= 1).await;
    node.until("the failure", |_| node.state(&uid, "app") == "PostStartHookError")
        .await;
    node.stop().await;
    machine.check();
}
