//! The table of pods: only the rows that are on the screen are drawn.

use ratatui_core::style::{Modifier, Style};

use super::canvas::{Canvas, Piece};
use crate::commands::top::state::{Column, Row, State};
use crate::commands::top::tone::Tone;
use crate::text::{age, count};

/// Widths that do not follow the terminal's.
const READY: u16 = 5;
const RESTARTS: u16 = 8;
const IP: u16 = 15;
const AGE: u16 = 6;

/// Where the columns are.
struct Columns {
    name: u16,
    state: u16,
    restarts: bool,
    ip: bool,
}

impl Columns {
    fn new(width: u16) -> Self {
        let (restarts, ip) = (width >= 60, width >= 100);
        let state = match width {
            ..60 => 12,
            60..100 => 18,
            _ => 24,
        };
        let mut fixed = READY + 1 + state + 1 + AGE + 1;
        if restarts {
            fixed += RESTARTS + 1;
        }
        if ip {
            fixed += IP + 1;
        }
        Self {
            name: width.saturating_sub(fixed),
            state,
            restarts,
            ip,
        }
    }
}

/// The rule above the table: how many pods, in which order.
pub(super) fn title(state: &State) -> Vec<Piece> {
    let pods = &state.pods;
    let mut title = vec![Piece::bold("Pods", Tone::Plain)];
    if !state.listed {
        return title;
    }
    title.push(Piece::plain(format!(" {}", pods.total())));
    let not_ready = pods.not_ready();
    if not_ready > 0 {
        title.push(Piece::new(format!(", {not_ready} not ready"), Tone::Wait));
    }
    if pods.left_out() > 0 {
        title.push(Piece::new(
            format!(", {} not shown", count(pods.left_out(), "pod")),
            Tone::Bad,
        ));
    }
    if !pods.filter().is_empty() {
        title.push(Piece::plain(", "));
        title.push(Piece::bold(
            format!("/{}: {}", pods.filter().text().trim(), pods.shown()),
            Tone::Note,
        ));
    }
    let by = match pods.sort().by {
        Column::Name => "name",
        Column::Ready => "ready",
        Column::State => "state",
        Column::Restarts => "restarts",
        Column::Age => "age",
    };
    let reversed = if pods.sort().reversed { ", reversed" } else { "" };
    title.push(Piece::new(format!(", by {by}{reversed}"), Tone::Dim));
    title
}

/// The head at line `y`, and the rows below it.
pub(super) fn draw(canvas: &mut Canvas<'_>, state: &State, y: u16, height: u16) {
    let columns = Columns::new(canvas.width());
    head(canvas, state, &columns, y);
    let pods = &state.pods;
    if pods.shown() == 0 {
        let what = match () {
            () if !state.listed => "Waiting for the first list of pods.",
            () if pods.total() == 0 => "No pods.",
            () => "No pods that the filter admits. Esc takes it off.",
        };
        canvas.line(y + 1, &[Piece::new(what, Tone::Dim)]);
        return;
    }
    for (y, (pod, selected)) in (y + 1..).zip(pods.window(usize::from(height))) {
        row(canvas, state, &columns, pod, selected, y);
    }
}

fn head(canvas: &mut Canvas<'_>, state: &State, columns: &Columns, y: u16) {
    let sorted = state.pods.sort().by;
    let style = |column: Column| {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if column == sorted {
            style.add_modifier(Modifier::UNDERLINED)
        } else {
            style
        }
    };
    let mut x = 0;
    canvas.cell(x, y, columns.name, "NAMESPACE/NAME", style(Column::Name));
    x += columns.name + 1;
    canvas.cell(x, y, READY, "READY", style(Column::Ready));
    x += READY + 1;
    canvas.cell(x, y, columns.state, "STATE", style(Column::State));
    x += columns.state + 1;
    if columns.restarts {
        canvas.right(x, y, RESTARTS, "RESTARTS", style(Column::Restarts));
        x += RESTARTS + 1;
    }
    if columns.ip {
        canvas.cell(x, y, IP, "IP", Style::new().add_modifier(Modifier::BOLD));
        x += IP + 1;
    }
    canvas.right(x, y, AGE, "AGE", style(Column::Age));
}

fn row(canvas: &mut Canvas<'_>, state: &State, columns: &Columns, pod: &Row, selected: bool, y: u16) {
    let plain = if selected {
        let area = ratatui_core::layout::Rect::new(0, y, canvas.width(), 1);
        let style = Style::new().add_modifier(Modifier::REVERSED);
        canvas.buffer.set_style(area.intersection(canvas.buffer.area), style);
        style
    } else {
        Style::new()
    };
    let mut x = 0;
    canvas.cell(x, y, columns.name, &pod.full_name(), plain);
    x += columns.name + 1;
    canvas.cell(x, y, READY, &pod.ready, plain);
    x += READY + 1;
    let toned = plain.patch(canvas.theme.style(pod.tone));
    canvas.cell(x, y, columns.state, &pod.state, toned);
    x += columns.state + 1;
    if columns.restarts {
        canvas.right(x, y, RESTARTS, &pod.restarts.to_string(), plain);
        x += RESTARTS + 1;
    }
    if columns.ip {
        canvas.cell(x, y, IP, &pod.ip, plain);
        x += IP + 1;
    }
    canvas.right(x, y, AGE, &age(pod.created, state.now), plain);
}
