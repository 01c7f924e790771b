//! Event-driven generation on a runtime in memory, with paused time. What went wrong with it upstream is cited by number.

#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "a test; and these figures are whole numbers"
)]

mod common;

use std::time::Duration;

use common::{Fake, Rig};
use pleg::runtime::{ErrorKind, RuntimeEvent, RuntimeVersion};
use pleg::{Config, ContainerState, EventedConfig, Level, Mode, PodUid, Reached, SandboxState, Trouble};
use tokio::time::{Instant, sleep, timeout};

/// Long enough for a stream to be taken for good, and short of any relist but those that it asks for.
const UP: Duration = Duration::from_millis(1500);

fn uid(uid: &str) -> PodUid {
    uid.into()
}

/// No probes: they are calls too, and these tests count calls.
fn config() -> Config {
    let mut config = Config::default();
    config.probe.round = Duration::ZERO;
    config
}

/// A runtime with events and one pod, `a`, with container `c`.
fn node() -> Fake {
    let fake = Fake::default();
    fake.world().has_events = true;
    fake.world().version = version("containerd", "2.1.9");
    fake.world().add_pod("a", &["c"]);
    fake
}

fn version(name: &str, version: &str) -> RuntimeVersion {
    RuntimeVersion {
        name: name.into(),
        version: version.into(),
        api: "v1".into(),
    }
}

/// A generator whose stream is up and whose full relists are `rest` apart or more.
async fn rested(fake: &Fake, config: Config, rest: Duration) -> Rig {
    let mut rig = Rig::start(fake, config);
    let grown = async {
        while rig.pleg.health().report().mode.full_relist_period_seconds < rest.as_secs_f64() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_mins(10), grown).await.unwrap();
    rig.drain();
    rig
}

fn metric(rig: &Rig, name: &str) -> f64 {
    let text = rig.pleg.render_metrics().unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

const MISSED: &str = "pleg_evented_missed_changes_total";

/// How many lists and statuses were asked for: full, filtered, statuses.
fn calls(fake: &Fake) -> (usize, usize, usize) {
    let world = fake.world();
    (world.relists.len(), world.filtered_lists, world.status_calls.len())
}

#[tokio::test(start_paused = true)]
async fn a_death_is_found_by_id_in_one_round_trip() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().latency = Duration::from_millis(5);
    let before = calls(&fake);
    let died = Instant::now();
    fake.world().exit("c", 3);
    fake.world().tell_of("c", Some("a"));
    timeout(Duration::from_secs(1), rig.events.next()).await.unwrap();
    assert_eq!(died.elapsed(), Duration::from_millis(5));
    let after = calls(&fake);
    assert_eq!(
        (after.0 - before.0, after.1 - before.1, after.2 - before.2),
        (0, 0, 1),
        "nothing but the container itself"
    );
    let text = rig.pleg.render_metrics().unwrap();
    assert!(
        text.contains("kubelet_evented_pleg_connection_success_count 1\n"),
        "{text}"
    );
    assert!(text.contains("pleg_mode{mode=\"evented\"} 1\n"), "{text}");
    // The gauges follow without a full relist.
    sleep(Duration::from_secs(2)).await;
    assert_eq!(calls(&fake).0, before.0);
    let text = rig.pleg.render_metrics().unwrap();
    assert!(
        text.contains("kubelet_running_containers{container_state=\"exited\"} 1\n"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_new_in_a_pod_is_found_by_its_lists() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    let before = calls(&fake);
    fake.world().add_container("a", "s-a", "d", ContainerState::Created);
    fake.world().tell_of("d", Some("a"));
    rig.settle().await;
    assert_eq!(rig.drain(), ["ContainerCreated a d"]);
    // A pod that is not known.
    fake.world().add_pod("b", &["e"]);
    fake.world().tell_of("s-b", Some("b"));
    fake.world().tell_of("e", Some("b"));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(rig.drain(), ["PodSandboxChanged b s-b:Ready", "ContainerStarted b e"]);
    // And its end.
    fake.world().remove_pod("b");
    fake.world().tell_deleted("e", Some("b"));
    fake.world().tell_deleted("s-b", Some("b"));
    sleep(Duration::from_millis(10)).await;
    let removal = [
        "ContainerDied b e",
        "ContainerRemoved b e",
        "PodSandboxChanged b s-b:gone",
        "PodRemoved b",
    ];
    assert_eq!(rig.drain(), removal);
    let after = calls(&fake);
    assert_eq!(
        (after.0 - before.0, after.1 - before.1),
        (0, 3),
        "no list of everything"
    );
    assert_eq!(metric(&rig, MISSED), 0.0);
}

/// kubernetes#114351, #128654: no sandbox status, no status at all. The kubelet panicked.
#[tokio::test(start_paused = true)]
async fn half_filled_events_are_hints_all_the_same() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    let before = calls(&fake);
    // Known by its id.
    fake.world().exit("c", 1);
    fake.world().tell_of("c", None);
    rig.settle().await;
    assert_eq!(rig.drain(), ["ContainerDied a c=1"]);
    assert_eq!((calls(&fake).0, calls(&fake).1), (before.0, before.1));
    // As containerd 1.7 reports that a sandbox was deleted.
    fake.world().containers.clear();
    fake.world().tell_deleted("c", None);
    rig.settle().await;
    assert_eq!(rig.drain(), ["ContainerRemoved a c"]);
    assert_eq!((calls(&fake).0, calls(&fake).1), (before.0, before.1 + 1));
    // Not known at all: everything is relisted.
    fake.world().add_pod("b", &["d"]);
    fake.world().tell_of("d", None);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(rig.drain(), ["PodSandboxChanged b s-b:Ready", "ContainerStarted b d"]);
    assert_eq!(calls(&fake).0, before.0 + 1);
    fake.world().exit("d", 2);
    fake.world().tell(&RuntimeEvent::default());
    sleep(Duration::from_millis(10)).await;
    assert_eq!(rig.drain(), ["ContainerDied b d=2"]);
    // Neither known nor there: nothing is to be done.
    let before = calls(&fake);
    fake.world().tell_deleted("never seen", None);
    fake.world().tell_deleted("never seen either", Some("nobody"));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(calls(&fake), before);
    assert_eq!(rig.drain(), [""; 0]);
}

/// A container without the label that a filtered list goes by.
#[tokio::test(start_paused = true)]
async fn what_the_lists_of_its_pod_do_not_show_takes_a_full_relist() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().add_container("a", "s-a", "d", ContainerState::Running);
    fake.world().containers.get_mut("d").unwrap().labelled = false;
    fake.world().tell_of("d", Some("a"));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(rig.drain(), ["ContainerStarted a d"]);
}

