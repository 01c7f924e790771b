//! An idle relist allocates what receiving its bytes allocates, whatever the size of the node: nothing for a pod that is unchanged.
//!
//! A file of its own, because it counts every allocation of its process. The simulated runtime runs in another one.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use pleg::{Config, CriRuntime, Generator, Metrics};
use pleg_cri::{Client, Endpoint};
use tokio::time::Duration;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// What an idle relist may allocate beyond its bytes.
const ALLOWED: u64 = 16;
const RELISTS: usize = 15;

struct Sim {
    child: Child,
    _dir: tempfile::TempDir,
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn simulate(pods: usize) -> (Sim, Client) {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::unix(dir.path().join("sim.sock"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_pleg"))
        .args([
            "sim",
            "--listen",
            &endpoint.to_string(),
            "--pods",
            &pods.to_string(),
            "--containers",
            "2",
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It says one line when it is ready.
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("ready"), "{line}");
    let client = Client::connect(endpoint, pleg_cri::Config::default()).await.unwrap();
    (Sim { child, _dir: dir }, client)
}

fn allocations() -> u64 {
    dhat::HeapStats::get().total_blocks
}

/// Allocations of receiving both lists, and of an idle relist of the whole generator.
async fn costs(pods: usize) -> (u64, u64) {
    let (_sim, client) = simulate(pods).await;
    for _ in 0..3 {
        client.drain_lists().await.unwrap();
    }
    // The least of several: how many frames a read brings depends on what else the machine does.
    let mut floor = u64::MAX;
    for _ in 0..RELISTS {
        let before = allocations();
        client.drain_lists().await.unwrap();
        floor = floor.min(allocations() - before);
    }

    let config = Config {
        period: Duration::from_millis(1),
        ..Config::default()
    };
    let generator = Generator::new(CriRuntime::new(client), config, Metrics::new().unwrap());
    let pleg = generator.handle();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(generator.run(shutdown.clone()));
    // Until every pod is in the cache, and a few relists more.
    let relist = async || {
        let cache = pleg.cache();
        let (done, before) = (pleg.health().report().relists, allocations());
        cache.synced(cache.token(), Duration::MAX).await.unwrap();
        let allocated = allocations() - before;
        // From the end of one relist to the end of the next, or it is not the allocations of one relist.
        (pleg.health().report().relists == done + 1).then_some(allocated)
    };
    while pleg.feed().newest() < 3 * pods as u64 {
        relist().await;
    }
    let mut least = u64::MAX;
    let mut relists = 0;
    while relists < RELISTS {
        if let Some(allocated) = relist().await {
            least = least.min(allocated);
            relists += 1;
        }
    }
    shutdown.cancel();
    task.await.unwrap();
    (floor, least)
}

#[tokio::test]
async fn an_idle_relist_allocates_what_its_bytes_allocate() {
    let _profiler = dhat::Profiler::builder().testing().build();
    for pods in [100, 1000, 5000] {
        // How many frames a read brings differs from one measurement to the next; what a relist adds by itself does not.
        let costs = async || {
            let (floor, relist) = Box::pin(costs(pods)).await;
            println!("{pods} pods: {relist} allocations a relist, {floor} to receive the same bytes");
            relist <= floor + ALLOWED
        };
        let mut fine = false;
        for _ in 0..3 {
            fine = fine || costs().await;
        }
        assert!(
            fine,
            "{pods} pods: more than {ALLOWED} allocations above the floor, three times"
        );
    }
}
