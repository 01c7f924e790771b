//! Changes found by the runtime's own events, without a relist between them.
//!
//! The generator of [`Observer::by_events`] relists when it has subscribed and then not for an hour: whatever it reports, an event reported
//! it first.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pleg::{Config, Deadlines, Level, Mode, Source, Trouble, WitnessMode};
use pleg_cri::ListFilter;
use pleg_cri::v1::{self, ContainerEventType as Kind};
use pleg_e2e::image::Program;
use pleg_e2e::steps::{app, crowd, joined, running};
use pleg_e2e::wait::{PATIENCE, until};
use pleg_e2e::{Container, Context, Observer, Pod, process, scenarios, suite, version::Version};
use rustix::process::Signal;
use tokio::time::Instant;

fn main() -> ExitCode {
    suite::main_on(&[
        (
            &Version::EVENTED,
            scenarios![
                what_auto_does,
                a_pod_lives_and_goes_by_events,
                containers_of_many_pods_die_by_events,
                a_backlog_is_reported_once,
                a_restart_loses_neither_deaths_nor_events,
                a_death_soon_after_its_event,
                by_id_or_by_list,
            ],
        ),
        // CRI-O does not create a container whose program is not there.
        (&Version::CONTAINERD, scenarios![a_failed_start_is_no_missed_event]),
        (
            &[Version::Crio],
            scenarios![what_auto_does, a_pod_lives_and_goes_by_events],
        ),
    ])
}

/// Events where every subscriber gets all of them; none where we would take them from a kubelet, or where there are none.
async fn what_auto_does(context: &Context) -> Result<()> {
    let runtime = &context.runtime;
    let mut node = Observer::with(runtime, runtime.endpoint(), Deadlines::default(), Config::default())?;
    let (mode, reason) = match context.version() {
        Version::V1_6 | Version::V1_7 => (Mode::Generic, "delivers each event to one subscriber only"),
        Version::Crio => (Mode::Generic, "ends its event stream immediately"),
        Version::V2_1 | Version::CrioEvents => (Mode::Evented, "is up"),
    };
    let report = node
        .health("the decision", |report| {
            report.mode.reason.contains(reason) && report.relists > 0
        })
        .await?;
    ensure!(report.mode.mode == mode && report.level == Level::Healthy, "{report:?}");
    if context.version() == Version::V1_7 {
        // All of them are ours: nobody else listens.
        let mut stream = runtime.client().container_events().await?;
        let (pod, sandbox) = (Pod::new("web"), context.kubelet.run_pod(&Pod::new("other")).await?);
        for _ in 0..5 {
            let id = context.kubelet.create(&sandbox, &app()).await?;
            context.kubelet.remove(&id).await?;
        }
        let mut events = 0;
        while events < 12 {
            tokio::time::timeout(PATIENCE, stream.next())
                .await
                .with_context(|| format!("{events} events"))??;
            events += 1;
        }
        node.knows().await?;
        drop(stream);
        running(context, &mut node, &pod, &app()).await?;
    }
    node.agrees().await
}

async fn a_pod_lives_and_goes_by_events(context: &Context) -> Result<()> {
    if !context.version().has_events() {
        return no_stream(context).await;
    }
    let (kubelet, pod) = (&context.kubelet, Pod::new("web"));
    let mut node = Observer::by_events(&context.runtime).await?;
    let sandbox = kubelet.run_pod(&pod).await?;
    node.sees(&pod, &["PodSandboxChanged Ready"]).await?;
    let ends = Container::new("app", Program::Polite(0));
    let id = joined(context, &mut node, &sandbox, &ends).await?;
    kubelet.wait_for_log(&sandbox, &ends, "ready").await?;
    kubelet.stop(&id, 20).await?;
    node.sees(&pod, &["ContainerDied app#0 0 Completed"]).await?;
    kubelet.remove(&id).await?;
    node.sees(&pod, &["ContainerRemoved app#0"]).await?;
    // Again, and by itself.
    let crash = ends.attempt(1);
    let id = joined(context, &mut node, &sandbox, &crash).await?;
    process::signal(kubelet.container_pid(&id).await?, Signal::KILL)?;
    node.sees(&pod, &["ContainerDied app#1 137 Error"]).await?;
    kubelet.stop_pod(&sandbox).await?;
    node.sees(&pod, &["PodSandboxChanged NotReady"]).await?;
    kubelet.remove_pod(&sandbox).await?;
    node.sees_in_any_order(
        &pod,
        &["ContainerRemoved app#1", "PodSandboxChanged gone", "PodRemoved"],
    )
    .await?;
    no_full_relists(&node)?;
    node.agrees().await
}

