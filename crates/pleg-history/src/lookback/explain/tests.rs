//! The table of verdicts: what happened, and what is said about it.

use pleg::{SandboxState, Trouble};
use proptest::prelude::*;

use super::*;
use crate::entry::{FieldChange, MissedEvents, MissedReason, PodStatusChanged};
use crate::lookback::testing::{Day, at, pod};

fn window(since: i64, until: i64) -> Window {
    Window {
        since: at(since),
        until: at(until),
        held_since: Some(at(-1_000_000)),
        running: true,
    }
}

fn explained(day: &Day) -> Explanation {
    explain(&pod("web"), window(0, 10_000), day.entries())
}

/// A life of 60 s that ends like this at second 1000.
fn death(code: i32, reason: &str) -> Day {
    let mut day = Day::default();
    day.started(940, "web", "app", 3);
    day.died(1000, "web", "app", 3, code, reason);
    day
}

#[test]
fn each_end_has_its_verdict() {
    type Change = fn(&mut Day);
    let nothing: Change = |_| {};
    let stopped: Change = |day| {
        day.stopped(999, "web", "app", 3);
    };
    let sandbox: Change = |day| {
        day.sandbox(1001, "web", Some(SandboxState::NotReady));
    };
    let runtime: Change = |day| {
        day.trouble_ended(995, None, Trouble::RuntimeDown, 20);
    };
    let long_ago: Change = |day| {
        day.trouble_ended(700, None, Trouble::RuntimeDown, 20);
    };
    let unhealthy: Change = |day| {
        day.health(990, pleg::Level::Unhealthy, Vec::new());
    };
    let probe: Change = |day| {
        day.stopped(999, "web", "app", 3);
        day.node_event(
            980,
            "web",
            "Unhealthy",
            "Liveness probe failed: HTTP probe failed with statuscode: 503",
        );
    };
    let readiness: Change = |day| {
        day.stopped(999, "web", "app", 3);
        day.node_event(980, "web", "Unhealthy", "Readiness probe failed: connection refused");
    };
    let evicted: Change = |day| {
        day.node_event(990, "web", "Evicted", "The node was low on resource: memory.");
    };
    for (code, reason, around, expected) in [
        (137, "Error", probe, Verdict::ProbeFailed),
        (0, "Completed", probe, Verdict::ProbeFailed),
        (137, "OOMKilled", probe, Verdict::OomKilled),
        (143, "Error", readiness, Verdict::Stopped),
        (137, "Error", evicted, Verdict::Evicted),
        (137, "OOMKilled", nothing, Verdict::OomKilled),
        // The kernel's word counts before what happened at the same time.
        (137, "OOMKilled", sandbox, Verdict::OomKilled),
        (137, "OOMKilled", stopped, Verdict::OomKilled),
        (143, "Error", stopped, Verdict::Stopped),
        (0, "Completed", stopped, Verdict::Stopped),
        (128, "StartError", nothing, Verdict::CannotStart),
        (127, "Error", nothing, Verdict::CannotStart),
        (126, "Error", nothing, Verdict::CannotStart),
        (255, "Unknown", runtime, Verdict::NodeTrouble),
        (137, "Error", runtime, Verdict::NodeTrouble),
        (137, "Error", unhealthy, Verdict::NodeTrouble),
        (137, "Error", long_ago, Verdict::Killed),
        // What ends by itself was not ended by the node.
        (3, "Error", runtime, Verdict::Failed),
        (137, "Error", sandbox, Verdict::SandboxLost),
        (255, "Unknown", sandbox, Verdict::SandboxLost),
        (137, "Error", nothing, Verdict::Killed),
        (143, "Error", nothing, Verdict::Killed),
        (139, "Error", nothing, Verdict::Crashed),
        (134, "Error", nothing, Verdict::Crashed),
        (139, "Error", sandbox, Verdict::Crashed),
        (3, "Error", nothing, Verdict::Failed),
        (255, "Unknown", nothing, Verdict::Failed),
        (0, "Completed", nothing, Verdict::Completed),
    ] {
        let mut day = death(code, reason);
        around(&mut day);
        let explanation = explained(&day);
        assert_eq!(
            explanation.verdict, expected,
            "{code} {reason}: {}",
            explanation.summary
        );
        assert!(!explanation.means.is_empty() && !explanation.next.is_empty());
        assert!(explanation.summary.contains("container app"), "{}", explanation.summary);
    }
}

