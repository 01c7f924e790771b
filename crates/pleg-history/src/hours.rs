//! What happened in one hour, added up: what the day's report reads in place of every event.
//!
//! The sums of a segment are in its footer. An hour that lies in several segments is the sum of its parts.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pleg::{EventType, PodRef, PodUid};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::entry::{Record, What};
use crate::histogram::Histogram;

/// Pods that an hour names. Pods with fewer deaths are counted together.
pub const MOST_PODS: usize = 512;
/// Reasons of deaths that an hour names; the runtime chooses them.
const MOST_REASONS: usize = 64;
/// The reason of deaths with a reason that is not named.
const OTHER: &str = "(other)";
/// Pods that are counted one by one until the hour is over.
const MOST_COUNTED: usize = 16 * 1024;
const HOUR: i64 = 3600;

/// What happened in one hour. A line of `/api/v1/history/hours`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Hour {
    /// When it begins: a whole hour of UTC.
    pub start: Timestamp,
    /// It is not over, or the history does not have all of it.
    pub partial: bool,
    /// Entries by type, such as `ContainerDied`; without initial events.
    pub types: BTreeMap<String, u64>,
    /// Events that the first relist of a daemon found.
    pub initial: u64,
    /// Deaths by reason (`Completed`, `Error`, `OOMKilled`, …; empty if the runtime gave none); without initial events.
    pub deaths: BTreeMap<String, u64>,
    /// The pods with most deaths, the worst first.
    pub pods: Vec<PodDeaths>,
    /// Pods with deaths that are not named. Where an hour lies in several segments, a pod may be counted in each.
    pub other_pods: u64,
    /// The deaths of those.
    pub other_deaths: u64,
    /// Troubles that ended in this hour, by name: how many, and how long they lasted.
    pub troubles: BTreeMap<String, Histogram>,
    /// How long relists took.
    pub relists: Histogram,
    /// Relists that failed.
    pub failed_relists: u64,
    /// How old changes were when they were published.
    pub lag: Histogram,
}

/// The deaths of one pod's containers in an hour.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodDeaths {
    /// The pod's UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How often a container of it died.
    pub deaths: u64,
    /// Of those, with an exit code other than 0.
    pub failures: u64,
    /// Of those, with the reason `OOMKilled`.
    pub oom_kills: u64,
}

/// The number of the hour in which a time lies.
pub(crate) fn hour_of(time: Timestamp) -> i64 {
    time.as_second().div_euclid(HOUR)
}

/// When an hour begins.
pub(crate) fn start_of(hour: i64) -> Timestamp {
    Timestamp::from_second(hour.saturating_mul(HOUR)).unwrap_or_default()
}

/// An hour in the making.
#[derive(Debug, Clone, Default)]
pub(crate) struct HourSums {
    /// Without its pods.
    hour: Hour,
    pods: FxHashMap<PodUid, PodDeaths>,
}

impl HourSums {
    /// About how many bytes it takes in a footer: kept as a bound.
    pub(crate) fn footer_size(&self) -> usize {
        let words = |map: &BTreeMap<String, u64>| map.keys().map(|key| key.len() + 8).sum::<usize>();
        let histograms = self.hour.troubles.len() + 2;
        self.pods.len().min(MOST_PODS) * 24
            + words(&self.hour.types)
            + words(&self.hour.deaths)
            + self.hour.troubles.keys().map(String::len).sum::<usize>()
            + histograms * 1024
            + 64
    }

    /// Counts an entry.
    pub(crate) fn add(&mut self, record: &Record) {
        match record {
            Record::Event(event) if event.initial => self.hour.initial += 1,
            Record::Event(event) => {
                self.count_type(record);
                if let Some(lag) = event.lag {
                    self.hour.lag.add(lag);
                }
                match (event.kind, &event.pod) {
                    (EventType::ContainerDied, Some(pod)) => {
                        let reason = event.reason.as_deref().unwrap_or_default();
                        self.count_reason(reason, 1);
                        let failed = event.exit_code.is_some_and(|code| code != 0);
                        self.count_death(pod, failed, reason == "OOMKilled");
                    }
                    (EventType::TroubleEnded, _) => {
                        let name = event.trouble.map_or("unknown", pleg::Trouble::name);
                        let lasted = event.lasted.unwrap_or_default();
                        self.hour.troubles.entry(name.to_owned()).or_default().add(lasted);
                    }
                    _ => {}
                }
            }
            Record::Note(note) => {
                if let What::Sample(sample) = &note.what {
                    self.hour.relists.merge(&sample.relists);
                    self.hour.failed_relists += sample.failed_relists;
                } else {
                    self.count_type(record);
                }
            }
        }
    }

    fn count_type(&mut self, record: &Record) {
        let name = record.kind().name();
        match self.hour.types.get_mut(name) {
            Some(count) => *count += 1,
            None => _ = self.hour.types.insert(name.to_owned(), 1),
        }
    }

