//! The baseline: the same calls, made directly.

use std::sync::Arc;

use anyhow::Context as _;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use pleg_cri::{Client, v1};
use pleg_node::executor::objects::Objects;
use pleg_node::executor::requests::NODE_LABEL;
use pleg_node::executor::volumes;
use pleg_node::manifest::Pod;

use super::figures::Samples;
use super::pods::{Does, Maker};

/// Pods that are started at once. On two cores more are no faster.
pub(super) const CLIENTS: usize = 4;
/// What a manifest has that says nothing about it.
const GRACE_SECONDS: i64 = 30;
/// What cannot be removed is tried again so often, and after this long.
const TRIES: usize = 20;
const AGAIN: std::time::Duration = std::time::Duration::from_millis(250);

/// A pod that runs.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) sandbox: String,
    pub(super) container: String,
    /// From the call to what the runtime's books say of when the container was made.
    pub(super) create: f64,
}

/// What the direct calls take to end a pod and start it again.
#[derive(Debug, Default)]
pub(super) struct Baseline {
    /// All of it.
    pub(super) replace: Samples,
    /// From the end of a container to the end of its sandbox.
    pub(super) removal: Samples,
    /// To make a container.
    pub(super) create: Samples,
}

/// Pods that were started, and how long after the start of all each of them ran.
#[derive(Debug)]
pub(super) struct Started {
    pods: Vec<(Arc<Pod>, Made)>,
    pub(super) times: Samples,
}

/// Starts so many.
pub(super) async fn start_all(client: &Client, maker: &Maker, pods: usize) -> anyhow::Result<Started> {
    let all = (0..pods).map(|n| maker.pod(&format!("pod-{n}"), Does::Stay(0)));
    let all: Vec<Arc<Pod>> = all.collect::<anyhow::Result<_>>()?;
    let began = Timestamp::now();
    let pods: Vec<(Arc<Pod>, Made)> = stream::iter(all)
        .map(|pod| async move {
            let made = start(client, maker, &pod).await?;
            anyhow::Ok((pod, made))
        })
        .buffer_unordered(CLIENTS)
        .try_collect()
        .await?;
    let mut times = Samples::default();
    for (_, made) in &pods {
        times.push(since(began, container(client, &made.container).await?.started_at));
    }
    Ok(Started { pods, times })
}

/// Ends some of them and starts them again, one after the other.
pub(super) async fn replace(
    client: &Client,
    maker: &Maker,
    started: &mut Started,
    rounds: usize,
) -> anyhow::Result<Baseline> {
    let mut taken = Baseline::default();
    for (pod, made) in started.pods.iter_mut().take(rounds) {
        let began = Timestamp::now();
        stop(client, &made.container).await?;
        let ended = container(client, &made.container).await?.finished_at;
        remove(client, &made.sandbox).await?;
        taken.removal.push(since(at(ended), nanoseconds(Timestamp::now())));
        *made = start(client, maker, pod).await?;
        let ran = container(client, &made.container).await?.started_at;
        taken.replace.push(since(began, ran));
        taken.create.push(made.create);
    }
    Ok(taken)
}

/// Ends and removes them.
pub(super) async fn end_all(client: &Client, started: Started) -> anyhow::Result<()> {
    stream::iter(started.pods)
        .map(|(_, made)| async move {
            stop(client, &made.container).await?;
            remove(client, &made.sandbox).await
        })
        .buffer_unordered(CLIENTS)
        .try_collect()
        .await
}

async fn start(client: &Client, maker: &Maker, pod: &Arc<Pod>) -> anyhow::Result<Made> {
    let (node, of) = (maker.node().clone(), Arc::clone(pod));
    tokio::task::spawn_blocking(move || volumes::prepare(&node, &of, &Objects::default())).await??;
    let run = Box::pin(client.call(maker.sandbox(pod))).await?;
    let called = Timestamp::now();
    let made = Box::pin(client.call(maker.container(pod, &run.pod_sandbox_id)?)).await?;
    let request = v1::StartContainerRequest {
        container_id: made.container_id.clone(),
    };
    client.call(request).await?;
    let created = container(client, &made.container_id).await?.created_at;
    Ok(Made {
        sandbox: run.pod_sandbox_id,
        container: made.container_id,
        create: since(called, created),
    })
}

async fn stop(client: &Client, id: &str) -> anyhow::Result<()> {
    let request = v1::StopContainerRequest {
        container_id: id.to_owned(),
        timeout: GRACE_SECONDS,
    };
    client.call(request).await?;
    Ok(())
}

async fn remove(client: &Client, sandbox: &str) -> anyhow::Result<()> {
    let pod_sandbox_id = sandbox.to_owned();
    client.call(v1::StopPodSandboxRequest { pod_sandbox_id }).await?;
    let pod_sandbox_id = sandbox.to_owned();
    client.call(v1::RemovePodSandboxRequest { pod_sandbox_id }).await?;
    Ok(())
}

/// Removes every pod that carries our label, whoever made it. A start that was cut off may still be under way: then once more.
pub(super) async fn remove_all(client: &Client, node: &str) -> anyhow::Result<()> {
    for _ in 0..TRIES {
        if try_remove_all(client, node).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(AGAIN).await;
    }
    try_remove_all(client, node).await
}

async fn try_remove_all(client: &Client, node: &str) -> anyhow::Result<()> {
    let filter = v1::PodSandboxFilter {
        label_selector: [(NODE_LABEL.to_owned(), node.to_owned())].into(),
        ..Default::default()
    };
    let listed = client.call(v1::ListPodSandboxRequest { filter: Some(filter) }).await?;
    stream::iter(listed.items)
        .map(|sandbox| async move { remove(client, &sandbox.id).await })
        .buffer_unordered(CLIENTS)
        .try_collect::<()>()
        .await
}

/// What the runtime's books say of a container.
pub(super) async fn container(client: &Client, id: &str) -> anyhow::Result<v1::ContainerStatus> {
    let request = v1::ContainerStatusRequest {
        container_id: id.to_owned(),
        verbose: false,
    };
    let status = client.call(request).await?.status;
    status.with_context(|| format!("container {id} has no status"))
}

/// Seconds from a moment to one of the runtime's, which is in nanoseconds.
pub(super) fn since(began: Timestamp, at: i64) -> f64 {
    self::at(at).duration_since(began).as_secs_f64()
}

/// A moment of the runtime's.
pub(super) fn at(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanoseconds.into()).unwrap_or(Timestamp::UNIX_EPOCH)
}

pub(super) fn nanoseconds(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX)
}
