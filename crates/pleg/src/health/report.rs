//! The health at one moment, and how it is put into words.

use std::fmt::Write as _;
use std::time::Duration;

use pleg_cri::duration::seconds;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::cause::Cause;
use super::ended::Ended;
use super::warning::Warning;
use super::{Health, causes, checks};
use crate::evented::ModeReport;
use crate::records::snapshot::Oddities;

/// Causes beyond this many are counted, not listed.
const MOST_CAUSES: usize = 20;

/// How well the generator does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// All is seen.
    Healthy,
    /// Something is not seen; the node still works.
    Degraded,
    /// No complete relist within the threshold, or the generator has ended: nothing is known any more.
    Unhealthy,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Healthy => "Healthy",
            Self::Degraded => "Degraded",
            Self::Unhealthy => "Unhealthy",
        })
    }
}

/// The health at one moment. Its JSON is that of the HTTP API.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// How well.
    pub level: Level,
    /// How well, in a few words; in the kubelet's where they are its own.
    pub headline: String,
    /// The headline and the first cause with its meaning and the next step: the text that log, event and node condition have.
    pub message: String,
    /// Why the level is not Healthy: by stage, and within a stage the longest-standing first.
    pub causes: Vec<Cause>,
    /// Causes that are not listed because there are too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_causes: usize,
    /// What may become a trouble, though it is none to us: list sizes, dead containers, slow calls.
    pub warnings: Vec<Warning>,
    /// Seconds since the last complete relist; none before the first.
    pub last_seen_seconds: Option<f64>,
    /// The threshold, in seconds.
    pub threshold_seconds: u64,
    /// How changes are found.
    pub mode: ModeReport,
    /// Relists completed so far.
    #[serde(rename = "looks")]
    pub relists: u64,
    /// What made no sense in the last complete relist. Never a reason for not being healthy.
    pub odd_objects: Oddities,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Health {
    /// The health now.
    pub fn report(&self) -> Report {
        let mut report = self.report_in_full();
        report.more_causes = checks::shorten(&mut report.causes, MOST_CAUSES);
        report
    }

    /// The same with every cause, however many there are: for callers that look for the causes of single pods.
    pub fn report_in_full(&self) -> Report {
        let state = self.shared.lock();
        let now = Instant::now();
        let age = |since: Instant| now.saturating_duration_since(since);
        let last_seen = state.last_complete.map(age);

        let ended = state.ended;
        let mut causes = match ended {
            Some(ended) => vec![ended.cause(&state, now, self.endpoint.as_deref())],
            None => causes::collect(&state, self.inflight.calls(), now, self.endpoint.as_deref()),
        };
        let (relists, odd_objects, load) = (state.relists, state.odd, state.load);
        let mut mode = state.mode.clone();
        drop(state);
        if ended.is_some() {
            // The state of the event stream does not matter any more.
            mode.reason = "the generator has ended".into();
        }
        // Of the same age, by name: the order does not depend on ids.
        causes.sort_by(|a, b| {
            let by = |cause: &Cause| (cause.stage, std::cmp::Reverse(cause.age_seconds));
            let names = |cause: &Cause| (cause.who.pod.clone(), cause.who.container.clone());
            by(a).cmp(&by(b)).then_with(|| names(a).cmp(&names(b)))
        });

        let level = match last_seen {
            _ if ended.is_some() => Level::Unhealthy,
            None => Level::Unhealthy,
            Some(age) if age > self.threshold => Level::Unhealthy,
            Some(_) if !causes.is_empty() => Level::Degraded,
            Some(_) => Level::Healthy,
        };
        let headline = ended.map_or_else(|| self.headline(level, last_seen), Ended::headline);
        let message = message(&headline, &causes);
        Report {
            level,
            headline,
            message,
            causes,
            more_causes: 0,
            warnings: load.warnings(self.endpoint.as_deref()),
            last_seen_seconds: last_seen.map(|age| (age.as_secs_f64() * 1e3).round() / 1e3),
            threshold_seconds: self.threshold.as_secs(),
            mode,
            relists,
            odd_objects,
        }
    }

    fn headline(&self, level: Level, last_seen: Option<Duration>) -> String {
        match (level, last_seen) {
            (Level::Healthy, _) => "PLEG is healthy".to_owned(),
            (Level::Degraded, _) => "PLEG is degraded".to_owned(),
            (Level::Unhealthy, None) => "PLEG is not healthy: pleg has yet to be successful".to_owned(),
            (Level::Unhealthy, Some(age)) => format!(
                "PLEG is not healthy: pleg was last seen active {} ago; threshold is {}",
                seconds(Duration::from_secs(age.as_secs())),
                seconds(self.threshold)
            ),
        }
    }
}

fn message(headline: &str, causes: &[Cause]) -> String {
    let mut message = headline.to_owned();
    // Writing to a string cannot fail.
    if let Some(first) = causes.first() {
        let _ = write!(message, ": {}", first.full());
    }
    if causes.len() > 1 {
        let _ = write!(message, " And {} more.", causes.len() - 1);
    }
    message
}
