//! `pleg history`: what happened.

use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use pleg::EventType;
use pleg_history::{EntryType, Order, Query};
use tokio_util::sync::CancellationToken;

use super::source::{Line, Reading, Source, Wanted, parameters};
use super::subject;
use crate::args::{Global, History, HistoryFormat};
use crate::connect::tell;
use crate::http::client::Daemon;
use crate::http::follow::refuses;
use crate::output::history::HistoryTable;
use crate::output::lines::LineWriter;
use crate::{Usage, signals};

/// Entries that are shown if nothing says how many.
const NEWEST: usize = 1000;
/// From one attempt to connect again to the next: the first pause, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

pub(crate) async fn run(global: &Global, args: History, shutdown: CancellationToken) -> anyhow::Result<ExitCode> {
    let mut printer = Printer::start(args.output)?;
    let ended = tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(()),
        () = signals::stdout_closed() => return Ok(ExitCode::SUCCESS),
        ended = show(global, &args, &mut printer) => ended,
    };
    tokio::select! {
        biased;
        written = printer.lines.end() => written?,
        () = shutdown.cancelled() => {}
    }
    ended.map(|()| ExitCode::SUCCESS)
}

async fn show(global: &Global, args: &History, printer: &mut Printer) -> anyhow::Result<()> {
    if let (Some(since), Some(until)) = (args.since, args.until)
        && since >= until
    {
        return Err(Usage("--until is not after --since".to_owned()).into());
    }
    let source = Source::find(global, &args.source).await?;
    let wanted = wanted(&source, args).await?;
    if args.follow {
        let Source::Daemon { daemon, .. } = &source else {
            let words = "--follow needs a daemon, which writes the history. Start one with: pleg run";
            return Err(Usage(words.to_owned()).into());
        };
        return follow(daemon, &source, args, wanted, printer).await;
    }
    let everything = args.limit.is_none() && (args.since.is_some() || args.until.is_some());
    if everything {
        let mut reading = source.read(&wanted, printer.wants_json()).await?;
        let mut shown = 0_u64;
        while let Some(line) = reading.next().await? {
            shown += printer.print(line).await?;
        }
        return none(&source, args, shown).await;
    }
    let most = args.limit.map_or(NEWEST, |limit| limit as usize);
    let newest = newest(&source, wanted, most, printer.wants_json()).await?;
    if newest.len() == most && args.limit.is_none() {
        tell(&format!("the newest {most} entries; --since or --limit shows more"));
    }
    let mut shown = 0;
    for line in newest {
        shown += printer.print(line).await?;
    }
    none(&source, args, shown).await
}

/// The newest entries, the oldest of them first.
async fn newest(source: &Source, mut wanted: Wanted, most: usize, as_json: bool) -> anyhow::Result<Vec<Line>> {
    wanted.query.order = Order::NewestFirst;
    wanted.query.limit = Some(most);
    let mut reading = source.read(&wanted, as_json).await?;
    let mut lines = Vec::new();
    while let Some(line) = reading.next().await? {
        lines.push(line);
    }
    lines.reverse();
    Ok(lines)
}

/// The query that the flags ask for.
async fn wanted(source: &Source, args: &History) -> anyhow::Result<Wanted> {
    let mut query = Query {
        namespace: args.namespace.clone(),
        labels: args.selector.as_deref().and_then(|selector| selector.parse().ok()),
        since: args.since,
        until: args.until,
        types: if args.types.is_empty() {
            usual_types()
        } else {
            args.types.clone()
        },
        reasons: args.reason.clone(),
        ..Query::default()
    };
    if let Some(typed) = &args.subject {
        let subject = subject::find(source, typed, args.namespace.as_deref()).await?;
        (query.pod, query.container) = (Some(subject.pods), subject.container);
    }
    Ok(Wanted {
        query,
        selector: args.selector.clone(),
    })
}

/// All but those that only few want: samples, and the exits of processes, whose deaths follow.
fn usual_types() -> Vec<EntryType> {
    let rare = [EntryType::Sample, EntryType::Event(EventType::ProcessExited)];
    EntryType::all().filter(|kind| !rare.contains(kind)).collect()
}

