//! The generator against a runtime in memory, under paused time.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Fake, Rig};
use pleg::LimiterConfig;
use pleg::runtime::ErrorKind;
use pleg::{Config, ContainerState, EventedConfig, Item, Level, Mode, Overflow, PodUid, SandboxState, Start};
use tokio::time::{Instant, sleep, timeout};

fn uid(uid: &str) -> PodUid {
    uid.into()
}

fn unreachable() -> ErrorKind {
    ErrorKind::Unreachable("connection refused".into())
}

#[tokio::test(start_paused = true)]
async fn the_first_relist_is_initial_and_later_changes_are_not() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a", "b"]);
    fake.world().exit("b", 3);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    assert_eq!(
        rig.drain(),
        [
            "PodSandboxChanged p s-p:Ready initial",
            "ContainerStarted p a initial",
            "ContainerDied p b=3 initial"
        ]
    );
    rig.seen().await;
    assert!(rig.drain().is_empty());

    fake.world().exit("a", 137);
    fake.world().add_pod("q", &["c"]);
    rig.seen().await;
    let mut events = rig.drain();
    events.sort();
    assert_eq!(
        events,
        [
            "ContainerDied p a=137",
            "ContainerStarted q c",
            "PodSandboxChanged q s-q:Ready"
        ]
    );

    fake.world().remove_pod("p");
    rig.seen().await;
    assert_eq!(
        rig.drain(),
        [
            "ContainerRemoved p a",
            "ContainerRemoved p b",
            "PodSandboxChanged p s-p:gone",
            "PodRemoved p"
        ]
    );
    assert_eq!(rig.pleg.cache().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn numbers_have_no_gaps() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().exit("a", 0);
    rig.seen().await;
    let mut expected = 1;
    while let Some(Item::Event(event)) = rig.events.try_next() {
        assert_eq!(event.seq, expected);
        expected += 1;
    }
    assert_eq!(expected, 4);
}

#[tokio::test(start_paused = true)]
async fn a_failed_list_changes_nothing_and_nothing_is_lost() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    rig.drain();

    fake.world().list_error = Some(unreachable());
    fake.world().exit("a", 255);
    fake.world().remove_pod("q");
    sleep(Duration::from_secs(30)).await;
    assert!(rig.drain().is_empty());
    let report = rig.pleg.health().report();
    assert_eq!(report.level, Level::Degraded);
    assert!(report.message.contains("connection refused"), "{}", report.message);
    assert_eq!(
        rig.pleg.cache().get(&uid("p")).unwrap().status.containers[0].state,
        ContainerState::Running
    );

    fake.world().list_error = None;
    rig.seen().await;
    assert_eq!(rig.drain(), ["ContainerDied p a=255"]);
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
}

/// kubernetes/kubernetes#94829, #98044: one container that does not answer made the whole node wait.
#[tokio::test(start_paused = true)]
async fn a_hung_pod_delays_no_other_pod() {
    let fake = Fake::default();
    for n in 0..110 {
        let (pod, a, b) = (format!("p{n}"), format!("a{n}"), format!("b{n}"));
        fake.world().add_pod(&pod, &[&a, &b]);
    }
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    assert_eq!(rig.drain().len(), 330);

    for hung in 1..=5 {
        fake.world().hung.insert(format!("a{hung}"));
    }
    let died = Instant::now();
    for n in 0..110 {
        fake.world().exit(&format!("a{n}"), 1);
    }
    let mut seen = 0;
    while seen < 105 {
        let item = timeout(Duration::from_secs(5), rig.events.next())
            .await
            .unwrap()
            .unwrap();
        assert!(matches!(item, Item::Event(_)));
        seen += 1;
    }
    assert!(died.elapsed() <= Duration::from_millis(1100), "{:?}", died.elapsed());

    // They stay out of the way for good, are named, and the node stays ready.
    sleep(Duration::from_secs(100)).await;
    let report = rig.pleg.health().report();
    assert_eq!(report.level, Level::Degraded);
    for hung in 1..=5 {
        assert!(
            report
                .causes
                .iter()
                .any(|cause| cause.who.pod.as_deref() == Some(&*format!("default/p{hung}")))
        );
    }
    assert!(
        report
            .causes
            .iter()
            .all(|cause| cause.rpc == "ContainerStatus" && cause.who.container.is_some())
    );
    let entry = rig.pleg.cache().get(&uid("p1")).unwrap();
    assert!(entry.error.is_some());
    assert_eq!(
        entry.status.container(&"a1".into()).unwrap().state,
        ContainerState::Running
    );
    fake.world().exit("b50", 7);
    rig.seen().await;
    assert_eq!(rig.drain(), ["ContainerDied p50 b50=7"]);

    // And their change is found again when they answer.
    fake.world().hung.clear();
    sleep(Duration::from_secs(80)).await;
    let mut events = rig.drain();
    events.sort();
    assert_eq!(
        events,
        (1..=5)
            .map(|n| format!("ContainerDied p{n} a{n}=1"))
            .collect::<Vec<_>>()
    );
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
}

