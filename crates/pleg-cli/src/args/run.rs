//! `pleg run`, and the flags of every command that has a generator.

use std::time::Duration;

use clap::{Args, ValueEnum};
use pleg::{Mode, WitnessMode};

use super::{HistoryFileArgs, ReportArgs};
use crate::listen::ListenArgs;
use crate::text::{parse_duration, parse_duration_or_zero};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg run
  pleg run -r unix:///run/crio/crio.sock --listen-tcp localhost:10255
  pleg run --listen-group adm
  pleg run --history-size 1GiB --history-age 30d
  pleg run --report-to-cluster --kubeconfig /etc/pleg/kubeconfig
  curl --unix-socket /run/pleg/pleg.sock http://localhost/readyz?verbose
  curl -N --unix-socket /run/pleg/pleg.sock 'http://localhost/api/v1/events?follow'")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) listen: ListenArgs,
    #[command(flatten)]
    pub(crate) generator: GeneratorArgs,
    #[command(flatten)]
    pub(crate) history: HistoryFileArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// How changes are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    Generic,
    Evented,
    Auto,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Generic => Self::Generic,
            ModeArg::Evented => Self::Evented,
            ModeArg::Auto => Self::Auto,
        }
    }
}

/// Whether the kernel is used as a witness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WitnessArg {
    Auto,
    Off,
}

impl From<WitnessArg> for WitnessMode {
    fn from(witness: WitnessArg) -> Self {
        match witness {
            WitnessArg::Auto => Self::Auto,
            WitnessArg::Off => Self::Off,
        }
    }
}

/// How the generator behaves.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Generator")]
pub(crate) struct GeneratorArgs {
    /// How changes are found: by relisting (generic), by the runtime's events and occasional full relists (evented), or by
    /// events if the runtime has them and no kubelet on the node would lose any (auto)
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub(crate) mode: ModeArg,
    /// Watch the processes and cgroups of containers in the kernel, where they can be seen (auto), or not at all (off). Changes are
    /// then found at once on every runtime, and full relists become as rare as with events
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub(crate) witness: WitnessArg,
    /// Pause from the end of one full relist to the start of the next; with events or a witness, the shortest such pause
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub(crate) period: Duration,
    /// Longest pause between full relists while events or the witness are trusted: at most 5m, and half of --threshold [default: 60s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) max_period: Option<Duration>,
    /// Report Unhealthy without a complete relist for this long
    #[arg(long, value_name = "DURATION", default_value = "3m", value_parser = parse_duration)]
    pub(crate) threshold: Duration,
    /// Deadline of a list [default: 2m, or --timeout]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) list_timeout: Option<Duration>,
    /// Deadline of the status of one container or sandbox [default: 10s, or --timeout]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) inspect_timeout: Option<Duration>,
    /// After this long without an answer to a list, inspect known objects by id meanwhile
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub(crate) list_patience: Duration,
    /// Probe the shim and one container of every pod once in this time, at most four pods per second; 0s: never
    #[arg(long, value_name = "DURATION", default_value = "45s", value_parser = parse_duration_or_zero)]
    pub(crate) probe_round: Duration,
    /// Number of events kept for readers that fall behind or reconnect
    #[arg(long, value_name = "EVENTS", default_value_t = 16_384, value_parser = parse_capacity)]
    pub(crate) feed_capacity: usize,
    /// How far back the flight recorder reaches, for `pleg debug bundle`
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    pub(crate) recorder_window: Duration,
    /// Memory limit of the flight recorder in MiB; 0 disables it
    #[arg(long, value_name = "MIB", default_value_t = 4, value_parser = parse_mib)]
    pub(crate) recorder_mib: usize,
}

fn parse_capacity(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=10_000_000) => Ok(n),
        _ => Err("a number from 1 to 10000000".to_owned()),
    }
}

fn parse_mib(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 0..=1024) => Ok(n),
        _ => Err("a number from 0 to 1024".to_owned()),
    }
}
