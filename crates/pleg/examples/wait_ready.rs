//! Waits until a pod runs: its sandbox is ready, and so are all of its containers.
//!
//! `cargo run -p pleg --example wait_ready -- unix:///run/containerd/containerd.sock default/web`

#![allow(
    clippy::print_stdout,
    unreachable_pub,
    missing_docs,
    reason = "an example, which a test includes"
)]

use std::error::Error;
use std::time::Duration;

use pleg::{Config, Endpoint, EventFilter, Overflow, Pleg, PodEntry, Start};

/// How long is waited.
const DEADLINE: Duration = Duration::from_mins(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(endpoint), Some(pod)) = (args.next(), args.next()) else {
        return Err("expected the runtime's endpoint and a pod".into());
    };
    let (namespace, name) = pod.split_once('/').ok_or("expected NAMESPACE/NAME")?;
    let entry = run(endpoint.parse()?, namespace, name).await?;
    println!("{} runs, addresses {:?}", entry.status.pod, entry.status.ips);
    Ok(())
}

pub async fn run(endpoint: Endpoint, namespace: &str, name: &str) -> Result<PodEntry, Box<dyn Error>> {
    let (pleg, task) = Pleg::spawn(endpoint, Config::default()).await?;
    let waited = tokio::time::timeout(DEADLINE, ready(&pleg, namespace, name)).await;
    task.shutdown().await?;
    waited?.ok_or_else(|| "the generator has ended".into())
}

/// The pod once it is ready; none if the generator ends before.
async fn ready(pleg: &Pleg, namespace: &str, name: &str) -> Option<PodEntry> {
    // Subscribed before the first check, so that no change falls in between.
    let filter = EventFilter::default().namespaces([namespace]);
    let mut events = pleg.subscribe(Start::Now, Overflow::PodSync).with_filter(filter);
    loop {
        // By name: the pod may not be there yet, and have no UID that we know.
        let found = pleg.cache().find(namespace, name);
        if let Some(entry) = found.filter(is_ready) {
            return Some(entry);
        }
        events.next().await?;
    }
}

/// As far as a runtime knows: readiness probes are the kubelet's.
fn is_ready(entry: &PodEntry) -> bool {
    let summary = entry.status.summary();
    &*summary.state == "Running" && summary.running == summary.total
}