/// More hung pods than inspections may run at once.
#[tokio::test(start_paused = true)]
async fn many_hung_pods_do_not_use_up_the_limit() {
    let fake = Fake::default();
    for n in 0..50 {
        fake.world().add_pod(&format!("hung{n}"), &[&format!("h{n}")]);
        fake.world().hung.insert(format!("h{n}"));
    }
    let mut rig = Rig::start(&fake, Config::default());
    sleep(Duration::from_secs(5)).await;
    fake.world().add_pod("ok", &["c"]);
    let started = Instant::now();
    rig.seen().await;
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert!(rig.drain().contains(&"ContainerStarted ok c".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_went_away_meanwhile_is_removed_without_error() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a", "b"]);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    rig.drain();
    // Listed as exited, gone when asked for; it stays in the list (moby#44300) and is not reported again and again.
    fake.world().exit("a", 1);
    fake.world().denied.insert("a".into());
    for _ in 0..5 {
        rig.seen().await;
    }
    assert_eq!(rig.drain(), ["ContainerDied p a", "ContainerRemoved p a"]);
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
    assert_eq!(rig.pleg.health().report().odd_objects.listed_not_found, 1);
    assert_eq!(rig.pleg.cache().get(&uid("p")).unwrap().status.containers.len(), 1);
    let calls = fake.world().status_calls.len();
    rig.seen().await;
    assert_eq!(fake.world().status_calls.len(), calls);
    // A sandbox that is listed is there, whatever the runtime says of its id: only the list may establish that a pod is gone.
    fake.world().exit("b", 1);
    fake.world().denied.extend(["b".into(), "s-p".into()]);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(rig.drain(), ["ContainerDied p b", "ContainerRemoved p b"]);
    let report = rig.pleg.health().report();
    assert_eq!(report.level, Level::Degraded);
    assert!(report.message.contains("not found: s-p"), "{}", report.message);
    fake.world().remove_pod("p");
    rig.seen().await;
    assert_eq!(rig.drain(), ["PodSandboxChanged p s-p:gone", "PodRemoved p"]);
    assert!(rig.pleg.cache().is_empty());
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
}

#[tokio::test(start_paused = true)]
async fn newer_than_waits_for_a_relist_that_started_later() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    fake.world().latency = Duration::from_millis(50);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    // In the middle of a list that started before: it does not count.
    sleep(Duration::from_millis(1025)).await;
    fake.world().exit("a", 4);
    let token = rig.pleg.cache().token();
    let pod = uid("p");
    let waits = rig.pleg.cache().newer_than(&pod, token, Duration::MAX);
    tokio::pin!(waits);
    assert!(timeout(Duration::from_millis(100), &mut waits).await.is_err());
    assert_eq!(rig.pleg.cache().waits().len(), 1);
    let entry = waits.await.unwrap();
    assert!(entry.observed >= token);
    assert_eq!(entry.status.containers[0].exit_code, Some(4));
    assert!(rig.pleg.cache().waits().is_empty());
}

#[tokio::test(start_paused = true)]
async fn newer_than_of_an_unknown_pod_is_empty_after_the_next_complete_relist() {
    let fake = Fake::default();
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    let token = rig.pleg.cache().token();
    let entry = rig
        .pleg
        .cache()
        .newer_than(&uid("nobody"), token, Duration::MAX)
        .await
        .unwrap();
    assert!(entry.status.containers.is_empty() && entry.observed >= token);

    // Not before: with lists failing it waits, and giving up leaves no trace.
    fake.world().list_error = Some(unreachable());
    let token = rig.pleg.cache().token();
    assert!(
        timeout(
            Duration::from_mins(1),
            rig.pleg.cache().newer_than(&uid("nobody"), token, Duration::MAX)
        )
        .await
        .is_err()
    );
    assert!(rig.pleg.cache().waits().is_empty());
}

/// kubernetes/kubernetes#124704, #124953: one pod held up the tokens of all.
#[tokio::test(start_paused = true)]
async fn a_quarantined_pod_delays_no_other_pods_token() {
    let fake = Fake::default();
    fake.world().add_pod("bad", &["a"]);
    fake.world().add_pod("good", &["b"]);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().hung.insert("a".into());
    fake.world().exit("a", 1);
    let token = rig.pleg.cache().token();
    let started = Instant::now();
    rig.pleg
        .cache()
        .newer_than(&uid("good"), token, Duration::MAX)
        .await
        .unwrap();
    assert!(started.elapsed() <= Duration::from_secs(1));
    // The bad one itself gets an error with its name, not a hang and not an old status.
    let error = rig
        .pleg
        .cache()
        .newer_than(&uid("bad"), token, Duration::MAX)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("default/bad") && error.to_string().contains("ContainerStatus"),
        "{error}"
    );
    assert!(started.elapsed() <= Duration::from_secs(12), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn asking_does_not_wait_for_the_period() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    let mut rig = Rig::start(
        &fake,
        Config {
            period: Duration::from_mins(5),
            ..Config::default()
        },
    );
    rig.seen().await;
    rig.drain();
    let started = Instant::now();
    fake.world().exit("a", 9);
    let entry = rig.pleg.refresh(&uid("p"), Duration::MAX).await.unwrap();
    assert_eq!(entry.status.containers[0].exit_code, Some(9));
    assert_eq!(fake.world().filtered_lists, 1);
    // A pod that was never seen takes a full relist.
    fake.world().add_pod("q", &["b"]);
    let entry = rig.pleg.refresh(&uid("q"), Duration::MAX).await.unwrap();
    assert_eq!(entry.status.containers.len(), 1);
    assert_eq!(fake.world().relists.len(), 2);
    // What was asked for is inspected even if no list shows a change.
    let calls = fake.world().status_calls.len();
    rig.pleg.refresh(&uid("q"), Duration::MAX).await.unwrap();
    assert!(fake.world().status_calls.len() > calls);
    assert!(started.elapsed() < Duration::from_millis(100));
    assert_eq!(
        rig.drain(),
        [
            "ContainerDied p a=9",
            "PodSandboxChanged q s-q:Ready",
            "ContainerStarted q b"
        ]
    );
}

/// Pods without the kubelet's labels are invisible to a filtered list: that must never look like a death.
#[tokio::test(start_paused = true)]
async fn a_pod_without_labels_takes_a_full_relist() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    fake.world().sandboxes.get_mut("s-p").unwrap().labelled = false;
    fake.world().containers.get_mut("a").unwrap().labelled = false;
    let mut rig = Rig::start(
        &fake,
        Config {
            period: Duration::from_mins(5),
            ..Config::default()
        },
    );
    rig.seen().await;
    assert_eq!(rig.drain().len(), 2);
    rig.pleg.refresh(&uid("p"), Duration::MAX).await.unwrap();
    assert!(rig.drain().is_empty());
    assert_eq!(fake.world().filtered_lists, 0);
}

