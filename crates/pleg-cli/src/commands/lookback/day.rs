//! `pleg report`: the node's day.
//!
//! A long window is read as sums of hours, whatever it holds. A short one is counted entry by entry, in parts of minutes.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use pleg_history::{BucketCounts, Entry, EntryType, NodeReport, Order, PodMatch, Query, ReportBuilder, Window};

use super::source::Source;
use super::why;
use crate::args::{DayFormat, DayReport, Global};
use crate::{Usage, output};

/// Windows up to this long are counted entry by entry, if they do not hold too many.
const SHORT: Duration = Duration::from_hours(6);
/// Entries that are counted one by one.
const COUNTED: usize = 100_000;
/// Entries about troubles, health and daemons that are looked at: the newest.
const OF_NODE: usize = 20_000;
/// Parts of a short window.
const PARTS: u64 = 36;
const HOUR: Duration = Duration::from_hours(1);

pub(crate) async fn run(global: &Global, args: DayReport) -> anyhow::Result<ExitCode> {
    let now = Timestamp::now();
    let until = args.until.unwrap_or(now);
    if args.since >= until {
        return Err(Usage("--until is not after --since".to_owned()).into());
    }
    let source = Source::find(global, &args.source).await?;
    let window = Window {
        since: args.since,
        until,
        held_since: source.held_since().await?,
        running: source.is_running() && args.until.is_none(),
    };
    anyhow::ensure!(
        window.held_since.is_some(),
        "{} is empty: there is nothing to report yet",
        source.name()
    );
    let mut report = collect(&source, window).await?;
    report.node = Some(node_name(args.node_name));
    if let Some(path) = &args.html {
        write(path, &output::node_report::html(&report, now)).await?;
        output::print(&format!("wrote {}\n", path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    match args.output {
        DayFormat::Text => output::print(&output::node_report::text(&report, now))?,
        DayFormat::Json => output::print_json(&report)?,
        DayFormat::Html => output::print(&output::node_report::html(&report, now))?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn write(path: &Path, html: &str) -> anyhow::Result<()> {
    let (to, html) = (path.to_owned(), html.to_owned());
    let written = tokio::task::spawn_blocking(move || std::fs::write(to, html)).await?;
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn node_name(typed: Option<String>) -> String {
    let of_environment = || std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    typed.or_else(of_environment).unwrap_or_else(|| {
        let name = pleg_node::host::name();
        name.map_or_else(|_| "this node".to_owned(), |name| name.as_str().to_owned())
    })
}

/// Reads what a report needs.
async fn collect(source: &Source, window: Window) -> anyhow::Result<NodeReport> {
    let mut builder = match counted(source, window).await? {
        Some(builder) => builder,
        None => summed(source, window).await?,
    };
    let window = builder.window();
    // How the window begins.
    let before = Query {
        until: Some(window.since),
        types: vec![
            EntryType::HealthChanged,
            EntryType::DaemonStarted,
            EntryType::DaemonStopped,
        ],
        limit: Some(1),
        order: Order::NewestFirst,
        ..Query::default()
    };
    for entry in source.entries(before).await? {
        builder.before(&entry);
    }
    for entry in of_node(source, window, &mut builder).await? {
        builder.entry(&entry);
    }
    for pod in builder.worst_pods() {
        let pods = PodMatch::Name {
            namespace: Some(pod.namespace.as_ref().to_owned()),
            name: pod.name.as_ref().to_owned(),
        };
        builder.explained(why::of_pod(source, pods, &pod, window).await?);
    }
    Ok(builder.build())
}

/// Entries about the node, and the last one of each run of the daemon that did not end well.
async fn of_node(source: &Source, window: Window, builder: &mut ReportBuilder) -> anyhow::Result<Vec<Entry>> {
    let query = Query {
        since: Some(window.since),
        until: Some(window.until),
        types: why::node_types(),
        limit: Some(OF_NODE),
        order: Order::NewestFirst,
        ..Query::default()
    };
    let mut entries = source.entries(query).await?;
    if entries.len() == OF_NODE {
        builder.note(format!(
            "Only the newest {OF_NODE} entries about troubles and health are counted."
        ));
    }
    let is_start = |entry: &&Entry| entry.kind() == EntryType::DaemonStarted;
    let starts: Vec<u64> = entries.iter().filter(is_start).map(|entry| entry.id).collect();
    let mut ends: Vec<Option<u64>> = starts.into_iter().rev().take(100).map(Some).collect();
    if !window.running {
        // The last entry of all.
        ends.push(None);
    }
    for before in ends {
        let last = Query {
            before,
            since: Some(window.since),
            until: Some(window.until),
            limit: Some(1),
            order: Order::NewestFirst,
            ..Query::default()
        };
        entries.extend(source.entries(last).await?);
    }
    why::sort(&mut entries);
    Ok(entries)
}

/// A long window, by the hour.
async fn summed(source: &Source, window: Window) -> anyhow::Result<ReportBuilder> {
    let mut builder = ReportBuilder::new(window, HOUR);
    let window = builder.window();
    for hour in source.hours(window.since, window.until).await? {
        builder.hour(&hour);
    }
    Ok(builder)
}

/// A short window, entry by entry; none if it is long, or holds too much.
async fn counted(source: &Source, window: Window) -> anyhow::Result<Option<ReportBuilder>> {
    let length = Duration::try_from(window.until.duration_since(window.since)).unwrap_or_default();
    if length > SHORT {
        return Ok(None);
    }
    let rough = length.as_secs() / PARTS;
    let steps = [10, 30, 60, 120, 300, 600];
    let step = steps.into_iter().find(|step| *step >= rough).unwrap_or(600);
    let mut builder = ReportBuilder::new(window, Duration::from_secs(step));
    let window = builder.window();
    let query = Query {
        since: Some(window.since),
        until: Some(window.until),
        types: EntryType::all().collect(),
        limit: Some(COUNTED + 1),
        ..Query::default()
    };
    let mut reading = source.read(&query.into(), false).await?;
    let (mut count, mut counts) = (0, BucketCounts::new(Duration::from_secs(step)));
    while let Some(line) = reading.next().await? {
        count += 1;
        if count > COUNTED {
            return Ok(None);
        }
        if let Some(entry) = &line.entry {
            counts.add(entry);
        }
    }
    for part in counts.finish() {
        builder.hour(&part);
    }
    Ok(Some(builder))
}