/// Says on stderr that there is nothing, and how far back the history goes.
async fn none(source: &Source, args: &History, shown: u64) -> anyhow::Result<()> {
    if shown > 0 || args.output == HistoryFormat::Json {
        return Ok(());
    }
    let held = source.held_since().await?;
    match held {
        None => tell(&format!("No entries: {} is empty.", source.name())),
        Some(held) => {
            let time = crate::text::when(Some(held), Timestamp::now());
            tell(&format!("No such entries; {} goes back to {time}.", source.name()));
        }
    }
    Ok(())
}

/// What was asked for, and then what is written, also by a daemon that was restarted.
async fn follow(
    daemon: &Daemon,
    source: &Source,
    args: &History,
    mut wanted: Wanted,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    // Whatever is written after what is newest now, of any kind.
    let last = newest(source, Wanted::default(), 1, true).await?;
    let mut newest_id = last.iter().filter_map(id).max();
    match (args.since, args.limit) {
        (None, None) => {}
        // It may be everything, so it is printed as it is read.
        (Some(_), None) => {
            let mut reading = source.read(&wanted, true).await?;
            while let Some(line) = reading.next().await? {
                newest_id = newest_id.max(id(&line));
                printer.print(line).await?;
            }
        }
        (_, Some(limit)) => {
            for line in newest(source, wanted.clone(), limit as usize, true).await? {
                newest_id = newest_id.max(id(&line));
                printer.print(line).await?;
            }
        }
    }
    printer.head().await?;
    (wanted.query.since, wanted.query.after) = (None, newest_id);
    let [first, longest] = PAUSES;
    let mut pause = first;
    loop {
        let mut query = parameters(&wanted);
        query.push(("follow", "true".to_owned()));
        match daemon.lines("/api/v1/history", &query).await {
            Ok(lines) => {
                if pause > first {
                    tell(&format!("connected to the daemon at {} again", daemon.address()));
                }
                pause = first;
                let mut reading = Reading::of(lines, source);
                while let Ok(Some(line)) = reading.next_of_stream().await {
                    wanted.query.after = id(&line).or(wanted.query.after);
                    printer.print(line).await?;
                }
                tell(&format!("the daemon at {} stopped; reconnecting", daemon.address()));
                pause *= 2;
            }
            // What it refuses now it will refuse again.
            Err(error) if refuses(&error) || pause == first => return Err(error),
            Err(_) => pause = (pause * 2).min(longest),
        }
        tokio::time::sleep(pause).await;
    }
}

fn id(line: &Line) -> Option<u64> {
    if let Some(entry) = &line.entry {
        return Some(entry.id);
    }
    let value: serde_json::Value = serde_json::from_str(&line.text).ok()?;
    value.get("id")?.as_u64()
}

/// Prints entries.
struct Printer {
    lines: LineWriter,
    table: Option<HistoryTable>,
    /// The head was printed.
    headed: bool,
}

impl Printer {
    fn start(format: HistoryFormat) -> anyhow::Result<Self> {
        Ok(Self {
            lines: LineWriter::start()?,
            table: match format {
                HistoryFormat::Table => Some(HistoryTable::for_stdout(false)),
                HistoryFormat::Wide => Some(HistoryTable::for_stdout(true)),
                HistoryFormat::Json => None,
            },
            headed: false,
        })
    }

    fn wants_json(&self) -> bool {
        self.table.is_none()
    }

    async fn head(&mut self) -> anyhow::Result<()> {
        if let Some(table) = &mut self.table
            && !std::mem::replace(&mut self.headed, true)
        {
            self.lines.line(table.head()).await?;
        }
        Ok(())
    }

    /// Prints a line. Returns how many that were: a table leaves out what this version does not know.
    async fn print(&mut self, line: Line) -> anyhow::Result<u64> {
        self.head().await?;
        let text = match (&mut self.table, &line.entry) {
            (None, _) => line.text,
            (Some(table), Some(entry)) => table.row(entry),
            (Some(_), None) => return Ok(0),
        };
        self.lines.line(text).await?;
        Ok(1)
    }
}
