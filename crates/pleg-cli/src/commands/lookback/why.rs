//! `pleg why`: what ended a pod's containers.

use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use pleg::{EventType, PodRef};
use pleg_history::{Entry, EntryType, Explanation, LONGEST_BEFORE, Order, PodMatch, Query, Window, explain};

use super::source::Source;
use super::subject;
use crate::args::{Global, Why, WhyFormat};
use crate::{Usage, output};

/// Entries of one pod that are looked at: the newest.
const OF_POD: usize = 20_000;
/// Entries about the node that are looked at: the newest.
const OF_NODE: usize = 5_000;
/// Deaths of other pods around a death.
const OF_OTHERS: usize = 500;
/// What is that near may belong together.
const NEAR: Duration = Duration::from_secs(15);

pub(crate) async fn run(global: &Global, args: Why) -> anyhow::Result<ExitCode> {
    let now = Timestamp::now();
    let until = args.until.unwrap_or(now);
    if args.since >= until {
        return Err(Usage("--until is not after --since".to_owned()).into());
    }
    let source = Source::find(global, &args.source).await?;
    let subject = subject::find(&source, &args.pod, args.namespace.as_deref()).await?;
    let Some(pod) = subject.newest else {
        return Err(Usage("pleg why explains one pod: omit the *".to_owned()).into());
    };
    let window = Window {
        since: args.since,
        until,
        held_since: source.held_since().await?,
        running: source.is_running() && args.until.is_none(),
    };
    let explanation = of_pod(&source, subject.pods, &pod, window).await?;
    match args.output {
        WhyFormat::Text => output::print(&output::explanation::text(&explanation, now))?,
        WhyFormat::Json => output::print_json(&explanation)?,
        WhyFormat::Yaml => output::print_yaml(&explanation)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads what an explanation needs: the pod, the node in the window, and other pods around the last death.
pub(super) async fn of_pod(
    source: &Source,
    pods: PodMatch,
    pod: &PodRef,
    window: Window,
) -> anyhow::Result<Explanation> {
    let of_pod = Query {
        pod: Some(pods),
        until: Some(window.until),
        limit: Some(OF_POD),
        order: Order::NewestFirst,
        ..Query::default()
    };
    let mut entries = source.entries(of_pod).await?;
    // Trouble that led to a death at the beginning of the window is older than the window.
    let earlier = window.since.checked_sub(LONGEST_BEFORE).unwrap_or(window.since);
    let of_node = Query {
        since: Some(earlier),
        until: Some(window.until),
        types: node_types(),
        limit: Some(OF_NODE),
        order: Order::NewestFirst,
        ..Query::default()
    };
    entries.extend(source.entries(of_node).await?);
    sort(&mut entries);
    let explanation = explain(pod, window, &entries);
    let Some(death) = &explanation.last_death else {
        return Ok(explanation);
    };
    let near = |time: Result<Timestamp, jiff::Error>| time.unwrap_or(death.time);
    let around = Query {
        since: Some(near(death.time.checked_sub(NEAR))),
        until: Some(near(death.time.checked_add(NEAR))),
        types: vec![EntryType::Event(EventType::ContainerDied)],
        limit: Some(OF_OTHERS),
        ..Query::default()
    };
    entries.extend(source.entries(around).await?);
    sort(&mut entries);
    Ok(explain(pod, window, &entries))
}

/// Entries about the whole node: troubles, health, starts and ends of the daemon.
pub(super) fn node_types() -> Vec<EntryType> {
    vec![
        EntryType::Event(EventType::TroubleStarted),
        EntryType::Event(EventType::TroubleEnded),
        EntryType::HealthChanged,
        EntryType::DaemonStarted,
        EntryType::DaemonStopped,
        EntryType::Gap,
    ]
}

/// In the order of ids, each once.
pub(super) fn sort(entries: &mut Vec<Entry>) {
    entries.sort_by_key(|entry| entry.id);
    entries.dedup_by_key(|entry| entry.id);
}
