//! How far the event stream is trusted, and what evented mode costs: on a runtime in memory, with paused time.

#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "a test; and these figures are whole numbers"
)]

mod common;

use std::time::Duration;

use common::{Fake, Rig};
use pleg::runtime::{RuntimeEvent, RuntimeVersion};
use pleg::{Config, ContainerState, Level, Mode, Reached, SandboxState};
use tokio::time::{Instant, sleep, timeout};

/// No probes: they are calls too, and these tests count calls.
fn config(mode: Mode) -> Config {
    let mut config = Config::default();
    config.probe.round = Duration::ZERO;
    config.evented.mode = mode;
    config
}

fn version(name: &str, version: &str) -> RuntimeVersion {
    RuntimeVersion {
        name: name.into(),
        version: version.into(),
        api: "v1".into(),
    }
}

/// A runtime with events and pods `p0`, `p1`, …, each with a container `c0`, `c1`, ….
fn node(pods: usize) -> Fake {
    let fake = Fake::default();
    fake.world().has_events = true;
    fake.world().version = version("containerd", "2.1.9");
    for n in 0..pods {
        fake.world().add_pod(&format!("p{n}"), &[&format!("c{n}")]);
    }
    fake
}

fn period(rig: &Rig) -> f64 {
    rig.pleg.health().report().mode.full_relist_period_seconds
}

/// A generator whose stream is trusted: a full relist a minute.
async fn rested(fake: &Fake) -> Rig {
    let mut rig = Rig::start(fake, config(Mode::Auto));
    let grown = async {
        while period(&rig) < 60.0 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_mins(10), grown).await.unwrap();
    rig.drain();
    rig
}

/// The name of the first cause of not being healthy.
fn trouble(rig: &Rig) -> Option<(Level, &'static str)> {
    let report = rig.pleg.health().report();
    report.causes.first().map(|cause| (report.level, cause.trouble.name()))
}

/// The container dies without an event. Returns how long that takes to be reported.
async fn dies_untold(rig: &mut Rig, n: usize) -> Duration {
    let died = Instant::now();
    rig.fake.world().exit(&format!("c{n}"), 1);
    timeout(Duration::from_mins(2), rig.events.next()).await.unwrap();
    assert_eq!(rig.drain(), [""; 0]);
    died.elapsed()
}

const LOSSY: Option<(Level, &str)> = Some((Level::Degraded, "lossy-stream"));

/// Every event is dropped. Deaths came 50 s late each, and the level stayed Healthy.
#[tokio::test(start_paused = true)]
async fn a_stream_that_drops_everything_is_soon_not_relied_on() {
    let fake = node(12);
    let mut rig = rested(&fake).await;
    let mut delays = Vec::new();
    for n in 0..12 {
        delays.push(dies_untold(&mut rig, n).await.as_secs_f64());
        sleep(Duration::from_secs(50)).await;
    }
    assert!(delays[0] <= 60.0 && delays[1] <= 16.0 && delays[2] <= 4.0, "{delays:?}");
    assert!(delays[3..].iter().all(|delay| *delay <= 2.0), "{delays:?}");
    assert_eq!(trouble(&rig), LOSSY);
    let report = rig.pleg.health().report();
    assert!(
        report.causes[0]
            .text
            .starts_with("the event stream failed to report 12 changes in the last 1"),
        "{}",
        report.causes[0].text
    );
    // Hours without a change prove nothing.
    sleep(Duration::from_hours(3)).await;
    assert_eq!((trouble(&rig), period(&rig)), (LOSSY, 2.0));
}