#[tokio::test(start_paused = true)]
async fn a_period_runs_from_the_end_of_a_relist_to_the_start_of_the_next() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    fake.world().latency = Duration::from_millis(300);
    let config = Config {
        settle_grace: Duration::from_secs(1),
        ..Config::default()
    };
    let rig = Rig::start(&fake, config);
    sleep(Duration::from_secs(10)).await;
    let world = fake.world();
    // The first relist also inspected, the others only listed.
    let starts: Vec<_> = world.list_times.iter().map(|(asked, _)| *asked).collect();
    assert_eq!(starts[1] - starts[0], Duration::from_millis(300 + 300 + 1000));
    assert!(
        starts
            .windows(2)
            .skip(1)
            .all(|pair| pair[1] - pair[0] == Duration::from_millis(1300)),
        "{starts:?}"
    );
    drop((world, rig));
}

#[tokio::test(start_paused = true)]
async fn never_a_second_relist_behind_a_hung_one() {
    let fake = Fake::default();
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().list_hangs = true;
    sleep(Duration::from_secs(2)).await;
    for _ in 0..20 {
        rig.pleg.request_all();
        sleep(Duration::from_secs(1)).await;
    }
    let relists = rig.pleg.cache().token().number();
    rig.pleg.request_all();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.pleg.cache().token().number(), relists);
}

