//! `pleg watch`: events as they happen.

use std::process::ExitCode;

use pleg::{Cursor, Item, Overflow, Start, Subscriber};
use pleg_cri::error::seconds;
use pleg_cri::{InFlight, Rpc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::args::{Global, LineFormat, Watch};
use crate::connect::{self, Observed, Stay};
use crate::filter::Filter;
use crate::http::client::Lines;
use crate::local::Local;
use crate::output::event::EventTable;
use crate::output::kubelet::KubeletLines;
use crate::output::lines::LineWriter;
use crate::since::Since;
use crate::wire::Line;
use crate::{Usage, signals, waiting};

pub(crate) async fn run(global: &Global, args: Watch, shutdown: CancellationToken) -> anyhow::Result<ExitCode> {
    if args.output == LineFormat::Kubelet && (args.no_initial || !args.filter.types.is_empty()) {
        let words =
            "-o kubelet has to see every event: leave out --no-initial and --type, and choose from what it prints";
        return Err(Usage(words.to_owned()).into());
    }
    args.filter.filter()?;
    let mut printer = Printer::start(&args)?;
    let ended = tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(()),
        () = signals::stdout_closed() => return Ok(ExitCode::SUCCESS),
        ended = follow(global, &args, &mut printer) => ended,
    };
    // What was taken is written, unless the reader does not read.
    tokio::select! {
        biased;
        written = printer.lines.end() => written?,
        () = shutdown.cancelled() => {}
    }
    ended.map(|()| ExitCode::SUCCESS)
}

/// Until when to watch; for ever without an end.
#[derive(Clone, Copy)]
struct Until(Option<Instant>);

impl Until {
    /// Awaits `future`; none if the time is over first.
    async fn before<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self.0 {
            Some(end) => tokio::time::timeout_at(end, future).await.ok(),
            None => Some(future.await),
        }
    }
}

async fn follow(global: &Global, args: &Watch, printer: &mut Printer) -> anyhow::Result<()> {
    let until = Until(args.duration.map(|duration| Instant::now() + duration));
    let within = || seconds(args.duration.unwrap_or_default());
    // Who has not answered yet is not a quiet node.
    let silent = || {
        anyhow::anyhow!(
            "no answer from {} within {}",
            connect::asked(global, &args.observe),
            within()
        )
    };
    let find = Observed::find_by(global, &args.observe, Stay::Long, args.mode.into());
    let observed = until.before(find).await.ok_or_else(silent)??;
    let mut events = until
        .before(Events::start(&observed, args))
        .await
        .ok_or_else(silent)??;
    printer.head().await?;
    let first = async {
        let line = events.next().await;
        (events, line)
    };
    let first = match &observed {
        Observed::Runtime(local) => {
            let inflight = local.pleg.health().inflight();
            let unseen = || local.pleg.cache().complete().number() == 0;
            // A quiet runtime is nothing to tell; one that has never answered is.
            let what = || waiting::oldest_call(inflight).filter(|_| unseen());
            let first = until.before(waiting::told(what, first)).await;
            if first.is_none() && unseen() {
                anyhow::bail!(
                    "the runtime has not answered {} within {}",
                    oldest_list(inflight),
                    within()
                );
            }
            first
        }
        Observed::Daemon(_) => until.before(first).await,
    };
    let Some((mut events, mut line)) = first else {
        return Ok(());
    };
    loop {
        let Some((text, is_event)) = line? else {
            match events.cursor() {
                Some(cursor) => anyhow::bail!("the daemon stopped; to continue: --since {cursor}"),
                None => anyhow::bail!("the daemon stopped"),
            }
        };
        match until.before(printer.print(text, is_event)).await {
            Some(Ok(false)) => {}
            Some(Err(error)) => return Err(error),
            Some(Ok(true)) | None => return Ok(()),
        }
        line = match until.before(events.next()).await {
            Some(line) => line,
            None => return Ok(()),
        };
    }
}

/// The list that the first look waits for.
fn oldest_list(inflight: &InFlight) -> Rpc {
    let calls = inflight.calls();
    let list = |call: &&pleg_cri::inflight::Call| {
        matches!(
            call.rpc,
            Rpc::ListContainers | Rpc::StreamContainers | Rpc::ListPodSandbox | Rpc::StreamPodSandboxes
        )
    };
    let oldest = calls.iter().find(list).or(calls.first());
    oldest.map_or(Rpc::ListContainers, |call| call.rpc)
}