#[tokio::test(start_paused = true)]
async fn a_lossy_stream_that_reports_again_is_trusted_again() {
    let fake = node(4);
    let mut rig = rested(&fake).await;
    for n in 0..3 {
        dies_untold(&mut rig, n).await;
        assert_eq!(trouble(&rig), None, "an accident, so far");
        sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(trouble(&rig), LOSSY);
    let missed = Instant::now();
    fake.world().exit("c3", 1);
    fake.world().tell_of("c3", Some("p3"));
    sleep(Duration::from_mins(14)).await;
    assert_eq!(trouble(&rig), LOSSY);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(trouble(&rig), None, "after {:?}", missed.elapsed());
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
    // Slowly: there were two more.
    sleep(Duration::from_mins(1)).await;
    assert!(period(&rig) <= 8.0, "{}", period(&rig));
    sleep(Duration::from_mins(20)).await;
    assert_eq!(period(&rig), 60.0);
    assert_eq!(rig.pleg.health().report().mode.missed_changes, 3);
}

#[tokio::test(start_paused = true)]
async fn a_reconnect_clears_no_miss_and_another_runtime_does() {
    let fake = node(4);
    let mut rig = rested(&fake).await;
    for n in 0..3 {
        dies_untold(&mut rig, n).await;
        sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(trouble(&rig), LOSSY);
    for _ in 0..5 {
        fake.world().cut();
        sleep(Duration::from_secs(20)).await;
        assert_eq!(trouble(&rig), LOSSY);
        assert!(period(&rig) <= 2.0);
    }
    fake.world().version = version("containerd", "2.2.0");
    fake.world().cut();
    sleep(Duration::from_mins(3)).await;
    assert_eq!((trouble(&rig), period(&rig)), (None, 60.0));
}

/// CRI-O that is restarted without `enable_pod_events` stayed Degraded for ever.
#[tokio::test(start_paused = true)]
async fn a_runtime_whose_events_were_switched_off_is_polled_and_healthy() {
    let fake = node(1);
    fake.world().version = version("cri-o", "1.36.3");
    let rig = rested(&fake).await;
    fake.world().events_end = true;
    fake.world().cut();
    sleep(Duration::from_secs(10)).await;
    let report = rig.pleg.health().report();
    assert_eq!(
        (report.level, report.mode.mode),
        (Level::Healthy, Mode::Generic),
        "{report:?}"
    );
    assert!(
        report.mode.reason.contains("enable_pod_events"),
        "{}",
        report.mode.reason
    );
    // And on again.
    fake.world().events_end = false;
    sleep(Duration::from_secs(62)).await;
    assert_eq!(rig.pleg.health().report().mode.mode, Mode::Evented);
}

/// A stream that ends at once a time or two, as of a runtime that is restarting, is missed and waited for.
#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_at_once_and_comes_back_is_not_given_up() {
    let fake = node(1);
    let rig = rested(&fake).await;
    let subscriptions = fake.world().subscriptions.len();
    fake.world().events_end = true;
    fake.world().cut();
    while fake.world().subscriptions.len() < subscriptions + 2 {
        sleep(Duration::from_millis(1)).await;
    }
    fake.world().events_end = false;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(rig.pleg.health().report().mode.mode, Mode::Evented);
}

/// What lists cost: the full ones, those of single pods, and the time in which any was in flight.
#[derive(Debug)]
struct Cost {
    lists: usize,
    share: f64,
}

/// A pod comes and another one goes, ten times a second for a minute, each reported by its events.
async fn churn(mode: Mode, latency: Duration) -> Cost {
    let fake = node(0);
    let rig = if mode == Mode::Generic {
        Rig::start(&fake, config(mode))
    } else {
        rested(&fake).await
    };
    fake.world().latency = latency;
    let lists = |fake: &Fake| {
        let world = fake.world();
        world.relists.len() + world.filtered_lists
    };
    let (before, start) = (lists(&fake), Instant::now());
    let tell = |id: &str, pod: &str, reached| {
        fake.world().tell(&RuntimeEvent {
            id: Some(id.into()),
            pod: Some(pod.into()),
            reached,
            ..RuntimeEvent::default()
        });
    };
    let mut busy = 0;
    for n in 0..600usize {
        let (pod, id) = (format!("p{n}"), format!("c{n}"));
        fake.world().add_pod(&pod, &[&id]);
        tell(&format!("s-{pod}"), &pod, Some(Reached::Running));
        tell(&id, &pod, Some(Reached::Running));
        if let Some(old) = n.checked_sub(10) {
            let (pod, id) = (format!("p{old}"), format!("c{old}"));
            fake.world().remove_pod(&pod);
            tell(&id, &pod, Some(Reached::Gone));
            tell(&format!("s-{pod}"), &pod, Some(Reached::Gone));
        }
        for _ in 0..20 {
            sleep(Duration::from_millis(5)).await;
            busy += usize::from(fake.world().lists_in_flight > 0);
        }
    }
    drop(rig);
    let ticks = start.elapsed().as_secs_f64() / 0.005;
    Cost {
        lists: lists(&fake) - before,
        #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
        share: busy as f64 / ticks,
    }
}

/// With lists of 1 s evented mode listed more often than polling does.
#[tokio::test(start_paused = true)]
async fn under_churn_events_cost_a_quarter_of_the_time_and_no_more_lists_than_polling_where_lists_are_slow() {
    for millis in [5, 200, 1000] {
        let latency = Duration::from_millis(millis);
        let (evented, generic) = (churn(Mode::Auto, latency).await, churn(Mode::Generic, latency).await);
        // One full relist a minute, and what is in flight in between two ticks.
        assert!(evented.share <= 0.25 + 0.02, "{millis} ms: {evented:?}, {generic:?}");
        if latency >= Duration::from_secs(1) {
            assert!(evented.lists <= generic.lists, "{millis} ms: {evented:?}, {generic:?}");
        }
    }
}

/// Where one list of a pod takes as long as a list of everything, several pods are one list.
#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_a_period_while_events_ask_for_slow_lists() {
    let fake = node(8);
    let rig = rested(&fake).await;
    fake.world().latency = Duration::from_secs(1);
    for n in 0..8 {
        fake.world().add_container(
            &format!("p{n}"),
            &format!("s-p{n}"),
            &format!("d{n}"),
            ContainerState::Running,
        );
        fake.world().tell_of(&format!("d{n}"), Some(&format!("p{n}")));
        sleep(Duration::from_secs(1)).await;
        let token = rig.pleg.cache().token();
        let asked = Instant::now();
        rig.pleg
            .cache()
            .newer_than(&"p0".into(), token, Duration::MAX)
            .await
            .unwrap();
        // A list may be in flight; then the period, a list, and the inspection of what it found.
        assert!(asked.elapsed() <= Duration::from_secs(4), "{:?}", asked.elapsed());
    }
}

