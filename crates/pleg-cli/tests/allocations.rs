//! An idle relist allocates what receiving its bytes allocates, whatever the size of the node: nothing for a pod that is unchanged. With
//! traces it allocates those of its three spans, whatever the size of the node.
//!
//! A file of its own, because it counts every allocation of its process. The simulated runtime runs in another one.

#![allow(clippy::unwrap_used, reason = "helpers of a test")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use pleg::{Config, CriRuntime, Generator, Metrics};
use pleg_cri::{Client, Endpoint, InFlight, Observer};
use pleg_otel::Telemetry;
use tokio::time::Duration;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: dhat::Alloc = dhat::Alloc;

/// What an idle relist may allocate beyond its bytes.
const ALLOWED: u64 = 16;
/// What the spans of an idle relist may allocate: one of the relist, and one of each list.
const TRACED: u64 = 48;
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

async fn simulate(pods: usize, observer: Arc<dyn Observer>) -> (Sim, Client) {
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
    let config = pleg_cri::Config {
        inflight: InFlight::observed_by(observer),
        ..pleg_cri::Config::default()
    };
    let client = Client::connect(endpoint, config).await.unwrap();
    (Sim { child, _dir: dir }, client)
}

fn allocations() -> u64 {
    dhat::HeapStats::get().total_blocks
}

/// Allocations of receiving both lists, and of an idle relist of the whole generator, which telemetry may observe.
async fn costs(pods: usize, telemetry: Option<&Telemetry>) -> (u64, u64) {
    let metrics = Metrics::new().unwrap();
    // As `pleg run` does it: without telemetry the metrics alone observe.
    let observer = telemetry.map_or_else(
        || Arc::new(metrics.clone()) as _,
        |telemetry| telemetry.observe(&metrics),
    );
    let (_sim, client) = simulate(pods, observer).await;
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
    let generator = Generator::new(CriRuntime::new(client), config, metrics);
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

/// Telemetry that observes everything. Nobody sends it: of what does not fit into its queue, nothing is kept.
fn traces() -> Telemetry {
    let variable = |name: &str| match name {
        "OTEL_TRACES_EXPORTER" => Some("otlp".to_owned()),
        "OTEL_LOGS_EXPORTER" => Some("none".to_owned()),
        _ => None,
    };
    Telemetry::from_env(variable).unwrap().unwrap()
}

#[tokio::test]
async fn an_idle_relist_allocates_what_its_bytes_allocate() {
    let _profiler = dhat::Profiler::builder().testing().build();
    for pods in [100, 1000, 5000] {
        // How many frames a read brings differs from one measurement to the next; what a relist adds by itself does not.
        let costs = async || {
            let (floor, relist) = Box::pin(costs(pods, None)).await;
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
    // Off is what is counted above. On, a relist has its spans, whatever its size.
    let traces = traces();
    for pods in [100, 1000] {
        let mut fine = false;
        for _ in 0..3 {
            let (floor, _) = Box::pin(costs(pods, None)).await;
            let (_, relist) = Box::pin(costs(pods, Some(&traces))).await;
            println!("{pods} pods: {relist} allocations a relist with traces, {floor} to receive the same bytes");
            fine = fine || relist <= floor + ALLOWED + TRACED;
        }
        assert!(
            fine,
            "{pods} pods: more than {TRACED} allocations for spans, three times"
        );
    }
}
