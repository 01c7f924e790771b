//! Restarts of `pleg node`: pods keep running, their history survives, and pods whose manifests were removed meanwhile terminate.

use std::time::Duration;

use pleg::PodUid;
use pleg_node::sources::Snapshot;
use pleg_node::status::Phase;

use crate::machine::{Machine, Running, is_ready, pod, read_pods, snapshot, spec};

#[tokio::test(start_paused = true)]
async fn another_node_of_ours_adopts_what_runs() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let manifests: Vec<String> = (0..30).map(|n| pod(&format!("web-{n}"), "serve")).collect();
    let uids = node.want(&manifests).await;
    node.until("30 pods", |reports| uids.iter().all(|uid| is_ready(reports, uid)))
        .await;
    let before = machine.sim.truth();
    node.stop().await;
    assert_eq!(machine.sim.truth(), before, "pods keep running");

    let node = machine.node().await;
    node.want(&manifests).await;
    node.until("30 pods", |reports| uids.iter().all(|uid| is_ready(reports, uid)))
        .await;
    assert_eq!(machine.sim.truth(), before, "nothing was touched");

    // A manifest was removed while the node was down.
    node.stop().await;
    let node = machine.node().await;
    node.want(&manifests[1..]).await;
    let gone =
        || machine.attempts(&uids[0]).is_empty() && !machine.sandboxes().iter().any(|s| s.uid == uids[0].as_str());
    node.until("the removed one is gone", |_| gone()).await;
    assert_eq!(machine.running().len(), 29);
    node.stop().await;
    machine.check();
}

/// Exit codes and restart counts survive a restart of `pleg node` and removal from the runtime; a final exit stays final.
#[tokio::test(start_paused = true)]
async fn what_happened_is_not_forgotten() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let once = spec(
        "once",
        "restartPolicy: Never, containers: [{name: app, image: i, command: [exit, '7']}]",
    );
    let manifests = [pod("loop", "sleep-exit, 1s, '3'"), once];
    let uids = node.want(&manifests).await;
    let restarts = |reports: &pleg_node::PodReports| {
        let report = reports.get(&uids[0]);
        report.map_or(0, |pod| pod.containers()[0].restart_count)
    };
    node.until("a few restarts", |reports| {
        restarts(reports) >= 3 && node.state(&uids[0], "app") == "CrashLoopBackOff"
    })
    .await;
    node.until_phase(&uids[1], Phase::Failed).await;
    let count = restarts(&node.reports);
    node.stop().await;

    // Everything of both pods is removed while the node is down.
    for sandbox in machine.sandboxes() {
        machine.sim.world().stop_sandbox(&sandbox.id);
        machine.sim.world().remove_sandbox(&sandbox.id);
    }
    assert!(machine.sim.truth().containers.is_empty());
    let node = machine.node().await;
    node.want(&manifests).await;
    node.until_phase(&uids[1], Phase::Failed).await;
    assert_eq!(node.state(&uids[1], "app"), "Terminated 7");
    node.until("the next attempt", |reports| restarts(reports) == count + 1)
        .await;
    assert_eq!(i32::try_from(machine.attempts(&uids[0])[0].attempt), Ok(count + 1));
    assert!(machine.attempts(&uids[1]).is_empty(), "it is not run again");
    // A terminated pod leaves no history.
    node.want(&[]).await;
    node.until_gone().await;
    let again = node.want(&manifests[..1]).await;
    node.until_ready(&again[0]).await;
    assert_eq!(restarts(&node.reports), 0);
    node.stop().await;
    machine.check();
}

/// A manifest was edited while the node was down: the old pod terminates before the new one starts.
#[tokio::test(start_paused = true)]
async fn an_edit_while_we_were_away_runs_no_two_pods_of_one_name() {
    let machine = Machine::start().await;
    let version = |image: &str| {
        let spec_of = format!(
            "terminationGracePeriodSeconds: 7, containers: [{{name: app, image: {image}, command: [ignore-term]}}]"
        );
        spec("web", &spec_of)
    };
    let node = machine.node().await;
    let old = node.want(&[version("v1")]).await.remove(0);
    node.until_ready(&old).await;
    node.stop().await;

    let node = machine.node().await;
    let new = node.want(&[version("v2")]).await.remove(0);
    node.until("the new one", |reports| {
        assert!(!(machine.runs(&old) && machine.runs(&new)), "both run");
        machine.runs(&new) && is_ready(reports, &new)
    })
    .await;
    node.stop().await;
    machine.check();
}

