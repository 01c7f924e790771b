//! `pleg top`: the node on the whole terminal, live.
//!
//! | module | in | out |
//! |---|---|---|
//! | [`source`] | a daemon, or a generator in this process | updates: pods, events, health |
//! | [`input`] | the terminal | keys |
//! | [`state`] | updates, keys, time | what is shown and selected; pure |
//! | [`lives`] | a pod's status and events | the lives of its containers; pure |
//! | [`view`] | a state | the cells of the screen; pure |
//! | [`screen`] | cells | bytes for the terminal, written by a thread of their own |
//!
//! This module has the loop between them. Keys are drawn at once, news a few times a second, and at rest only the clocks: once a second.

mod input;
mod layout;
mod lives;
mod screen;
mod source;
mod state;
#[cfg(test)]
mod testing;
mod tone;
mod view;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::args::{Global, SortBy, Top};
use crate::connect::{self, Observed, Stay};
use crate::filter;
use crate::{Usage, text};
use input::Input;
use screen::Screen;
use source::Source;
use state::{Column, Effect, Filter, PodTable, Sort, State};
use view::Theme;

/// Updates that wait to be shown.
const UPDATES: usize = 64;
/// Between two frames that show news.
const FRAME: Duration = Duration::from_millis(200);
/// How often clocks are drawn.
const TICK: Duration = Duration::from_secs(1);

pub(crate) async fn run(global: &Global, args: Top, shutdown: CancellationToken) -> anyhow::Result<ExitCode> {
    check_terminal()?;
    let by = (args.mode.into(), args.witness.into());
    let find = Observed::find_by(global, &args.observe, Stay::Long, by);
    let observed = tokio::select! {
        biased;
        () = shutdown.cancelled() => return Ok(ExitCode::SUCCESS),
        observed = find => observed?.silent(),
    };
    let asked = match &observed {
        Observed::Daemon(daemon) => daemon.address().to_string(),
        Observed::Runtime(_) => connect::asked(global, &args.observe),
    };
    show(&observed, asked, &args, &shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses what cannot show a screen.
fn check_terminal() -> Result<(), Usage> {
    let instead = "To follow pods in a pipe or a file use: pleg pods -w, and for events: pleg watch";
    for (is_terminal, name) in [
        (std::io::stdout().is_terminal(), "stdout"),
        (std::io::stdin().is_terminal(), "stdin"),
    ] {
        if !is_terminal {
            return Err(Usage(format!(
                "pleg top needs a terminal, and {name} is none. {instead}"
            )));
        }
    }
    if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        return Err(Usage(format!(
            "pleg top needs a terminal that can move its cursor, and TERM is dumb. {instead}"
        )));
    }
    Ok(())
}

/// Takes the terminal until the end, whatever that is.
async fn show(observed: &Observed, asked: String, args: &Top, shutdown: &CancellationToken) -> anyhow::Result<()> {
    let (send, updates) = mpsc::channel(UPDATES);
    let (open, opened) = watch::channel(None);
    let only = filter::Filter {
        namespace: args.namespace.clone(),
        ..filter::Filter::default()
    };
    let source = tokio::select! {
        biased;
        () = shutdown.cancelled() => return Ok(()),
        source = Source::start(observed, only, send, opened) => source?,
    };
    let sort = Sort {
        by: match args.sort_by {
            SortBy::Name => Column::Name,
            SortBy::Age => Column::Age,
            SortBy::Restarts => Column::Restarts,
            SortBy::State => Column::State,
        },
        reversed: false,
    };
    let pods = PodTable::new(sort, Filter::new(args.filter.as_deref().unwrap_or_default()));
    let mut state = State::new(asked, pods, (80, 24), Timestamp::now());
    (state.zones, state.theme) = ([text::zone(), TimeZone::system()], theme());
    let panicked = CancellationToken::new();
    let screen = Screen::enter(&panicked)?;
    state.apply(Input::Resize(screen.size().0, screen.size().1));
    let mut top = Running {
        state,
        screen,
        open,
        drawn: None,
        due: Some(Instant::now()),
    };
    let ended = tokio::select! {
        biased;
        () = shutdown.cancelled() => Ok(()),
        () = panicked.cancelled() => Err(anyhow::anyhow!("a task of this command panicked: see above")),
        ended = top.run(source, updates) => ended,
    };
    top.screen.leave().await;
    ended
}

/// What this terminal can show. The other commands write UTF-8 in any case; here a wrong guess breaks every line.
fn theme() -> Theme {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let charset = set.unwrap_or_default().to_lowercase().replace('-', "");
    Theme {
        colour: anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never,
        unicode: charset.contains("utf8"),
    }
}

/// `pleg top` while it has the terminal.
struct Running {
    state: State,
    screen: Screen,
    /// Tells the source which pod is looked at.
    open: watch::Sender<Option<pleg::PodRef>>,
    /// When the last frame was drawn.
    drawn: Option<Instant>,
    /// When the next one is due, if something changed.
    due: Option<Instant>,
}

impl Running {
    async fn run(&mut self, source: Source<'_>, mut updates: mpsc::Receiver<input::Update>) -> anyhow::Result<()> {
        let mut keys = input::listen()?;
        let mut continued = signal(SignalKind::from_raw(rustix::process::Signal::CONT.as_raw()))?;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let source = source.run();
        tokio::pin!(source);
        loop {
            let due = self.due;
            tokio::select! {
                biased;
                ended = &mut source => return ended,
                key = keys.recv() => match key {
                    Some(input) => {
                        if self.input(input).await? == Effect::Quit {
                            return Ok(());
                        }
                    }
                    None => anyhow::bail!("the terminal is gone"),
                },
                drawn = frame(due, &self.screen) => {
                    drawn?;
                    self.draw()?;
                }
                Some(update) = updates.recv() => {
                    self.state.apply(Input::Update(update));
                    self.redraw_by(self.drawn.map_or_else(Instant::now, |drawn| drawn + FRAME));
                }
                _ = tick.tick() => {
                    self.state.apply(Input::Tick(Timestamp::now()));
                    self.redraw_by(Instant::now());
                }
                _ = continued.recv() => {
                    self.screen.resume().await?;
                    self.redraw_by(Instant::now());
                }
            }
        }
    }

    async fn input(&mut self, input: Input) -> anyhow::Result<Effect> {
        if matches!(input, Input::Resize(..)) {
            // What a terminal leaves on its screen then is up to it.
            self.screen.clear()?;
        }
        let effect = self.state.apply(input);
        match effect {
            Effect::None | Effect::Quit => {}
            Effect::Redraw => self.screen.clear()?,
            Effect::Suspend => {
                self.screen.suspend().await;
                // What follows happens after SIGCONT.
                rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TSTP)?;
                return Ok(effect);
            }
        }
        let opened = self.state.opened().cloned();
        self.open.send_if_modified(|open| {
            let differs = *open != opened;
            *open = opened;
            differs
        });
        self.redraw_by(Instant::now());
        Ok(effect)
    }

    /// Something changed, and has to be seen by then.
    fn redraw_by(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    fn draw(&mut self) -> anyhow::Result<()> {
        let state = &self.state;
        self.screen.draw(|buffer| view::draw(state, buffer))?;
        (self.drawn, self.due) = (Some(Instant::now()), None);
        Ok(())
    }
}

/// Waits until a frame is due and the terminal has taken the one before.
async fn frame(due: Option<Instant>, screen: &Screen) -> anyhow::Result<()> {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
    screen.ready().await
}
