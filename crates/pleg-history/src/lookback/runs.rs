//! Runs of the daemon, and how long the node was healthy in them.
//!
//! Health is known from the first note of a run to its end. Where the end of a run was not written, it is the time of its last entry; what
//! lies between two runs is not known.

use jiff::Timestamp;
use pleg::{InstanceId, Level};
use serde::{Deserialize, Serialize};

use super::{between, rounded, seconds_between};
use crate::entry::{Entry, HealthChanged, What};

/// Runs and spans that are kept: the newest.
const KEPT: usize = 500;

/// A run of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Run {
    /// The generator, as cursors have it.
    pub instance: InstanceId,
    /// The daemon's version, where the history has its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its start, or its first entry in the window.
    pub from: Timestamp,
    /// Its end, or its last entry; none if it still runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Timestamp>,
    /// It was killed or crashed: events of its last second may be missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub crashed: bool,
}

/// How long each level of health lasted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HealthTimes {
    /// Everything was seen.
    pub healthy_seconds: f64,
    /// Something was not seen; the node worked.
    pub degraded_seconds: f64,
    /// No relist was complete within the threshold.
    pub unhealthy_seconds: f64,
    /// No daemon ran, or the history does not reach back so far.
    pub unknown_seconds: f64,
    /// The same one after another, without what is not known; the newest 500.
    pub spans: Vec<HealthSpan>,
}

/// A time with one level of health.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HealthSpan {
    /// How well.
    pub level: Level,
    /// Its beginning, within the window.
    pub from: Timestamp,
    /// Its end, within the window.
    pub to: Timestamp,
    /// Why it is not `Healthy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Puts runs and health together.
#[derive(Debug)]
pub(super) struct Runs {
    since: Timestamp,
    until: Timestamp,
    seen: Vec<Run>,
    /// The level now, since when, and why.
    level: Option<(Level, Timestamp, Option<String>)>,
    /// The time of the last entry.
    last: Option<Timestamp>,
    health: HealthTimes,
}

impl Runs {
    pub(super) fn new(since: Timestamp, until: Timestamp) -> Self {
        Self {
            since,
            until,
            seen: Vec::new(),
            level: None,
            last: None,
            health: HealthTimes::default(),
        }
    }

    /// Takes in an entry. Those before the window say how it begins.
    pub(super) fn add(&mut self, entry: &Entry) {
        let time = entry.time();
        let same = self.seen.last().is_some_and(|run| run.instance == entry.instance());
        if !same {
            self.end_run(self.last.unwrap_or(time), true);
            self.seen.push(Run {
                instance: entry.instance(),
                version: None,
                from: time,
                to: None,
                crashed: false,
            });
            if self.seen.len() > KEPT {
                self.seen.remove(0);
            }
        }
        match entry.note() {
            Some(What::DaemonStarted(started)) => {
                // The run before it may have ended well without a note that we have read.
                let clean = started.previous.is_none_or(|previous| previous.clean);
                if let [.., before, _] = &mut *self.seen
                    && clean
                {
                    before.crashed = false;
                }
                if let Some(run) = self.seen.last_mut() {
                    run.version = Some(started.version.clone());
                }
            }
            Some(What::DaemonStopped { .. }) => self.end_run(time, false),
            Some(What::HealthChanged(changed)) => {
                self.end_level(time);
                self.level = Some((changed.level, time, why(changed)));
            }
            _ => {}
        }
        self.last = Some(time);
    }

    fn end_run(&mut self, at: Timestamp, crashed: bool) {
        self.end_level(at);
        if let Some(run) = self.seen.last_mut()
            && run.to.is_none()
        {
            run.to = Some(at.max(run.from));
            run.crashed = crashed;
        }
    }

    fn end_level(&mut self, at: Timestamp) {
        let Some((level, from, reason)) = self.level.take() else {
            return;
        };
        let (from, to) = (from.max(self.since), at.min(self.until));
        let seconds = between(from, to).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let sum = match level {
            Level::Healthy => &mut self.health.healthy_seconds,
            Level::Degraded => &mut self.health.degraded_seconds,
            Level::Unhealthy => &mut self.health.unhealthy_seconds,
        };
        *sum += seconds;
        let spans = &mut self.health.spans;
        spans.push(HealthSpan {
            level,
            from,
            to,
            reason,
        });
        if spans.len() > KEPT {
            spans.remove(0);
        }
    }