/// The kubelet's rule and words, and both transitions.
#[tokio::test(start_paused = true)]
async fn unhealthy_after_the_threshold_and_back() {
    let fake = Fake::default();
    fake.world().list_error = Some(unreachable());
    let mut rig = Rig::start(&fake, Config::default());
    rig.settle().await;
    let report = rig.pleg.health().report();
    assert_eq!(report.level, Level::Unhealthy);
    assert!(
        report
            .message
            .starts_with("PLEG is not healthy: pleg has yet to be successful"),
        "{}",
        report.message
    );

    fake.world().list_error = None;
    rig.seen().await;
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
    assert!(rig.drain().is_empty());

    fake.world().list_error = Some(unreachable());
    sleep(Duration::from_secs(187)).await;
    let report = rig.pleg.health().report();
    assert_eq!(report.level, Level::Unhealthy);
    assert!(
        report
            .message
            .starts_with("PLEG is not healthy: pleg was last seen active 3m7s ago; threshold is 3m0s"),
        "{}",
        report.message
    );
    assert_eq!(rig.drain(), ["PlegNotHealthy"]);
    fake.world().list_error = None;
    rig.seen().await;
    assert_eq!(rig.drain(), ["PlegHealthy"]);
}

/// kubernetes/kubernetes#72709, #76382: events dropped with a full channel were gone for good.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_sleeps_learns_of_every_pod() {
    let fake = Fake::default();
    let rig = Rig::start(
        &fake,
        Config {
            feed_capacity: 20,
            ..Config::default()
        },
    );
    let mut level = rig.pleg.subscribe(Start::Now, Overflow::PodSync);
    let mut log = rig.pleg.subscribe(Start::Now, Overflow::Gap);
    for n in 0..15 {
        fake.world().add_pod(&format!("p{n}"), &[&format!("c{n}")]);
    }
    rig.seen().await;
    fake.world().remove_pod("p3");
    rig.seen().await;
    for n in 4..15 {
        fake.world().exit(&format!("c{n}"), 1);
    }
    rig.seen().await;
    let total = rig.pleg.feed().newest();
    let mut pods = std::collections::BTreeSet::new();
    while let Some(Item::Event(event)) = level.try_next() {
        pods.insert(event.pod.as_ref().unwrap().uid.to_string());
    }
    assert_eq!(pods.len(), 15);
    let Some(Item::Gap(gap)) = log.try_next() else {
        panic!("a gap")
    };
    assert_eq!((gap.from, gap.to), (1, total - 20));
    let Some(Item::Event(event)) = log.try_next() else {
        panic!("an event follows the gap")
    };
    assert_eq!(event.seq, total - 19);

    // Far more pods than the feed remembers: the reader gets a gap, and a PodSync for every pod that exists.
    for n in 100..200 {
        fake.world().add_pod(&format!("p{n}"), &[]);
    }
    rig.seen().await;
    let mut level = rig
        .pleg
        .subscribe(Start::After(rig.pleg.instance().at(0)), Overflow::PodSync);
    assert!(matches!(level.try_next(), Some(Item::Gap(gap)) if gap.from == 1));
    let mut pods = std::collections::BTreeSet::new();
    while let Some(Item::Event(event)) = level.try_next() {
        pods.insert(event.pod.as_ref().unwrap().uid.to_string());
    }
    assert_eq!(pods.len(), 114);
}