#[test]
fn without_a_code_nothing_is_guessed() {
    let mut day = death(0, "");
    day.change_last(|event| (event.exit_code, event.reason) = (None, None));
    let explanation = explained(&day);
    assert_eq!(explanation.verdict, Verdict::Unknown);
    assert_eq!(
        explanation.summary,
        "container app died, and the runtime does not say how (no reason given); 1 death in this window"
    );
}

#[test]
fn a_crash_loop_is_counted_by_reason_and_lifetime() {
    let mut day = Day::default();
    let mut second = 100;
    for attempt in 0..6 {
        day.started(second, "web", "app", attempt);
        second += 10 * i64::from(attempt + 1);
        let (code, reason) = if attempt == 4 { (1, "Error") } else { (137, "OOMKilled") };
        day.died(second, "web", "app", attempt, code, reason);
        second += 5;
    }
    day.started(second, "web", "app", 6);
    day.started(second, "web", "side", 0);
    let explanation = explained(&day);
    assert_eq!(explanation.verdict, Verdict::OomKilled);
    assert_eq!((explanation.restarts, explanation.deaths), (6, 6));
    let [app, side] = &explanation.containers[..] else {
        panic!("{:?}", explanation.containers)
    };
    let exits: Vec<_> = app
        .exits
        .iter()
        .map(|exit| (exit.reason.as_deref().unwrap(), exit.exit_code.unwrap(), exit.count))
        .collect();
    assert_eq!(exits, [("OOMKilled", 137, 5), ("Error", 1, 1)]);
    assert_eq!(
        app.lifetimes,
        Some(Lifetimes {
            count: 6,
            shortest_seconds: 10.0,
            median_seconds: 30.0,
            longest_seconds: 60.0
        })
    );
    assert_eq!((app.running, app.running_since), (true, Some(at(second))));
    assert_eq!((side.deaths, side.running), (0, true));
    let last = explanation.last_death.unwrap();
    assert_eq!(
        (last.attempt, last.exit_code, last.lived_seconds),
        (5, Some(137), Some(60.0))
    );
    assert_eq!(last.signal.as_deref(), Some("SIGKILL"));
    assert_eq!(last.container_id.as_str(), "web-app-5");
}

#[test]
fn a_failure_is_explained_before_a_completion() {
    let mut day = death(3, "Error");
    day.died(2000, "web", "init", 0, 0, "Completed");
    let last = explained(&day).last_death.unwrap();
    assert_eq!((last.container.as_str(), last.exit_code), ("app", Some(3)));
}

#[test]
fn only_deaths_in_the_window_count_but_older_starts_are_known() {
    let mut day = Day::default();
    day.died(-50, "web", "app", 0, 1, "Error");
    day.started(-40, "web", "app", 1);
    day.died(60, "web", "app", 1, 1, "Error");
    let explanation = explained(&day);
    assert_eq!((explanation.deaths, explanation.restarts), (1, 0));
    assert_eq!(explanation.last_death.unwrap().lived_seconds, Some(100.0));
    assert_eq!(explanation.held_since, None);
    let young = Window {
        held_since: Some(at(30)),
        ..window(0, 100)
    };
    assert_eq!(explain(&pod("web"), young, day.entries()).held_since, Some(at(30)));
}

#[test]
fn a_quiet_pod_is_quiet() {
    let mut day = Day::default();
    day.started(-50, "web", "app", 0);
    let explanation = explained(&day);
    assert_eq!(explanation.verdict, Verdict::Quiet);
    assert_eq!(explanation.summary, "nothing died in this window; 1 container runs");
    assert_eq!(
        explained(&Day::default()).summary,
        "nothing happened to its containers in this window"
    );
    day.removed(50, "web");
    let explanation = explained(&day);
    assert_eq!(explanation.summary, "nothing was seen to die; the pod has been removed");
    assert_eq!(explanation.removed_at, Some(at(50)));
}

#[test]
fn a_pod_in_quarantine_is_stuck() {
    let mut day = Day::default();
    day.started(-50, "web", "app", 0);
    day.trouble(100, Some(("web", "app")), Trouble::StuckInspection);
    let explanation = explained(&day);
    assert_eq!(explanation.verdict, Verdict::Stuck);
    assert_eq!(
        explanation.summary,
        "nothing died, but not all of it can be seen: stuck-inspection"
    );
    assert_eq!(
        (explanation.troubles.len(), explanation.troubles[0].seconds),
        (1, 9900.0)
    );
    day.trouble_ended(200, Some(("web", "app")), Trouble::StuckInspection, 100);
    let explanation = explained(&day);
    assert_eq!(explanation.verdict, Verdict::Quiet);
    assert_eq!(explanation.troubles[0].to, Some(at(200)));
}

