//! `pleg demo`.

use std::time::Duration;

use clap::Args;

use super::PlainFormat;
use crate::text::parse_duration_or_zero;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg demo
  pleg demo --pods 500 --churn 50 --for 1m
  pleg demo --for 0                   Until Ctrl-C
  pleg demo -o json | tail -1 | jq .summary

The runtime is simulated, on its own socket; nothing on this machine is inspected. Halfway through, it
stops answering for one container: that container is named and quarantined, all others are unaffected.")]
pub(crate) struct Demo {
    /// Exit after this time; 0 for never
    #[arg(long = "for", value_name = "DURATION", default_value = "20s", value_parser = parse_duration_or_zero)]
    pub(crate) duration: Duration,
    /// Number of pods, with two containers each
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = parse_pods)]
    pub(crate) pods: usize,
    /// Changes per second
    #[arg(long, value_name = "RATE", default_value_t = 4.0, value_parser = parse_rate)]
    pub(crate) churn: f64,
    /// The same seed makes the same node
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Output format; json has one event per line, and a summary at the end
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: PlainFormat,
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
