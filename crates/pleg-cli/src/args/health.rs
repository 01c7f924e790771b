//! `pleg health` and `pleg doctor`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{Format, Observe, TextFormat};
use crate::address::DaemonAddress;
use crate::text::parse_duration;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg health
  pleg health -o json | jq -r .level
  pleg health -r unix:///run/containerd/containerd.sock -t 2s || echo the node is unhealthy
  pleg health --fail-on degraded,not-ready

The exit code is 1 if unhealthy, or in a state named by --fail-on. For Degraded (a pod in quarantine) it
is 0 by default: the node works.")]
pub(crate) struct Health {
    #[command(flatten)]
    pub(crate) observe: Observe,
    /// Exit with 1 in this state: unhealthy, degraded (or worse), not-ready; separate several by commas
    #[arg(long, value_name = "STATE", value_delimiter = ',', default_value = "unhealthy")]
    pub(crate) fail_on: Vec<FailOn>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: TextFormat,
}

/// What makes `pleg health` end with 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailOn {
    Unhealthy,
    Degraded,
    NotReady,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg doctor
  pleg doctor -o wide
  pleg doctor -o json | jq -r '.findings[].trouble'
  pleg doctor -r unix:///run/crio/crio.sock --budget 15s || echo something is broken

Calls everything once: version, status, both lists, the status of every container and sandbox, and
the shim of every ready sandbox. It only reads. --timeout is the deadline of one call [default: 5s
for a list, 2s for a status]. The exit code is 1 if a finding is critical.")]
pub(crate) struct Doctor {
    /// Finish within this time, at least 10s; the report lists what did not fit
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_budget)]
    pub(crate) budget: Duration,
    /// Subscribe to the runtime's events for 3s. This consumes events that it holds for its next subscriber;
    /// refused on runtimes that deliver each event to one subscriber only
    #[arg(long)]
    pub(crate) events: bool,
    /// Ask the daemon at this address for the ids of containers if the runtime does not list them
    /// [default: $PLEG_DAEMON, else /run/pleg/pleg.sock or $XDG_RUNTIME_DIR/pleg.sock]
    #[arg(long, value_name = "ADDRESS", value_parser = DaemonAddress::parse)]
    pub(crate) daemon: Option<DaemonAddress>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Format,
}

fn parse_budget(text: &str) -> Result<Duration, String> {
    let budget = parse_duration(text)?;
    if !(Duration::from_secs(10)..=Duration::from_mins(10)).contains(&budget) {
        return Err("a duration from 10s to 10m".to_owned());
    }
    Ok(budget)
}
