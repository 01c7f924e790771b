//! Reports from what happened, compared with a plain count.

use std::collections::BTreeMap;
use std::time::Duration;

use pleg::{Level, Trouble};
use proptest::prelude::*;

use super::*;
use crate::lookback::explain::{Window, explain};
use crate::lookback::testing::{Day, at, pod};

const HOUR: Duration = Duration::from_hours(1);

fn window(hours: i64) -> Window {
    Window {
        since: at(0),
        until: at(hours * 3600),
        held_since: Some(at(0)),
        running: true,
    }
}

/// As the commands collect it.
fn report(day: &Day, hours: i64, bucket: Duration) -> NodeReport {
    let mut builder = ReportBuilder::new(window(hours), bucket);
    let window = builder.window();
    let mut counts = BucketCounts::new(bucket);
    for entry in day.entries() {
        counts.add(entry);
        builder.entry(entry);
    }
    for part in counts.finish() {
        builder.hour(&part);
    }
    for pod in builder.worst_pods() {
        builder.explained(explain(&pod, window, day.entries()));
    }
    builder.build()
}

#[test]
fn a_day_is_summed_up() {
    let mut day = Day::default();
    day.health(0, Level::Healthy, Vec::new());
    for attempt in 0..5 {
        let second = 3600 + i64::from(attempt) * 100;
        day.started(second, "web", "app", attempt);
        day.died(second + 40, "web", "app", attempt, 137, "OOMKilled");
    }
    day.started(7300, "job", "main", 0);
    day.died(7400, "job", "main", 0, 0, "Completed");
    day.removed(7500, "job");
    day.trouble(7600, Some(("db", "pg")), Trouble::HungShim);
    day.health(7600, Level::Degraded, Vec::new());
    day.trouble_ended(7900, Some(("db", "pg")), Trouble::HungShim, 300);
    day.health(7900, Level::Healthy, Vec::new());
    let report = report(&day, 24, HOUR);
    let totals = &report.totals;
    assert_eq!(
        (totals.started, totals.deaths, totals.failures, totals.oom_kills),
        (6, 6, 5, 5)
    );
    assert_eq!((totals.events, totals.pods_removed, totals.troubles), (15, 1, 1));
    assert_eq!(report.events_by_type["ContainerDied"], 6);
    assert!(!report.events_by_type.contains_key("HealthChanged"));
    assert_eq!(
        report
            .deaths_by_reason
            .iter()
            .map(|one| (one.reason.as_str(), one.count))
            .collect::<Vec<_>>(),
        [("OOMKilled", 5), ("Completed", 1)]
    );
    assert_eq!(report.buckets.len(), 24);
    let second = &report.buckets[1];
    assert_eq!(
        (second.start, second.events, second.started, second.failed),
        (at(3600), 10, 5, 5)
    );
    assert_eq!((report.buckets[2].completed, report.buckets[2].troubles), (1, 1));
    // A job that completes is none of the worst.
    let names: Vec<_> = report.worst_pods.iter().map(|pod| pod.pod.to_string()).collect();
    assert_eq!(names, ["default/web", "default/db"]);
    let web = &report.worst_pods[0];
    assert_eq!((web.failures, web.oom_kills, web.restarts), (5, 5, Some(4)));
    assert_eq!(web.verdict, Some(Verdict::OomKilled));
    assert_eq!(web.lifetimes.unwrap().median_seconds, 40.0);
    assert_eq!((web.deaths_by_bucket[1], web.deaths_by_bucket.len()), (5, 24));
    assert_eq!(report.worst_pods[1].trouble_seconds, 300.0);
    assert_eq!(report.troubles[0].seconds, 300.0);
    let health = &report.health;
    assert_eq!((health.degraded_seconds, health.unknown_seconds), (300.0, 0.0));
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<NodeReport>(&json).unwrap(), report);
}

#[test]
fn a_window_begins_with_a_whole_part() {
    let odd = Window {
        since: at(1801),
        ..window(2)
    };
    assert_eq!(ReportBuilder::new(odd, HOUR).window().since, at(0));
    let ten = Duration::from_mins(10);
    assert_eq!(ReportBuilder::new(odd, ten).window().since, at(1800));
    // However long it is, it has an end of parts.
    let long = Window {
        since: at(-1_000_000_000),
        ..window(2)
    };
    for until in [at(7200), at(7201), at(10_799)] {
        let report = ReportBuilder::new(Window { until, ..long }, HOUR).build();
        assert_eq!(report.buckets.len(), 1500);
        let last = report.buckets.last().unwrap().start;
        assert!(last < until && until.duration_since(last) <= HOUR.try_into().unwrap());
    }
}

