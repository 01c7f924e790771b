//! One call starts everything, against a simulated runtime on a socket.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use pleg::{Config, ConnectError, Endpoint, Item, Level, Overflow, Pleg, Start};
use pleg_sim::{Sim, SimConfig};
use tempfile::TempDir;
use tokio::time::timeout;

/// Long enough for a machine under load; no test waits it out.
const PATIENCE: Duration = Duration::from_secs(30);

fn socket() -> (TempDir, Endpoint) {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::unix(dir.path().join("cri.sock"));
    (dir, endpoint)
}

async fn sim(pods: usize, listen: Endpoint) -> Sim {
    let config = SimConfig {
        pods,
        ..SimConfig::default()
    };
    Sim::start(config, listen).await.unwrap()
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let reached = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(PATIENCE, reached).await.is_ok(), "{what}");
}

#[tokio::test]
async fn one_call_makes_statuses_events_and_readiness() {
    let (_dir, listen) = socket();
    let sim = sim(3, listen).await;
    let (pleg, task) = Pleg::spawn(sim.endpoint().clone(), Config::default()).await.unwrap();
    let mut events = pleg.subscribe(Start::Oldest, Overflow::Gap);
    let first = timeout(PATIENCE, events.next()).await.unwrap();
    assert!(matches!(first, Some(Item::Event(event)) if event.initial));
    until("the pods", || pleg.cache().len() == 3).await;
    // The runtime monitor runs too.
    until("the Ready condition", || pleg.readiness().ready().status).await;

    timeout(PATIENCE, task.shutdown()).await.unwrap().unwrap();
    assert_eq!(pleg.health().report().level, Level::Unhealthy);
    while timeout(PATIENCE, events.next()).await.unwrap().is_some() {}
    sim.shutdown().await;
}

#[tokio::test]
async fn a_runtime_that_is_not_up_is_an_error_or_waited_for() {
    let (_dir, listen) = socket();
    let refused = Pleg::spawn(listen.clone(), Config::default()).await;
    assert!(matches!(refused, Err(ConnectError::Runtime(_))));

    let (pleg, task) = Pleg::spawn_lazy(listen.clone(), Config::default()).unwrap();
    until("the failure", || !pleg.health().report().causes.is_empty()).await;
    assert!(!pleg.readiness().ready().status);
    let sim = sim(2, listen).await;
    until("the pods", || pleg.cache().len() == 2).await;
    until("the Ready condition", || pleg.readiness().ready().status).await;
    task.shutdown().await.unwrap();
    sim.shutdown().await;
}

#[tokio::test]
async fn contradictory_settings_are_refused() {
    let (_dir, listen) = socket();
    let config = Config {
        period: Duration::ZERO,
        ..Config::default()
    };
    let refused = Pleg::spawn(listen.clone(), config.clone()).await;
    assert!(matches!(refused, Err(ConnectError::Config(_))));
    assert!(matches!(Pleg::spawn_lazy(listen, config), Err(ConnectError::Config(_))));
}

#[tokio::test]
async fn dropping_the_task_stops_it() {
    let (_dir, listen) = socket();
    let sim = sim(1, listen).await;
    let (pleg, task) = Pleg::spawn(sim.endpoint().clone(), Config::default()).await.unwrap();
    until("the pod", || pleg.cache().len() == 1).await;
    drop(task);
    until("the end", || pleg.health().report().level == Level::Unhealthy).await;
    sim.shutdown().await;
}

#[tokio::test]
async fn a_supervised_task_ends_when_it_is_cancelled() {
    let (_dir, listen) = socket();
    let sim = sim(1, listen).await;
    let (pleg, task) = Pleg::spawn(sim.endpoint().clone(), Config::default()).await.unwrap();
    let stop = async { until("the pod", || pleg.cache().len() == 1).await };
    timeout(PATIENCE, task.run_until(stop)).await.unwrap().unwrap();
    assert_eq!(pleg.health().report().level, Level::Unhealthy);
    sim.shutdown().await;
}

#[test]
fn callers_without_async_block() {
    let (_dir, listen) = socket();
    let simulating = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    assert!(pleg::blocking::Pleg::spawn(listen.clone(), Config::default()).is_err());
    let config = SimConfig {
        pods: 2,
        ..SimConfig::default()
    };
    let sim = simulating.block_on(Sim::spawn_thread(config, listen)).unwrap();
    let pleg = pleg::blocking::Pleg::spawn(sim.endpoint().clone(), Config::default()).unwrap();
    let mut events = pleg.subscribe(Start::Oldest, Overflow::Gap);
    pleg.synced(pleg.handle().request_all(), PATIENCE).unwrap();
    let uid = pleg.handle().cache().entries()[0].status.pod.uid.clone();
    assert_eq!(pleg.refresh(&uid, PATIENCE).unwrap().status.containers.len(), 2);
    assert!(pleg.wait_for(&uid, |pod| pod.is_some(), PATIENCE).unwrap().is_some());
    assert!(matches!(events.next(), Some(Item::Event(_))));
    while events.next_within(Duration::from_millis(300)).is_ok() {}
    pleg.shutdown().unwrap();
    assert_eq!(
        events.next_within(PATIENCE),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
    );
    assert_eq!(events.count(), 0);
    simulating.block_on(sim.shutdown());
}
