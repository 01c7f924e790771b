//! How a generator behaves, and which settings contradict each other.

use std::fmt;
use std::time::Duration;

use pleg_cri::Deadlines;
use pleg_cri::duration::seconds;

use super::ProbeConfig;
use crate::evented::{EventedConfig, Mode};
use crate::health::THRESHOLD;
use crate::inspect::limiter::LimiterConfig;
use crate::publish::past::FeedHistory;
use crate::recorder::RecorderConfig;
use crate::witness::WitnessMode;

/// The longest pause between full relists that makes sense: a change that no event reports is found that late.
const LONGEST_PERIOD: Duration = Duration::from_mins(5);

/// How a generator behaves. The defaults are the kubelet's where it has one.
#[derive(Debug, Clone)]
pub struct Config {
    /// From the end of one full relist to the start of the next; while the runtime's events are good, the shortest such pause.
    pub period: Duration,
    /// Without a complete relist for this long the generator is unhealthy.
    pub threshold: Duration,
    /// A full relist waits no longer than this for inspections that do not move.
    pub settle_grace: Duration,
    /// A list that has not answered for this long is waited for, but what is known is asked for by id meanwhile.
    pub list_patience: Duration,
    /// How long a call of the runtime may take; for [`Pleg::spawn`](crate::Pleg::spawn) and [`Generator::connect`](crate::Generator::connect).
    /// A [`Runtime`](crate::Runtime) of the caller's own bounds its calls itself.
    pub deadlines: Deadlines,
    /// The runtime monitor calls `Status` at least this often while full relists are rarer: for callers that must learn soon that the
    /// runtime is frozen. None: every [`STATUS_PERIOD`](crate::readiness::STATUS_PERIOD), or every other.
    pub heartbeat: Option<Duration>,
    /// How the runtime's events are used.
    pub evented: EventedConfig,
    /// Whether the kernel is asked too; it announces changes on every runtime whose processes can be seen.
    pub witness: WitnessMode,
    /// How pods are probed for hung shims and for containers that do not answer.
    pub probe: ProbeConfig,
    /// The first pause before a failed inspection is tried again; it doubles with each failure.
    pub retry_first: Duration,
    /// The longest pause before a failed inspection is tried again.
    pub retry_most: Duration,
    /// How many inspection calls may be in flight.
    pub inspections: LimiterConfig,
    /// How many events the feed keeps for readers that fall behind.
    pub feed_capacity: usize,
    /// Keeps events for longer, also those of earlier instances; none: a reader that comes back too late gets a gap.
    pub history: Option<FeedHistory>,
    /// The flight recorder.
    pub recorder: RecorderConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(1),
            threshold: THRESHOLD,
            settle_grace: Duration::from_millis(250),
            list_patience: Duration::from_secs(5),
            deadlines: Deadlines::default(),
            heartbeat: None,
            evented: EventedConfig::default(),
            witness: WitnessMode::Auto,
            probe: ProbeConfig::default(),
            retry_first: Duration::from_secs(1),
            retry_most: Duration::from_mins(1),
            inspections: LimiterConfig::default(),
            feed_capacity: 16_384,
            history: None,
            recorder: RecorderConfig::default(),
        }
    }
}

