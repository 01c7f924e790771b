//! Unused images are removed when their disk is full.

use std::time::Duration;

use pleg_cri::Rpc;
use pleg_node::{EvictionConfig, ImageGcPolicy};

use crate::machine::{Machine, pod};

/// Every image of the simulator.
const IMAGE: u64 = 4 << 20;
/// Longer than the period of the collector.
const A_WHILE: Duration = Duration::from_mins(11);

/// A full disk of images evicts no pod here.
fn no_eviction() -> EvictionConfig {
    EvictionConfig {
        thresholds: Vec::new(),
        ..EvictionConfig::default()
    }
}

fn names(machine: &Machine) -> Vec<String> {
    let images = machine.sim.world().images("");
    let mut names: Vec<String> = images.into_iter().flat_map(|image| image.repo_tags).collect();
    names.sort();
    names
}

fn full(name: &str) -> String {
    format!("docker.io/library/{name}:latest")
}

#[tokio::test(start_paused = true)]
async fn unused_images_go_when_their_disk_is_full() {
    let machine = Machine::start().await;
    let node = machine.node_set_up(|node| node.with_eviction(no_eviction())).await;
    let uid = node.want(&[pod("a", "serve")]).await.remove(0);
    node.until_ready(&uid).await;
    for name in ["one", "two", "three"] {
        machine.sim.world().pull_image(name).unwrap();
    }
    tokio::time::sleep(A_WHILE).await;
    // There is room: nothing goes.
    let all = names(&machine);
    assert!(all.contains(&full("one")) && all.contains(&full("img")), "{all:?}");
    assert_eq!(machine.sim.stats().of(Rpc::RemoveImage).calls, 0);

    // All of the disk is in use: 20 % have to be free.
    let images = u64::try_from(all.len()).unwrap();
    machine.figures().image_disk = Some(images * IMAGE);
    tokio::time::sleep(A_WHILE).await;
    let left = names(&machine);
    assert!(left.contains(&full("img")), "its container runs: {left:?}");
    assert!(left.len() < all.len() && left.len() > 1, "one was enough: {left:?}");

    // More than all of it: everything unused goes, and that is not enough.
    machine.figures().image_disk = Some(IMAGE / 2);
    tokio::time::sleep(A_WHILE * u32::try_from(images).unwrap()).await;
    let left = names(&machine);
    assert!(
        left.contains(&full("img")) && !left.contains(&full("three")),
        "{left:?}"
    );
    let metrics = node.pleg.render_metrics().unwrap();
    let failures = metrics
        .lines()
        .find_map(|line| line.strip_prefix("pleg_node_image_gc_failures_total "));
    assert_ne!(failures, Some("0"), "{metrics}");
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_threshold_of_100_disables_it() {
    let machine = Machine::start().await;
    machine.sim.world().pull_image("one").unwrap();
    machine.figures().image_disk = Some(1);
    let never = ImageGcPolicy {
        high_threshold: 100,
        ..ImageGcPolicy::default()
    };
    let node = machine
        .node_set_up(|node| node.with_image_gc(never).with_eviction(no_eviction()))
        .await;
    tokio::time::sleep(A_WHILE).await;
    assert!(names(&machine).contains(&full("one")));
    node.stop().await;
    machine.check();
}

/// Without an answer about containers nothing is known to be unused.
#[tokio::test(start_paused = true)]
async fn nothing_goes_while_the_runtime_does_not_answer() {
    let machine = Machine::start().await;
    let node = machine.node_set_up(|node| node.with_eviction(no_eviction())).await;
    machine.sim.world().pull_image("one").unwrap();
    tokio::time::sleep(A_WHILE).await;
    machine.figures().image_disk = Some(IMAGE);
    let faults = machine.sim.faults();
    faults
        .fail(Rpc::ListContainers, "UNAVAILABLE".parse().unwrap(), 1.0)
        .unwrap();
    let before = names(&machine);
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(names(&machine), before);
    faults.clear();
    tokio::time::sleep(A_WHILE).await;
    assert!(names(&machine).len() < before.len());
    node.stop().await;
    machine.check();
}