#[tokio::test(start_paused = true)]
async fn what_has_ended_is_asked_for_once_and_again_after_a_restart() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a", "b"]);
    fake.world().exit("a", 1);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    let asked = |id: &str| fake.world().status_calls.iter().filter(|call| *call == id).count();
    assert_eq!((asked("a"), asked("b")), (1, 1));
    fake.world().add_container("p", "s-p", "c", ContainerState::Running);
    rig.seen().await;
    assert_eq!((asked("a"), asked("b")), (1, 2));
    // After the runtime was away nothing is taken for granted.
    fake.world().list_error = Some(unreachable());
    sleep(Duration::from_secs(3)).await;
    fake.world().list_error = None;
    fake.world().exit("b", 2);
    rig.seen().await;
    assert_eq!((asked("a"), asked("b")), (2, 3));
}

/// All that an inspection asked about is gone when it is answered, and something else of the pod is there since.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_made_anew_while_it_is_inspected_is_not_gone() {
    let fake = Fake::default();
    fake.world().add_pod("p", &[]);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    rig.drain();
    {
        let mut world = fake.world();
        world.hung.insert("s-p".to_owned());
        world.slow_ends_well = true;
        world.sandboxes.get_mut("s-p").unwrap().state = SandboxState::NotReady;
    }
    sleep(Duration::from_millis(1500)).await;
    fake.world().remove_pod("p");
    fake.world().add_sandbox("p", "s-new");
    sleep(Duration::from_secs(20)).await;
    let lines = rig.drain();
    assert!(!lines.iter().any(|line| line.starts_with("PodRemoved")), "{lines:?}");
    let entry = rig.pleg.cache().get(&uid("p")).unwrap();
    let ids: Vec<&str> = entry
        .status
        .sandboxes
        .iter()
        .map(|sandbox| sandbox.id.as_str())
        .collect();
    assert_eq!(ids, ["s-new"], "{lines:?}");
}