    fn count_reason(&mut self, reason: &str, count: u64) {
        let deaths = &mut self.hour.deaths;
        if let Some(known) = deaths.get_mut(reason) {
            *known += count;
            return;
        }
        let reason = if deaths.len() < MOST_REASONS && reason.len() <= 64 {
            reason
        } else {
            OTHER
        };
        *deaths.entry(reason.to_owned()).or_default() += count;
    }

    fn count_death(&mut self, pod: &PodRef, failed: bool, oom: bool) {
        let full = self.pods.len() >= MOST_COUNTED;
        let deaths = match self.pods.get_mut(&pod.uid) {
            Some(deaths) => deaths,
            None if full => {
                self.hour.other_pods += 1;
                self.hour.other_deaths += 1;
                return;
            }
            None => self.pods.entry(pod.uid.clone()).or_insert_with(|| PodDeaths {
                uid: pod.uid.to_string(),
                namespace: pod.namespace.to_string(),
                name: pod.name.to_string(),
                ..PodDeaths::default()
            }),
        };
        deaths.deaths += 1;
        deaths.failures += u64::from(failed);
        deaths.oom_kills += u64::from(oom);
    }

    /// Counts another part of the same hour.
    pub(crate) fn merge(&mut self, part: Hour) {
        let hour = &mut self.hour;
        for (name, count) in part.types {
            *hour.types.entry(name).or_default() += count;
        }
        for (name, lasted) in part.troubles {
            hour.troubles.entry(name).or_default().merge(&lasted);
        }
        hour.initial += part.initial;
        hour.other_pods += part.other_pods;
        hour.other_deaths += part.other_deaths;
        hour.failed_relists += part.failed_relists;
        hour.relists.merge(&part.relists);
        hour.lag.merge(&part.lag);
        for (reason, count) in part.deaths {
            self.count_reason(&reason, count);
        }
        for pod in part.pods {
            let own = self
                .pods
                .entry(PodUid::from(pod.uid.as_str()))
                .or_insert_with(|| PodDeaths {
                    deaths: 0,
                    failures: 0,
                    oom_kills: 0,
                    ..pod.clone()
                });
            own.deaths += pod.deaths;
            own.failures += pod.failures;
            own.oom_kills += pod.oom_kills;
        }
    }

    /// The hour with this number, so far.
    pub(crate) fn finish(&self, number: i64) -> Hour {
        let mut pods: Vec<PodDeaths> = self.pods.values().cloned().collect();
        pods.sort_by(|a, b| {
            let names = |pod: &PodDeaths| (pod.namespace.clone(), pod.name.clone(), pod.uid.clone());
            b.deaths.cmp(&a.deaths).then_with(|| names(a).cmp(&names(b)))
        });
        let others = pods.split_off(pods.len().min(MOST_PODS));
        Hour {
            start: start_of(number),
            pods,
            other_pods: self.hour.other_pods + others.len() as u64,
            other_deaths: self.hour.other_deaths + others.iter().map(|pod| pod.deaths).sum::<u64>(),
            ..self.hour.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pleg::InstanceId;

    use super::*;
    use crate::testing::event;

    #[test]
    fn two_parts_are_one_hour() {
        let instance = InstanceId::new(1);
        let (mut whole, mut first, mut second) = (HourSums::default(), HourSums::default(), HourSums::default());
        for n in 0..500 {
            let record = Record::Event(Arc::new(event(instance, n)));
            whole.add(&record);
            if n < 200 {
                first.add(&record);
            } else {
                second.add(&record);
            }
        }
        let mut both = HourSums::default();
        both.merge(first.finish(7));
        both.merge(second.finish(7));
        assert_eq!(both.finish(7), whole.finish(7));
        let hour = whole.finish(7);
        assert_eq!(hour.start, Timestamp::from_second(7 * 3600).unwrap());
        assert!(
            hour.types.contains_key("ContainerDied") && !hour.pods.is_empty(),
            "{hour:?}"
        );
        assert!(hour.pods.is_sorted_by(|a, b| a.deaths >= b.deaths));
        let deaths: u64 = hour.pods.iter().map(|pod| pod.deaths).sum();
        assert_eq!(deaths, hour.types["ContainerDied"]);
    }

    #[test]
    fn a_runtime_cannot_invent_reasons_without_end() {
        let mut sums = HourSums::default();
        for n in 0..1000 {
            sums.count_reason(&format!("reason {n}"), 1);
        }
        assert_eq!(sums.hour.deaths.len(), MOST_REASONS + 1);
        assert_eq!(sums.hour.deaths.values().sum::<u64>(), 1000);
    }

    #[test]
    fn times_before_1970_have_hours() {
        assert_eq!(hour_of(Timestamp::from_second(-1).unwrap()), -1);
        assert_eq!(start_of(-1), Timestamp::from_second(-3600).unwrap());
    }
}
