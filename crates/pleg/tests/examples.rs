//! The examples do what they say, against a simulated runtime.

#![allow(
    dead_code,
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::expect_used,
    unreachable_pub,
    reason = "a test of examples, whose `main` is not run"
)]

#[path = "../examples/oom_alerts.rs"]
mod oom_alerts;
#[path = "../examples/restart_counts.rs"]
mod restart_counts;
#[path = "../examples/wait_ready.rs"]
mod wait_ready;

use std::time::Duration;

use pleg::Endpoint;
use pleg_sim::{Ending, Sim, SimConfig};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Long enough for a machine under load; no test waits it out.
const PATIENCE: Duration = Duration::from_secs(30);

async fn sim(config: SimConfig) -> (TempDir, Sim) {
    let dir = tempfile::tempdir().unwrap();
    let listen = Endpoint::unix(dir.path().join("cri.sock"));
    let sim = Sim::start(config, listen).await.unwrap();
    (dir, sim)
}

#[tokio::test]
async fn an_oom_kill_is_alerted_and_history_is_not() {
    let (_dir, sim) = sim(SimConfig {
        pods: 3,
        ..SimConfig::default()
    })
    .await;
    let exit = |pod: &str, ending| sim.world().exit(&pod.parse().unwrap(), Some("app"), ending).unwrap();
    exit("default/web-0", Ending::Oom);
    let (sender, mut alerts) = mpsc::unbounded_channel();
    let run = oom_alerts::run(sim.endpoint().clone(), move |line| sender.send(line).unwrap());
    let mut run = std::pin::pin!(run);
    // It runs while we wait for it to have listed.
    let listed = async {
        while sim.stats().total.calls < 8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    };
    tokio::select! {
        ended = &mut run => panic!("{ended:?}"),
        () = listed => {}
    }
    exit("default/web-1", Ending::Exit(3));
    exit("default/web-2", Ending::Oom);
    let alert = tokio::select! {
        ended = &mut run => panic!("{ended:?}"),
        alert = timeout(PATIENCE, alerts.recv()) => alert.unwrap().unwrap(),
    };
    assert!(alert.ends_with(" OOMKilled default/web-2 container app"), "{alert}");
    sim.shutdown().await;
}

#[tokio::test]
async fn restarts_are_counted() {
    let (_dir, sim) = sim(SimConfig {
        pods: 2,
        ..SimConfig::default()
    })
    .await;
    let (sender, mut exports) = mpsc::unbounded_channel();
    let export = move |text| {
        sender.send(text).unwrap();
        Ok(())
    };
    let mut run = std::pin::pin!(restart_counts::run(sim.endpoint().clone(), export));
    let exported = async |exports: &mut mpsc::UnboundedReceiver<String>, line: &str| {
        while !exports.recv().await.unwrap().lines().any(|found| found == line) {}
    };
    for (line, restarts) in [
        ("pod_restarts{namespace=\"default\",pod=\"web-1\"} 0", false),
        ("pod_restarts{namespace=\"default\",pod=\"web-1\"} 1", true),
    ] {
        if restarts {
            let pod = "default/web-1".parse().unwrap();
            sim.world().restart(&pod, Some("app")).unwrap();
        }
        tokio::select! {
            ended = &mut run => panic!("{ended:?}"),
            found = timeout(PATIENCE, exported(&mut exports, line)) => found.expect(line),
        }
    }
    sim.shutdown().await;
}

#[tokio::test]
async fn a_pod_that_comes_is_waited_for() {
    let (_dir, sim) = sim(SimConfig::default()).await;
    let wait = wait_ready::run(sim.endpoint().clone(), "default", "web-0");
    let come = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        sim.world().add_pods(1).unwrap();
    };
    let (entry, ()) = tokio::join!(wait, come);
    assert_eq!(entry.unwrap().status.containers.len(), 2);
    sim.shutdown().await;
}
