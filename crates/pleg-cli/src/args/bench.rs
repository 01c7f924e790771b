//! `pleg bench`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::PlainFormat;
use crate::text::parse_duration_or_zero;

#[derive(Debug, Args)]
#[command(
    after_help = "\
Examples:
  pleg bench -r unix:///run/containerd/containerd.sock
  pleg bench --relists 100 -o json | jq .cpu_ratio
  pleg bench --every 1s --statuses
  pleg bench node                                  What pleg node adds to the runtime's own work

A relist lists all sandboxes and containers and compares them with the records. The floor requests
the same lists on the same connection and discards the bytes. The two alternate.",
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) what: Option<BenchWhat>,
    /// Number of relists to measure
    #[arg(long = "relists", alias = "looks", value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) relists: u32,
    /// Wait this long before each relist and each floor, as a generator does, so that CPU caches are cold
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration_or_zero)]
    pub(crate) every: Duration,
    /// Also request the status of every sandbox and container once, 64 at a time, and discard the answers
    #[arg(long)]
    pub(crate) statuses: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: PlainFormat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchWhat {
    /// Measure what pleg node adds to the cost of the runtime: starts, crashes, edits, removals, adoption, idle time
    Node(crate::commands::bench::node::NodeBench),
}
