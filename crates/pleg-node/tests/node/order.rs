//! The order in which the containers of a pod start and end.

use std::collections::BTreeMap;
use std::time::Duration;

use pleg_cri::Rpc;
use pleg_sim::world::ContainerTruth;

use crate::machine::{Machine, is_ready, spec};

const SECOND: i64 = 1_000_000_000;

/// The first attempt of each container, by name.
fn by_name(attempts: Vec<ContainerTruth>) -> BTreeMap<String, ContainerTruth> {
    attempts
        .into_iter()
        .rev()
        .map(|container| (container.name.clone(), container))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn main_containers_start_one_after_the_other() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let hook = |seconds: u32| format!("lifecycle: {{postStart: {{sleep: {{seconds: {seconds}}}}}}}");
    let manifest = spec(
        "p",
        &format!(
            "containers: [{{name: a, image: i, {}}}, {{name: b, image: i, {}}}, {{name: c, image: i}}]",
            hook(20),
            hook(10)
        ),
    );
    let uid = node.want(&[manifest]).await.remove(0);
    node.until_ready(&uid).await;
    let all = by_name(machine.attempts(&uid));
    let after = |one: &str, other: &str| (all[other].created_at - all[one].started_at + SECOND / 2) / SECOND;
    assert!((20..=22).contains(&after("a", "b")), "{}", after("a", "b"));
    assert!((10..=12).contains(&after("b", "c")), "{}", after("b", "c"));
    // One that cannot start delays no other container.
    let manifest = spec("q", "containers: [{name: a, image: missing}, {name: b, image: i}]");
    let uid = node.want(&[manifest]).await.remove(0);
    node.until("the second one", |_| node.state(&uid, "b") == "Running")
        .await;
    node.stop().await;
    machine.check();
}

/// When each container of a pod ended, in seconds after its manifest was removed.
async fn ends(spec_of: &str) -> BTreeMap<String, i64> {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let uid = node.want(&[spec("p", spec_of)]).await.remove(0);
    node.until_ready(&uid).await;
    // Sandboxes are kept for a while, so that the ends can be read.
    let faults = machine.sim.faults();
    faults.hang(Rpc::RemovePodSandbox, None, None).unwrap();
    faults.hang(Rpc::StopPodSandbox, None, None).unwrap();
    let began = machine.sim.world().clock().now();
    node.want(&[]).await;
    node.until("nothing runs", |_| machine.running().is_empty()).await;
    let all = by_name(machine.attempts(&uid));
    faults.clear();
    node.until_gone().await;
    node.stop().await;
    machine.check();
    let end = |container: &ContainerTruth| (container.finished_at - began + SECOND / 2) / SECOND;
    all.iter()
        .map(|(name, container)| (name.clone(), end(container)))
        .collect()
}

fn near(found: &BTreeMap<String, i64>, wanted: &[(&str, i64)]) {
    for (name, wanted) in wanted {
        let found = found[*name];
        assert!(
            (*wanted..=wanted + 1).contains(&found),
            "{name}: {found} s instead of {wanted} s"
        );
    }
}

const SIDECARS: &str =
    "initContainers: [{name: s, image: i, restartPolicy: Always}, {name: t, image: i, restartPolicy: Always, T}]";

#[tokio::test(start_paused = true)]
async fn sidecars_end_after_the_others_in_reverse_order() {
    let stubborn = SIDECARS.replace("T}", "command: [ignore-term]}");
    // The main container uses 10 s of 15, the last sidecar the rest, and the first one what is always left.
    let found = ends(&format!(
        "terminationGracePeriodSeconds: 15, {stubborn}, containers: [{{name: app, image: i, lifecycle: {{preStop: {{sleep: {{seconds: 10}}}}}}}}]"
    ))
    .await;
    near(&found, &[("app", 10), ("t", 15), ("s", 15)]);
}

