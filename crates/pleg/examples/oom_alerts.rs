//! Prints a line for each container that is killed for its memory.
//!
//! `cargo run -p pleg --example oom_alerts -- unix:///run/containerd/containerd.sock`

#![allow(
    clippy::print_stdout,
    unreachable_pub,
    missing_docs,
    reason = "an example, which a test includes"
)]

use std::error::Error;
use std::time::Duration;

use pleg::event::Subject;
use pleg::{Config, ContainerId, Endpoint, EventFilter, EventType, Item, Overflow, Pleg, PodEntry, Start};

/// The exit code of a process that was sent SIGKILL.
const KILLED: i32 = 137;
/// The runtime learns of an OOM kill separately from the exit, and up to this much later.
const REASON_DELAY: Duration = Duration::from_secs(3);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = std::env::args().nth(1).ok_or("expected the runtime's endpoint")?;
    run(endpoint.parse()?, |line| println!("{line}")).await
}

pub async fn run(endpoint: Endpoint, mut alert: impl FnMut(String)) -> Result<(), Box<dyn Error>> {
    // Also if the runtime starts after us.
    let (pleg, _task) = Pleg::spawn_lazy(endpoint, Config::default())?;
    let deaths = EventFilter::default().types([EventType::ContainerDied]);
    // Containers that died before we came are no news.
    let mut events = pleg
        .subscribe(Start::AfterFirstRelist, Overflow::Gap)
        .with_filter(deaths);
    while let Some(item) = events.next().await {
        let event = match item {
            Item::Event(event) => event,
            Item::Gap(gap) => {
                alert(format!("events {} to {} were missed", gap.from, gap.to));
                continue;
            }
        };
        let (Some(pod), Some(Subject::Container(container))) = (&event.pod, &event.subject) else {
            continue;
        };
        let was_oom = |pod: Option<&PodEntry>| pod.is_some_and(|pod| is_oom(pod, &container.id));
        let killed = event.exit_code == Some(KILLED);
        if killed && pleg.cache().wait_for(&pod.uid, was_oom, REASON_DELAY).await.is_ok() {
            alert(format!("{} OOMKilled {pod} container {}", event.time, container.name));
        }
    }
    Ok(())
}

fn is_oom(pod: &PodEntry, id: &ContainerId) -> bool {
    let container = pod.status.container(id);
    container.is_some_and(|container| &*container.reason == "OOMKilled")
}
