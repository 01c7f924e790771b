//! The kernel as a witness, with real processes and cgroups: what happens is found without events and an hour before the next relist, and
//! a runtime that has missed an exit is named.

#![allow(clippy::print_stdout, reason = "the figures, for people")]

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use pleg::{EventType, Item, Level, Overflow, Start, Subscriber, Trouble};
use pleg_e2e::steps::app;
use pleg_e2e::version::Version;
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Container, Context, Observer, Pod, Sandbox, process, scenarios, suite};
use rustix::process::Signal;
use tokio::time::{Instant, timeout};

/// How often starts and deaths are measured.
const ROUNDS: u32 = 9;
/// Scenarios share the machine: these are far from the next relist, and far from what one alone takes, which is printed.
const SOON: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    suite::main_on(&[
        (
            &Version::ALL,
            scenarios![
                starts_and_deaths_are_reported_at_once,
                a_pod_comes_and_goes,
                a_stopped_monitor_and_a_dead_process_are_named,
            ],
        ),
        // CRI-O goes on calling a container running whose conmon was killed, which its process does.
        (
            &Version::CONTAINERD,
            scenarios![a_process_that_a_killed_shim_left_is_named],
        ),
    ])
}

/// A pod that is there before the generator, so that it learns where cgroups are.
async fn settled(context: &Context) -> Result<(Sandbox, String, Observer)> {
    let sandbox = context.kubelet.run_pod(&Pod::new("first")).await?;
    let id = context.kubelet.run(&sandbox, &app()).await?;
    let node = Observer::by_kernel(&context.runtime).await?;
    Ok((sandbox, id, node))
}