#[tokio::test(start_paused = true)]
async fn a_burst_about_one_pod_costs_one_relist_and_at_most_one_more() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().latency = Duration::from_millis(20);
    let before = calls(&fake);
    fake.world().exit("c", 1);
    for _ in 0..10 {
        for _ in 0..100 {
            fake.world().tell_of("c", Some("a"));
        }
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.drain(), ["ContainerDied a c=1"]);
    let after = calls(&fake);
    assert_eq!((after.0, after.1), (before.0, before.1));
    // One call for the first; what has ended is not asked for again.
    assert_eq!(after.2 - before.2, 1);
}

#[tokio::test(start_paused = true)]
async fn the_pause_between_full_relists_grows_while_the_stream_is_good() {
    let fake = node();
    let rig = Rig::start(&fake, config());
    sleep(Duration::from_mins(5)).await;
    let starts: Vec<_> = fake.world().list_times.iter().map(|(asked, _)| *asked).collect();
    let pauses: Vec<_> = starts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    // After a second the stream stands, which is worth a relist; the next verifies for the first time.
    assert_eq!(pauses, [1, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
    assert_eq!(metric(&rig, "pleg_full_look_period_seconds"), 60.0);
    let mode = rig.pleg.health().report().mode;
    assert_eq!(
        mode.to_string(),
        "evented (a full relist every 1m0s): the event stream of containerd 2.1.9 is up"
    );
}

#[tokio::test(start_paused = true)]
async fn the_longest_pause_can_be_chosen_within_the_threshold() {
    let fake = node();
    let mut config = config();
    config.evented.most_period = Duration::from_mins(5);
    config.threshold = Duration::from_mins(10);
    let rig = rested(&fake, config.clone(), Duration::from_mins(5)).await;
    rig.shutdown.cancel();
    config.threshold = Duration::from_mins(3);
    let rig = rested(&fake, config, Duration::from_secs(90)).await;
    sleep(Duration::from_mins(10)).await;
    assert_eq!(metric(&rig, "pleg_full_look_period_seconds"), 90.0);
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
}

/// KEP-3386's review asked for it: how many events were missed?
#[tokio::test(start_paused = true)]
async fn an_unannounced_change_is_counted_and_makes_relists_frequent() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().exit("c", 1);
    // By the next full relist, and the grace after it.
    sleep(Duration::from_secs(64)).await;
    assert_eq!(rig.drain(), ["ContainerDied a c=1"]);
    assert_eq!(metric(&rig, MISSED), 1.0);
    assert!(metric(&rig, "pleg_full_look_period_seconds") <= 2.0);
    assert_eq!(rig.pleg.health().report().mode.missed_changes, 1);
    // The next is found within a period, and reported once.
    let relists = calls(&fake).0;
    sleep(Duration::from_secs(3)).await;
    assert!(calls(&fake).0 > relists);
    assert_eq!(metric(&rig, MISSED), 1.0);
    let recorded = recorded(&rig).await;
    assert!(
        recorded.contains("a full relist found a change of pod default/a"),
        "{recorded}"
    );
    assert!(
        recorded.contains("a full relist every 1s: a change was missed"),
        "{recorded}"
    );
    assert!(
        recorded.contains("a full relist every 1m0s: every change was announced"),
        "{recorded}"
    );
}

async fn recorded(rig: &Rig) -> String {
    let recording = rig.pleg.recording().await.unwrap();
    let lines = recording.into_lines();
    lines.map(|line| serde_json::to_string(&line).unwrap() + "\n").collect()
}

#[tokio::test(start_paused = true)]
async fn an_event_shortly_after_its_change_was_listed_is_no_miss() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().exit("c", 1);
    rig.pleg.request_all();
    sleep(Duration::from_millis(1900)).await;
    assert_eq!(rig.drain(), ["ContainerDied a c=1"]);
    fake.world().tell_of("c", Some("a"));
    sleep(Duration::from_secs(10)).await;
    assert_eq!((metric(&rig, MISSED), rig.drain().len()), (0.0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_event_about_a_pod_whose_inspection_hangs_is_no_miss() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().hung.insert("c".into());
    rig.pleg.request_relist(&uid("a"));
    sleep(Duration::from_millis(100)).await;
    fake.world().exit("c", 1);
    fake.world().tell_of("c", Some("a"));
    // Longer than an event and its change may be apart, and shorter than the call hangs.
    sleep(Duration::from_secs(3)).await;
    rig.pleg.request_all();
    sleep(Duration::from_secs(3)).await;
    assert_eq!((metric(&rig, MISSED), rig.drain().len()), (0.0, 0));
    fake.world().hung.clear();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(rig.drain(), ["ContainerDied a c=1"]);
    assert_eq!(metric(&rig, MISSED), 0.0);
}

/// containerd reports nothing about a container whose start failed.
#[tokio::test(start_paused = true)]
async fn a_failed_start_is_no_miss() {
    let fake = node();
    fake.world().add_container("a", "s-a", "d", ContainerState::Created);
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().exit("d", 128);
    rig.pleg.request_all();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(rig.drain(), ["ContainerDied a d=128"]);
    assert_eq!(metric(&rig, MISSED), 0.0);
    // A container that ran and ended like this should have been reported.
    fake.world().exit("c", 128);
    rig.pleg.request_all();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(metric(&rig, MISSED), 1.0);
}

/// cri-o#6625: DELETED for a container that only stopped; cri-o#6603: nothing at all.
#[tokio::test(start_paused = true)]
async fn what_is_listed_counts_and_not_what_the_event_says() {
    let fake = node();
    fake.world().add_container("a", "s-a", "d", ContainerState::Running);
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().exit("c", 1);
    fake.world().tell_deleted("c", Some("a"));
    rig.settle().await;
    assert_eq!(rig.drain(), ["ContainerDied a c=1"]);
    // Nothing happened to this one.
    fake.world().tell_deleted("d", Some("a"));
    fake.world().tell_of("d", Some("a"));
    sleep(Duration::from_millis(100)).await;
    assert_eq!(rig.drain(), [""; 0]);
    // Not reported at all: found within the longest pause.
    fake.world().exit("d", 2);
    sleep(Duration::from_secs(61)).await;
    assert_eq!(rig.drain(), ["ContainerDied a d=2"]);
}

/// kubernetes#124297, #126414, #127195, #127814: times in nanoseconds taken for seconds put the kubelet's cache into the future.
#[tokio::test(start_paused = true)]
async fn no_time_in_an_event_decides_anything() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    for (n, created_at) in [i64::MIN, -1, 0, 1, 1_800_000_000, i64::MAX].into_iter().enumerate() {
        let id = format!("t{n}");
        fake.world().add_container("a", "s-a", &id, ContainerState::Running);
        fake.world().tell(&RuntimeEvent {
            id: Some(id.as_str().into()),
            pod: Some(uid("a")),
            reached: Some(Reached::Running),
            created_at,
        });
        sleep(Duration::from_millis(10)).await;
        assert_eq!(rig.drain(), [format!("ContainerStarted a {id}")]);
        let entry = timeout(Duration::from_millis(10), rig.pleg.refresh(&uid("a"), Duration::MAX))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(entry.status.containers.len(), n + 2);
    }
}

/// kubernetes#124704, #124953, #127954, #135240: workers waited for a time stamp that only a full relist moved.
#[tokio::test(start_paused = true)]
async fn a_caller_of_newer_than_does_not_wait_for_the_long_pause() {
    let fake = node();
    let rig = rested(&fake, config(), Duration::from_mins(1)).await;
    // With a hint: at once, by lists of the pod.
    let before = calls(&fake);
    let asked = Instant::now();
    rig.pleg.refresh(&uid("a"), Duration::MAX).await.unwrap();
    assert_eq!(asked.elapsed(), Duration::ZERO);
    assert_eq!((calls(&fake).0, calls(&fake).1), (before.0, before.1 + 1));
    // Without: within the period of the generic mode.
    for _ in 0..3 {
        let token = rig.pleg.cache().token();
        let asked = Instant::now();
        rig.pleg
            .cache()
            .newer_than(&uid("a"), token, Duration::MAX)
            .await
            .unwrap();
        assert!(asked.elapsed() <= Duration::from_millis(1001), "{:?}", asked.elapsed());
        sleep(Duration::from_secs(7)).await;
    }
    // No caller waits any more, nothing is relisted.
    let before = calls(&fake);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(calls(&fake), before);
}

/// kubernetes#120941, #121003, #121349, #123087: two writers of one cache, the older of which won.
#[tokio::test(start_paused = true)]
async fn an_old_list_does_not_undo_what_an_event_brought() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    // The list is made before the death and comes after it: the fake looks at its world when the time is over.
    fake.world().list_snapshot_early = true;
    fake.world().latency = Duration::from_millis(50);
    rig.pleg.request_all();
    sleep(Duration::from_millis(10)).await;
    fake.world().latency = Duration::from_millis(1);
    fake.world().exit("c", 1);
    fake.world().tell_of("c", Some("a"));
    sleep(Duration::from_millis(20)).await;
    assert_eq!(rig.drain(), ["ContainerDied a c=1"]);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(rig.drain(), [""; 0]);
    assert_eq!(metric(&rig, MISSED), 0.0);
}

