//! Puts text into the buffer of the screen. Nothing else does, so nothing reaches the terminal that is not made safe here.

use std::borrow::Cow;

use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Color, Modifier, Style};
use unicode_segmentation::UnicodeSegmentation as _;
use unicode_width::UnicodeWidthChar as _;

use crate::commands::top::tone::Tone;
use crate::text::{columns, shorten_with};

/// What the terminal can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Theme {
    /// Colours; without them, only bold and inverse text.
    pub(crate) colour: bool,
    /// Characters beyond ASCII.
    pub(crate) unicode: bool,
}

impl Theme {
    pub(super) fn style(self, tone: Tone) -> Style {
        if !self.colour {
            return Style::new();
        }
        match tone {
            Tone::Plain => Style::new(),
            Tone::Dim => Style::new().add_modifier(Modifier::DIM),
            Tone::Good => Style::new().fg(Color::Green),
            Tone::Note => Style::new().fg(Color::Cyan),
            Tone::Wait => Style::new().fg(Color::Yellow),
            Tone::Bad => Style::new().fg(Color::Red),
        }
    }

    /// One of two characters for the same thing.
    pub(super) fn glyph(self, unicode: char, ascii: char) -> char {
        if self.unicode { unicode } else { ascii }
    }
}

/// Text in one style.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(super) text: String,
    pub(super) tone: Tone,
    pub(super) bold: bool,
}

impl Piece {
    pub(super) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self {
            text: text.into(),
            tone,
            bold: false,
        }
    }

    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self::new(text, Tone::Plain)
    }

    pub(super) fn bold(text: impl Into<String>, tone: Tone) -> Self {
        Self {
            bold: true,
            ..Self::new(text, tone)
        }
    }
}

/// The screen, while it is drawn.
pub(super) struct Canvas<'a> {
    pub(super) buffer: &'a mut Buffer,
    pub(super) theme: Theme,
}

impl Canvas<'_> {
    pub(super) fn width(&self) -> u16 {
        self.buffer.area.width
    }

    pub(super) fn height(&self) -> u16 {
        self.buffer.area.height
    }

    /// Writes up to `width` columns; returns where it ended.
    pub(super) fn text(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
        if y >= self.height() || x >= self.width() {
            return x;
        }
        let text = safe(text, self.theme.unicode);
        self.buffer.set_stringn(x, y, text, usize::from(width), style).0
    }

    /// Writes a cell of a table: text that is too long is shortened in the middle.
    pub(super) fn cell(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) {
        let text = safe(text, self.theme.unicode);
        let room = usize::from(width);
        if columns(&text) > room {
            let short = shorten_with(&text, room, self.theme.glyph('…', '~'));
            self.text(x, y, width, &short, style);
        } else {
            self.text(x, y, width, &text, style);
        }
    }

    /// The same, at the right edge of the cell.
    pub(super) fn right(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) {
        let text = safe(text, self.theme.unicode);
        let used = u16::try_from(columns(&text)).unwrap_or(u16::MAX).min(width);
        self.cell(x + (width - used), y, used, &text, style);
    }

    /// Writes a line; what does not fit is cut at the end, and a mark says so.
    pub(super) fn line(&mut self, y: u16, pieces: &[Piece]) {
        let (mut x, end) = (0, self.width());
        let texts: Vec<Cow<'_, str>> = pieces
            .iter()
            .map(|piece| safe(&piece.text, self.theme.unicode))
            .collect();
        let cut = texts.iter().map(|text| columns(text)).sum::<usize>() > usize::from(end);
        let last = if cut { end.saturating_sub(1) } else { end };
        for (piece, text) in pieces.iter().zip(&texts) {
            let style = self.style(piece);
            x = self.text(x, y, last.saturating_sub(x), text, style);
        }
        if cut {
            let mark = self.theme.glyph('…', '~').to_string();
            self.text(last, y, 1, &mark, Style::new());
        }
    }

    pub(super) fn style(&self, piece: &Piece) -> Style {
        let style = self.theme.style(piece.tone);
        if piece.bold {
            style.add_modifier(Modifier::BOLD)
        } else {
            style
        }
    }

    /// A rule with a title in it.
    pub(super) fn rule(&mut self, y: u16, title: &[Piece]) {
        let dash = self.theme.glyph('─', '-');
        let width = usize::from(self.width());
        let mut pieces = vec![Piece::new(format!("{dash}{dash} "), Tone::Dim)];
        pieces.extend_from_slice(title);
        pieces.push(Piece::plain(" "));
        let used: usize = pieces.iter().map(|piece| columns(&piece.text)).sum();
        pieces.push(Piece::new(
            dash.to_string().repeat(width.saturating_sub(used)),
            Tone::Dim,
        ));
        self.line(y, &pieces);
    }
}

/// Text whose columns every terminal counts in the same way. Characters that move the cursor, have no width, or change the one before them
/// are escaped.
pub(super) fn safe(text: &str, unicode: bool) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for cluster in text.graphemes(true) {
        let mut chars = cluster.chars();
        match (chars.next(), chars.next()) {
            (Some(c @ ' '..='~'), None) => safe.push(c),
            (Some(c), None) if unicode && has_width(c) => safe.push(c),
            _ => safe.extend(cluster.chars().flat_map(char::escape_default)),
        }
    }
    Cow::Owned(safe)
}

/// A cell of a line: safe text in exactly `width` columns, shortened in the middle if it is too long.
pub(super) fn fit(text: &str, width: usize, theme: Theme) -> String {
    let text = shorten_with(&safe(text, theme.unicode), width, theme.glyph('…', '~'));
    let pad = width.saturating_sub(columns(&text));
    format!("{text}{:pad$}", "")
}

fn has_width(c: char) -> bool {
    // Halves of flags, and colours of skin: terminals differ on what they make of them.
    let joins = matches!(c, '\u{1f1e6}'..='\u{1f1ff}' | '\u{1f3fb}'..='\u{1f3ff}');
    // A soft hyphen has a width, or not.
    let vague = matches!(c, '\u{ad}');
    !c.is_control() && !joins && !vague && matches!(c.width(), Some(1 | 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_certain_width_is_escaped() {
        for (text, unicode, ascii) in [
            ("web-0", "web-0", "web-0"),
            ("a\u{1b}[2Jb", "a\\u{1b}[2Jb", "a\\u{1b}[2Jb"),
            ("a\nb\tc\r", "a\\nb\\tc\\r", "a\\nb\\tc\\r"),
            ("\u{9b}31m", "\\u{9b}31m", "\\u{9b}31m"),
            ("e\u{301}", "e\\u{301}", "e\\u{301}"),
            ("日本", "日本", "\\u{65e5}\\u{672c}"),
            ("\u{202e}gnp", "\\u{202e}gnp", "\\u{202e}gnp"),
            ("\u{1f1e9}\u{1f1ea}", "\\u{1f1e9}\\u{1f1ea}", "\\u{1f1e9}\\u{1f1ea}"),
            ("a\u{200d}b\u{feff}", "a\\u{200d}b\\u{feff}", "a\\u{200d}b\\u{feff}"),
        ] {
            assert_eq!(safe(text, true), unicode);
            assert_eq!(safe(text, false), ascii);
        }
    }
}
