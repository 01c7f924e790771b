//! The node's Ready condition, as a running generator and its monitor find it. Time is paused.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::Fake;
use pleg::runtime::{ErrorKind, RuntimeCondition, RuntimeStatus};
use pleg::{Config, Generator, Level, Metrics, NodeCondition, Pleg};
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

fn condition(kind: &'static str, status: bool) -> RuntimeCondition {
    RuntimeCondition {
        kind,
        status,
        reason: if status { "" } else { "NetworkPluginNotReady" }.into(),
        message: if status { "" } else { "cni plugin not initialized" }.into(),
    }
}

fn well() -> RuntimeStatus {
    RuntimeStatus {
        runtime: Some(condition("RuntimeReady", true)),
        network: Some(condition("NetworkReady", true)),
    }
}

/// A generator and its monitor, until the guard goes.
fn start(fake: &Fake) -> (Pleg, DropGuard) {
    let generator = Generator::new(fake.clone(), Config::default(), Metrics::new().unwrap());
    let (pleg, monitor) = (generator.handle(), generator.runtime_monitor());
    let shutdown = CancellationToken::new();
    tokio::spawn(generator.run(shutdown.clone()));
    tokio::spawn(monitor.run(shutdown.clone()));
    (pleg, shutdown.drop_guard())
}

fn ready(pleg: &Pleg) -> NodeCondition {
    pleg.readiness().ready()
}

/// While events let full relists be rare, a frozen runtime is reported long before the next one is due.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_freezes_at_rest_is_reported_within_seconds() {
    let fake = Fake::default();
    {
        let mut world = fake.world();
        world.has_events = true;
        (world.version.name, world.version.version) = ("containerd".into(), "2.1.9".into());
        world.status = well();
        world.add_pod("a", &["c"]);
    }
    let (pleg, _run) = start(&fake);
    sleep(Duration::from_secs(200)).await;
    let report = pleg.health().report();
    assert!(
        report.mode.full_relist_period_seconds >= 60.0 && report.level == Level::Healthy,
        "{report:?}"
    );
    fake.world().status_hangs = true;
    fake.world().list_hangs = true;
    sleep(Duration::from_secs(18)).await;
    let report = pleg.health().report();
    assert_eq!(report.level, Level::Degraded, "{report:?}");
}

/// The heartbeat replaces nothing while relists come as often, and keeps the longest silence short once they are rare.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_is_kept_while_relists_are_rare() {
    for events in [false, true] {
        let fake = Fake::default();
        {
            let mut world = fake.world();
            world.has_events = events;
            (world.version.name, world.version.version) = ("containerd".into(), "2.1.9".into());
            world.status = well();
        }
        let config = Config {
            heartbeat: Some(Duration::from_secs(2)),
            ..Config::default()
        };
        let generator = Generator::new(fake.clone(), config, Metrics::new().unwrap());
        let (pleg, monitor) = (generator.handle(), generator.runtime_monitor());
        let shutdown = CancellationToken::new();
        tokio::spawn(generator.run(shutdown.clone()));
        tokio::spawn(monitor.run(shutdown.clone()));
        sleep(Duration::from_secs(200)).await;
        let longest = if events { 2 } else { 5 };
        let mut silence = Duration::ZERO;
        for _ in 0..600 {
            sleep(Duration::from_millis(100)).await;
            silence = silence.max(pleg.readiness().since_last_answer().unwrap());
        }
        let bounds = Duration::from_millis(longest * 1000 - 200)..=Duration::from_millis(longest * 1000 + 100);
        assert!(bounds.contains(&silence), "{silence:?}");
        shutdown.cancel();
    }
}

const READY: &str = "kubelet is posting ready status";

