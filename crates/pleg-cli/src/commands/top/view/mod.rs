//! Draws a [`State`]. It only reads it, so the same state is always the same screen.

mod canvas;
mod events;
mod help;
mod pod;
mod pods;
#[cfg(test)]
mod tests;
mod troubles;

use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Modifier, Style};

use super::layout::{Layout, SMALLEST};
use super::state::{Page, State};
use super::tone::Tone;
use crate::text::columns;
use canvas::{Canvas, Piece};

pub(super) use canvas::Theme;
#[cfg(test)]
pub(super) use help::KEYS;
pub(super) use troubles::lines as trouble_lines;

/// Lines of text, each of pieces.
type Document = Vec<Vec<Piece>>;

/// The page that is read like a document and scrolled: of a pod, or of the troubles.
pub(super) fn document(state: &State) -> Document {
    match &state.page {
        Page::Pod(page) => pod::page(state, page),
        Page::Troubles(_) => troubles::page(state),
        Page::Node | Page::Events => Vec::new(),
    }
}

/// Draws everything.
pub(super) fn draw(state: &State, buffer: &mut Buffer) {
    let mut canvas = Canvas {
        buffer,
        theme: state.theme,
    };
    let (width, height) = (canvas.width(), canvas.height());
    if width < SMALLEST.0 || height < SMALLEST.1 {
        let (columns, lines) = SMALLEST;
        let text = format!("{width}x{height} is too small: pleg top needs {columns}x{lines}");
        canvas.text(0, 0, width, &text, Style::new());
        return;
    }
    if state.help {
        scrolled(&mut canvas, &help::page(), 0, 0, height);
        return;
    }
    header(&mut canvas, state);
    let layout = Layout::of(state);
    match &state.page {
        Page::Node => node(&mut canvas, state, layout),
        Page::Pod(page) => {
            canvas.rule(1, &[Piece::bold("Pod", Tone::Plain)]);
            scrolled(&mut canvas, &document(state), page.scroll, 2, layout.page);
        }
        Page::Troubles(scroll) => {
            canvas.rule(1, &[Piece::bold("Troubles", Tone::Plain)]);
            scrolled(&mut canvas, &document(state), *scroll, 2, layout.page);
        }
        Page::Events => event_page(&mut canvas, state, layout),
    }
    footer(&mut canvas, state);
}

fn header(canvas: &mut Canvas<'_>, state: &State) {
    let width = canvas.width();
    canvas.line(0, &troubles::header(state));
    // Who is asked stands on the right, if there is room.
    let asked = u16::try_from(columns(&state.asked)).unwrap_or(u16::MAX);
    let used: usize = troubles::header(state).iter().map(|piece| columns(&piece.text)).sum();
    if usize::from(asked) + used + 2 <= usize::from(width) {
        let style = canvas.theme.style(Tone::Dim);
        canvas.right(width - asked, 0, asked, &state.asked, style);
    }
}

/// Troubles, pods, events.
fn node(canvas: &mut Canvas<'_>, state: &State, layout: Layout) {
    let mut y = 1;
    let lines = trouble_lines(state);
    let room = usize::from(layout.troubles);
    for line in lines.iter().take(room) {
        canvas.line(y, line);
        y += 1;
    }
    if lines.len() > room && room > 0 {
        // The last line says that there is more.
        let more = format!("{} more lines: press t", lines.len() - room + 1);
        canvas.buffer.set_style(
            ratatui_core::layout::Rect::new(0, y - 1, canvas.width(), 1),
            Style::reset(),
        );
        blank(canvas, y - 1);
        canvas.line(y - 1, &[Piece::bold(more, Tone::Wait)]);
    }
    canvas.rule(y, &pods::title(state));
    pods::draw(canvas, state, y + 1, layout.pod_rows);
    y += 2 + layout.pod_rows;
    if layout.events > 0 {
        canvas.rule(y, &[Piece::bold("Events", Tone::Plain)]);
        events::draw(canvas, state, state.pods.filter(), y + 1, layout.events, true);
    }
}

fn event_page(canvas: &mut Canvas<'_>, state: &State, layout: Layout) {
    let mut title = vec![
        Piece::bold("Events", Tone::Plain),
        Piece::plain(format!(" {}", state.events.len())),
    ];
    if !state.pods.filter().is_empty() {
        title.push(Piece::bold(
            format!(", /{}", state.pods.filter().text().trim()),
            Tone::Note,
        ));
    }
    match state.events.back() {
        0 => {}
        newer => title.push(Piece::new(format!(", {newer} newer below: End follows"), Tone::Wait)),
    }
    canvas.rule(1, &title);
    events::draw(canvas, state, state.pods.filter(), 2, layout.page, false);
}

/// A part of a document, from line `from` on.
fn scrolled(canvas: &mut Canvas<'_>, document: &Document, from: usize, y: u16, height: u16) {
    for (y, line) in (y..y.saturating_add(height)).zip(document.iter().skip(from)) {
        canvas.line(y, line);
    }
}

fn blank(canvas: &mut Canvas<'_>, y: u16) {
    let spaces = " ".repeat(usize::from(canvas.width()));
    canvas.text(0, y, u16::MAX, &spaces, Style::reset());
}

fn footer(canvas: &mut Canvas<'_>, state: &State) {
    let y = canvas.height() - 1;
    if state.typing.is_some() {
        let x = canvas.text(0, y, canvas.width(), "/", Style::new().add_modifier(Modifier::BOLD));
        let x = canvas.text(x, y, canvas.width(), state.pods.filter().text(), Style::new());
        let x = canvas.text(x, y, 1, " ", Style::new().add_modifier(Modifier::REVERSED));
        let hint = "   Enter keeps it, Esc does not";
        if usize::from(x) + hint.len() <= usize::from(canvas.width()) {
            let style = canvas.theme.style(Tone::Dim);
            canvas.text(x, y, canvas.width(), hint, style);
        }
        return;
    }
    let keys: &[(&str, &str)] = match state.page {
        Page::Node => &[
            ("Enter", "pod"),
            ("/", "filter"),
            ("n y s r a", "sort"),
            ("t", "troubles"),
            ("e", "events"),
            ("?", "help"),
            ("q", "quit"),
        ],
        Page::Pod(_) => &[("Up Down", "scroll"), ("+ -", "zoom"), ("q", "back"), ("?", "help")],
        Page::Troubles(_) => &[("Up Down", "scroll"), ("q", "back"), ("?", "help")],
        Page::Events => &[
            ("Up Down", "scroll"),
            ("End", "follow"),
            ("/", "filter"),
            ("q", "back"),
            ("?", "help"),
        ],
    };
    let mut pieces = Vec::new();
    for (key, what) in keys {
        pieces.push(Piece::bold(*key, Tone::Note));
        pieces.push(Piece::plain(format!(" {what}  ")));
    }
    canvas.line(y, &pieces);
}
