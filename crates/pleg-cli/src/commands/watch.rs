//! `pleg watch`: events as they happen.

use std::process::ExitCode;

use pleg::{Item, Overflow, Start, Subscriber};
use pleg_cri::duration::seconds;
use pleg_cri::{InFlight, Rpc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::args::{Global, LineFormat, Watch};
use crate::connect::{self, Observed, Stay};
use crate::filter::Filter;
use crate::http::follow::DaemonEvents;
use crate::local::Local;
use crate::output::event::EventTable;
use crate::output::kubelet::KubeletLines;
use crate::output::lines::LineWriter;
use crate::since::Since;
use crate::wire::Line;
use crate::{Usage, signals, waiting};

pub(crate) async fn run(global: &Global, args: Watch, shutdown: CancellationToken) -> anyhow::Result<ExitCode> {
    if args.output == LineFormat::Kubelet && (args.no_initial || !args.filter.types.is_empty()) {
        let words = "-o kubelet needs every event: omit --no-initial and --type, and filter its output instead";
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
    let find = Observed::find_by(
        global,
        &args.observe,
        Stay::Long,
        (args.mode.into(), args.witness.into()),
    );
    let observed = until.before(find).await.ok_or_else(silent)??;
    let mut events = until
        .before(Events::start(&observed, args))
        .await
        .ok_or_else(silent)??;
    printer.head().await?;
    let first = events.next();
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
    let Some(mut line) = first else {
        return events.ended_in_time();
    };
    loop {
        let (text, is_event) = line?;
        match until.before(printer.print(text, is_event)).await {
            Some(Ok(false)) => {}
            Some(Err(error)) => return Err(error),
            Some(Ok(true)) | None => return Ok(()),
        }
        line = match until.before(events.next()).await {
            Some(line) => line,
            None => return events.ended_in_time(),
        };
    }
}

/// The list that the first relist waits for.
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
        events: DaemonEvents<'a>,
        skip_initial: bool,
    },
    Local {
        subscriber: Subscriber,
        filter: Filter,
        skip_initial: bool,
        // The generator runs as long as this lives.
        local: &'a Local,
    },
}

impl<'a> Events<'a> {
    async fn start(observed: &'a Observed, args: &Watch) -> anyhow::Result<Self> {
        match observed {
            Observed::Daemon(daemon) => {
                // The kubelet's words need everything that the daemon has.
                let usual = match args.output {
                    LineFormat::Kubelet => Since::Seq(0),
                    _ => Since::Now,
                };
                let (query, since) = (args.filter.filter()?.query(), args.since.unwrap_or(usual));
                Ok(Self::Daemon {
                    events: DaemonEvents::start(daemon, query, since).await?,
                    skip_initial: args.no_initial,
                })
            }
            Observed::Runtime(_) if args.since.is_some() => Err(Usage(
                "--since needs a daemon, which keeps past events. Start one with: pleg run".to_owned(),
            )
            .into()),
            Observed::Runtime(local) => Ok(Self::Local {
                subscriber: local.pleg.subscribe(Start::Oldest, Overflow::Gap),
                filter: args.filter.filter()?,
                skip_initial: args.no_initial,
                local,
            }),
        }
    }

    /// The time to watch is over: that is an error if the daemon is gone, since what happened meanwhile is unknown.
    fn ended_in_time(&self) -> anyhow::Result<()> {
        match self {
            Self::Daemon { events, .. } => match events.gone() {
                Some(since) => anyhow::bail!("the daemon did not come back within {}", seconds(since.elapsed())),
                None => Ok(()),
            },
            Self::Local { .. } => Ok(()),
        }
    }

    /// The next line, and whether it is an event.
    async fn next(&mut self) -> anyhow::Result<(String, bool)> {
        match self {
            Self::Daemon { events, skip_initial } => loop {
                let (text, line) = events.next().await?;
                match line {
                    Line::Event(event) if *skip_initial && event.initial => {}
                    Line::Event(_) => return Ok((text, true)),
                    Line::Gap(_) | Line::Heartbeat(_) => return Ok((text, false)),
                }
            },
            Self::Local {
                subscriber,
                filter,
                skip_initial,
                local,
            } => loop {
                match subscriber.next().await {
                    None => anyhow::bail!(
                        "the generator of this command ended: {}",
                        local.pleg.health().report().short()
                    ),
                    Some(Item::Event(event)) if (*skip_initial && event.initial) || !filter.matches(&event) => {}
                    Some(Item::Event(event)) => return Ok((serde_json::to_string(&*event)?, true)),
                    Some(Item::Gap(gap)) => return Ok((serde_json::to_string(&gap)?, false)),
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
        match &mut self.form {
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