#[tokio::test(start_paused = true)]
async fn a_runtime_that_goes_away_and_comes_back() {
    let fake = Fake::default();
    let (pleg, _run) = start(&fake);
    assert_eq!(
        ready(&pleg).message,
        "[container runtime status check may not have completed yet, \
         PLEG is not healthy: pleg has yet to be successful, network state unknown]"
    );
    fake.world().status = well();
    sleep(Duration::from_secs(6)).await;
    assert_eq!(ready(&pleg).message, READY);
    let text = pleg.render_metrics().unwrap();
    assert!(text.contains("\npleg_node_ready 1\n"), "{text}");

    fake.world().status_error = Some(ErrorKind::Unreachable("connection refused".into()));
    fake.world().list_error = Some(ErrorKind::Unreachable("connection refused".into()));
    sleep(Duration::from_secs(20)).await;
    assert!(ready(&pleg).status, "30 s are granted");
    sleep(Duration::from_secs(15)).await;
    let down = ready(&pleg);
    assert_eq!(
        (down.status, &*down.reason, &*down.message),
        (false, "KubeletNotReady", "container runtime is down")
    );
    // Relists fail for as long; after three minutes that is said too, with its cause.
    sleep(Duration::from_mins(3)).await;
    let message = ready(&pleg).message;
    assert!(
        message.starts_with("[container runtime is down, PLEG is not healthy: pleg was last seen active 3m"),
        "{message}"
    );
    assert!(message.contains("runtime unreachable: connection refused"), "{message}");
    assert!(pleg.render_metrics().unwrap().contains("\npleg_node_ready 0\n"));

    fake.world().status_error = None;
    fake.world().list_error = None;
    sleep(Duration::from_secs(6)).await;
    assert_eq!(ready(&pleg).message, READY);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_hangs_is_no_answer_and_holds_up_no_relist() {
    let fake = Fake::default();
    fake.world().status = well();
    fake.world().add_pod("a", &["a1"]);
    let (pleg, _run) = start(&fake);
    sleep(Duration::from_secs(1)).await;
    assert!(ready(&pleg).status);
    fake.world().status_hangs = true;
    sleep(Duration::from_secs(40)).await;
    assert_eq!(ready(&pleg).message, "container runtime is down");
    let check = pleg.observe().runtime.status.unwrap();
    assert!(
        check.starts_with("container runtime is down; Status on unix:///test.sock: no answer within 10s (for "),
        "{check}"
    );
    let report = pleg.health().report();
    assert_eq!(report.level, Level::Healthy);
    assert!(report.relists >= 35, "{}", report.relists);
}

#[tokio::test(start_paused = true)]
async fn a_network_that_is_not_ready() {
    let fake = Fake::default();
    fake.world().status = RuntimeStatus {
        network: Some(condition("NetworkReady", false)),
        ..well()
    };
    let (pleg, _run) = start(&fake);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        ready(&pleg).message,
        "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
         message:cni plugin not initialized"
    );
    fake.world().status = well();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(ready(&pleg).message, READY);
}

/// kubernetes/kubernetes#94829: there one bad pod makes a node NotReady.
#[tokio::test(start_paused = true)]
async fn pods_in_quarantine_leave_the_node_ready() {
    let fake = Fake::default();
    fake.world().status = well();
    for n in 0..5 {
        let (pod, container) = (format!("p{n}"), format!("c{n}"));
        fake.world().add_pod(&pod, &[&container]);
        fake.world().hung.insert(container);
    }
    let (pleg, _run) = start(&fake);
    sleep(Duration::from_mins(10)).await;
    let report = pleg.health().report();
    assert_eq!((report.level, report.causes.len()), (Level::Degraded, 5));
    assert!(ready(&pleg).status);
}

/// Three minutes of "healthy" after the last relist would be three minutes without a warning.
#[tokio::test(start_paused = true)]
async fn the_end_of_the_generator_is_reported_at_once() {
    for panics in [true, false] {
        let fake = Fake::default();
        fake.world().status = well();
        let generator = Generator::new(fake.clone(), Config::default(), Metrics::new().unwrap());
        let (pleg, monitor) = (generator.handle(), generator.runtime_monitor());
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(generator.run(shutdown.child_token()));
        let _monitor = tokio::spawn(monitor.run(shutdown.clone()));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(ready(&pleg).message, READY);

        if panics {
            fake.world().list_panics = true;
        } else {
            shutdown.cancel();
        }
        assert_eq!(task.await.is_err(), panics);
        let report = pleg.health().report();
        assert_eq!(report.level, Level::Unhealthy);
        let how = if panics { "panicked" } else { "ended" };
        assert_eq!(report.headline, format!("PLEG is not healthy: the generator has {how}"));
        assert_eq!(report.causes.len(), 1);
        let condition = ready(&pleg);
        assert!(!condition.status);
        assert_eq!(condition.message, report.message);
    }
}
