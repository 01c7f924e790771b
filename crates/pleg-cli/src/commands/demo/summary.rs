//! What there was to see, at the end of a demonstration.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pleg::{Event, Report};
use pleg_sim::StatsSnapshot;
use serde::Serialize;

use crate::output::{BOLD, PLAIN};
use crate::text::{count, lag};

/// Lags that are kept; a demonstration without end forgets the oldest half now and then.
const MOST_LAGS: usize = 100_000;

/// What is counted on the way.
#[derive(Debug, Default)]
pub(super) struct Summary {
    events: BTreeMap<&'static str, u64>,
    initial: u64,
    lags: Vec<f64>,
}

/// What is told at the end.
#[derive(Debug, Serialize)]
pub(super) struct Told {
    events: u64,
    initial: u64,
    events_by_type: BTreeMap<&'static str, u64>,
    pods: usize,
    #[serde(rename = "looks")]
    relists: u64,
    lag_seconds_p50: Option<f64>,
    lag_seconds_p99: Option<f64>,
    lag_seconds_worst: Option<f64>,
    health: String,
    message: String,
    runtime_calls: BTreeMap<String, u64>,
    most_calls_in_flight: u64,
}

impl Summary {
    pub(super) fn count(&mut self, event: &Event) {
        *self.events.entry(event.kind.name()).or_default() += 1;
        self.initial += u64::from(event.initial);
        if let Some(lag) = event.lag {
            if self.lags.len() >= MOST_LAGS {
                self.lags.drain(..MOST_LAGS / 2);
            }
            self.lags.push(lag.as_secs_f64());
        }
    }

    pub(super) fn events(&self) -> u64 {
        self.events.values().sum()
    }

    pub(super) fn close(&mut self, report: &Report, calls: &StatsSnapshot, pods: usize) -> Told {
        self.lags.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let last = self.lags.len().checked_sub(1)?;
            self.lags.get((self.lags.len() * percent / 100).min(last)).copied()
        };
        Told {
            events: self.events(),
            initial: self.initial,
            events_by_type: self.events.clone(),
            pods,
            relists: report.relists,
            lag_seconds_p50: at(50),
            lag_seconds_p99: at(99),
            lag_seconds_worst: at(100),
            health: report.level.to_string(),
            message: report.message.clone(),
            runtime_calls: calls.rpcs.iter().map(|(name, rpc)| (name.clone(), rpc.calls)).collect(),
            most_calls_in_flight: calls.total.most_in_flight,
        }
    }
}

/// The end, in words.
pub(super) fn text(told: &Told) -> String {
    let mut text = format!("\n{BOLD}Summary{PLAIN}\n");
    let types: Vec<_> = told
        .events_by_type
        .iter()
        .map(|(kind, n)| format!("{kind} {n}"))
        .collect();
    let _ = writeln!(text, "  events   {} ({} of them initial)", told.events, told.initial);
    for line in types.chunks(4) {
        let _ = writeln!(text, "           {}", line.join(", "));
    }
    let of = |seconds: Option<f64>| seconds.map_or("-".to_owned(), lag);
    let _ = writeln!(
        text,
        "  lag      median {}, 99th {}, worst {} (from the runtime's timestamp of a change to the event)",
        of(told.lag_seconds_p50),
        of(told.lag_seconds_p99),
        of(told.lag_seconds_worst)
    );
    let _ = writeln!(text, "  relists  {} at {}", told.relists, count(told.pods, "pod"));
    let calls: Vec<_> = told.runtime_calls.iter().map(|(rpc, n)| format!("{rpc} {n}")).collect();
    let _ = writeln!(text, "  calls    at most {} at once:", told.most_calls_in_flight);
    for line in calls.chunks(3) {
        let _ = writeln!(text, "           {}", line.join(", "));
    }
    let _ = write!(text, "  health   {}: {}", told.health, told.message);
    text
}
