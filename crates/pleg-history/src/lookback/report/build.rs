//! Puts a report together.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use pleg::{EventType, PodRef};

use super::{
    Bucket, LISTED_TROUBLES, NodeReport, Percentiles, PodSummary, ReasonCount, Totals, TroubleSpan, WORST_PODS,
};
use crate::entry::{Entry, EntryType, What};
use crate::histogram::Histogram;
use crate::hours::{Hour, PodDeaths};
use crate::lookback::explain::{ExitCount, Explanation, Window};
use crate::lookback::rounded;
use crate::lookback::runs::Runs;
use crate::lookback::troubles::Troubles;

/// Buckets that a report may have: two months of hours. A longer window is cut at its beginning.
const MOST_BUCKETS: u64 = 1500;

/// Collects what a report is made of.
#[derive(Debug)]
pub struct ReportBuilder {
    window: Window,
    bucket: u64,
    /// By place in the window.
    buckets: BTreeMap<u64, Hour>,
    runs: Runs,
    troubles: Troubles,
    explained: HashMap<String, Explanation>,
    notes: Vec<String>,
}

/// The deaths of all pods of one name.
#[derive(Debug, Clone)]
struct PodSum {
    pod: PodRef,
    deaths: u64,
    failures: u64,
    oom_kills: u64,
    by_bucket: Vec<u64>,
    trouble_seconds: f64,
}

impl ReportBuilder {
    /// A report about a window in parts of this length, which begins where the first part does.
    pub fn new(mut window: Window, bucket: Duration) -> Self {
        let bucket = bucket.as_secs().max(1);
        let step = i64::try_from(bucket).unwrap_or(i64::MAX);
        let last = window.until.as_second();
        // The last part ends here, at or after the end of the window.
        let end = last.saturating_add((-last).rem_euclid(step));
        let longest = step.saturating_mul(i64::try_from(MOST_BUCKETS).unwrap_or(i64::MAX));
        let first = window.since.as_second().clamp(end.saturating_sub(longest), last);
        let since = Timestamp::from_second(first.div_euclid(step).saturating_mul(step));
        window.since = since.unwrap_or(window.since);
        Self {
            runs: Runs::new(window.since, window.until),
            window,
            bucket,
            buckets: BTreeMap::new(),
            troubles: Troubles::default(),
            explained: HashMap::new(),
            notes: Vec::new(),
        }
    }

    /// What is reported about.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Says what the report lacks.
    pub fn note(&mut self, what: String) {
        self.notes.push(what);
    }

    /// Adds sums, at the place of their beginning. Those that begin outside of the window are ignored.
    pub fn hour(&mut self, hour: &Hour) {
        let Some(place) = self.place(hour.start) else {
            return;
        };
        let sums = self.buckets.entry(place).or_default();
        sums.partial |= hour.partial;
        sums.initial += hour.initial;
        sums.failed_relists += hour.failed_relists;
        sums.other_pods += hour.other_pods;
        sums.other_deaths += hour.other_deaths;
        add_counts(&mut sums.types, &hour.types);
        add_counts(&mut sums.deaths, &hour.deaths);
        sums.relists.merge(&hour.relists);
        sums.lag.merge(&hour.lag);
        sums.pods.extend(hour.pods.iter().cloned());
    }

    /// Takes in the last change of health before the window: what was wrong when it began.
    pub fn before(&mut self, entry: &Entry) {
        self.runs.add(entry);
        if let Some(What::HealthChanged(changed)) = entry.note() {
            self.troubles.were(entry.time(), entry.instance(), &changed.causes);
        }
    }

    /// Takes in an entry about a trouble, the health or the daemon; others only show that the daemon ran. In the order of ids.
    pub fn entry(&mut self, entry: &Entry) {
        self.runs.add(entry);
        self.troubles.add(entry);
    }

    /// The pods whose deaths should be explained.
    pub fn worst_pods(&self) -> Vec<PodRef> {
        let mut sums: Vec<PodSum> = self.pods().into_values().filter(|sum| sum.failures > 0).collect();
        sort(&mut sums);
        sums.into_iter().take(WORST_PODS).map(|sum| sum.pod).collect()
    }

    /// Adds why a pod died.
    pub fn explained(&mut self, explanation: Explanation) {
        self.explained.insert(explanation.pod.to_string(), explanation);
    }