/// The runtime learns of an exit and of its reason separately, in either order.
#[tokio::test(start_paused = true)]
async fn the_reason_of_a_recent_exit_is_asked_for_again() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["now", "long-ago", "runs"]);
    let now = jiff::Timestamp::now();
    for (id, at) in [("now", now), ("long-ago", now - jiff::SignedDuration::from_hours(1))] {
        fake.world().exit(id, 137);
        fake.world().endings.insert(id.to_owned(), (at, "Error"));
    }
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    let asked = |id: &str| fake.world().status_calls.iter().filter(|call| *call == id).count();
    let reason = |id: &str| {
        let status = Arc::clone(&rig.pleg.cache().get(&uid("p")).unwrap().status);
        status
            .containers
            .iter()
            .find(|it| it.id.as_str() == id)
            .unwrap()
            .reason
            .to_string()
    };
    assert_eq!((asked("now"), asked("long-ago")), (1, 1));
    assert_eq!(reason("now"), "Error");
    fake.world().endings.insert("now".to_owned(), (now, "OOMKilled"));
    // Nothing else happens.
    sleep(Duration::from_secs(4)).await;
    assert_eq!(reason("now"), "OOMKilled");
    fake.world().add_container("p", "s-p", "more", ContainerState::Running);
    rig.seen().await;
    assert_eq!((asked("now"), asked("long-ago")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn the_last_addresses_are_kept_when_nothing_is_ready() {
    let fake = Fake::default();
    fake.world().add_pod("p", &[]);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    let sandbox = |state, ip| {
        let mut world = fake.world();
        let sandbox = world.sandboxes.get_mut("s-p").unwrap();
        (sandbox.state, sandbox.ip) = (state, ip);
    };
    let ips = || rig.pleg.cache().get(&uid("p")).unwrap().status.ips.len();
    sandbox(SandboxState::NotReady, None);
    rig.seen().await;
    assert_eq!(ips(), 1);
    // A ready sandbox without addresses has none.
    sandbox(SandboxState::Ready, None);
    rig.seen().await;
    assert_eq!(ips(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_announced_death_is_a_stop() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a", "b"]);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    rig.drain();
    rig.pleg.will_stop(&"a".into());
    fake.world().exit("a", 143);
    fake.world().exit("b", 143);
    rig.seen().await;
    assert_eq!(
        rig.drain(),
        [
            "ContainerStopped p a=143",
            "ContainerDied p a=143",
            "ContainerDied p b=143"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_may_come_before_its_sandbox() {
    let fake = Fake::default();
    fake.world().add_container("p", "s-p", "a", ContainerState::Running);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    assert_eq!(rig.drain(), ["ContainerStarted p a initial"]);
    fake.world().add_sandbox("p", "s-p");
    rig.seen().await;
    assert_eq!(rig.drain(), ["PodSandboxChanged p s-p:Ready"]);
    // And its sandbox may be gone before it.
    fake.world().sandboxes.clear();
    rig.seen().await;
    assert_eq!(rig.drain(), ["PodSandboxChanged p s-p:gone"]);
    fake.world().containers.clear();
    rig.seen().await;
    assert_eq!(
        rig.drain(),
        ["ContainerDied p a", "ContainerRemoved p a", "PodRemoved p"]
    );
}

#[tokio::test(start_paused = true)]
async fn inspections_stay_within_the_limit() {
    let fake = Fake::default();
    fake.world().latency = Duration::from_millis(5);
    for n in 0..1000 {
        let (a, b) = (format!("a{n}"), format!("b{n}"));
        fake.world().add_pod(&format!("p{n}"), &[&a, &b]);
    }
    let rig = Rig::start(&fake, Config::default());
    let started = Instant::now();
    rig.seen().await;
    while rig.pleg.feed().newest() < 3000 {
        sleep(Duration::from_millis(1)).await;
    }
    // 3000 calls of 5 ms, one after the other, are 15 s.
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    assert!(fake.world().most_in_flight <= 128, "{}", fake.world().most_in_flight);
}

#[tokio::test(start_paused = true)]
async fn shutdown_is_at_once() {
    let fake = Fake::default();
    fake.world().list_hangs = true;
    let rig = Rig::start(&fake, Config::default());
    rig.settle().await;
    let started = Instant::now();
    rig.shutdown.cancel();
    rig.task.await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
}

/// A relist that is asked for while an inspection runs gets one of its own, and its answer at once.
#[tokio::test(start_paused = true)]
async fn asking_during_an_inspection_does_not_wait_for_the_period() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    let rig = Rig::start(
        &fake,
        Config {
            period: Duration::from_mins(5),
            ..Config::default()
        },
    );
    rig.seen().await;
    // Lists take 50 ms, the first inspection 200.
    let inspecting = async || {
        fake.world().latency = Duration::from_millis(50);
        rig.pleg.request_relist(&uid("p"));
        sleep(Duration::from_millis(40)).await;
        fake.world().latency = Duration::from_millis(200);
        sleep(Duration::from_millis(20)).await;
        fake.world().latency = Duration::from_millis(50);
    };
    let started = Instant::now();
    inspecting().await;
    fake.world().exit("a", 3);
    let entry = rig.pleg.refresh(&uid("p"), Duration::MAX).await.unwrap();
    assert_eq!(entry.status.containers[0].exit_code, Some(3));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());

    // The same where inspections fail.
    fake.world().failing.insert("s-p".into());
    let started = Instant::now();
    inspecting().await;
    rig.pleg.refresh(&uid("p"), Duration::MAX).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

/// Only a full relist can show that there is no trace of a pod; a caller that asked for a removed pod does not wait a period for it.
#[tokio::test(start_paused = true)]
async fn asking_for_a_pod_that_went_away_does_not_wait_for_the_period() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    fake.world().add_pod("q", &["b"]);
    let mut rig = Rig::start(
        &fake,
        Config {
            period: Duration::from_mins(5),
            ..Config::default()
        },
    );
    rig.seen().await;
    rig.drain();
    let started = Instant::now();
    fake.world().remove_pod("p");
    let entry = rig.pleg.refresh(&uid("p"), Duration::MAX).await.unwrap();
    assert!(entry.status.sandboxes.is_empty());
    // Listed, but not found when asked for: what is left of it is what the list says, with the reason.
    fake.world().denied.extend(["s-q".into(), "b".into()]);
    let Err(pleg::WaitError::Quarantined { last, .. }) = rig.pleg.refresh(&uid("q"), Duration::MAX).await else {
        panic!("a sandbox that is listed cannot be gone");
    };
    assert_eq!((last.status.containers.len(), last.status.sandboxes.len()), (0, 1));
    assert_eq!(&**last.stale[0].object.id(), "s-q");
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    rig.drain();
    let relists = fake.world().relists.len();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(fake.world().relists.len(), relists);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_ends_with_the_generator() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    rig.shutdown.cancel();
    rig.task.await.unwrap();
    let mut read = 0;
    while let Some(_item) = timeout(Duration::from_secs(1), rig.events.next())
        .await
        .expect("the generator is gone")
    {
        read += 1;
    }
    assert_eq!(read, 2);
}

/// A runtime that was replaced may speak another version of CRI, and says so only once it has started.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_comes_back_is_asked_until_it_says_what_it_is() {
    let fake = Fake::default();
    let config = Config {
        evented: EventedConfig {
            mode: Mode::Generic,
            ..EventedConfig::default()
        },
        ..Config::default()
    };
    let rig = Rig::start(&fake, config);
    rig.seen().await;
    fake.world().versions = 0;
    fake.world().list_error = Some(unreachable());
    sleep(Duration::from_secs(2)).await;
    let starting = ErrorKind::Status {
        code: "UNKNOWN",
        message: "server is not initialized yet".into(),
    };
    fake.world().list_error = Some(starting.clone());
    fake.world().version_error = Some(starting);
    fake.world().versions = 0;
    sleep(Duration::from_secs(5)).await;
    fake.world().version_error = None;
    fake.world().list_error = None;
    rig.seen().await;
    assert_eq!(fake.world().versions, 1);
    rig.seen().await;
    assert_eq!(fake.world().versions, 1);

    // It never was away for us, but does not know our calls any more.
    fake.world().list_error = Some(ErrorKind::Unimplemented);
    sleep(Duration::from_secs(5)).await;
    assert!(fake.world().versions > 1);
}

/// What an inspection did not find may have come back while it ran.
#[tokio::test(start_paused = true)]
async fn not_found_does_not_hide_what_came_back_meanwhile() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a", "b"]);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    rig.drain();
    // `a` is not found at once, but `b` keeps the inspection open for ten seconds.
    fake.world().exit("b", 1);
    fake.world().denied.insert("a".into());
    fake.world().hung.insert("b".into());
    sleep(Duration::from_millis(1500)).await;
    fake.world().slow_ends_well = true;
    let a = fake.world().containers.remove("a").unwrap();
    sleep(Duration::from_secs(2)).await;
    fake.world().containers.insert("a".into(), a);
    fake.world().denied.clear();
    fake.world().hung.clear();
    sleep(Duration::from_secs(30)).await;
    let entry = rig.pleg.cache().get(&uid("p")).unwrap();
    assert_eq!(entry.status.containers.len(), 2);
    assert_eq!(
        rig.drain(),
        [
            "ContainerDied p a",
            "ContainerRemoved p a",
            "ContainerStarted p a",
            "ContainerDied p b=1"
        ]
    );
}

/// A metric as it is scraped now, without its fraction.
fn metric(rig: &Rig, name: &str) -> Option<u64> {
    let text = rig.pleg.render_metrics().unwrap_or_default();
    text.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(' ')?;
        value.split('.').next()?.parse().ok()
    })
}

#[tokio::test(start_paused = true)]
async fn gauges_follow_whatever_kind_of_relist_finds_the_change() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    fake.world()
        .add_container("", "nowhere", "stray", ContainerState::Running);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    let running = "kubelet_running_containers{container_state=\"running\"}";
    let stray = "pleg_odd_objects{kind=\"container_without_pod\"}";
    assert_eq!((metric(&rig, running), metric(&rig, stray)), (Some(1), Some(1)));

    // Nothing but the odd one changes.
    fake.world().containers.remove("stray");
    rig.seen().await;
    assert_eq!((metric(&rig, running), metric(&rig, stray)), (Some(1), Some(0)));

    // A relist of one pod finds it, so that the next full one finds nothing new.
    fake.world().exit("a", 0);
    rig.pleg.refresh(&uid("p"), Duration::MAX).await.unwrap();
    rig.seen().await;
    assert_eq!(metric(&rig, running), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_fails_stays_in_quarantine_until_it_answers() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().failing.insert("a".into());
    let a = fake.world().containers.get("a").cloned().unwrap();
    fake.world().exit("a", 1);
    rig.seen().await;
    assert_eq!(metric(&rig, "pleg_quarantined_pods"), Some(1));
    // That the change was none does not make it answer.
    fake.world().containers.insert("a".into(), a);
    rig.seen().await;
    assert_eq!(metric(&rig, "pleg_quarantined_pods"), Some(1));
    fake.world().failing.clear();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(metric(&rig, "pleg_quarantined_pods"), Some(0));
}

/// The usual alert is on this histogram, and the kubelet fills it also when a list hangs until its deadline.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_failed_relist_is_reported_too() {
    let fake = Fake::default();
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().list_hangs = true;
    sleep(Duration::from_secs(123)).await;
    assert!(metric(&rig, "kubelet_pleg_relist_duration_seconds_sum") >= Some(120));
}

