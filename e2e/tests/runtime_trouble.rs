//! What the generator reports while the runtime itself is in trouble: killed, stopped, paused, locked.
//!
//! Two things must hold. A runtime that does not answer says nothing about its pods, so nothing is reported of them; and what happened
//! meanwhile is found when it answers again, exactly once.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use pleg_e2e::steps::{app, running};
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Context, Observer, Pod, Version, process, scenarios, suite};
use rustix::process::Signal;

fn main() -> ExitCode {
    suite::main_on(&[
        (
            &Version::ALL,
            scenarios![
                a_restart_of_the_runtime_changes_nothing,
                a_death_while_the_runtime_was_stopped,
                a_death_while_the_runtime_was_killed,
                a_paused_runtime_is_not_a_dead_pod,
            ],
        ),
        // CRI-O has no pause process for these pods, no shim of a pod, and no lock that its lists would take.
        (
            &Version::CONTAINERD,
            scenarios![
                a_killed_pause_process,
                a_killed_shim,
                a_locked_container_is_not_a_dead_pod,
            ],
        ),
    ])
}

/// Something kills the pause process. The pod's containers have process namespaces of their own and go on.
async fn a_killed_pause_process(context: &Context) -> Result<()> {
    let (kubelet, pod) = (&context.kubelet, Pod::new("web"));
    let mut node = Observer::start(&context.runtime)?;
    let (sandbox, id) = running(context, &mut node, &pod, &app()).await?;
    process::signal(kubelet.sandbox_pid(&sandbox).await?, Signal::KILL)?;
    node.sees(&pod, &["PodSandboxChanged NotReady"]).await?;
    node.agrees().await?;
    ensure!(
        process::alive(kubelet.container_pid(&id).await?),
        "the container went with its sandbox"
    );
    kubelet.stop_pod(&sandbox).await?;
    node.sees(&pod, &["ContainerDied app#0 137 Error"]).await?;
    kubelet.remove_pod(&sandbox).await?;
    node.sees(
        &pod,
        &["ContainerRemoved app#0", "PodSandboxChanged gone", "PodRemoved"],
    )
    .await?;
    node.agrees().await
}

/// The out-of-memory killer, or somebody with good intentions, kills the shim: the runtime loses sight of the pod.
async fn a_killed_shim(context: &Context) -> Result<()> {
    let (kubelet, pod) = (&context.kubelet, Pod::new("web"));
    let mut node = Observer::start(&context.runtime)?;
    let (sandbox, id) = running(context, &mut node, &pod, &app()).await?;
    process::signal(context.runtime.monitor(&sandbox.id, &id)?.pid, Signal::KILL)?;
    let status = kubelet.wait_for_exit(&id).await?;
    let died = format!("ContainerDied app#0 {} {}", status.exit_code, status.reason);
    ensure!(status.exit_code != 0, "a violent end looks like a good one");
    node.sees_in_any_order(&pod, &[&died, "PodSandboxChanged NotReady"])
        .await?;
    node.agrees().await
}

/// Between two relists or across several: the pods live on, and nothing is reported.
async fn a_restart_of_the_runtime_changes_nothing(context: &Context) -> Result<()> {
    let mut node = Observer::start(&context.runtime)?;
    let (pod, id) = two_pods(context, &mut node).await?;
    for _ in 0..3 {
        context.runtime.restart().await?;
        node.agrees().await?;
    }
    context.kubelet.stop(&id, 0).await?;
    node.sees(&pod, &["ContainerDied app#0 137 Error"]).await?;
    node.agrees().await
}

async fn a_death_while_the_runtime_was_stopped(context: &Context) -> Result<()> {
    let mut node = Observer::start(&context.runtime)?;
    let (pod, id) = two_pods(context, &mut node).await?;
    let victim = context.kubelet.container_pid(&id).await?;
    context.runtime.stop().await?;
    found_after_the_return(context, node, &pod, victim).await
}

async fn a_death_while_the_runtime_was_killed(context: &Context) -> Result<()> {
    let mut node = Observer::start(&context.runtime)?;
    let (pod, id) = two_pods(context, &mut node).await?;
    let victim = context.kubelet.container_pid(&id).await?;
    context.runtime.kill().await?;
    found_after_the_return(context, node, &pod, victim).await
}