/// A list arrives while the container of an event is inspected. It shows another change of the pod, and the old state of that container.
#[tokio::test(start_paused = true)]
async fn a_list_in_between_does_not_swallow_what_an_event_asked_for() {
    let fake = node();
    fake.world().add_container("a", "s-a", "d", ContainerState::Running);
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().list_snapshot_early = true;
    fake.world().latency = Duration::from_millis(20);
    fake.world().exit("d", 2);
    rig.pleg.request_all();
    sleep(Duration::from_millis(10)).await;
    // The list is made, and not here yet.
    fake.world().latency = Duration::from_millis(30);
    fake.world().exit("c", 1);
    fake.world().tell_of("c", Some("a"));
    sleep(Duration::from_millis(200)).await;
    let mut events = rig.drain();
    events.sort();
    assert_eq!(events, ["ContainerDied a c=1", "ContainerDied a d=2"]);
}

/// All that is known of a pod is gone when asked for by id. Whether the pod is, only its list can show.
#[tokio::test(start_paused = true)]
async fn a_pod_is_not_gone_while_it_has_a_new_sandbox() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().remove_pod("a");
    fake.world().add_sandbox("a", "s2-a");
    fake.world().tell_of("c", Some("a"));
    sleep(Duration::from_millis(10)).await;
    let events = rig.drain();
    assert!(
        !events.iter().any(|event| event.starts_with("PodRemoved")),
        "{events:?}"
    );
    assert!(
        events.contains(&"PodSandboxChanged a s2-a:Ready".to_owned()),
        "{events:?}"
    );
    fake.world().remove_pod("a");
    fake.world().tell_of("s2-a", Some("a"));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(rig.drain().last().map(String::as_str), Some("PodRemoved a"));
}

