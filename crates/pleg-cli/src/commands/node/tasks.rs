//! The tasks of `pleg node`: if one of them cannot go on, all of them end.

use axum::Router;
use pleg::{CriRuntime, Generator};
use pleg_cluster::cluster::{Cluster, NodeHandles};
use pleg_node::NodeLoop;
use pleg_node::sources::Snapshot;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::node_server::NodeServer;

/// Runs the sources, the node loop and the generator until shutdown, which follows if one of the first two ends.
pub(super) async fn run_generator(
    generator: Generator<CriRuntime>,
    node_loop: NodeLoop,
    snapshots: mpsc::Receiver<Snapshot>,
    mut sources: JoinSet<()>,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    // The generator outlives the pod workers, which wait for its relists until they end.
    let workers_ended = CancellationToken::new();
    let (_, generator) = generator.spawn();
    let relisting = generator.run_until(workers_ended.cancelled());
    let working = async {
        let ended = tokio::spawn(node_loop.run(snapshots, shutdown.clone())).await;
        shutdown.cancel();
        workers_ended.cancel();
        ended
    };
    let reading = async {
        // A source ends only on shutdown, or by a panic. Without it the node would ignore edits and still look healthy.
        let Some(ended) = sources.join_next().await else {
            // Only the API server has pods.
            shutdown.cancelled().await;
            return Ok(());
        };
        shutdown.cancel();
        ended
    };
    let (worked, relisted, read) = tokio::join!(working, relisting, reading);
    worked?;
    relisted?;
    read?;
    Ok(())
}

/// Runs the API side of the node, if it has one, until shutdown, which follows if it ends.
pub(super) async fn run_cluster(
    cluster: Option<Cluster>,
    handles: NodeHandles,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(cluster) = cluster else { return Ok(()) };
    let ended = tokio::spawn(cluster.run(handles, shutdown.clone())).await;
    shutdown.cancel();
    Ok(ended??)
}

/// Runs the server of a node of a cluster until shutdown, which follows if it cannot start.
pub(super) async fn run_node_server(
    server: Option<NodeServer>,
    handles: NodeHandles,
    introspection: Router,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(server) = server else { return Ok(()) };
    let ended = server.run(handles, introspection, shutdown).await;
    // Without any port it has nothing to do, and ends at once.
    if ended.is_err() {
        shutdown.cancel();
    }
    ended
}