/// What came before the last death, with where it comes from.
#[test]
fn evidence_is_what_came_before() {
    let mut day = Day::default();
    day.started(940, "web", "app", 3);
    day.trouble_ended(450, None, Trouble::RuntimeSlow, 100);
    day.trouble_ended(300, None, Trouble::RuntimeSlow, 10);
    day.trouble(500, Some(("web", "side")), Trouble::HungShim);
    day.trouble(600, Some(("db", "app")), Trouble::HungShim);
    let change = |container: &str, field: &str, from: Option<&str>, to: &str| FieldChange {
        container: Some(container.to_owned()),
        field: field.to_owned(),
        from: from.map(str::to_owned),
        to: Some(to.to_owned()),
    };
    let changed = |changes: Vec<FieldChange>| PodStatusChanged {
        pod: pod("web"),
        changes,
    };
    // What was first seen then did not change then.
    day.status_changed(650, changed(vec![change("new", "image", None, "web:2")]));
    day.status_changed(
        700,
        changed(vec![
            change("app", "memory_limit_in_bytes", Some("200"), "100"),
            change("new", "image", None, "web:2"),
        ]),
    );
    day.status_changed(975, changed(vec![change("side", "message", None, "no config")]));
    day.died(980, "web", "side", 0, 1, "Error");
    day.sandbox(990, "web", None);
    day.died(1000, "web", "app", 3, 137, "Error");
    day.status_changed(1001, changed(vec![change("app", "message", None, "too late")]));
    day.died(1200, "web", "late", 0, 0, "Completed");
    let explanation = explained(&day);
    let before = explanation.last_death.unwrap().before;
    let shown: Vec<_> = before
        .iter()
        .map(|evidence| {
            (
                evidence.kind,
                evidence.seconds_before,
                evidence.text.as_str(),
                evidence.event.is_some(),
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            (
                EvidenceKind::NodeTrouble,
                650.0,
                "runtime-slow: no answer within 10s (lasted 1m40s)",
                true
            ),
            (
                EvidenceKind::PodTrouble,
                500.0,
                "hung-shim of container side: no answer within 10s (not over by then)",
                true
            ),
            (
                EvidenceKind::StatusChanged,
                300.0,
                "app memory_limit_in_bytes: 200 → 100",
                false
            ),
            (
                EvidenceKind::StatusChanged,
                25.0,
                "side message: none → no config",
                false
            ),
            (
                EvidenceKind::SiblingDied,
                20.0,
                "container side died: exit code 1, Error",
                true
            ),
            (EvidenceKind::SandboxLost, 10.0, "the pod's sandbox is gone", true),
        ]
    );
    assert!(
        before
            .iter()
            .all(|evidence| evidence.event.is_some() || evidence.id.is_some())
    );
}

#[test]
fn others_that_die_at_the_same_time_are_named() {
    let mut day = death(137, "Error");
    for (n, name) in ["a", "b", "c", "d", "e"].iter().enumerate() {
        day.died(995 + n as i64, name, "app", 0, 137, "Error");
    }
    day.died(1000, "done", "app", 0, 0, "Completed");
    day.died(1100, "later", "app", 0, 1, "Error");
    let last = explained(&day).last_death.unwrap();
    assert_eq!(
        last.before[0].text,
        "containers of 5 other pods died within 10s: default/a, default/b, default/c, default/d, …"
    );
    assert_eq!((last.before.len(), last.before[0].seconds_before), (1, 5.0));
    // Two are no pattern.
    let mut day = death(137, "Error");
    day.died(1000, "a", "app", 0, 137, "Error");
    day.died(1000, "b", "app", 0, 137, "Error");
    assert!(explained(&day).last_death.unwrap().before.is_empty());
}

#[test]
fn what_was_not_seen_is_said() {
    let mut day = Day::default();
    day.started(100, "web", "app", 0);
    day.daemon_started(900, false);
    day.gap(
        900,
        MissedEvents {
            from: 3,
            to: 2,
            reason: MissedReason::Crashed,
        },
    );
    day.died(901, "web", "app", 0, 1, "Error").initial();
    let explanation = explained(&day);
    let last = explanation.last_death.unwrap();
    assert!(last.found_later && last.lived_seconds.is_none());
    let kinds: Vec<_> = last.before.iter().map(|evidence| evidence.kind).collect();
    assert_eq!(kinds, [EvidenceKind::Unseen, EvidenceKind::Unseen]);
    assert_eq!(explanation.deaths, 1);
}

/// A pod of a `StatefulSet` is deleted, and comes back with another UID.
#[test]
fn pods_of_one_name_are_one_pod() {
    let mut day = death(143, "Error");
    day.removed(1010, "web");
    day.started(1020, "web", "app", 0);
    day.change_last(|event| {
        let pod = event.pod.as_mut().unwrap();
        pod.uid = "another".into();
    });
    let explanation = explained(&day);
    let uids: Vec<_> = explanation.uids.iter().map(PodUid::as_str).collect();
    assert_eq!(uids, ["uid-web", "another"]);
    assert_eq!(explanation.removed_at, None);
}

#[test]
fn commands_have_no_foreign_words() {
    let mut hostile = pod("web");
    hostile.name = "web; rm -rf /".into();
    let explanation = explain(&hostile, window(0, 100), &[]);
    assert_eq!(explanation.next, ["pleg history"]);
    let mut day = Day::default();
    day.died(50, "web", "$(reboot)", 0, 1, "Error");
    for command in explained(&day).next {
        assert!(!command.contains('$'), "{command}");
    }
}

/// The JSON is read back, and has the names that are documented.
#[test]
fn it_is_written_and_read() {
    let mut day = death(137, "OOMKilled");
    day.trouble(500, Some(("web", "app")), Trouble::HungShim);
    let explanation = explained(&day);
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(json["verdict"], "oom-killed");
    assert_eq!(json["last_death"]["event"], "0000000000000001-2");
    assert_eq!(serde_json::from_value::<Explanation>(json).unwrap(), explanation);
}

proptest! {
    /// Whatever the entries are, what is counted is what a plain loop counts, and no duration is negative.
    #[test]
    fn counts_are_those_of_a_plain_loop(
        steps in proptest::collection::vec((0..4_u8, -20..200_i64, 0..3_u8, 0..4_i32), 0..80),
    ) {
        let (mut day, mut now) = (Day::default(), 0);
        let (mut attempts, mut running) = ([0_u32; 3], [false; 3]);
        let (mut deaths, mut failures, mut restarts) = (0, 0, 0);
        let names = ["a", "b", "c"];
        for (kind, step, container, code) in steps {
            now += step;
            let n = usize::from(container);
            let (name, attempt) = (names[n], attempts[n]);
            match kind {
                0 if !running[n] => {
                    day.started(now, "web", name, attempt);
                    running[n] = true;
                    restarts += u64::from(attempt > 0);
                }
                1 if running[n] => {
                    day.died(now, "web", name, attempt, code, if code == 0 { "Completed" } else { "Error" });
                    running[n] = false;
                    attempts[n] += 1;
                    deaths += 1;
                    failures += u64::from(code != 0);
                }
                2 => {
                    day.died(now, "other", name, 0, code, "Error");
                }
                _ => {
                    day.trouble(now, Some(("web", name)), Trouble::HungShim);
                }
            }
        }
        let all = Window { since: at(-100_000), until: at(100_000), held_since: None, running: true };
        let explanation = explain(&pod("web"), all, day.entries());
        prop_assert_eq!((explanation.deaths, explanation.restarts), (deaths, restarts));
        let exits: u64 = explanation.containers.iter().flat_map(|one| &one.exits).map(|exit| exit.count).sum();
        prop_assert_eq!(exits, deaths);
        prop_assert_eq!(explanation.last_death.is_some(), deaths > 0);
        if let Some(death) = &explanation.last_death {
            prop_assert_eq!(death.exit_code != Some(0), failures > 0);
            prop_assert!(death.lived_seconds.is_none_or(|lived| lived >= 0.0));
            prop_assert!(death.before.iter().all(|evidence| evidence.seconds_before >= 0.0));
            prop_assert!(death.before.len() <= 12);
        }
        for container in &explanation.containers {
            let n = names.iter().position(|name| *name == container.name).unwrap();
            prop_assert_eq!(container.running, running[n]);
            if let Some(lives) = container.lifetimes {
                prop_assert!(lives.shortest_seconds <= lives.median_seconds && lives.median_seconds <= lives.longest_seconds);
            }
        }
    }
}