/// kubernetes#129827: containerd was away for 0.4 s, and the kubelet never followed its events again.
#[tokio::test(start_paused = true)]
async fn a_lost_stream_is_asked_for_for_ever() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    let subscriptions = fake.world().subscriptions.len();
    fake.world().cut();
    fake.world().exit("c", 1);
    sleep(Duration::from_millis(10)).await;
    // Relisted at once, without an event; and once a second from now on.
    assert_eq!(rig.drain(), ["ContainerDied a c=1"]);
    sleep(UP).await;
    assert_eq!(fake.world().subscriptions.len(), subscriptions + 1);
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);

    let starting = ErrorKind::Status {
        code: "UNKNOWN",
        message: "not yet".into(),
    };
    fake.world().events_error = Some(starting);
    fake.world().cut();
    let (lost, failures) = (
        Instant::now(),
        metric(&rig, "kubelet_evented_pleg_connection_error_count"),
    );
    sleep(Duration::from_mins(30)).await;
    let report = rig.pleg.health().report();
    assert_eq!((report.level, report.mode.mode), (Level::Degraded, Mode::Generic));
    assert_eq!(report.causes[0].trouble, Trouble::StreamDown);
    assert!(report.causes[0].text.contains("not yet"), "{report:?}");
    assert_eq!(report.mode.full_relist_period_seconds, 1.0);
    let tries = metric(&rig, "kubelet_evented_pleg_connection_error_count") - failures;
    // From 100 ms to 30 s, and then every 15 to 30 s.
    assert!((60.0..140.0).contains(&tries), "{tries} in {:?}", lost.elapsed());
    fake.world().events_error = None;
    sleep(Duration::from_secs(32)).await;
    let report = rig.pleg.health().report();
    assert_eq!((report.level, report.mode.mode), (Level::Healthy, Mode::Evented));
    // The back-off starts anew.
    fake.world().cut();
    let cut = Instant::now();
    sleep(Duration::from_secs(1)).await;
    let back = *fake.world().subscriptions.last().unwrap();
    assert!(back - cut <= Duration::from_millis(100), "{:?}", back - cut);
}