    /// What it comes to. Without a daemon that runs, nothing is known after the last entry.
    pub(super) fn finish(mut self, running: bool) -> (Vec<Run>, HealthTimes) {
        if running {
            self.end_level(self.until);
        } else if let Some(last) = self.last {
            self.end_run(last, true);
        }
        let health = &mut self.health;
        let known = health.healthy_seconds + health.degraded_seconds + health.unhealthy_seconds;
        health.unknown_seconds = rounded((seconds_between(self.since, self.until) - known).max(0.0));
        for sum in [
            &mut health.healthy_seconds,
            &mut health.degraded_seconds,
            &mut health.unhealthy_seconds,
        ] {
            *sum = rounded(*sum);
        }
        let since = self.since;
        self.seen.retain(|run| run.to.is_none_or(|to| to >= since));
        (self.seen, self.health)
    }
}

/// The headline and the first cause.
fn why(changed: &HealthChanged) -> Option<String> {
    if changed.level == Level::Healthy {
        return None;
    }
    Some(match changed.causes.first() {
        Some(cause) => format!("{}: {}", changed.headline, cause.text),
        None => changed.headline.clone(),
    })
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "whole numbers of seconds")]
mod tests {
    use super::*;
    use crate::lookback::testing::{Day, at};

    fn of(day: &Day, running: bool) -> (Vec<Run>, HealthTimes) {
        let mut runs = Runs::new(at(0), at(100));
        day.entries().iter().for_each(|entry| runs.add(entry));
        runs.finish(running)
    }

    fn sums(health: &HealthTimes) -> [f64; 4] {
        [
            health.healthy_seconds,
            health.degraded_seconds,
            health.unhealthy_seconds,
            health.unknown_seconds,
        ]
    }

    #[test]
    fn levels_last_until_the_next() {
        let mut day = Day::default();
        day.health(-50, Level::Healthy, Vec::new());
        day.health(20, Level::Degraded, Vec::new());
        day.health(30, Level::Unhealthy, Vec::new());
        day.health(70, Level::Healthy, Vec::new());
        let (runs, health) = of(&day, true);
        assert_eq!(sums(&health), [50.0, 10.0, 40.0, 0.0]);
        assert_eq!((health.spans[0].from, health.spans[0].to), (at(0), at(20)));
        assert_eq!(health.spans[1].reason.as_deref(), Some("PLEG is degraded"));
        assert_eq!((runs.len(), runs[0].to), (1, None));
        // From a file alone.
        let (runs, health) = of(&day, false);
        assert_eq!(sums(&health), [20.0, 10.0, 40.0, 30.0]);
        assert_eq!((runs[0].to, runs[0].crashed), (Some(at(70)), true));
    }

    #[test]
    fn between_two_runs_nothing_is_known() {
        let mut day = Day::default();
        day.daemon_started(0, true);
        day.health(10, Level::Healthy, Vec::new());
        day.daemon_stopped(40);
        day.daemon_started(60, true);
        day.health(60, Level::Healthy, Vec::new());
        day.started(80, "web", "app", 0);
        day.daemon_started(90, false);
        day.health(90, Level::Degraded, Vec::new());
        let (runs, health) = of(&day, true);
        assert_eq!(sums(&health), [50.0, 10.0, 0.0, 40.0]);
        let shown: Vec<_> = runs.iter().map(|run| (run.from, run.to, run.crashed)).collect();
        assert_eq!(
            shown,
            [
                (at(0), Some(at(40)), false),
                (at(60), Some(at(80)), true),
                (at(90), None, false)
            ]
        );
    }

    #[test]
    fn runs_before_the_window_are_not_of_it() {
        let mut day = Day::default();
        day.health(-50, Level::Healthy, Vec::new());
        day.daemon_stopped(-40);
        let (runs, health) = of(&day, false);
        assert_eq!((runs.len(), sums(&health)), (0, [0.0, 0.0, 0.0, 100.0]));
        assert_eq!(
            of(&Day::default(), true),
            (
                vec![],
                HealthTimes {
                    unknown_seconds: 100.0,
                    ..Default::default()
                }
            )
        );
    }
}