/// One to watch, and one that goes on.
async fn two_pods(context: &Context, node: &mut Observer) -> Result<(Pod, String)> {
    let (pod, bystander) = (Pod::new("web"), Pod::new("bystander"));
    running(context, node, &bystander, &app()).await?;
    let (_, id) = running(context, node, &pod, &app()).await?;
    node.agrees().await?;
    Ok((pod, id))
}

/// With the runtime gone: the generator says nothing of pods. With it back: it tells the one death, and nothing of the others.
async fn found_after_the_return(context: &Context, mut node: Observer, pod: &Pod, victim: i32) -> Result<()> {
    process::signal(victim, Signal::KILL)?;
    let health = node.pleg.health().clone();
    until("the generator to notice", PATIENCE, async || {
        let report = health.report();
        ensure!(!report.causes.is_empty(), "{report:?}");
        Ok(())
    })
    .await?;
    ensure!(
        node.unseen(pod)?.is_empty(),
        "told of a pod while the runtime was away: {:?}",
        node.unseen(pod)?
    );
    context.runtime.up().await?;
    let told = &context.truth().await?.pods[&pod.uid];
    let end = told.containers.values().next().context("the container is gone")?;
    let died = format!("ContainerDied app#0 {} {}", end.exit_code, end.reason);
    node.sees(pod, &[&died]).await?;
    node.agrees().await?;
    // And life goes on.
    let after = Pod::new("after");
    running(context, &mut node, &after, &app()).await?;
    node.agrees().await
}

/// A runtime that does not answer says nothing about its pods.
async fn a_paused_runtime_is_not_a_dead_pod(context: &Context) -> Result<()> {
    let mut node = Observer::start(&context.runtime)?;
    let (pod, id) = two_pods(context, &mut node).await?;
    let victim = context.kubelet.container_pid(&id).await?;
    let paused = context.runtime.pause()?;
    process::signal(victim, Signal::KILL)?;
    let health = node.pleg.health().clone();
    until("a relist to fail", PATIENCE, async || {
        let report = health.report();
        let failed = report.causes.iter().any(|cause| cause.last_error.is_some());
        ensure!(failed, "{report:?}");
        Ok(())
    })
    .await?;
    ensure!(
        node.unseen(&pod)?.is_empty(),
        "told of a pod while nobody answered: {:?}",
        node.unseen(&pod)?
    );
    paused.thaw();
    node.sees(&pod, &["ContainerDied app#0 137 Error"]).await?;
    node.agrees().await
}

/// One locked container hangs every list (containerd/containerd#9770). Nothing false may come of it, and nothing be lost.
async fn a_locked_container_is_not_a_dead_pod(context: &Context) -> Result<()> {
    let kubelet = &context.kubelet;
    let (bad, good) = (Pod::new("bad"), Pod::new("good"));
    let mut node = Observer::start(&context.runtime)?;
    let (sandbox, locked) = running(context, &mut node, &bad, &app()).await?;
    let (_, other) = running(context, &mut node, &good, &app()).await?;
    let victim = kubelet.container_pid(&other).await?;
    let frozen = process::Frozen::new(context.runtime.monitor(&sandbox.id, &locked)?.pid)?;
    let update = tokio::spawn({
        let kubelet = kubelet.clone();
        async move { kubelet.update_cpu_shares(&locked, 512).await }
    });
    let health = node.pleg.health().clone();
    until("the health to name the call that hangs", PATIENCE, async || {
        let report = health.report();
        let named = report.causes.iter().any(|cause| cause.rpc == "ListContainers");
        ensure!(named, "{report:?}");
        Ok(())
    })
    .await?;
    ensure!(
        node.unseen(&bad)?.is_empty() && node.unseen(&good)?.is_empty(),
        "told of what nobody saw"
    );
    process::signal(victim, Signal::KILL)?;
    frozen.thaw();
    update.await??;
    node.sees(&good, &["ContainerDied app#0 137 Error"]).await?;
    node.agrees().await
}