/// kubernetes/kubernetes#93886, #139788: many changes at once made the node NotReady, though every call was answered.
#[tokio::test(start_paused = true)]
async fn a_long_way_through_many_changes_is_not_unhealthy() {
    let fake = Fake::default();
    fake.world().latency = Duration::from_millis(200);
    for n in 0..2000 {
        fake.world().add_sandbox(&format!("p{n}"), &format!("s{n}"));
    }
    let inspections = LimiterConfig {
        least: 1,
        start: 1,
        most: 1,
        ..LimiterConfig::default()
    };
    let rig = Rig::start(
        &fake,
        Config {
            inspections,
            ..Config::default()
        },
    );
    while rig.pleg.feed().newest() < 2000 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(rig.pleg.health().report().level, Level::Healthy);
    }
}

/// What was asked for is inspected, also if the change that was seen meanwhile turns out to be none.
#[tokio::test(start_paused = true)]
async fn asking_outlives_a_change_that_was_none() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a"]);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    let a = fake.world().containers.get("a").cloned().unwrap();
    fake.world().exit("a", 1);
    fake.world().hung.insert("a".into());
    let token = rig.pleg.request_relist(&uid("p"));
    sleep(Duration::from_millis(500)).await;
    // A full relist finds it as it was committed, while the inspection that was asked for is on its way.
    fake.world().containers.insert("a".into(), a);
    fake.world().hung.clear();
    fake.world().status_calls.clear();
    let entry = rig
        .pleg
        .cache()
        .newer_than(&uid("p"), token, Duration::MAX)
        .await
        .unwrap();
    assert_eq!(entry.status.containers[0].state, ContainerState::Running);
    assert!(!fake.world().status_calls.is_empty());
}

/// A caller that waits for a relist learns that there will be none.
#[tokio::test(start_paused = true)]
async fn no_caller_waits_for_a_generator_that_has_ended() {
    let fake = Fake::default();
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().list_hangs = true;
    sleep(Duration::from_secs(2)).await;
    let (cache, uid) = (rig.pleg.cache().clone(), PodUid::from("p"));
    let token = cache.token();
    let waiting = tokio::spawn({
        let (cache, uid) = (cache.clone(), uid.clone());
        async move { cache.newer_than(&uid, token, Duration::MAX).await }
    });
    rig.settle().await;
    rig.shutdown.cancel();
    let ended = timeout(Duration::from_secs(1), waiting).await.unwrap().unwrap();
    assert!(matches!(ended, Err(pleg::WaitError::Ended { .. })), "{ended:?}");
    assert!(cache.newer_than(&uid, token, Duration::MAX).await.is_err());
}