    /// The report.
    pub fn build(mut self) -> NodeReport {
        let window = self.window;
        let pods = self.pods();
        let troubles = std::mem::take(&mut self.troubles).finish(window.until, window.running);
        let troubles: Vec<TroubleSpan> = troubles
            .into_iter()
            .filter(|span| span.to.is_none_or(|to| to >= window.since))
            .collect();
        let runs = std::mem::replace(&mut self.runs, Runs::new(window.since, window.until));
        let (runs, health) = runs.finish(window.running);
        let buckets: Vec<Bucket> = (0..self.places()).map(|place| self.one_bucket(place)).collect();
        let (worst_pods, more_pods) = self.worst(pods, &troubles);
        let mut all = Hour::default();
        for hour in self.buckets.values() {
            add_counts(&mut all.types, &hour.types);
            add_counts(&mut all.deaths, &hour.deaths);
            all.relists.merge(&hour.relists);
            all.lag.merge(&hour.lag);
            all.failed_relists += hour.failed_relists;
        }
        let events_by_type = events_only(&all.types);
        let totals = Totals {
            troubles: troubles.len() as u64,
            ..totals(&all, &events_by_type)
        };
        let (troubles, more_troubles) = longest(troubles);
        NodeReport {
            node: None,
            since: window.since,
            until: window.until,
            held_since: window.held_since.filter(|held| *held > window.since),
            notes: self.notes,
            totals,
            events_by_type,
            deaths_by_reason: by_reason(&all.deaths),
            bucket_seconds: self.bucket,
            buckets,
            worst_pods,
            more_pods,
            troubles,
            more_troubles,
            health,
            runs,
            lag: Percentiles::of(&all.lag),
            relist: Percentiles::of(&all.relists),
        }
    }

    fn places(&self) -> u64 {
        let seconds = self.window.until.as_second() - self.window.since.as_second();
        u64::try_from(seconds)
            .unwrap_or_default()
            .div_ceil(self.bucket)
            .clamp(1, MOST_BUCKETS)
    }

    /// The bucket of a time; none outside of the window.
    fn place(&self, time: Timestamp) -> Option<u64> {
        let seconds = time.as_second() - self.window.since.as_second();
        let place = u64::try_from(seconds).ok()? / self.bucket;
        (place < self.places()).then_some(place)
    }

    fn one_bucket(&self, place: u64) -> Bucket {
        let none = Hour::default();
        let hour = self.buckets.get(&place).unwrap_or(&none);
        let totals = totals(hour, &events_only(&hour.types));
        let offset = Duration::from_secs(place.saturating_mul(self.bucket));
        Bucket {
            start: self.window.since.checked_add(offset).unwrap_or(self.window.since),
            partial: hour.partial,
            events: totals.events,
            started: totals.started,
            completed: totals.deaths - totals.failures,
            failed: totals.failures,
            troubles: hour.types.get(EventType::TroubleStarted.name()).copied().unwrap_or(0),
            lag: Percentiles::of(&hour.lag),
            relist: Percentiles::of(&hour.relists),
        }
    }

    /// Deaths by the pod's name.
    fn pods(&self) -> HashMap<String, PodSum> {
        let places = usize::try_from(self.places()).unwrap_or_default();
        let mut sums: HashMap<String, PodSum> = HashMap::new();
        for (place, hour) in &self.buckets {
            for deaths in &hour.pods {
                let pod = pod_ref(deaths);
                let sum = sums.entry(pod.to_string()).or_insert_with(|| PodSum::new(&pod, places));
                // The newest of a name comes last.
                sum.pod = pod;
                sum.deaths += deaths.deaths;
                sum.failures += deaths.failures;
                sum.oom_kills += deaths.oom_kills;
                let bucket = usize::try_from(*place)
                    .ok()
                    .and_then(|place| sum.by_bucket.get_mut(place));
                if let Some(bucket) = bucket {
                    *bucket += deaths.deaths;
                }
            }
        }
        sums
    }

    /// The pods to list, the worst first, and how many more there are.
    fn worst(&mut self, mut pods: HashMap<String, PodSum>, troubles: &[TroubleSpan]) -> (Vec<PodSummary>, u64) {
        let places = usize::try_from(self.places()).unwrap_or_default();
        for span in troubles {
            let Some(name) = &span.pod else { continue };
            let (namespace, bare) = name.split_once('/').unwrap_or(("", name));
            let unnamed = PodRef {
                uid: "".into(),
                namespace: namespace.into(),
                name: bare.into(),
            };
            let sum = pods
                .entry(name.clone())
                .or_insert_with(|| PodSum::new(&unnamed, places));
            sum.trouble_seconds += span.seconds;
        }
        let unnamed: u64 = self.buckets.values().map(|hour| hour.other_pods).sum();
        let mut sums: Vec<PodSum> = pods.into_values().filter(PodSum::is_bad).collect();
        sort(&mut sums);
        let more = (sums.len().saturating_sub(WORST_PODS) as u64).saturating_add(unnamed);
        sums.truncate(WORST_PODS);
        let listed = sums.into_iter().map(|sum| self.summary(sum)).collect();
        (listed, more)
    }

