//! Columns, as kubectl aligns them.

use std::fmt::Write as _;

use super::PLAIN;

/// One cell: text, and the colour it has.
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

/// Rows under a head; each column is as wide as its widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self {
            rows: vec![head.iter().map(|&text| text.into()).collect()],
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            for (n, cell) in row.iter().enumerate() {
                let last = n + 1 == row.len();
                let pad = if last {
                    0
                } else {
                    widths[n] - cell.text.chars().count() + 3
                };
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