/// No event will ever report what died while the runtime was away.
#[tokio::test(start_paused = true)]
async fn a_death_while_the_runtime_is_down_is_found_by_the_first_relist() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    let gone = ErrorKind::Unreachable("connection refused".into());
    {
        let mut world = fake.world();
        world.cut();
        world.list_error = Some(gone.clone());
        world.version_error = Some(gone);
    }
    sleep(Duration::from_secs(90)).await;
    // The list is why; that there are no events either is a second cause, as the mode says too.
    let report = rig.pleg.health().report();
    let causes: Vec<_> = report.causes.iter().map(|cause| cause.trouble).collect();
    assert_eq!(causes, [Trouble::RuntimeDown, Trouble::StreamDown], "{report:?}");
    assert!(report.mode.reason.starts_with("the event stream is down"), "{report:?}");
    {
        let mut world = fake.world();
        world.exit("c", 255);
        (world.list_error, world.version_error) = (None, None);
    }
    sleep(Duration::from_millis(1010)).await;
    assert_eq!(rig.drain(), ["ContainerDied a c=255"]);
    // And the stream is back without waiting for its turn.
    sleep(UP).await;
    assert_eq!(rig.pleg.health().report().mode.mode, Mode::Evented);
    assert_eq!(metric(&rig, MISSED), 0.0);
}

/// containerd#7318, #8892; cri-o#7210: a second subscriber takes events away from the kubelet.
#[tokio::test(start_paused = true)]
async fn where_subscribers_split_the_events_auto_takes_none() {
    let fake = node();
    fake.world().version = version("containerd", "1.7.24~ds1");
    let rig = Rig::start(&fake, config());
    sleep(Duration::from_mins(5)).await;
    assert_eq!(fake.world().subscriptions.len(), 0);
    let report = rig.pleg.health().report();
    assert_eq!(
        (report.level, report.mode.mode, report.mode.configured),
        (Level::Healthy, Mode::Generic, Mode::Auto)
    );
    assert_eq!(
        &*report.mode.reason,
        "containerd 1.7.24~ds1 delivers each event to one subscriber only, so a kubelet on this node would miss events"
    );
    assert_eq!(metric(&rig, "pleg_full_look_period_seconds"), 1.0);
    // Replaced while it runs.
    fake.world().version = version("containerd", "2.1.9");
    sleep(Duration::from_secs(62)).await;
    assert_eq!(rig.pleg.health().report().mode.mode, Mode::Evented);
}