/// A runtime without events: a generator that requires them says so, and sees everything by relists.
async fn no_stream(context: &Context) -> Result<()> {
    let mut config = Config::default();
    config.evented.mode = Mode::Evented;
    config.witness = WitnessMode::Off;
    let runtime = &context.runtime;
    let mut node = Observer::with(runtime, runtime.endpoint(), Deadlines::default(), config)?;
    let down = |report: &pleg::Report| report.causes.iter().any(|cause| cause.trouble == Trouble::StreamDown);
    node.health("the cause", down).await?;
    running(context, &mut node, &Pod::new("web"), &app()).await?;
    Ok(())
}

/// Only events made it relist: there are no more full relists than at the start.
fn no_full_relists(node: &Observer) -> Result<()> {
    let report = node.pleg.health().report();
    ensure!(report.mode.missed_changes == 0, "{report:?}");
    ensure!(report.relists <= 4, "{} full relists", report.relists);
    Ok(())
}

async fn containers_of_many_pods_die_by_events(context: &Context) -> Result<()> {
    if !context.version().has_events() {
        return Ok(());
    }
    let members = crowd(context, 8, &["app", "sidecar"]).await?;
    let mut node = Observer::by_events(&context.runtime).await?;
    node.knows().await?;
    for member in &members {
        for (_, pid) in &member.containers {
            process::signal(*pid, Signal::KILL)?;
        }
    }
    for member in &members {
        let deaths = ["ContainerDied app#0 137 Error", "ContainerDied sidecar#0 137 Error"];
        node.sees_in_any_order(&member.sandbox.pod, &deaths).await?;
    }
    node.agrees().await
}

/// containerd sends no event for it, so a relist finds it, and it is no miss of the stream.
async fn a_failed_start_is_no_missed_event(context: &Context) -> Result<()> {
    if !context.version().has_events() {
        return Ok(());
    }
    let pod = Pod::new("web");
    let mut node = Observer::by_events(&context.runtime).await?;
    let sandbox = context.kubelet.run_pod(&pod).await?;
    let id = context
        .kubelet
        .create(&sandbox, &Container::new("app", Program::Absent))
        .await?;
    node.sees(&pod, &["PodSandboxChanged Ready", "ContainerCreated app#0"])
        .await?;
    ensure!(
        context.kubelet.start(&id).await.is_err(),
        "a program that is not there was started"
    );
    node.relist().await?;
    node.sees(&pod, &["ContainerDied app#0 128 StartError"]).await?;
    // The grace in which an event may still come is two seconds.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let report = node.pleg.health().report();
    ensure!(report.mode.missed_changes == 0, "{report:?}");
    node.agrees().await
}

/// What happened before we came is handed over by the runtime, and is no news. CRI-O may hand over nothing: it begins to send before it has
/// added its first subscriber, so that all of it can be gone by then.
async fn a_backlog_is_reported_once(context: &Context) -> Result<()> {
    if !context.version().has_events() {
        return Ok(());
    }
    let (kubelet, pod) = (&context.kubelet, Pod::new("web"));
    let sandbox = kubelet.run_pod(&pod).await?;
    for attempt in 0..20 {
        let id = kubelet.create(&sandbox, &app().attempt(attempt)).await?;
        kubelet.remove(&id).await?;
    }
    let id = kubelet.run(&sandbox, &app().attempt(20)).await?;
    let mut node = Observer::by_events(&context.runtime).await?;
    let backlog = || {
        let text = node.pleg.render_metrics().unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("pleg_evented_events_total "));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    until("the backlog", PATIENCE, async || {
        let events = backlog();
        ensure!(events >= 40.0 || context.version().is_crio(), "{events} events");
        Ok(())
    })
    .await?;
    node.sees(
        &pod,
        &["PodSandboxChanged Ready (initial)", "ContainerStarted app#20 (initial)"],
    )
    .await?;
    node.agrees().await?;
    kubelet.stop(&id, 0).await?;
    node.sees(&pod, &["ContainerDied app#20 137 Error"]).await?;
    node.agrees().await
}

