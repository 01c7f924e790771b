//! Events, in a part of the screen or on all of it.

use super::canvas::{Canvas, Piece, fit};
use crate::commands::top::state::{Filter, State};
use crate::commands::top::tone::Tone;
use crate::output::event::{Words, colour, missed};
use crate::text::{clock, columns};
use crate::wire::{Event, Line};

/// The type of an event, and the lag.
const TYPE: usize = 17;
const LAG: usize = 5;
const EXIT: usize = 4;
/// What a pod's name has at least, before columns are left out.
const POD: usize = 18;

/// The widths of the columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    time: usize,
    /// None on the page of one pod.
    pod: Option<usize>,
    container: usize,
    exit: bool,
    reason: usize,
    lag: bool,
}

impl Columns {
    pub(super) fn new(width: usize, time: usize, pod: bool) -> Self {
        let mut columns = Self {
            time,
            pod: None,
            container: 10,
            exit: true,
            reason: 10,
            lag: true,
        };
        let fixed = |of: &Self| {
            let exit = if of.exit { EXIT + 1 } else { 0 };
            let lag = if of.lag { LAG + 1 } else { 0 };
            of.time + 1 + TYPE + 1 + of.container + 1 + exit + of.reason + lag
        };
        let needed = if pod { POD + 1 } else { 0 };
        if fixed(&columns) + needed > width {
            columns.lag = false;
        }
        if fixed(&columns) + needed > width {
            columns.exit = false;
        }
        let mut room = width.saturating_sub(fixed(&columns) + needed);
        let more = (room / 4).min(20);
        columns.container += more;
        columns.reason += more;
        room -= 2 * more;
        columns.pod = pod.then(|| POD + room);
        columns
    }
}

/// The columns of the times of these events: those of other days have a date.
pub(super) fn time_width<'a>(state: &State, lines: impl IntoIterator<Item = &'a Event>) -> usize {
    lines
        .into_iter()
        .map(|event| columns(&time(state, event)))
        .max()
        .unwrap_or_default()
        .max(8)
}

fn time(state: &State, event: &Event) -> String {
    let [zone, local] = &state.zones;
    clock(event.time, state.now, zone, local)
}

/// One event.
pub(super) fn event(state: &State, event: &Event, widths: Columns) -> Vec<Piece> {
    let words = Words::of(event, false);
    let cell = |text: &str, width: usize| fit(text, width, state.theme) + " ";
    let mut pieces = vec![
        Piece::plain(cell(&time(state, event), widths.time)),
        Piece::new(cell(&event.kind, TYPE), Tone::of(colour(&event.kind))),
    ];
    if event.pod.is_none() {
        // An event about the generator.
        let sentence = if words.sentence.is_empty() {
            words.reason
        } else {
            words.sentence
        };
        pieces.push(Piece::plain(sentence));
        return pieces;
    }
    if let Some(width) = widths.pod {
        pieces.push(Piece::plain(cell(&words.pod, width)));
    }
    pieces.push(Piece::plain(cell(&words.container, widths.container)));
    if !words.sentence.is_empty() {
        pieces.push(Piece::plain(words.sentence));
        return pieces;
    }
    if widths.exit {
        pieces.push(Piece::plain(cell(&words.exit, EXIT)));
    }
    pieces.push(Piece::plain(cell(&words.reason, widths.reason)));
    if widths.lag {
        pieces.push(Piece::new(words.lag, Tone::Dim));
    }
    pieces
}

/// The newest events in `height` lines from `y` on; on their own page, those of its window.
pub(super) fn draw(canvas: &mut Canvas<'_>, state: &State, filter: &Filter, y: u16, height: u16, follow: bool) {
    let lines = state.events.window(filter, usize::from(height), follow);
    if lines.is_empty() {
        let what = if state.events.len() == 0 {
            "No events yet."
        } else {
            "No events that the filter admits."
        };
        canvas.line(y, &[Piece::new(what, Tone::Dim)]);
        return;
    }
    let events = lines.iter().filter_map(|line| match line {
        Line::Event(event) => Some(&**event),
        Line::Gap(_) | Line::Heartbeat(_) => None,
    });
    let widths = Columns::new(usize::from(canvas.width()), time_width(state, events), true);
    for (y, line) in (y..).zip(lines) {
        match line {
            Line::Event(event) => canvas.line(y, &self::event(state, event, widths)),
            Line::Gap(gap) => canvas.line(y, &[Piece::new(format!("--- {} ---", missed(gap)), Tone::Wait)]),
            Line::Heartbeat(_) => {}
        }
    }
}