#[tokio::test(start_paused = true)]
async fn hooks_run_at_once_within_one_budget() {
    // All hooks begin at once: those of the sidecars are over when it is their turn.
    let hooked = SIDECARS.replace("T}", "lifecycle: {preStop: {sleep: {seconds: 8}}}}");
    let app = "containers: [{name: app, image: i, lifecycle: {preStop: {sleep: {seconds: 8}}}}]";
    let found = ends(&format!("terminationGracePeriodSeconds: 30, {hooked}, {app}")).await;
    near(&found, &[("app", 8), ("t", 8), ("s", 8)]);
    // A hook that uses up the budget leaves two seconds for SIGTERM.
    let app =
        "containers: [{name: app, image: i, command: [ignore-term], lifecycle: {preStop: {sleep: {seconds: 6}}}}]";
    let found = ends(&format!("terminationGracePeriodSeconds: 6, {app}")).await;
    near(&found, &[("app", 8)]);
}

#[tokio::test(start_paused = true)]
async fn without_a_grace_period_two_seconds_are_left() {
    let app = "containers: [{name: app, image: i, command: [ignore-term], lifecycle: {preStop: {sleep: {seconds: 5}}}}, {name: b, image: i}]";
    let found = ends(&format!("terminationGracePeriodSeconds: 0, {app}")).await;
    near(&found, &[("app", 2), ("b", 0)]);
}

/// The pod is finished, not deleted: its sidecars share one grace period too.
#[tokio::test(start_paused = true)]
async fn sidecars_of_a_finished_pod_share_one_budget() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let sidecar = |name: &str| format!("{{name: {name}, image: i, restartPolicy: Always, command: [ignore-term]}}");
    let manifest = spec(
        "p",
        &format!(
            "restartPolicy: Never, terminationGracePeriodSeconds: 10, initContainers: [{}, {}], \
             containers: [{{name: app, image: i, command: [sleep-exit, 5s, '0']}}]",
            sidecar("s"),
            sidecar("t")
        ),
    );
    let uid = node.want(&[manifest]).await.remove(0);
    node.until("success", |reports| {
        let report = reports.get(&uid);
        report.is_some_and(|report| report.phase() == pleg_node::status::Phase::Succeeded)
    })
    .await;
    let all = by_name(machine.attempts(&uid));
    let after = |name: &str| (all[name].finished_at - all["app"].finished_at + SECOND / 2) / SECOND;
    assert!(
        (10..=12).contains(&after("t")) && (12..=14).contains(&after("s")),
        "{all:?}"
    );
    node.stop().await;
    machine.check();
}

/// A restart of one container does not wait for the hook of one after it.
#[tokio::test(start_paused = true)]
async fn a_restart_does_not_wait_for_a_later_hook() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let manifest = spec(
        "p",
        "containers: [{name: a, image: i}, {name: b, image: i, lifecycle: {postStart: {sleep: {seconds: 600}}}}]",
    );
    let uid = node.want(&[manifest]).await.remove(0);
    node.until("both run", |_| machine.running().len() == 2).await;
    let a = by_name(machine.attempts(&uid))["a"].id.clone();
    machine.sim.world().kill_container(&a);
    let began = tokio::time::Instant::now();
    node.until("it is back", |_| {
        machine.running().len() == 2 && !machine.running().iter().any(|c| c.id == a)
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    node.until("all is ready", |reports| is_ready(reports, &uid)).await;
    node.stop().await;
    machine.check();
}

/// A container that exits while its post-start hook runs is restarted at once, and so is one whose sandbox died.
#[tokio::test(start_paused = true)]
async fn a_restart_does_not_wait_for_the_hook_of_what_has_exited() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let hook = "lifecycle: {postStart: {sleep: {seconds: 80000}}}";
    let manifest = spec("p", &format!("containers: [{{name: a, image: i, {hook}}}]"));
    let uid = node.want(&[manifest]).await.remove(0);
    let until_attempt = async |attempt: u32| {
        let began = tokio::time::Instant::now();
        let is = |container: &ContainerTruth| container.attempt == attempt;
        node.until("the next attempt", |_| machine.running().iter().any(is))
            .await;
        assert!(
            began.elapsed() < Duration::from_secs(15),
            "{attempt}: {:?}",
            began.elapsed()
        );
    };
    until_attempt(0).await;
    let a = machine.running()[0].id.clone();
    machine.sim.world().kill_container(&a);
    until_attempt(1).await;
    let sandbox = machine.sandboxes()[0].id.clone();
    machine.sim.world().stop_sandbox(&sandbox);
    until_attempt(2).await;
    assert!(!is_ready(&node.reports, &uid), "its hook runs");
    node.stop().await;
    machine.check();
}