/// kubernetes#129827: a short restart ended the kubelet's events for good. And what dies meanwhile has no event.
async fn a_restart_loses_neither_deaths_nor_events(context: &Context) -> Result<()> {
    if !context.version().has_events() {
        return Ok(());
    }
    let (pod, other) = (Pod::new("web"), Pod::new("other"));
    let mut config = Config::default();
    config.evented.mode = Mode::Evented;
    config.witness = WitnessMode::Off;
    let runtime = &context.runtime;
    let mut node = Observer::with(runtime, runtime.endpoint(), Deadlines::default(), config)?;
    let (_, id) = running(context, &mut node, &pod, &app()).await?;
    let (_, lives) = running(context, &mut node, &other, &app()).await?;
    let pid = context.kubelet.container_pid(&id).await?;
    node.health("the stream", |report| report.mode.mode == Mode::Evented)
        .await?;
    runtime.stop().await?;
    process::signal(pid, Signal::KILL)?;
    runtime.up().await?;
    let died = node.next_line(&pod).await?;
    ensure!(died.starts_with("ContainerDied app#0"), "{died}");
    node.health("the stream again", |report| {
        report.mode.mode == Mode::Evented && report.mode.full_relist_period_seconds >= 8.0
    })
    .await?;
    process::signal(context.kubelet.container_pid(&lives).await?, Signal::KILL)?;
    let event = node.next_event(&other).await?;
    ensure!(event.source == Source::Evented, "{event:?}");
    ensure!(event.exit_code == Some(137), "{event:?}");
    Ok(())
}

/// What it costs to inspect one container: by its id, or by the lists of its pod and then by its id. Printed for information.
async fn by_id_or_by_list(context: &Context) -> Result<()> {
    let members = crowd(context, 20, &["app", "sidecar"]).await?;
    let client = context.runtime.client();
    let [mut by_id, mut by_list] = [Vec::new(), Vec::new()];
    for round in 0..200 {
        let member = &members[round % members.len()];
        let request = || v1::ContainerStatusRequest {
            container_id: member.containers[0].0.clone(),
            verbose: false,
        };
        let asked = Instant::now();
        client.call(request()).await?;
        by_id.push(asked.elapsed());
        let asked = Instant::now();
        let filter = ListFilter::PodUid(member.sandbox.pod.uid.clone());
        let (sandboxes, containers) = tokio::join!(
            client.list_sandboxes(&filter, |_| {}),
            client.list_containers(&filter, |_| {})
        );
        ensure!((sandboxes?.items, containers?.items) == (1, 2));
        client.call(request()).await?;
        by_list.push(asked.elapsed());
    }
    by_id.sort();
    by_list.sort();
    writeln!(
        std::io::stderr(),
        "{}, 20 pods x 2, medians: by id {:?}, by its pod's lists and then by id {:?}",
        context.version(),
        by_id[100],
        by_list[100]
    )?;
    Ok(())
}

/// How soon after its event. The figures are printed; how good they have to be is a matter of benchmarks.
async fn a_death_soon_after_its_event(context: &Context) -> Result<()> {
    if !matches!(context.version(), Version::V2_1 | Version::CrioEvents) {
        // A second subscriber, to know when events arrive, would take them away.
        return Ok(());
    }
    let members = crowd(context, 12, &["app", "sidecar"]).await?;
    let mut node = Observer::by_events(&context.runtime).await?;
    node.knows().await?;
    let mut stream = context.runtime.client().container_events().await?;
    let mut lags = Vec::new();
    for member in &members {
        for (id, pid) in &member.containers {
            process::signal(*pid, Signal::KILL)?;
            let (arrived, told) = tokio::join!(
                async {
                    loop {
                        let event = stream.next().await?;
                        if event.container_id == *id && event.container_event_type() == Kind::ContainerStoppedEvent {
                            return anyhow::Ok(Instant::now());
                        }
                    }
                },
                async {
                    let event = node.next_event(&member.sandbox.pod).await?;
                    ensure!(
                        event.exit_code == Some(137) && event.source == Source::Evented,
                        "{event:?}"
                    );
                    Ok(Instant::now())
                }
            );
            lags.push(told?.saturating_duration_since(arrived?));
        }
    }
    lags.sort();
    let at = |percent: usize| lags[(lags.len() * percent / 100).min(lags.len() - 1)];
    writeln!(
        std::io::stderr(),
        "{}: event on the socket to our event, {} deaths: p50 {:?}, p90 {:?}, worst {:?}",
        context.version(),
        lags.len(),
        at(50),
        at(90),
        at(100)
    )?;
    ensure!(at(50) < Duration::from_millis(100), "{lags:?}");
    Ok(())
}