#[tokio::test(start_paused = true)]
async fn an_explicit_or_only_subscriber_gets_the_events_of_an_old_containerd() {
    for (mode, alone) in [(Mode::Evented, false), (Mode::Auto, true)] {
        let fake = node();
        fake.world().version = version("containerd", "1.7.24");
        let evented = EventedConfig {
            mode,
            exclusive_subscriber: alone,
            ..EventedConfig::default()
        };
        let mut rig = rested(&fake, Config { evented, ..config() }, Duration::from_secs(4)).await;
        fake.world().exit("c", 1);
        fake.world().tell_of("c", None);
        rig.settle().await;
        assert_eq!(rig.drain(), ["ContainerDied a c=1"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_runtime_without_events_is_relisted_and_asked_again() {
    for ends in [false, true] {
        let fake = node();
        fake.world().has_events = ends;
        fake.world().events_end = ends;
        fake.world().version = version("cri-o", "1.31.0");
        let rig = Rig::start(&fake, config());
        sleep(Duration::from_secs(10)).await;
        let report = rig.pleg.health().report();
        assert_eq!((report.level, report.mode.mode), (Level::Healthy, Mode::Generic));
        assert!(report.mode.reason.contains("cri-o 1.31.0"), "{}", report.mode.reason);
        assert!((9..=11).contains(&calls(&fake).0), "{:?}", calls(&fake));
        assert!(fake.world().subscriptions.len() <= 1);
        // Switched on, with a restart that was not noticed.
        fake.world().has_events = true;
        fake.world().events_end = false;
        sleep(Duration::from_secs(62)).await;
        assert_eq!(rig.pleg.health().report().mode.mode, Mode::Evented);
    }
}

/// A user who asks for events by name gets an error if there are none.
#[tokio::test(start_paused = true)]
async fn without_events_the_evented_mode_is_degraded() {
    let fake = node();
    fake.world().has_events = false;
    let evented = EventedConfig {
        mode: Mode::Evented,
        ..EventedConfig::default()
    };
    let rig = Rig::start(&fake, Config { evented, ..config() });
    sleep(Duration::from_secs(10)).await;
    let report = rig.pleg.health().report();
    assert_eq!(report.level, Level::Degraded);
    assert_eq!(report.causes[0].trouble, Trouble::StreamDown);
    assert!(
        report.causes[0].text.contains("not implemented by the runtime"),
        "{report:?}"
    );
}

/// The kubelet fills a channel of 1000 with the backlog and then waits for a reader that waits for health: seen with 1838 events.
#[tokio::test(start_paused = true)]
async fn a_backlog_of_5000_neither_delays_the_start_nor_is_reported_again() {
    let fake = node();
    for n in 0..50 {
        fake.world().add_pod(&format!("p{n}"), &[&format!("c{n}")]);
    }
    fake.world().latency = Duration::from_millis(1);
    fake.world().backlog = (0..5000)
        .map(|n| RuntimeEvent {
            id: Some(format!("c{}", n % 100).into()),
            pod: Some(format!("p{}", n % 100).into()),
            reached: [Some(Reached::Gone), None, Some(Reached::Ended)][usize::try_from(n % 3).unwrap()],
            created_at: n,
        })
        .collect();
    let started = Instant::now();
    let mut rig = Rig::start(&fake, config());
    rig.seen().await;
    sleep(Duration::from_millis(5)).await;
    assert!(
        started.elapsed() < Duration::from_millis(100),
        "{:?}",
        started.elapsed()
    );
    let events = rig.drain();
    assert_eq!(events.len(), 2 * 51, "{events:?}");
    sleep(Duration::from_secs(3)).await;
    assert_eq!(rig.drain(), [""; 0]);
    assert_eq!(fake.world().status_calls.len(), 2 * 51, "nothing was inspected again");
    assert_eq!(metric(&rig, "pleg_evented_events_total"), 5000.0);
    assert_eq!(metric(&rig, MISSED), 0.0);
}

#[tokio::test(start_paused = true)]
async fn the_stream_is_read_whatever_the_generator_does() {
    let fake = node();
    let rig = rested(&fake, config(), Duration::from_secs(8)).await;
    // Lists hang, the generator is unhealthy, the pod of the events is in quarantine.
    fake.world().list_hangs = true;
    fake.world().hung.insert("c".into());
    fake.world().exit("c", 1);
    sleep(Duration::from_mins(5)).await;
    assert_eq!(rig.pleg.health().report().level, Level::Unhealthy);
    let before = metric(&rig, "pleg_evented_events_total");
    for n in 0..10_000 {
        fake.world().tell_of(&format!("x{n}"), (n % 2 == 0).then_some("a"));
        fake.world().tell_of("c", Some("a"));
    }
    rig.settle().await;
    assert_eq!(metric(&rig, "pleg_evented_events_total") - before, 20_000.0);
}

/// The pod of an event is in quarantine: the event is a reason to try again, and others do not wait.
#[tokio::test(start_paused = true)]
async fn an_event_of_a_hung_pod_delays_no_other_pod() {
    let fake = node();
    fake.world().add_pod("b", &["d"]);
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().hung.insert("c".into());
    fake.world().exit("c", 1);
    fake.world().tell_of("c", Some("a"));
    sleep(Duration::from_secs(1)).await;
    fake.world().exit("d", 1);
    fake.world().tell_of("d", Some("b"));
    rig.settle().await;
    assert_eq!(rig.drain(), ["ContainerDied b d=1"]);
    sleep(Duration::from_secs(11)).await;
    assert_eq!(rig.pleg.health().report().level, Level::Degraded);
    // The attempt that is under way fails, too; the next does not.
    fake.world().hung.clear();
    sleep(Duration::from_secs(15)).await;
    assert_eq!(rig.drain(), ["ContainerDied a c=1"]);
    assert_eq!(metric(&rig, MISSED), 0.0);
}

/// One hundred pods at once: one list, not a hundred times two.
#[tokio::test(start_paused = true)]
async fn a_storm_costs_one_list() {
    let fake = node();
    for n in 0..100 {
        fake.world().add_pod(&format!("p{n}"), &[&format!("c{n}")]);
    }
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().latency = Duration::from_millis(2);
    let before = calls(&fake);
    for n in 0..100 {
        fake.world().exit(&format!("c{n}"), 1);
        fake.world().tell_of(&format!("c{n}"), Some(&format!("p{n}")));
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.drain().len(), 100);
    let after = calls(&fake);
    assert_eq!(
        (after.0 - before.0, after.1 - before.1, after.2 - before.2),
        (1, 0, 200)
    );
    assert_eq!(metric(&rig, MISSED), 0.0);
}

/// A sandbox that stops, by its id.
#[tokio::test(start_paused = true)]
async fn a_sandbox_that_stops_is_found_by_its_id() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().sandboxes.get_mut("s-a").unwrap().state = SandboxState::NotReady;
    fake.world().exit("c", 137);
    fake.world().tell_of("s-a", Some("a"));
    rig.settle().await;
    assert_eq!(
        rig.drain(),
        ["ContainerDied a c=137", "PodSandboxChanged a s-a:NotReady"]
    );
    assert!(rig.pleg.cache().get(&uid("a")).unwrap().status.containers[0].exit_code == Some(137));
}

/// A caller that waited for a pod without an answer caused full relists without any pause between them.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_hung_pod_causes_no_endless_lists() {
    let fake = node();
    let rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().hung.insert("c".into());
    fake.world().latency = Duration::from_millis(1);
    let before = calls(&fake).0;
    let (pleg, waited) = (rig.pleg.clone(), uid("a"));
    let waiting = tokio::spawn(async move { pleg.refresh(&waited, Duration::MAX).await });
    sleep(Duration::from_secs(9)).await;
    assert!(!waiting.is_finished());
    assert!(
        calls(&fake).0 - before <= 9,
        "{} full relists in 9 s",
        calls(&fake).0 - before
    );
}

/// A list that brings something else of the pod overtakes the answers by id. The next ones count instead: the death was in the cache,
/// and its event came a full relist later.
#[tokio::test(start_paused = true)]
async fn a_death_is_reported_at_once_though_a_list_changes_its_pod_meanwhile() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().list_snapshot_early = true;
    fake.world().latency = Duration::from_millis(20);
    fake.world().add_container("a", "s-a", "d", ContainerState::Created);
    fake.world().tell_of("d", Some("a"));
    sleep(Duration::from_millis(10)).await;
    fake.world().exit("c", 1);
    fake.world().tell_of("c", Some("a"));
    sleep(Duration::from_millis(100)).await;
    let mut events = rig.drain();
    events.sort();
    assert_eq!(events, ["ContainerCreated a d", "ContainerDied a c=1"]);
    sleep(Duration::from_mins(2)).await;
    assert_eq!((metric(&rig, MISSED), rig.drain().len()), (0.0, 0));
}

/// A relist of several pods is several lists: an answer by id that is newer than all of them wins against each of them.
#[tokio::test(start_paused = true)]
async fn old_lists_of_several_pods_undo_nothing_that_an_event_brought() {
    let fake = node();
    for pod in ["b", "d", "e"] {
        fake.world().add_pod(pod, &[&format!("c-{pod}")]);
    }
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().list_snapshot_early = true;
    fake.world().latency = Duration::from_millis(50);
    for pod in ["a", "b", "d", "e"] {
        rig.pleg.request_relist(&uid(pod));
    }
    sleep(Duration::from_millis(10)).await;
    fake.world().latency = Duration::from_millis(1);
    for (pod, container) in [("a", "c"), ("b", "c-b"), ("d", "c-d"), ("e", "c-e")] {
        fake.world().exit(container, 1);
        fake.world().tell_of(container, Some(pod));
    }
    sleep(Duration::from_millis(20)).await;
    assert_eq!(rig.drain().len(), 4);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(rig.drain(), [""; 0]);
}

/// DELETED of a container that only stopped, as CRI-O told it, together with what told of its beginning: it was taken for gone before
/// it was seen.
#[tokio::test(start_paused = true)]
async fn unhealthy_brings_the_period_back() {
    let fake = node();
    let mut config = config();
    config.threshold = Duration::from_mins(1);
    let rig = rested(&fake, config, Duration::from_secs(30)).await;
    fake.world().list_hangs = true;
    sleep(Duration::from_secs(100)).await;
    let report = rig.pleg.health().report();
    assert_eq!(report.level, Level::Unhealthy);
    assert_eq!(report.mode.full_relist_period_seconds, 1.0);
}

/// CRI-O reports a start before its status does; containerd of a sandbox's end while a plugin holds that up. No other event comes.
#[tokio::test(start_paused = true)]
async fn an_event_ahead_of_the_runtimes_own_answers_is_checked_again() {
    let fake = node();
    for id in ["new", "newer"] {
        fake.world().add_container("a", "s-a", id, ContainerState::Created);
    }
    fake.world().add_pod("b", &[]);
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    let relists = fake.world().relists.len();
    let tell = |id: &str, pod: &str, reached| {
        fake.world().tell(&RuntimeEvent {
            id: Some(id.into()),
            pod: Some(uid(pod)),
            reached: Some(reached),
            ..RuntimeEvent::default()
        });
    };
    // Soon, and later; of a container and of a sandbox.
    for (n, late) in [50, 400].into_iter().enumerate() {
        let id = ["new", "newer"][n];
        tell(id, "a", Reached::Running);
        sleep(Duration::from_millis(late)).await;
        assert_eq!(rig.drain(), [""; 0], "{id}");
        fake.world().containers.get_mut(id).unwrap().state = ContainerState::Running;
        sleep(Duration::from_millis(1200)).await;
        assert_eq!(rig.drain(), [format!("ContainerStarted a {id}")]);
    }
    tell("s-b", "b", Reached::Gone);
    sleep(Duration::from_millis(400)).await;
    assert_eq!(rig.drain(), [""; 0]);
    fake.world().remove_pod("b");
    sleep(Duration::from_millis(1200)).await;
    assert!(rig.drain().iter().any(|line| line.starts_with("PodRemoved b")));
    // What is confirmed is not asked for again.
    let calls = fake.world().status_calls.len();
    tell("new", "a", Reached::Running);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(fake.world().status_calls.len(), calls + 1);
    assert_eq!(fake.world().relists.len(), relists, "no full relist was needed");
    assert_eq!(rig.pleg.health().report().mode.missed_changes, 0);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_container_that_is_said_to_be_deleted_is_relisted() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().add_container("b", "none", "d", ContainerState::Created);
    fake.world().tell_of("d", Some("b"));
    fake.world().exit("d", 1);
    fake.world().tell_deleted("d", Some("b"));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(rig.drain(), ["ContainerDied b d=1"]);
    // The same, while the list that will show it as running is in flight.
    fake.world().list_snapshot_early = true;
    fake.world().latency = Duration::from_millis(20);
    fake.world().add_container("e", "none", "f", ContainerState::Running);
    fake.world().tell_of("f", Some("e"));
    sleep(Duration::from_millis(10)).await;
    fake.world().exit("f", 1);
    fake.world().tell_deleted("f", Some("e"));
    sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.drain(), ["ContainerStarted e f", "ContainerDied e f=1"]);
    assert_eq!(metric(&rig, MISSED), 0.0);
}