    fn summary(&mut self, sum: PodSum) -> PodSummary {
        let explained = self.explained.remove(&sum.pod.to_string());
        let worst = explained.as_ref().and_then(|explained| {
            let containers = explained.containers.iter();
            containers.max_by_key(|container| container.deaths)
        });
        let lifetimes = worst.and_then(|container| container.lifetimes);
        let exits = explained.as_ref().map(all_exits).unwrap_or_default();
        PodSummary {
            pod: explained.as_ref().map_or(sum.pod, |explained| explained.pod.clone()),
            deaths: sum.deaths,
            failures: sum.failures,
            oom_kills: sum.oom_kills,
            trouble_seconds: rounded(sum.trouble_seconds),
            deaths_by_bucket: sum.by_bucket,
            verdict: explained.as_ref().map(|explained| explained.verdict),
            summary: explained.as_ref().map(|explained| explained.summary.clone()),
            restarts: explained.as_ref().map(|explained| explained.restarts),
            exits,
            last_death: explained
                .and_then(|explained| explained.last_death)
                .map(|death| death.time),
            lifetimes,
        }
    }
}

impl PodSum {
    fn new(pod: &PodRef, places: usize) -> Self {
        Self {
            pod: pod.clone(),
            deaths: 0,
            failures: 0,
            oom_kills: 0,
            by_bucket: vec![0; places],
            trouble_seconds: 0.0,
        }
    }

    /// A job that completes is no bad pod.
    fn is_bad(&self) -> bool {
        self.failures > 0 || self.trouble_seconds > 0.0
    }
}

/// The worst first; of equal ones by name.
fn sort(sums: &mut [PodSum]) {
    sums.sort_by(|a, b| {
        let worse = b
            .failures
            .cmp(&a.failures)
            .then(b.trouble_seconds.total_cmp(&a.trouble_seconds));
        worse
            .then(b.deaths.cmp(&a.deaths))
            .then_with(|| a.pod.to_string().cmp(&b.pod.to_string()))
    });
}

fn pod_ref(deaths: &PodDeaths) -> PodRef {
    PodRef {
        uid: deaths.uid.as_str().into(),
        namespace: deaths.namespace.as_str().into(),
        name: deaths.name.as_str().into(),
    }
}

fn add_counts(sums: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    for (name, count) in more {
        *sums.entry(name.clone()).or_default() += count;
    }
}

/// Without notes.
fn events_only(types: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let notes: BTreeSet<&str> = EntryType::NOTES.into_iter().map(EntryType::name).collect();
    let events = types.iter().filter(|(name, _)| !notes.contains(name.as_str()));
    events.map(|(name, count)| (name.clone(), *count)).collect()
}

fn totals(hour: &Hour, events: &BTreeMap<String, u64>) -> Totals {
    let of = |name: &str| hour.types.get(name).copied().unwrap_or(0);
    let deaths = hour.deaths.values().sum();
    let died = |reason: &str| hour.deaths.get(reason).copied().unwrap_or(0);
    Totals {
        events: events.values().sum(),
        started: of(EventType::ContainerStarted.name()),
        deaths,
        failures: deaths - died("Completed") - died(""),
        oom_kills: died("OOMKilled"),
        pods_removed: of(EventType::PodRemoved.name()),
        troubles: 0,
        daemon_starts: of(EntryType::DaemonStarted.name()),
        relists: count(&hour.relists),
        failed_relists: hour.failed_relists,
    }
}

fn count(histogram: &Histogram) -> u64 {
    histogram.count
}

fn by_reason(deaths: &BTreeMap<String, u64>) -> Vec<ReasonCount> {
    let mut counts: Vec<ReasonCount> = deaths
        .iter()
        .map(|(reason, count)| ReasonCount {
            reason: reason.clone(),
            count: *count,
        })
        .collect();
    counts.sort_by_key(|one| std::cmp::Reverse(one.count));
    counts
}

/// The exits of all containers together.
fn all_exits(explained: &Explanation) -> Vec<ExitCount> {
    let mut all: Vec<ExitCount> = Vec::new();
    for exit in explained.containers.iter().flat_map(|container| &container.exits) {
        let same = |one: &&mut ExitCount| one.reason == exit.reason && one.exit_code == exit.exit_code;
        match all.iter_mut().find(same) {
            Some(one) => one.count += exit.count,
            None => all.push(exit.clone()),
        }
    }
    all.sort_by_key(|exit| std::cmp::Reverse(exit.count));
    all
}

/// The longest troubles, and how many more there are.
fn longest(mut troubles: Vec<TroubleSpan>) -> (Vec<TroubleSpan>, u64) {
    troubles.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let more = troubles.len().saturating_sub(LISTED_TROUBLES) as u64;
    troubles.truncate(LISTED_TROUBLES);
    (troubles, more)
}