#[test]
fn long_lists_are_cut_and_counted() {
    let mut day = Day::default();
    for n in 0..150 {
        let name = format!("pod-{n:03}");
        day.died(10, &name, "app", 0, 1, "Error");
        day.trouble_ended(20 + n, Some((&name, "app")), Trouble::HungShim, 1 + n as u64);
    }
    let report = report(&day, 1, HOUR);
    assert_eq!((report.worst_pods.len(), report.more_pods), (WORST_PODS, 130));
    assert_eq!((report.troubles.len(), report.more_troubles), (LISTED_TROUBLES, 50));
    assert_eq!(report.totals.troubles, 150);
    // The longest trouble makes the worst of pods with as many failures.
    assert_eq!(report.troubles[0].seconds, 150.0);
    assert_eq!(report.worst_pods[0].pod.to_string(), "default/pod-149");
}

#[test]
fn what_was_wrong_before_the_window_is_part_of_it() {
    let mut day = Day::default();
    day.health(
        -100,
        Level::Degraded,
        vec![crate::entry::HealthCause {
            trouble: "hung-shim".to_owned(),
            text: "t".to_owned(),
            next: "n".to_owned(),
            pod: Some("default/db".to_owned()),
            container: None,
            age_seconds: 50,
            attempts: 1,
        }],
    );
    let mut builder = ReportBuilder::new(window(1), HOUR);
    builder.before(&day.entries()[0]);
    let report = builder.build();
    assert_eq!(report.health.degraded_seconds, 3600.0);
    assert_eq!((report.troubles[0].from, report.troubles[0].to), (at(-150), None));
    assert_eq!(report.worst_pods[0].pod.to_string(), "default/db");
}

#[test]
fn an_empty_history_makes_an_empty_report() {
    let report = report(&Day::default(), 2, HOUR);
    assert_eq!((report.totals, report.buckets.len()), (Totals::default(), 2));
    assert_eq!(report.health.unknown_seconds, 7200.0);
    assert_eq!((report.lag, report.relist), (None, None));
}

proptest! {
    /// Counts by part, type, reason and pod are those of a plain loop over the entries.
    #[test]
    fn sums_are_those_of_a_plain_loop(
        steps in proptest::collection::vec((0..5_u8, 0..7200_i64, 0..6_u8, 0..3_i32, any::<bool>()), 0..150),
        minutes in prop_oneof![Just(10_i64), Just(60)],
    ) {
        let mut day = Day::default();
        let mut by_type: BTreeMap<String, u64> = BTreeMap::new();
        let mut by_part: BTreeMap<i64, [u64; 4]> = BTreeMap::new();
        let (mut failures, mut by_pod): (u64, BTreeMap<String, u64>) = (0, BTreeMap::new());
        for (n, (kind, second, name, code, initial)) in steps.into_iter().enumerate() {
            let name = format!("pod-{name}");
            let (kind, at_place) = match kind {
                0 => { day.started(second, &name, "app", n as u32); ("ContainerStarted", 1) }
                1 | 2 => {
                    day.died(second, &name, "app", n as u32, code, if code == 0 { "Completed" } else { "Error" });
                    ("ContainerDied", if code == 0 { 2 } else { 3 })
                }
                3 => { day.removed(second, &name); ("PodRemoved", 0) }
                _ => { day.sandbox(second, &name, None); ("PodSandboxChanged", 0) }
            };
            if initial {
                day.initial();
                continue;
            }
            *by_type.entry(kind.to_owned()).or_default() += 1;
            let part = by_part.entry(second / (60 * minutes)).or_default();
            part[0] += 1;
            if at_place > 0 {
                part[at_place] += 1;
            }
            if at_place == 3 {
                failures += 1;
                *by_pod.entry(pod(&name).to_string()).or_default() += 1;
            }
        }
        let report = report(&day, 2, Duration::from_mins(minutes as u64));
        prop_assert_eq!(&report.events_by_type, &by_type);
        prop_assert_eq!(report.totals.events, by_type.values().sum::<u64>());
        prop_assert_eq!(report.totals.failures, failures);
        for (place, bucket) in report.buckets.iter().enumerate() {
            let plain = by_part.get(&(place as i64)).copied().unwrap_or_default();
            prop_assert_eq!([bucket.events, bucket.started, bucket.completed, bucket.failed], plain);
        }
        let found: BTreeMap<String, u64> =
            report.worst_pods.iter().map(|pod| (pod.pod.to_string(), pod.failures)).collect();
        prop_assert_eq!(found, by_pod);
        for pod in &report.worst_pods {
            prop_assert_eq!(pod.deaths_by_bucket.iter().sum::<u64>(), pod.deaths);
        }
        prop_assert!(report.worst_pods.windows(2).all(|pair| pair[0].failures >= pair[1].failures));
    }
}
