//! Columns, as kubectl aligns them.

use std::fmt::Write as _;

use super::PLAIN;
use crate::text::columns;

/// One cell: text and colour.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    colour: &'static str,
}

impl Cell {
    pub(crate) fn coloured(text: impl Into<String>, colour: &'static str) -> Self {
        Self {
            text: text.into(),
            colour,
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::coloured(text, "")
    }
}

/// Rows under a header; each column is as wide as its widest cell.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self {
            rows: vec![head.iter().map(|&text| text.into()).collect()],
        }
    }

    /// Rows without a header, for programs.
    pub(crate) fn without_head() -> Self {
        Self::default()
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub(crate) fn render(&self) -> String {
        self.render_under(&mut Vec::new())
    }

    /// The same, below earlier rows with these widths, which grow where a cell needs more.
    pub(crate) fn render_under(&self, widths: &mut Vec<usize>) -> String {
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(columns(&cell.text));
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            for (n, cell) in row.iter().enumerate() {
                let last = n + 1 == row.len();
                let pad = if last { 0 } else { widths[n] - columns(&cell.text) + 3 };
                if cell.colour.is_empty() {
                    text.push_str(&cell.text);
                } else {
                    let _ = write!(text, "{}{}{PLAIN}", cell.colour, cell.text);
                }
                text.extend(std::iter::repeat_n(' ', pad));
            }
            text.push('\n');
        }
        text
    }
}
