//! `pleg demo`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::PlainFormat;
use crate::address::parse_listen_tcp;
use crate::text::parse_duration_or_zero;

/// Unless `--for` says otherwise.
const LENGTH: Duration = Duration::from_secs(20);
/// Changes per second, unless `--churn` says otherwise.
const CHURN: f64 = 4.0;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg demo
  pleg demo --pods 500 --churn 50 --for 1m
  pleg demo --for 0                   Until Ctrl-C
  pleg demo -o json | tail -1 | jq .summary
  pleg demo --web                     In a browser, with a few hours of past

The runtime is simulated, on its own socket; nothing on this machine is inspected. Halfway through, it
stops answering for one container: that container is named and quarantined, all others are unaffected.")]
pub(crate) struct Demo {
    /// Serve the web pages of the simulated node and print their URL; ADDRESS is a loopback address [default: a free port]
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "127.0.0.1:0",
        value_parser = parse_listen_tcp
    )]
    pub(crate) web: Option<SocketAddr>,
    /// Exit after this time; 0 for never [default: 20s, with --web 0]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration_or_zero)]
    duration: Option<Duration>,
    /// Number of pods, with two containers each
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = parse_pods)]
    pub(crate) pods: usize,
    /// Changes per second [default: 4; with --web 0, where pods change by themselves]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    churn: Option<f64>,
    /// The same seed makes the same node
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Output format; json has one event per line, and a summary at the end
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: PlainFormat,
}

impl Demo {
    /// Its length; zero is without end.
    pub(crate) fn duration(&self) -> Duration {
        let default = if self.web.is_some() { Duration::ZERO } else { LENGTH };
        self.duration.unwrap_or(default)
    }

    /// Changes per second.
    pub(crate) fn churn(&self) -> f64 {
        self.churn.unwrap_or(if self.web.is_some() { 0.0 } else { CHURN })
    }
}

fn parse_pods(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=20_000) => Ok(n),
        _ => Err("a number from 1 to 20000".to_owned()),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.0..=10_000.0).contains(&rate) => Ok(rate),
        _ => Err("a number from 0 to 10000".to_owned()),
    }
}
