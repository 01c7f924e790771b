//! Exports how often the containers of each pod were restarted, as a file for the textfile collector of `node_exporter`.
//!
//! `cargo run -p pleg --example restart_counts -- unix:///run/containerd/containerd.sock restarts.prom`

#![allow(missing_docs, unreachable_pub, reason = "an example, which a test includes")]

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use pleg::{Cache, Config, Endpoint, Overflow, Pleg, Start};

/// Changes within this time are exported together.
const GATHER: Duration = Duration::from_millis(200);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(endpoint), Some(file)) = (args.next(), args.next()) else {
        return Err("expected the runtime's endpoint and a file".into());
    };
    let written = format!("{file}.new");
    let export = |text: String| -> std::io::Result<()> {
        std::fs::write(&written, text)?;
        std::fs::rename(&written, &file)
    };
    run(endpoint.parse()?, export).await
}

pub async fn run(
    endpoint: Endpoint,
    mut export: impl FnMut(String) -> std::io::Result<()>,
) -> Result<(), Box<dyn Error>> {
    let (pleg, _task) = Pleg::spawn_lazy(endpoint, Config::default())?;
    // Which event it is does not matter: the cache has the state, also after events were missed.
    let mut events = pleg.subscribe(Start::Now, Overflow::PodSync);
    while events.next().await.is_some() {
        tokio::time::sleep(GATHER).await;
        while events.try_next().is_some() {}
        export(rendered(pleg.cache()))?;
    }
    Ok(())
}

fn rendered(cache: &Cache) -> String {
    let mut text = "# TYPE pod_restarts gauge\n".to_owned();
    for entry in cache.entries() {
        let (pod, summary) = (&entry.status.pod, entry.status.summary());
        let labels = format!("namespace=\"{}\",pod=\"{}\"", pod.namespace, pod.name);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "pod_restarts{{{labels}}} {}", summary.restarts);
    }
    text
}