/// Unknown is no last state: a container that the runtime had lost sight of ends.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_container_in_an_unknown_state_is_reported_at_once() {
    let fake = node();
    fake.world().containers.get_mut("c").unwrap().state = ContainerState::Unknown;
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().exit("c", 137);
    fake.world().tell_of("c", Some("a"));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(rig.drain(), ["ContainerDied a c=137"]);
}

/// A list that takes back what it had brought of a pod ends the inspection on that account, and not the one that an event asked for.
#[tokio::test(start_paused = true)]
async fn a_death_is_reported_at_once_though_a_list_contradicts_other_changes_of_its_pod() {
    let fake = node();
    let mut rig = rested(&fake, config(), Duration::from_mins(1)).await;
    fake.world().list_snapshot_early = true;
    fake.world().add_container("a", "s-a", "d", ContainerState::Created);
    fake.world().tell_of("d", Some("a"));
    // The list has come, and the inspection takes its time.
    fake.world().latencies = [0, 0, 100, 100, 100].map(Duration::from_millis).to_vec();
    fake.world().latencies.rotate_right(1);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(rig.drain(), [""; 0]);
    fake.world().containers.remove("d");
    fake.world().latencies = vec![Duration::from_millis(30)];
    rig.pleg.request_all();
    sleep(Duration::from_millis(10)).await;
    fake.world().exit("c", 1);
    fake.world().tell_of("c", Some("a"));
    sleep(Duration::from_millis(200)).await;
    assert_eq!(rig.drain(), ["ContainerDied a c=1"]);
    sleep(Duration::from_mins(2)).await;
    assert_eq!((metric(&rig, MISSED), rig.drain().len()), (0.0, 0));
}
