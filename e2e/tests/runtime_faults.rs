//! Real faults of real runtimes, found and named: nothing stands between the generator and the runtime here.
//!
//! Each fault is undone when its scenario ends, however it ends: a stopped process continues when its `Frozen` is dropped.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pleg::health::{Cause, Stage};
use pleg::{Config, Deadlines, Level, Report};
use pleg_e2e::observer::PERIOD;
use pleg_e2e::process::{self, Frozen};
use pleg_e2e::steps::{app, running};
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Context, Observer, Pod, Sandbox, Version, scenarios, suite};
use rustix::process::Signal;
use tokio::time::{Instant, timeout};

fn main() -> ExitCode {
    suite::main_on(&[
        (&Version::ALL, scenarios![a_runtime_that_hangs_for_long]),
        // No call to CRI-O passes through a conmon, so none tells of one that is stopped (tests/runtime_witness.rs has it); its lists
        // take no container's lock; and a killed conmon takes no container with it.
        (
            &Version::CONTAINERD,
            scenarios![
                a_stopped_shim_is_found_and_named,
                a_locked_container_is_named_and_hides_no_other,
                a_killed_shim_ends_its_pod,
            ],
        ),
    ])
}

/// For so long the runtime is stopped.
const STOPPED: Duration = Duration::from_mins(1);
/// Deaths of others are seen within this, whatever hangs.
const SOON: Duration = Duration::from_secs(10);

fn cause<'a>(report: &'a Report, pod: &str, is: impl Fn(&Cause) -> bool) -> Option<&'a Cause> {
    let pod = format!("default/{pod}");
    report
        .causes
        .iter()
        .find(|cause| cause.who.pod.as_deref() == Some(&*pod) && is(cause))
}

/// A bad pod and a good one, each with one container; their sandboxes, containers and processes.
struct Two {
    bad: (Pod, Sandbox, String, i32),
    good: (Pod, Sandbox, String, i32),
}

async fn two(context: &Context, node: &mut Observer) -> Result<Two> {
    let mut made = Vec::new();
    for name in ["bad", "good"] {
        let pod = Pod::new(name);
        let (sandbox, id) = running(context, node, &pod, &app()).await?;
        let pid = context.kubelet.container_pid(&id).await?;
        made.push((pod, sandbox, id, pid));
    }
    let good = made.pop().context("two pods")?;
    let bad = made.pop().context("two pods")?;
    Ok(Two { bad, good })
}

/// A shim that is stopped: every list and every status stays as it was. Only who asks through it finds out.
async fn a_stopped_shim_is_found_and_named(context: &Context) -> Result<()> {
    let mut node = Observer::watchful(&context.runtime, context.runtime.endpoint())?;
    let Two { bad, good } = two(context, &mut node).await?;
    let shim = context.runtime.monitor(&bad.1.id, &bad.2)?.pid;
    let frozen = Frozen::new(shim)?;
    process::signal(bad.3, Signal::KILL)?;
    let named = node.health("the stopped shim to be named", |report| {
        cause(report, "bad", |cause| cause.stage == Stage::Probe).is_some()
    });
    let report = named.await?;
    ensure!(report.level == Level::Degraded, "{report:?}");
    ensure!(
        cause(&report, "good", |_| true).is_none(),
        "the wrong one is named: {report:?}"
    );
    let found = cause(&report, "bad", |cause| cause.stage == Stage::Probe).and_then(|cause| cause.who.shim);
    let found = found.context("the shim's process is not named")?;
    ensure!(
        (i32::try_from(found.pid)?, found.state) == (shim, 'T'),
        "the shim is {shim}, and named was {found:?}"
    );
    // Behind its back nothing is seen; elsewhere everything.
    ensure!(node.unseen(&bad.0)?.is_empty(), "told of what nobody can see");
    process::signal(good.3, Signal::KILL)?;
    node.sees(&good.0, &["ContainerDied app#0 137 Error"]).await?;
    frozen.thaw();
    node.sees(&bad.0, &["ContainerDied app#0 137 Error"]).await?;
    node.health("the shim to be well again", |report| report.level == Level::Healthy)
        .await?;
    node.agrees().await
}