/// The same for a pod with two sandboxes, and for one that was adopted while a source was incomplete.
#[tokio::test(start_paused = true)]
async fn an_edit_ends_a_pod_with_two_sandboxes_and_one_that_was_adopted() {
    let machine = Machine::start().await;
    let version = |image: &str| {
        let spec_of = format!(
            "terminationGracePeriodSeconds: 7, containers: [{{name: app, image: {image}, command: [ignore-term]}}]"
        );
        spec("web", &spec_of)
    };
    let replaced = async |node: &Running, old: &PodUid, new: &PodUid| {
        node.until("the new one", |reports| {
            assert!(!(machine.runs(old) && machine.runs(new)), "both run");
            machine.runs(new) && is_ready(reports, new) && reports.pods().len() == 1
        })
        .await;
        assert!(!machine.sandboxes().iter().any(|sandbox| sandbox.uid == old.as_str()));
    };
    let node = machine.node().await;
    let first = node.want(&[version("v1")]).await.remove(0);
    node.until_ready(&first).await;
    let sandbox = machine.sandboxes().remove(0);
    machine.sim.world().stop_sandbox(&sandbox.id);
    node.until("another sandbox", |reports| {
        machine.sandboxes().len() == 2 && machine.runs(&first) && is_ready(reports, &first)
    })
    .await;
    node.stop().await;
    let node = machine.node().await;
    let second = node.want(&[version("v2")]).await.remove(0);
    replaced(&node, &first, &second).await;
    node.stop().await;

    // An incomplete source keeps existing pods from being terminated as orphans.
    let node = machine.node().await;
    let incomplete = |text: &str| Snapshot {
        complete: false,
        ..snapshot(&[text.to_owned()])
    };
    node.wants.send(incomplete(&version("v2"))).await.unwrap();
    node.until_ready(&second).await;
    node.wants.send(incomplete(&version("v3"))).await.unwrap();
    let third = read_pods(&version("v3")).remove(0).id.uid.clone();
    replaced(&node, &second, &third).await;
    node.stop().await;
    machine.check();
}

/// A manifest was removed while the node was down: its pod terminates as the manifest said, and its directories are removed, even if the
/// pod itself is already gone.
#[tokio::test(start_paused = true)]
async fn a_manifest_that_went_while_we_were_away_is_remembered_to_the_end() {
    let machine = Machine::start().await;
    let slow = spec(
        "slow",
        "terminationGracePeriodSeconds: 60, containers: [{name: app, image: i, lifecycle: {preStop: {sleep: {seconds: 40}}}}]",
    );
    let node = machine.node().await;
    let uids = node.want(&[slow, pod("gone", "serve")]).await;
    node.until("both", |reports| uids.iter().all(|uid| is_ready(reports, uid)))
        .await;
    node.stop().await;
    let sandbox = machine
        .sandboxes()
        .into_iter()
        .find(|sandbox| sandbox.uid == uids[1].as_str());
    machine.sim.world().remove_sandbox(&sandbox.unwrap().id);
    let logs = || machine.dir.path().join("logs").read_dir().unwrap().count();
    assert_eq!(logs(), 2);

    let node = machine.node().await;
    let began = tokio::time::Instant::now();
    node.want(&[]).await;
    node.until("nothing is left", |reports| {
        reports.pods().is_empty() && machine.sandboxes().is_empty() && logs() == 0
    })
    .await;
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(40), "its hook ran to its end: {took:?}");
    node.stop().await;
    machine.check();
}

/// A source that has not sent a snapshot yet may desire the running pod: another pod of that name waits for it.
#[tokio::test(start_paused = true)]
async fn the_running_one_of_two_keeps_its_name_across_a_restart() {
    let machine = Machine::start().await;
    let node = machine.node_with_sources(&["a", "b"]).await;
    node.want_from("a", &[]).await;
    let running = node.want_from("b", &[pod("web", "serve")]).await.remove(0);
    node.until_ready(&running).await;
    node.stop().await;
    let node = machine.node_with_sources(&["a", "b"]).await;
    let other = node.want_from("a", &[pod("web", "serve, other")]).await.remove(0);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(machine.runs(&running) && !machine.runs(&other));
    node.want_from("b", &[pod("web", "serve")]).await;
    node.until_ready(&running).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(machine.runs(&running) && !machine.runs(&other));
    assert_eq!(machine.attempts(&running).len(), 1, "it was never touched");
    assert!(
        node.reports.problems()[0].what.contains("is refused"),
        "{:?}",
        node.reports.problems()
    );
    node.stop().await;
    machine.check();
}

/// A pod is removed and desired again before it has terminated: the terminating one does not delete the stored manifest of the new one.
#[tokio::test(start_paused = true)]
async fn what_comes_back_while_it_ends_is_in_the_state_file() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let slow = spec(
        "web",
        "terminationGracePeriodSeconds: 9, containers: [{name: app, image: i, command: [ignore-term]}]",
    );
    let uid = node.want(std::slice::from_ref(&slow)).await.remove(0);
    node.until_ready(&uid).await;
    node.want(&[]).await;
    node.want(std::slice::from_ref(&slow)).await;
    let back = |reports: &pleg_node::PodReports| {
        let runs = reports
            .get(&uid)
            .is_some_and(|pod| pod.goal == pleg_node::reconcile::decide::Goal::Run);
        runs && is_ready(reports, &uid)
    };
    node.until("it is back", back).await;
    node.stop().await;
    let kept = machine.kept_manifests();
    assert_eq!(kept, [uid]);
    machine.check();
}