/// Requests for more pods than are listed one by one: each was a full relist, back to back.
#[tokio::test(start_paused = true)]
async fn requests_without_end_leave_the_runtime_half_of_the_time() {
    for mode in [Mode::Generic, Mode::Auto] {
        let fake = node(5);
        let rig = Rig::start(&fake, config(mode));
        sleep(Duration::from_secs(10)).await;
        fake.world().latency = Duration::from_millis(10);
        let before = fake.world().relists.len();
        for _ in 0..10_000 {
            for n in 0..5 {
                rig.pleg.request_relist(&format!("p{n}").into());
            }
            sleep(Duration::from_millis(1)).await;
        }
        let lists = fake.world().relists.len() - before;
        assert!((400..=510).contains(&lists), "{mode}: {lists} in 10 s");
        // Requests now and then are served at once, full relist or not.
        sleep(Duration::from_millis(100)).await;
        for pods in [1, 5] {
            let asked = Instant::now();
            let tokens: Vec<_> = (0..pods)
                .map(|n| rig.pleg.request_relist(&format!("p{n}").into()))
                .collect();
            for (n, token) in tokens.into_iter().enumerate() {
                rig.pleg
                    .cache()
                    .newer_than(&format!("p{n}").into(), token, Duration::MAX)
                    .await
                    .unwrap();
            }
            assert!(
                asked.elapsed() <= Duration::from_millis(20),
                "{pods}: {:?}",
                asked.elapsed()
            );
            sleep(Duration::from_millis(500)).await;
        }
    }
}

/// `crictl rmp` on CRI-O: the stops are reported, the removal is not.
#[tokio::test(start_paused = true)]
async fn a_stopped_pod_that_goes_without_an_event_is_seen_to_go() {
    // (how long it stays after it has stopped, how late its removal is seen at most)
    for (stays, late) in [(0, 500), (100, 500), (600, 1000), (2000, 2000), (9000, 8000)] {
        let fake = node(2);
        fake.world().version = version("cri-o", "1.36.3");
        let mut rig = rested(&fake).await;
        let full = fake.world().relists.len();
        fake.world().exit("c0", 137);
        fake.world().tell_of("c0", Some("p0"));
        fake.world().sandboxes.get_mut("s-p0").unwrap().state = SandboxState::NotReady;
        fake.world().tell_of("s-p0", Some("p0"));
        sleep(Duration::from_millis(stays)).await;
        let removed = Instant::now();
        fake.world().remove_pod("p0");
        let mut events = Vec::new();
        while !events.iter().any(|event: &String| event.starts_with("PodRemoved p0")) {
            sleep(Duration::from_millis(1)).await;
            events.extend(rig.drain());
            assert!(removed.elapsed() < Duration::from_mins(2), "{stays} ms: {events:?}");
        }
        assert!(
            removed.elapsed() <= Duration::from_millis(late + 2),
            "{stays} ms: {:?}",
            removed.elapsed()
        );
        let last = [
            "ContainerRemoved p0 c0",
            "PodSandboxChanged p0 s-p0:gone",
            "PodRemoved p0",
        ];
        assert_eq!(events[events.len() - 3..], last);
        let world = fake.world();
        let lists = (world.relists.len() - full, world.filtered_lists);
        assert!(lists.0 == 0 && lists.1 <= 5, "{stays} ms: {lists:?}");
    }
}

/// A pod that stays is listed five times and then left alone; one that runs is not listed at all.
#[tokio::test(start_paused = true)]
async fn a_stopped_pod_that_stays_costs_five_lists() {
    let fake = node(2);
    let mut rig = rested(&fake).await;
    let before = fake.world().filtered_lists;
    fake.world().exit("c1", 1);
    fake.world().tell_of("c1", Some("p1"));
    fake.world().sandboxes.get_mut("s-p0").unwrap().state = SandboxState::NotReady;
    fake.world().exit("c0", 137);
    fake.world().tell_of("s-p0", Some("p0"));
    sleep(Duration::from_mins(5)).await;
    assert_eq!(fake.world().filtered_lists - before, 5);
    rig.drain();
    // Found by a full relist in the end, and not counted as a miss.
    fake.world().remove_pod("p0");
    sleep(Duration::from_secs(64)).await;
    assert_eq!(rig.drain().last().map(String::as_str), Some("PodRemoved p0"));
    assert_eq!(
        (rig.pleg.health().report().mode.missed_changes, period(&rig)),
        (0, 60.0)
    );
}
