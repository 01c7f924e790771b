//! Container logs stay within their limits.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pleg_cri::Rpc;

use crate::machine::{Machine, pod};

/// Longer than the period of log checks.
const A_WHILE: Duration = Duration::from_secs(25);

/// A sparse file of 11 MiB.
fn grow(log: &Path) {
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    File::create(log).unwrap().set_len(11 << 20).unwrap();
}

fn files(log: &Path) -> Vec<String> {
    let names = fs::read_dir(log.parent().unwrap()).unwrap();
    let mut names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn a_log_that_grows_is_put_aside() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let uids = node.want(&[pod("a", "serve"), pod("b", "serve")]).await;
    node.until_ready(&uids[0]).await;
    node.until_ready(&uids[1]).await;
    let log = |n: usize| -> PathBuf {
        let directory = format!("logs/default_{}-n_{}/app/0.log", ["a", "b"][n], uids[n]);
        machine.dir.path().join(directory)
    };
    // Small logs are not rotated.
    fs::create_dir_all(log(1).parent().unwrap()).unwrap();
    fs::write(log(1), "little").unwrap();
    for round in 1..=7 {
        grow(&log(0));
        tokio::time::sleep(A_WHILE).await;
        let mut files = files(&log(0));
        // The runtime has begun a new one.
        files.retain(|name| name != "0.log");
        assert_eq!(files.len(), round.min(4), "{files:?}");
        assert!(files.iter().all(|name| name.starts_with("0.log.2")), "{files:?}");
    }
    assert_eq!(files(&log(1)), ["0.log"]);
    assert!(machine.sim.stats().of(Rpc::ReopenContainerLog).calls >= 7);
    // They are removed with their pod.
    node.want(&[]).await;
    node.until_gone().await;
    assert_eq!(fs::read_dir(machine.dir.path().join("logs")).unwrap().count(), 0);
    node.stop().await;
    machine.check();
}

/// A log that the runtime does not reopen gets its name back.
#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_put_aside_stays() {
    let machine = Machine::start().await;
    let faults = machine.sim.faults();
    faults
        .fail(Rpc::ReopenContainerLog, "UNAVAILABLE".parse().unwrap(), 1.0)
        .unwrap();
    let node = machine.node().await;
    let uid = node.want(&[pod("a", "serve")]).await.remove(0);
    node.until_ready(&uid).await;
    let log = machine.dir.path().join(format!("logs/default_a-n_{uid}/app/0.log"));
    grow(&log);
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(files(&log), ["0.log"]);
    assert!(machine.sim.stats().of(Rpc::ReopenContainerLog).calls >= 1);
    faults.clear();
    tokio::time::sleep(A_WHILE).await;
    let rotated = files(&log)
        .into_iter()
        .filter(|name| name.starts_with("0.log.2"))
        .count();
    assert_eq!(rotated, 1);
    node.stop().await;
    machine.check();
}

/// Two attempts of a container are kept, and so are their logs, also if their sandboxes were replaced.
#[tokio::test(start_paused = true)]
async fn logs_go_with_replaced_sandboxes() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let uid = node.want(&[pod("a", "serve")]).await.remove(0);
    let log = |attempt: u32| {
        machine
            .dir
            .path()
            .join(format!("logs/default_a-n_{uid}/app/{attempt}.log"))
    };
    for attempt in 0..=5 {
        node.until("the next attempt", |reports| {
            let restarts = reports.get(&uid).map(|pod| pod.containers()[0].restart_count);
            crate::machine::is_ready(reports, &uid) && restarts == i32::try_from(attempt).ok()
        })
        .await;
        // The simulated runtime writes none.
        fs::create_dir_all(log(attempt).parent().unwrap()).unwrap();
        fs::write(log(attempt), "x").unwrap();
        fs::write(log(attempt).with_extension("log.20261116-110700"), "x").unwrap();
        if attempt < 5 {
            let sandboxes = machine.sandboxes();
            let newest = sandboxes.iter().max_by_key(|sandbox| sandbox.attempt).unwrap();
            machine.sim.world().stop_sandbox(&newest.id);
        }
    }
    let wanted = ["4.log", "4.log.20261116-110700", "5.log", "5.log.20261116-110700"];
    assert_eq!(files(&log(5)), wanted);
    node.stop().await;
    machine.check();
}
