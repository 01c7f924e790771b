//! A simulator on a socket of its own, and a client of it.
#![allow(dead_code, unreachable_pub, reason = "each test file takes what it needs")]

use std::time::Duration;

use pleg_cri::{Client, Config, Deadlines, Endpoint, ListFilter};
use pleg_sim::{Sim, SimConfig};
use tempfile::TempDir;

pub struct Rig {
    pub sim: Sim,
    pub client: Client,
    pub dir: TempDir,
}

/// Long enough for a machine under load; no test waits it out.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub async fn rig(config: SimConfig) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::unix(dir.path().join("cri.sock"));
    let sim = Sim::start(config, endpoint.clone()).await.unwrap();
    let client = Client::connect(endpoint, Config::default()).await.unwrap();
    Rig { sim, client, dir }
}

pub fn pods(pods: usize) -> SimConfig {
    SimConfig {
        pods,
        ..Default::default()
    }
}

/// A client whose calls end soon: for calls that are meant to hang.
pub fn impatient(rig: &Rig) -> Client {
    let short = Duration::from_millis(150);
    let deadlines = Deadlines {
        list: short,
        inspect: short,
        act: short,
        connect: PATIENCE,
    };
    Client::lazy(
        rig.sim.endpoint().clone(),
        Config {
            deadlines,
            ..Default::default()
        },
    )
}

/// Ids and states of all containers as the client sees them, sorted.
pub async fn containers(client: &Client, filter: &ListFilter) -> Vec<(String, String, i32)> {
    let mut seen = Vec::new();
    let summary = client
        .list_containers(filter, |item| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            seen.push((text(item.id), text(item.name), item.state));
        })
        .await
        .unwrap();
    assert_eq!(summary.items, seen.len());
    seen.sort();
    seen
}

/// Ids, pods' UIDs and states of all sandboxes as the client sees them, sorted.
pub async fn sandboxes(client: &Client, filter: &ListFilter) -> Vec<(String, String, i32)> {
    let mut seen = Vec::new();
    client
        .list_sandboxes(filter, |item| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            seen.push((text(item.id), text(item.uid), item.state));
        })
        .await
        .unwrap();
    seen.sort();
    seen
}