/// Where events come from; each as the JSON of one line.
enum Events<'a> {
    Daemon {
        lines: Lines,
        skip: Skip,
        /// After the last line that was read, printed or not.
        cursor: Option<Cursor>,
    },
    Local {
        subscriber: Subscriber,
        filter: Filter,
        skip: Skip,
        // The generator runs as long as this lives.
        _local: &'a Local,
    },
}

/// Leaves out what was there before us.
#[derive(Clone, Copy)]
struct Skip {
    initial: bool,
}

impl<'a> Events<'a> {
    async fn start(observed: &'a Observed, args: &Watch) -> anyhow::Result<Self> {
        let skip = Skip {
            initial: args.no_initial,
        };
        let filter = args.filter.filter()?;
        match observed {
            Observed::Daemon(daemon) => {
                let mut query = filter.query();
                query.push(("follow", "true".to_owned()));
                let usual = match args.output {
                    LineFormat::Kubelet => Since::Seq(0),
                    _ => Since::Now,
                };
                let since = args.since.unwrap_or(usual);
                query.push(("since", since.to_string()));
                Ok(Self::Daemon {
                    lines: daemon.lines("/api/v1/events", &query).await?,
                    skip,
                    cursor: match since {
                        Since::Cursor(cursor) => Some(cursor),
                        Since::Now | Since::Seq(_) | Since::Time(_) => None,
                    },
                })
            }
            Observed::Runtime(_) if args.since.is_some() => {
                Err(Usage("--since needs a daemon: only it remembers. Start one with: pleg run".to_owned()).into())
            }
            Observed::Runtime(local) => Ok(Self::Local {
                subscriber: local.pleg.subscribe(Start::Oldest, Overflow::Gap),
                filter,
                skip,
                _local: local,
            }),
        }
    }

    /// Where to continue after what was read; only a daemon remembers.
    fn cursor(&self) -> Option<Cursor> {
        match self {
            Self::Daemon { cursor, .. } => *cursor,
            Self::Local { .. } => None,
        }
    }

    /// The next line, and whether it is an event; none when there will be no more.
    async fn next(&mut self) -> anyhow::Result<Option<(String, bool)>> {
        match self {
            Self::Daemon { lines, skip, cursor } => loop {
                let Some(line) = lines.next().await? else {
                    return Ok(None);
                };
                let read: Line = serde_json::from_str(&line)?;
                *cursor = read.cursor().or(*cursor);
                match read {
                    Line::Event(event) if skip.initial && event.initial => {}
                    Line::Event(_) => return Ok(Some((line, true))),
                    Line::Gap(_) => return Ok(Some((line, false))),
                }
            },
            Self::Local {
                subscriber,
                filter,
                skip,
                ..
            } => loop {
                match subscriber.next().await {
                    None => return Ok(None),
                    Some(Item::Event(event)) if (skip.initial && event.initial) || !filter.matches(&event) => {}
                    Some(Item::Event(event)) => return Ok(Some((serde_json::to_string(&*event)?, true))),
                    Some(Item::Gap(gap)) => return Ok(Some((serde_json::to_string(&gap)?, false))),
                }
            },
        }
    }
}

/// Prints lines, and counts events.
struct Printer {
    lines: LineWriter,
    form: Form,
    left: Option<u64>,
}

/// What a line of ours becomes.
enum Form {
    Table(EventTable),
    Json,
    Kubelet(KubeletLines),
}

impl Printer {
    fn start(args: &Watch) -> anyhow::Result<Self> {
        Ok(Self {
            lines: LineWriter::start()?,
            form: match args.output {
                LineFormat::Table => Form::Table(EventTable::for_stdout(false)),
                LineFormat::Wide => Form::Table(EventTable::for_stdout(true)),
                LineFormat::Json => Form::Json,
                LineFormat::Kubelet => Form::Kubelet(KubeletLines::default()),
            },
            left: args.count,
        })
    }

    async fn head(&mut self) -> anyhow::Result<()> {
        match &self.form {
            Form::Table(table) => self.lines.line(table.head()).await,
            Form::Json | Form::Kubelet(_) => Ok(()),
        }
    }

    /// Prints one line. Returns whether it was the last one wanted.
    async fn print(&mut self, line: String, is_event: bool) -> anyhow::Result<bool> {
        match &mut self.form {
            Form::Table(table) => self.lines.line(table.row(&serde_json::from_str(&line)?)).await?,
            Form::Json => self.lines.line(line).await?,
            Form::Kubelet(kubelet) => {
                for line in kubelet.lines(line)? {
                    self.lines.line(line).await?;
                }
            }
        }
        if let (Some(left), true) = (&mut self.left, is_event) {
            *left -= 1;
            return Ok(*left == 0);
        }
        Ok(false)
    }
}
