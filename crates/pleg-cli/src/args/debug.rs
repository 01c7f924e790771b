//! `pleg debug`: data for a bug report.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Observe, TextFormat};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  pleg debug bundle                        What the daemon has seen, in one file
  pleg debug replay pleg-bundle-….tar.gz   Do its lists give the same events again?")]
pub(crate) enum Debug {
    /// Write the data for a bug report into one tar.gz
    Bundle(Bundle),
    /// Feed the lists of a bundle through the generator again and compare the events
    Replay(Replay),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg debug bundle
  pleg debug bundle -o /tmp/node-7.tar.gz
  pleg debug bundle -o - | tar tz

It contains the flight recorder of the last minutes, health, node conditions, metrics, calls in
flight, versions and settings: names and ids of pods and containers, and error messages of the
runtime. It contains no labels, annotations, environment variables, logs or secrets.")]
pub(crate) struct Bundle {
    #[command(flatten)]
    pub(crate) observe: Observe,
    /// Output file; - for stdout [default: pleg-bundle-TIME.tar.gz in the current directory]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg debug replay pleg-bundle-20261116T011500Z.tar.gz
  pleg debug replay bundle.tar.gz -o json | jq .same

The exit code is 1 if an event differs. No runtime and no daemon is contacted.")]
pub(crate) struct Replay {
    /// A file written by `pleg debug bundle`, or its recorder.jsonl
    #[arg(value_name = "BUNDLE")]
    pub(crate) bundle: PathBuf,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: TextFormat,
}