/// The next event of this kind, of this container.
async fn next(feed: &mut Subscriber, kind: EventType, id: &str) -> Result<Instant> {
    let find = async {
        loop {
            let Some(Item::Event(event)) = feed.next().await else {
                bail!("the feed ended, or has a gap");
            };
            let container = event.subject.as_ref().and_then(|subject| subject.container_id());
            if event.kind == kind && container.is_some_and(|container| container.as_str() == id) {
                return Ok(Instant::now());
            }
        }
    };
    timeout(PATIENCE, find)
        .await
        .with_context(|| format!("no {kind} of {id}"))?
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

async fn starts_and_deaths_are_reported_at_once(context: &Context) -> Result<()> {
    let (sandbox, _, node) = settled(context).await?;
    let mut feed = node.pleg.subscribe(Start::Now, Overflow::Gap);
    let (mut starts, mut exits, mut deaths) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..ROUNDS {
        let id = context.kubelet.create(&sandbox, &app().attempt(n + 1)).await?;
        context.kubelet.start(&id).await?;
        let started = Instant::now();
        let reported = next(&mut feed, EventType::ContainerStarted, &id).await?;
        starts.push(reported.saturating_duration_since(started));

        node.health("the new process", |report| report.mode.witness.processes == 2)
            .await?;
        let killed = Instant::now();
        process::signal(context.kubelet.container_pid(&id).await?, Signal::KILL)?;
        let admits = async {
            // As fast as it answers.
            while context.kubelet.status(&id).await?.finished_at == 0 {}
            anyhow::Ok(Instant::now())
        };
        let reports = async {
            let exited = next(&mut feed, EventType::ProcessExited, &id).await?;
            anyhow::Ok((exited, next(&mut feed, EventType::ContainerDied, &id).await?))
        };
        let (admitted, (exited, died)) = tokio::try_join!(admits, reports)?;
        exits.push(exited.saturating_duration_since(killed));
        deaths.push(died.saturating_duration_since(admitted));
    }
    let (starts, exits, deaths) = (median(starts), median(exits), median(deaths));
    println!(
        "{:?}: medians of {ROUNDS}: start to ContainerStarted {starts:?}, kill to ProcessExited {exits:?}, EXITED to ContainerDied {deaths:?}",
        context.version()
    );
    ensure!(starts <= SOON && deaths <= SOON, "starts {starts:?}, deaths {deaths:?}");
    let report = node.pleg.health().report();
    ensure!(report.mode.missed_changes == 0 && report.relists <= 4, "{report:?}");
    Ok(())
}

/// The whole life of a pod, and nothing else.
async fn a_pod_comes_and_goes(context: &Context) -> Result<()> {
    let (_, _, mut node) = settled(context).await?;
    let pod = Pod::new("web");
    let sandbox = context.kubelet.run_pod(&pod).await?;
    node.sees(&pod, &["PodSandboxChanged Ready"]).await?;
    let id = context.kubelet.create(&sandbox, &app()).await?;
    context.kubelet.start(&id).await?;
    let mut line = node.next_line(&pod).await?;
    if line == "ContainerCreated app#0" {
        line = node.next_line(&pod).await?;
    }
    ensure!(line == "ContainerStarted app#0", "{line}");
    context.kubelet.stop_pod(&sandbox).await?;
    node.sees_in_any_order(&pod, &["ContainerDied app#0 137 Error", "PodSandboxChanged NotReady"])
        .await?;
    context.kubelet.remove_pod(&sandbox).await?;
    node.sees(
        &pod,
        &["ContainerRemoved app#0", "PodSandboxChanged gone", "PodRemoved"],
    )
    .await?;
    node.agrees().await
}

/// No call to the runtime reveals it: the container is reported as running for as long as its shim or conmon is stopped.
async fn a_stopped_monitor_and_a_dead_process_are_named(context: &Context) -> Result<()> {
    let (sandbox, id, mut node) = settled(context).await?;
    let pid = context.kubelet.container_pid(&id).await?;
    let other = Container::new("other", app().program);
    let elsewhere = context.kubelet.run_pod(&Pod::new("second")).await?;
    let other = context.kubelet.run(&elsewhere, &other).await?;
    let other_pid = context.kubelet.container_pid(&other).await?;
    node.health("the other process", |report| report.mode.witness.processes == 2)
        .await?;
    node.knows().await?;
    let mut feed = node.pleg.subscribe(Start::Now, Overflow::Gap);
    let mut story = node.pleg.subscribe(Start::Now, Overflow::Gap);

    let monitor = context.runtime.monitor(&sandbox.id, &id)?.pid;
    let frozen = process::Frozen::new(monitor)?;
    process::signal(pid, Signal::KILL)?;
    let killed = Instant::now();
    let report = node
        .health("a missed exit", |report| report.level == Level::Degraded)
        .await?;
    let took = killed.elapsed();
    let cause = report.causes.iter().find(|cause| cause.trouble == Trouble::MissedExit);
    let cause = cause.with_context(|| format!("{report:?}"))?;
    println!("{:?}: named after {took:?}: {}", context.version(), cause.text);
    ensure!(took < Duration::from_secs(5), "after {took:?}");
    let named = cause.who.shim.context("neither shim nor conmon")?;
    ensure!(
        i64::from(named.pid) == i64::from(monitor) && named.state == 'T',
        "{named:?}"
    );
    let program = if context.version().is_crio() {
        "conmon"
    } else {
        "containerd-shim"
    };
    for words in [
        format!("process {pid} of container app in pod default/first"),
        format!("its parent, {program} (process {monitor}), is stopped (T)"),
    ] {
        ensure!(cause.text.contains(&words), "no {words:?} in {}", cause.text);
    }
    ensure!(context.kubelet.status(&id).await?.finished_at == 0, "the runtime knows");

    // Others are reported as usual.
    process::signal(other_pid, Signal::KILL)?;
    let killed = Instant::now();
    let died = next(&mut feed, EventType::ContainerDied, &other).await?;
    ensure!(died - killed < 2 * SOON, "{:?}", died - killed);

    frozen.thaw();
    next(&mut feed, EventType::ContainerDied, &id).await?;
    node.health("agreement", |report| report.level == Level::Healthy)
        .await?;
    recovered_once(&mut story).await
}

/// The trouble was reported once, and once that it is over.
async fn recovered_once(story: &mut Subscriber) -> Result<()> {
    let mut told = Vec::new();
    let tell = async {
        while told.last() != Some(&EventType::PlegHealthy) {
            let Some(Item::Event(event)) = story.next().await else {
                bail!("the feed ended, or has a gap");
            };
            if event.kind.is_trouble() || event.kind.is_health() {
                told.push(event.kind);
            }
        }
        Ok(())
    };
    timeout(PATIENCE, tell)
        .await
        .context("the recovery is not reported")??;
    while let Some(Item::Event(event)) = story.try_next() {
        ensure!(
            !event.kind.is_trouble() && !event.kind.is_health(),
            "after the recovery: {event:?}"
        );
    }
    told.sort_unstable();
    let mut once = [
        EventType::TroubleStarted,
        EventType::PlegDegraded,
        EventType::TroubleEnded,
        EventType::PlegHealthy,
    ];
    once.sort_unstable();
    ensure!(told == once, "{told:?}");
    Ok(())
}

/// Killing a shim ends its containers, except with containerd 2: there the process goes on, and the runtime does not report it.
async fn a_process_that_a_killed_shim_left_is_named(context: &Context) -> Result<()> {
    let (sandbox, id, node) = settled(context).await?;
    let pid = context.kubelet.container_pid(&id).await?;
    let mut feed = node.pleg.subscribe(Start::Now, Overflow::Gap);
    process::signal(context.runtime.monitor(&sandbox.id, &id)?.pid, Signal::KILL)?;
    context.kubelet.wait_for_exit(&id).await?;
    // The kernel has nothing to say about it, and the next relist is far.
    node.pleg.request_all();
    next(&mut feed, EventType::ContainerDied, &id).await?;
    if context.version() != Version::V2_1 {
        return until("the process ends with its shim", PATIENCE, async || {
            ensure!(!process::alive(pid), "it is alive");
            let level = node.pleg.health().report().level;
            ensure!(level == Level::Healthy, "{level:?}");
            Ok(())
        })
        .await;
    }
    let report = node
        .health("a process is left", |report| report.level == Level::Degraded)
        .await?;
    let cause = report
        .causes
        .iter()
        .find(|cause| cause.trouble == Trouble::LeftoverProcess);
    println!(
        "{:?}: {}",
        context.version(),
        cause.with_context(|| format!("{report:?}"))?.text
    );
    process::signal(pid, Signal::KILL)?;
    node.health("nothing is left", |report| report.level == Level::Healthy)
        .await?;
    Ok(())
}
