//! The only place that writes to stdout, but for the screen of `pleg top`.
//!
//! Colours are printed only on a terminal (anstream), and a closed stdout ends the command without an error.

pub(crate) mod container;
pub(crate) mod event;
pub(crate) mod explanation;
pub(crate) mod health;
pub(crate) mod history;
pub(crate) mod kube;
pub(crate) mod kubelet;
pub(crate) mod lines;
pub(crate) mod node_report;
pub(crate) mod pod;
pub(crate) mod table;

use std::io::{self, Write as _};

use serde::Serialize;

pub(crate) const RED: &str = "\x1b[31m";
pub(crate) const GREEN: &str = "\x1b[32m";
pub(crate) const YELLOW: &str = "\x1b[33m";
pub(crate) const CYAN: &str = "\x1b[36m";
pub(crate) const DIM: &str = "\x1b[2m";
pub(crate) const BOLD: &str = "\x1b[1m";
pub(crate) const PLAIN: &str = "\x1b[0m";

/// The columns of the terminal; none if stdout is none.
pub(crate) fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Stdout is closed.
#[derive(Debug)]
pub(crate) struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stdout is closed")
    }
}

impl std::error::Error for Closed {}

/// The error of a write to stdout: [`Closed`] if the reader is gone.
pub(crate) fn write_error(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Closed.into()
    } else {
        anyhow::Error::from(error).context("cannot write to stdout")
    }
}

/// Prints a whole answer.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = anstream::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(write_error)
}

/// Prints an answer as indented JSON.
pub(crate) fn print_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    print(&text)
}

/// Prints an answer as YAML.
pub(crate) fn print_yaml<T: Serialize>(value: &T) -> anyhow::Result<()> {
    print(&serde_saphyr::to_string(value)?)
}