/// A stopped shim and the update of a CPU manager: the container's lock is held, and every list hangs (containerd/containerd#9770).
async fn a_locked_container_is_named_and_hides_no_other(context: &Context) -> Result<()> {
    let mut node = Observer::watchful(&context.runtime, context.runtime.endpoint())?;
    let Two { bad, good } = two(context, &mut node).await?;
    let frozen = Frozen::new(context.runtime.monitor(&bad.1.id, &bad.2)?.pid)?;
    let update = tokio::spawn({
        let (kubelet, locked) = (context.kubelet.clone(), bad.2.clone());
        async move { kubelet.update_cpu_shares(&locked, 512).await }
    });
    let named = node.health("the locked container to be named", |report| {
        cause(report, "bad", |cause| cause.who.id.as_deref() == Some(&*bad.2)).is_some()
    });
    let report = named.await?;
    ensure!(report.level == Level::Degraded, "{report:?}");
    let culprit = cause(&report, "bad", |cause| cause.who.id.as_deref() == Some(&*bad.2));
    let culprit = culprit.context("just seen")?;
    ensure!(culprit.who.container.as_deref() == Some("app"), "{report:?}");
    ensure!(
        cause(&report, "good", |_| true).is_none(),
        "the wrong one is named: {report:?}"
    );

    process::signal(good.3, Signal::KILL)?;
    let seen = timeout(SOON, node.sees(&good.0, &["ContainerDied app#0 137 Error"])).await;
    seen.with_context(|| format!("a death was not seen by id within {SOON:?}"))??;
    ensure!(!update.is_finished(), "the lock was not held that long");

    let relists = node.pleg.health().report().relists;
    frozen.thaw();
    update.await??;
    let report = node
        .health("the first relist after the lock", |report| report.relists > relists)
        .await?;
    // The shim is asked again in its own time.
    let left = report.causes.iter().find(|cause| cause.stage != Stage::Probe);
    ensure!(left.is_none(), "after a complete relist there still is {left:?}");
    node.health("everything to be well", |report| report.level == Level::Healthy)
        .await?;
    node.agrees().await
}

/// The runtime itself does not answer for longer than the threshold, and then goes on. Nothing false, nothing lost.
async fn a_runtime_that_hangs_for_long(context: &Context) -> Result<()> {
    let config = Config {
        period: PERIOD,
        threshold: Duration::from_secs(5),
        list_patience: Duration::from_secs(1),
        ..Config::default()
    };
    let endpoint = context.runtime.endpoint();
    let mut node = Observer::with(&context.runtime, endpoint, Deadlines::default(), config)?;
    let Two { bad, good } = two(context, &mut node).await?;
    let stopped = Instant::now();
    let paused = context.runtime.pause()?;
    process::signal(bad.3, Signal::KILL)?;
    let report = node
        .health("the runtime to be missed", |report| report.level == Level::Unhealthy)
        .await?;
    ensure!(stopped.elapsed() >= Duration::from_secs(4), "too early: {report:?}");
    ensure!(
        report.message.contains("threshold is 5s"),
        "not in the kubelet's words: {}",
        report.message
    );
    for pod in [&bad.0, &good.0] {
        ensure!(node.unseen(pod)?.is_empty(), "told of a pod while nobody answered");
        let blamed = cause(&report, &pod.name, |_| true);
        ensure!(blamed.is_none(), "one pod is blamed for all: {blamed:?}");
    }
    // As long as it takes for calls to be given up and made again several times.
    tokio::time::sleep_until(stopped + STOPPED).await;
    paused.thaw();
    node.sees(&bad.0, &["ContainerDied app#0 137 Error"]).await?;
    let mut told = Vec::new();
    until("the recovery to be told", PATIENCE, async || {
        told.extend(node.of_itself()?);
        ensure!(told.len() >= 2, "{told:?}");
        Ok(())
    })
    .await?;
    ensure!(
        told.len() == 2 && told[0].starts_with("PlegNotHealthy") && told[1].starts_with("PlegHealthy"),
        "{told:?}"
    );
    node.agrees().await
}

/// The shim is killed: containerd calls its pod dead, 255, and so do we, once; others live.
async fn a_killed_shim_ends_its_pod(context: &Context) -> Result<()> {
    let mut node = Observer::watchful(&context.runtime, context.runtime.endpoint())?;
    let Two { bad, .. } = two(context, &mut node).await?;
    process::signal(context.runtime.monitor(&bad.1.id, &bad.2)?.pid, Signal::KILL)?;
    let status = context.kubelet.wait_for_exit(&bad.2).await?;
    let died = format!("ContainerDied app#0 {} {}", status.exit_code, status.reason);
    ensure!(matches!(status.exit_code, 137 | 255), "{status:?}");
    node.sees_in_any_order(&bad.0, &[&died, "PodSandboxChanged NotReady"])
        .await?;
    node.agrees().await
}
