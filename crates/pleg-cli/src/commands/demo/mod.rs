//! `pleg demo`: a simulated node, watched over a real socket; in the middle one container's status hangs.

mod cast;
mod past;
mod stage;
mod summary;
mod web;

use std::process::ExitCode;
use std::time::Duration;

use pleg::{Deadlines, Generator, Item, Level, Overflow, Start};
use pleg_cri::duration::seconds;
use pleg_history::History;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use self::stage::{Act, Dir, Stage};
use self::summary::Summary;
use self::web::Web;
use crate::args::{Demo, PlainFormat};
use crate::local::Local;
use crate::output::event::EventTable;
use crate::output::lines::LineWriter;
use crate::output::{BOLD, DIM, GREEN, PLAIN, RED, YELLOW};
use crate::signals;
use crate::text::{count, short_ids};

/// A status that takes longer has hung. Short, so that a demonstration is.
const INSPECT: Duration = Duration::from_secs(1);
/// How often the health is read.
const TICK: Duration = Duration::from_millis(100);
/// How often it is told without a reason.
const TOLD: Duration = Duration::from_secs(5);

pub(crate) async fn run(args: Demo, shutdown: CancellationToken) -> anyhow::Result<ExitCode> {
    let dir = Dir::create()?;
    // Before there is another thread: making the socket changes the umask.
    let web = match args.web {
        Some(address) => Some(Web::bind(&dir, address).await?),
        None => None,
    };
    let mut stage = Stage::set(dir, &args).await?;
    let deadlines = Deadlines {
        inspect: INSPECT,
        ..Deadlines::default()
    };
    let config = pleg::Config {
        deadlines,
        retry_most: Duration::from_secs(2),
        ..pleg::Config::default()
    };
    let history = match web {
        Some(_) => Some(web::history(stage.file("history"), stage.take_past()).await?),
        None => None,
    };
    let config = pleg::Config {
        history: history.as_ref().map(History::feed),
        ..config
    };
    let generator = Generator::connect(stage.endpoint().clone(), config).await?;
    let monitor = generator.runtime_monitor();
    let local = Local::start(generator);
    let (introduction, serving) = match (web, history) {
        (Some(web), Some(history)) => {
            let introduction = web.introduction();
            (introduction, Some(web.serve(&local, monitor, history, &shutdown)?))
        }
        _ => (Vec::new(), None),
    };
    let serving = async {
        match serving {
            Some(serving) => serving.await,
            None => std::future::pending().await,
        }
    };
    let mut show = Show {
        local,
        introduction,
        rows: args.web.is_none(),
        lines: LineWriter::start()?,
        table: matches!(args.output, PlainFormat::Table).then(|| EventTable::for_stdout(false)),
        summary: Summary::default(),
        level: None,
        troubled: None,
    };
    let over = async {
        match args.duration() {
            Duration::ZERO => std::future::pending().await,
            duration => tokio::time::sleep(duration).await,
        }
    };
    let interrupted = tokio::select! {
        biased;
        () = shutdown.cancelled() => true,
        () = signals::stdout_closed() => return Ok(ExitCode::SUCCESS),
        ended = show.play(&stage) => { ended?; false }
        () = serving => true,
        () = over => false,
    };
    let end = async {
        show.end(&stage).await?;
        show.lines.end().await
    };
    if interrupted {
        // A reader who does not read must not hold up Ctrl-C.
        tokio::time::timeout(Duration::from_millis(500), end)
            .await
            .unwrap_or(Ok(()))?;
    } else {
        end.await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The demonstration as it runs.
struct Show {
    local: Local,
    /// Lines to begin with.
    introduction: Vec<String>,
    /// Events are printed in the table; in a browser they are seen there.
    rows: bool,
    lines: LineWriter,
    /// None: JSON.
    table: Option<EventTable>,
    summary: Summary,
    level: Option<Level>,
    /// Since when it is not healthy.
    troubled: Option<Instant>,
}

impl Show {
    async fn play(&mut self, stage: &Stage) -> anyhow::Result<()> {
        let mut events = self.local.pleg.subscribe(Start::Oldest, Overflow::Gap);
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut told = Instant::now();
        let mut acts = stage.acts();
        let mut act = acts.next();
        self.say("", &stage.introduction()).await?;
        for line in std::mem::take(&mut self.introduction) {
            self.say(GREEN, &line).await?;
        }
        if let Some(table) = self.table.as_mut().filter(|_| self.rows) {
            self.lines.line(table.head()).await?;
        }
        loop {
            let cue = act.as_ref().map_or_else(|| Instant::now() + TOLD, |(at, _)| *at);
            tokio::select! {
                biased;
                item = events.next() => match item {
                    Some(item) => self.item(&item).await?,
                    None => return Ok(()),
                },
                () = tokio::time::sleep_until(cue), if act.is_some() => {
                    if let Some((_, act)) = act.take() {
                        let text = stage.perform(act);
                        self.say(if act == Act::Stall { RED } else { GREEN }, &text).await?;
                    }
                    act = acts.next();
                }
                _ = tick.tick() => {
                    self.health(&mut told).await?;
                }
            }
        }
    }

    async fn item(&mut self, item: &Item) -> anyhow::Result<()> {
        let line = match item {
            Item::Event(event) => {
                self.summary.count(event);
                // Thirty pods that were there already are one line, not ninety.
                if (event.initial || !self.rows) && self.table.is_some() {
                    return Ok(());
                }
                serde_json::to_string(&**event)?
            }
            Item::Gap(gap) => serde_json::to_string(gap)?,
        };
        let line = match &mut self.table {
            Some(table) => table.row(&serde_json::from_str(&line)?),
            None => line,
        };
        self.lines.line(line).await
    }

    /// Tells the health when it changes, and now and then.
    async fn health(&mut self, told: &mut Instant) -> anyhow::Result<()> {
        let report = self.local.pleg.health().report();
        // Before the first relist there is nothing to report.
        if report.relists == 0 || (self.level == Some(report.level) && told.elapsed() < TOLD) {
            return Ok(());
        }
        let before = self.level.replace(report.level);
        *told = Instant::now();
        let pods = self.local.pleg.cache().len();
        let news = before.is_some_and(|before| before != report.level);
        let (colour, text) = match report.level {
            Level::Healthy => {
                let lasted = self.troubled.take();
                let lasted = lasted.map_or(String::new(), |since| {
                    format!(" again, after {}", seconds(Duration::from_millis(millis(since))))
                });
                let colour = if news { GREEN } else { DIM };
                (
                    colour,
                    format!(
                        "healthy{lasted}: {}, {}, {}",
                        count(pods, "pod"),
                        count(report.relists, "relist"),
                        count(self.summary.events(), "event")
                    ),
                )
            }
            Level::Degraded | Level::Unhealthy => {
                self.troubled.get_or_insert_with(Instant::now);
                let cause = report
                    .causes
                    .first()
                    .map_or(String::new(), |cause| format!(": {cause}"));
                (YELLOW, short_ids(&format!("{}{cause}", report.headline)))
            }
        };
        self.say(colour, &text).await
    }

    /// A line between the events, for people only.
    async fn say(&mut self, colour: &str, text: &str) -> anyhow::Result<()> {
        if self.table.is_none() {
            return Ok(());
        }
        self.lines
            .line(format!("{BOLD}{colour}--- {}{PLAIN}", crate::text::clean(text)))
            .await
    }

    async fn end(&mut self, stage: &Stage) -> anyhow::Result<()> {
        let report = self.local.pleg.health().report();
        let summary = self
            .summary
            .close(&report, &stage.calls(), self.local.pleg.cache().len());
        let text = match &self.table {
            Some(_) => summary::text(&summary),
            None => serde_json::to_string(&serde_json::json!({ "summary": summary }))?,
        };
        self.lines.line(text).await
    }
}

fn millis(since: Instant) -> u64 {
    // Tenths are enough for people.
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX) / 100 * 100
}