/// A setting that is invalid, alone or together with another one. Names both, with their values, and the relation that must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    setting: (&'static str, Value),
    must: &'static str,
    /// What it is compared with: another setting, or a plain value, which has no name.
    other: (&'static str, Value),
    why: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Time(Duration),
    Count(usize),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(time) if time.is_zero() => f.write_str("0s"),
            Self::Time(time) => f.write_str(&seconds(*time)),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

impl ConfigError {
    /// The message, with each setting named as its user knows it: `name` gets the field, as in `evented.most_period`.
    pub fn named(&self, name: impl Fn(&'static str) -> &'static str) -> String {
        let say = |(field, value): (&'static str, Value)| match field {
            "" => value.to_string(),
            field => format!("{} {value}", name(field)),
        };
        let (setting, other) = (say(self.setting), say(self.other));
        format!("{setting} must be {} {other}: {}", self.must, self.why)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named(|field| field))
    }
}

impl std::error::Error for ConfigError {}

/// A setting as the rules see it: its name, and its value.
type Setting = (&'static str, Value);

/// One relation that must hold.
struct Rule {
    holds: bool,
    setting: Setting,
    must: &'static str,
    other: Setting,
    why: &'static str,
}

fn time(name: &'static str, value: Duration) -> Setting {
    (name, Value::Time(value))
}

fn count(name: &'static str, value: usize) -> Setting {
    (name, Value::Count(value))
}

const NOTHING: Setting = ("", Value::Time(Duration::ZERO));
const ONE: Setting = ("", Value::Count(1));

impl Config {
    /// Checks that no setting contradicts another. The first rule that does not hold is the error.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let rules = self.relists().into_iter().chain(self.events());
        let mut rules = rules.chain(self.probes()).chain(self.attempts()).chain(self.memory());
        match rules.find(|rule| !rule.holds) {
            None => Ok(()),
            Some(rule) => Err(ConfigError {
                setting: rule.setting,
                must: rule.must,
                other: rule.other,
                why: rule.why,
            }),
        }
    }

    fn relists(&self) -> [Rule; 5] {
        let (period, threshold) = (time("period", self.period), time("threshold", self.threshold));
        let patience = time("list_patience", self.list_patience);
        [
            Rule {
                holds: !self.period.is_zero(),
                setting: period,
                must: "longer than",
                other: NOTHING,
                why: "the runtime would be listed without a pause",
            },
            Rule {
                holds: self.period <= self.threshold / 2,
                setting: period,
                must: "at most half of",
                other: threshold,
                why: "one late relist would make the node NotReady",
            },
            Rule {
                holds: self.settle_grace <= self.threshold / 3,
                setting: time("settle_grace", self.settle_grace),
                must: "at most a third of",
                other: threshold,
                why: "a relist that waits for its inspections would make the node NotReady",
            },
            Rule {
                holds: !self.list_patience.is_zero(),
                setting: patience,
                must: "longer than",
                other: NOTHING,
                why: "every list would be accompanied by a status call for each object",
            },
            Rule {
                holds: self.list_patience < self.threshold,
                setting: patience,
                must: "shorter than",
                other: threshold,
                why: "the node would be NotReady before the container that blocks a list is looked for",
            },
        ]
    }

    /// How far full relists may be apart counts only where events are used; with a witness alone, half of the threshold is enough.
    fn events(&self) -> Vec<Rule> {
        if self.evented.mode == Mode::Generic {
            return Vec::new();
        }
        let most = self.evented.most_period;
        let setting = time("evented.most_period", most);
        vec![
            Rule {
                holds: most <= LONGEST_PERIOD,
                setting,
                must: "at most",
                other: time("", LONGEST_PERIOD),
                why: "a change that no event reports would be found too late",
            },
            Rule {
                holds: most <= self.threshold / 2,
                setting,
                must: "at most half of",
                other: time("threshold", self.threshold),
                why: "one late relist would make the node NotReady",
            },
            Rule {
                holds: most >= self.period,
                setting,
                must: "at least",
                other: time("period", self.period),
                why: "the longest pause between relists cannot be shorter than the shortest",
            },
        ]
    }

    fn probes(&self) -> [Rule; 2] {
        let probe = self.probe;
        let probes = !probe.round.is_zero();
        [
            Rule {
                holds: !probes || probe.least_pause <= probe.round,
                setting: time("probe.least_pause", probe.least_pause),
                must: "at most",
                other: time("probe.round", probe.round),
                why: "not even one pod would be probed in a round",
            },
            Rule {
                holds: !probes || !probe.slow.is_zero(),
                setting: time("probe.slow", probe.slow),
                must: "longer than",
                other: NOTHING,
                why: "every shim would be taken for a hung one",
            },
        ]
    }

    /// Retries of inspections, and how many are in flight.
    fn attempts(&self) -> [Rule; 6] {
        let limit = self.inspections;
        let (least, start) = (
            count("inspections.least", limit.least),
            count("inspections.start", limit.start),
        );
        let bounds = "the limit of inspections moves between its bounds";
        [
            Rule {
                holds: !self.retry_first.is_zero(),
                setting: time("retry_first", self.retry_first),
                must: "longer than",
                other: NOTHING,
                why: "a pod that cannot be inspected would be tried without a pause",
            },
            Rule {
                holds: self.retry_first <= self.retry_most,
                setting: time("retry_first", self.retry_first),
                must: "at most",
                other: time("retry_most", self.retry_most),
                why: "the pause between attempts only grows",
            },
            Rule {
                holds: limit.least >= 1,
                setting: least,
                must: "at least",
                other: ONE,
                why: "no pod would ever be inspected",
            },
            Rule {
                holds: limit.least <= limit.start,
                setting: least,
                must: "at most",
                other: start,
                why: bounds,
            },
            Rule {
                holds: limit.start <= limit.most,
                setting: start,
                must: "at most",
                other: count("inspections.most", limit.most),
                why: bounds,
            },
            Rule {
                holds: !limit.late.is_zero(),
                setting: time("inspections.late", limit.late),
                must: "longer than",
                other: NOTHING,
                why: "every call would be late",
            },
        ]
    }

    fn memory(&self) -> [Rule; 2] {
        [
            Rule {
                holds: self.feed_capacity >= 1,
                setting: count("feed_capacity", self.feed_capacity),
                must: "at least",
                other: ONE,
                why: "every reader would miss every event",
            },
            Rule {
                holds: self.recorder.limit == 0 || !self.recorder.window.is_zero(),
                setting: time("recorder.window", self.recorder.window),
                must: "longer than",
                other: NOTHING,
                why: "nothing would be recorded; a limit of 0 bytes switches the recorder off",
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// What is changed about the defaults, and how the error begins; nothing where that is fine.
    type Case = (fn(&mut Config), &'static str);

    #[test]
    fn contradictions_are_named_with_both_settings() {
        let cases: [Case; 26] = [
            (|_| {}, ""),
            (|c| c.period = s(0), "period 0s must be longer than 0s: "),
            (
                |c| (c.period, c.threshold) = (s(8), s(5)),
                "period 8s must be at most half of threshold 5s: one late relist would make the node NotReady",
            ),
            (
                |c| c.threshold = s(1),
                "period 1s must be at most half of threshold 1s: ",
            ),
            (
                |c| c.threshold = s(0),
                "period 1s must be at most half of threshold 0s: ",
            ),
            (|c| (c.period, c.threshold) = (s(30), s(120)), ""),
            (
                |c| c.settle_grace = s(61),
                "settle_grace 1m1s must be at most a third of threshold 3m0s: ",
            ),
            (|c| c.list_patience = s(0), "list_patience 0s must be longer than 0s: "),
            (
                |c| (c.list_patience, c.evented.most_period, c.threshold) = (s(5), s(2), s(5)),
                "list_patience 5s must be shorter than threshold 5s: ",
            ),
            (|c| c.list_patience = s(179), ""),
            (
                |c| c.threshold = s(100),
                "evented.most_period 1m0s must be at most half of threshold 1m40s: ",
            ),
            (|c| (c.threshold, c.evented.mode) = (s(100), Mode::Generic), ""),
            (
                |c| (c.threshold, c.evented.most_period) = (s(3600), s(301)),
                "evented.most_period 5m1s must be at most 5m0s: ",
            ),
            (
                |c| (c.period, c.evented.most_period) = (s(20), s(10)),
                "evented.most_period 10s must be at least period 20s: ",
            ),
            (
                |c| c.probe.least_pause = s(46),
                "probe.least_pause 46s must be at most probe.round 45s: ",
            ),
            (|c| (c.probe.least_pause, c.probe.round) = (s(46), s(0)), ""),
            (|c| c.probe.slow = s(0), "probe.slow 0s must be longer than 0s: "),
            (|c| c.retry_first = s(0), "retry_first 0s must be longer than 0s: "),
            (
                |c| c.retry_first = s(90),
                "retry_first 1m30s must be at most retry_most 1m0s: ",
            ),
            (|c| c.inspections.least = 0, "inspections.least 0 must be at least 1: "),
            (
                |c| c.inspections.least = 65,
                "inspections.least 65 must be at most inspections.start 64: ",
            ),
            (
                |c| c.inspections.most = 63,
                "inspections.start 64 must be at most inspections.most 63: ",
            ),
            (
                |c| c.inspections.late = s(0),
                "inspections.late 0s must be longer than 0s: ",
            ),
            (|c| c.feed_capacity = 0, "feed_capacity 0 must be at least 1: "),
            (
                |c| c.recorder.window = s(0),
                "recorder.window 0s must be longer than 0s: ",
            ),
            (|c| (c.recorder.window, c.recorder.limit) = (s(0), 0), ""),
        ];
        for (change, expected) in cases {
            let mut config = Config::default();
            change(&mut config);
            let error = config
                .validate()
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert!(
                error.starts_with(expected) && error.is_empty() == expected.is_empty(),
                "{error:?} instead of {expected:?}"
            );
        }
    }

    #[test]
    fn settings_are_named_as_their_user_knows_them() {
        let config = Config {
            period: s(8),
            threshold: s(5),
            ..Config::default()
        };
        let flag = |field| if field == "period" { "--period" } else { "--threshold" };
        assert_eq!(
            config.validate().unwrap_err().named(flag),
            "--period 8s must be at most half of --threshold 5s: one late relist would make the node NotReady"
        );
    }
}
