//! The kernel as a witness: what its word makes the generator do, with a kernel in memory and paused time.
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::float_cmp, reason = "these figures are whole numbers")]

mod common;

use std::time::Duration;

use common::kernel::{FakeKernel, pid_of};
use common::{Fake, Rig};
use pleg::witness::{Announcement, WatchError};
use pleg::{
    Config, ContainerState, EventType, EventedConfig, Item, Level, Mode, Overflow, SandboxState, Source, Start, Trouble,
};
use tokio::time::{Instant, sleep};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn generic() -> Config {
    Config {
        evented: EventedConfig {
            mode: Mode::Generic,
            ..EventedConfig::default()
        },
        ..Config::default()
    }
}

/// A node with `pods` pods of one container each, `c0` in `p0` and so on, that has run for ten minutes.
async fn node(pods: usize) -> (Fake, FakeKernel, Rig) {
    let (fake, kernel) = (Fake::default(), FakeKernel::default());
    for n in 0..pods {
        fake.world().add_pod(&format!("p{n}"), &[&format!("c{n}")]);
    }
    let mut rig = Rig::start_witnessed(&fake, generic(), &kernel);
    sleep(Duration::from_mins(10)).await;
    rig.drain();
    (fake, kernel, rig)
}

fn lists(fake: &Fake) -> usize {
    fake.world().list_times.len()
}

/// The pause between full relists.
fn period(rig: &Rig) -> f64 {
    rig.pleg.health().report().mode.full_relist_period_seconds
}

fn troubles(rig: &Rig) -> Vec<Trouble> {
    let report = rig.pleg.health().report();
    report.causes.iter().map(|cause| cause.trouble).collect()
}

/// A death is reported a few milliseconds after the runtime admits it, however far the next full relist is, and full relists are rare
/// although the runtime has no events.
#[tokio::test(start_paused = true)]
async fn a_death_is_reported_as_soon_as_the_runtime_admits_it() {
    let (fake, kernel, mut rig) = node(20).await;
    let report = rig.pleg.health().report();
    assert_eq!(
        (report.level, period(&rig)),
        (Level::Healthy, 60.0),
        "{:?}",
        report.mode
    );
    assert!(report.mode.witness.complete && report.mode.witness.processes == 20);
    assert_eq!(fake.world().pid_calls, 20);

    // Containerd 1.7 takes 60 to 95 ms, and now and then half a second.
    for (n, lag) in [60, 95, 61, 542, 80, 34, 90].into_iter().enumerate() {
        let before = (lists(&fake), fake.world().status_calls.len());
        kernel.exit(&format!("c{n}"), 137);
        sleep(ms(lag)).await;
        fake.world().exit(&format!("c{n}"), 137);
        let admitted = Instant::now();
        loop {
            let event = rig.events.next().await;
            let Some(Item::Event(event)) = event else { panic!() };
            if event.kind == EventType::ContainerDied {
                assert_eq!((event.source, event.exit_code), (Source::Kernel, Some(137)));
                break;
            }
        }
        let late = admitted.elapsed();
        // Questions come closer together the more likely the answer is.
        assert!(late <= ms(if lag < 250 { 12 } else { 52 }), "{lag}: {late:?}");
        let calls = fake.world().status_calls.len() - before.1;
        assert!(calls <= 45, "{lag}: {calls}");
        assert_eq!(lists(&fake), before.0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_exit_of_a_process_is_reported_before_the_death_of_its_container() {
    let (fake, kernel, rig) = node(3).await;
    let mut exits = rig.pleg.subscribe(Start::Now, Overflow::Gap);
    kernel.exit("c1", 9);
    sleep(ms(1)).await;
    rig.settle().await;
    let Some(Item::Event(event)) = exits.try_next() else {
        panic!()
    };
    assert_eq!(event.kind, EventType::ProcessExited);
    assert_eq!(
        (event.pid, event.exit_code, event.lag),
        (Some(pid_of("c1")), Some(9), None)
    );
    assert_eq!(event.pod.as_ref().unwrap().name.as_ref(), "p1");
    assert_eq!(event.subject.as_ref().unwrap().container_id().unwrap().as_str(), "c1");
    // The runtime's word counts.
    let entry = rig.pleg.cache().get(&"p1".into()).unwrap();
    assert_eq!(entry.status.containers[0].state, ContainerState::Running);

    sleep(ms(50)).await;
    fake.world().exit("c1", 9);
    let Some(Item::Event(event)) = exits.next().await else {
        panic!()
    };
    assert_eq!((event.kind, event.pid), (EventType::ContainerDied, None));
}

#[tokio::test(start_paused = true)]
async fn a_start_is_reported_soon_after_its_cgroup_was_made() {
    let (fake, kernel, mut rig) = node(3).await;
    for (n, pod) in [(10, Some("p10")), (11, None)] {
        // The runtime makes the cgroup of the sandbox, then lists the sandbox, and the same for the container.
        let (uid, sandbox, container) = (format!("p{n}"), format!("s{n}"), format!("c{n}"));
        kernel.made(&sandbox, pod);
        sleep(ms(150)).await;
        fake.world().add_sandbox(&uid, &sandbox);
        sleep(ms(300)).await;
        fake.world()
            .add_container(&uid, &sandbox, &container, ContainerState::Created);
        kernel.made(&container, pod);
        sleep(ms(120)).await;
        fake.world().containers.get_mut(&container).unwrap().state = ContainerState::Running;
        let started = Instant::now();
        let mut lines = Vec::new();
        while lines
            .last()
            .is_none_or(|line: &String| !line.starts_with("ContainerStarted"))
        {
            assert!(started.elapsed() < ms(50), "{lines:?}");
            sleep(ms(1)).await;
            rig.settle().await;
            lines.extend(rig.drain());
        }
        assert!(lines[0].starts_with("PodSandboxChanged"), "{lines:?}");
    }
    // And they are watched, too.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(kernel.state().watched.len(), 5);
    assert_eq!(troubles(&rig), []);
}

/// CRI-O makes a container's cgroup long before it lists the container: lists of the pod find it, and full relists would not find more.
/// One is spent on what no list of its pod shows, in case it is listed under another.
#[tokio::test(start_paused = true)]
async fn a_container_that_is_not_listed_yet_costs_lists_of_its_pod() {
    let (fake, kernel, mut rig) = node(3).await;
    let before = fake.world().relists.len();
    kernel.made("c9", Some("p0"));
    sleep(ms(900)).await;
    fake.world().add_container("p0", "s-p0", "c9", ContainerState::Running);
    sleep(ms(900)).await;
    assert_eq!(rig.drain(), ["ContainerStarted p0 c9"]);
    assert_eq!(fake.world().relists.len(), before);

    kernel.made("nowhere", Some("p0"));
    sleep(Duration::from_secs(40)).await;
    let full = fake.world().relists.len() - before;
    assert!((1..=2).contains(&full), "{full}: one for it, and one that was due");
}

/// Also where full relists are rare because they are configured so: a removal has no announcement.
#[tokio::test(start_paused = true)]
async fn a_stopped_pod_is_seen_to_go() {
    let (fake, kernel) = (Fake::default(), FakeKernel::default());
    for n in 0..2 {
        fake.world().add_pod(&format!("p{n}"), &[&format!("c{n}")]);
    }
    let rare = Config {
        period: Duration::from_hours(1),
        threshold: Duration::from_hours(6),
        ..generic()
    };
    let mut rig = Rig::start_witnessed(&fake, rare, &kernel);
    sleep(Duration::from_mins(10)).await;
    rig.drain();
    kernel.exit("c0", 137);
    fake.world().exit("c0", 137);
    fake.world().sandboxes.get_mut("s-p0").unwrap().state = SandboxState::NotReady;
    kernel.removed("s-p0");
    sleep(ms(700)).await;
    fake.world().remove_pod("p0");
    sleep(Duration::from_secs(1)).await;
    let lines = rig.drain();
    assert_eq!(lines.last().map(String::as_str), Some("PodRemoved p0"), "{lines:?}");
}

/// A kubelet removes the dead attempt before the last one a moment after a death. Neither the kernel nor a question by id shows that.
#[tokio::test(start_paused = true)]
async fn the_removal_of_a_dead_container_is_found_soon() {
    let (fake, kernel, mut rig) = node(5).await;
    fake.world().add_pod("two", &["stays", "ends"]);
    kernel.made("stays", Some("two"));
    kernel.made("ends", Some("two"));
    sleep(Duration::from_mins(10)).await;
    assert!(period(&rig) > 59.0);
    // The next full relist is a minute away.
    let last = lists(&fake);
    while lists(&fake) == last {
        sleep(ms(1000)).await;
    }
    let before = lists(&fake);
    fake.world().exit("ends", 0);
    kernel.exit("ends", 0);
    sleep(ms(1000)).await;
    fake.world().containers.remove("ends");
    sleep(ms(1000)).await;
    let events = rig.drain();
    let last = events.last().map(String::as_str);
    assert_eq!(last, Some("ContainerRemoved two ends"), "{events:?}");
    assert_eq!(lists(&fake), before, "no full relist was needed");

    // A pod whose dead container stays is listed five times, and not without end.
    fake.world().exit("stays", 0);
    kernel.exit("stays", 0);
    let before = fake.world().filtered_lists;
    sleep(Duration::from_secs(20)).await;
    let after = fake.world().filtered_lists;
    assert!((2..=10).contains(&(after - before)), "{before} {after}");
    sleep(Duration::from_mins(5)).await;
    assert_eq!(fake.world().filtered_lists, after);
    assert_eq!(rig.pleg.health().report().mode.missed_changes, 0);
}

/// The kernel says dead and the runtime says running: that is named, and it is over when they agree.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_has_missed_an_exit_is_named() {
    let (fake, kernel, mut rig) = node(5).await;
    kernel.exit("c2", 1);
    sleep(ms(1900)).await;
    assert_eq!(troubles(&rig), []);
    sleep(ms(1000)).await;
    let report = rig.pleg.health().report();
    assert_eq!(
        (report.level, troubles(&rig)),
        (Level::Degraded, vec![Trouble::MissedExit])
    );
    let cause = &report.causes[0];
    assert!(
        cause.text.starts_with(&format!(
            "process {} of container name-c2 in pod default/p2 has exited with code 1, but the runtime reports the container as running",
            pid_of("c2")
        )),
        "{}",
        cause.text
    );
    // Others are not affected.
    rig.drain();
    kernel.exit("c3", 0);
    fake.world().exit("c3", 0);
    sleep(ms(20)).await;
    let lines = rig.drain();
    assert!(lines.iter().any(|line| line.starts_with("ContainerDied")), "{lines:?}");

    sleep(Duration::from_mins(1)).await;
    assert_eq!(troubles(&rig), [Trouble::MissedExit]);
    fake.world().exit("c2", 1);
    sleep(ms(2500)).await;
    rig.settle().await;
    assert_eq!(
        (rig.pleg.health().report().level, troubles(&rig)),
        (Level::Healthy, vec![])
    );
    let lines = rig.drain();
    assert!(lines.iter().any(|line| line.starts_with("ContainerDied")), "{lines:?}");
}

/// More missed exits than are asked about at once, while the runtime does not answer for them: the generator waits for the answers, and
/// others are reported meanwhile.
#[tokio::test(start_paused = true)]
async fn doubts_wait_for_their_turn() {
    let (fake, kernel, mut rig) = node(20).await;
    for n in 0..10 {
        fake.world().hung.insert(format!("c{n}"));
        kernel.exit(&format!("c{n}"), 1);
    }
    sleep(Duration::from_secs(3)).await;
    rig.drain();
    kernel.exit("c15", 0);
    fake.world().exit("c15", 0);
    sleep(ms(20)).await;
    let lines = rig.drain();
    assert!(lines.iter().any(|line| line.starts_with("ContainerDied")), "{lines:?}");
    sleep(Duration::from_mins(1)).await;

    fake.world().hung.clear();
    (0..10).for_each(|n| fake.world().exit(&format!("c{n}"), 1));
    sleep(Duration::from_mins(3)).await;
    assert_eq!(troubles(&rig), []);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_outlives_its_container_is_named() {
    let (fake, kernel, mut rig) = node(5).await;
    fake.world().exit("c2", 255);
    sleep(Duration::from_secs(70)).await;
    assert_eq!(troubles(&rig), [Trouble::LeftoverProcess]);
    // Also when the runtime has forgotten it.
    fake.world().remove_pod("p2");
    sleep(Duration::from_secs(70)).await;
    assert_eq!(troubles(&rig), [Trouble::LeftoverProcess]);
    kernel.exit("c2", 0);
    sleep(ms(10)).await;
    rig.settle().await;
    assert_eq!(troubles(&rig), []);
    let kinds: Vec<_> = rig.drain();
    assert!(!kinds.iter().any(|line| line.starts_with("ProcessExited")), "{kinds:?}");
}

/// A kernel that says nothing is found out by the first full relist, and relists become frequent again.
#[tokio::test(start_paused = true)]
async fn a_silent_witness_is_not_trusted() {
    let (fake, kernel, mut rig) = node(5).await;
    assert!(period(&rig) > 59.0);
    for n in 0..4 {
        kernel.state().watched.remove(format!("c{n}").as_str());
        fake.world().exit(&format!("c{n}"), 1);
        sleep(Duration::from_secs(130)).await;
        let lines = rig.drain();
        assert!(lines.iter().any(|line| line.starts_with("ContainerDied")), "{lines:?}");
    }
    assert!(period(&rig) <= 2.0, "{}", period(&rig));
    let report = rig.pleg.health().report();
    // As frequent as without a witness is not worth a complaint.
    assert_eq!((report.level, report.mode.missed_changes), (Level::Healthy, 4));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_watched_is_polled() {
    // A runtime that does not say which processes it has is asked a few times, not once for each container.
    let (fake, kernel) = (Fake::default(), FakeKernel::default());
    (0..50).for_each(|n| fake.world().add_pod(&format!("p{n}"), &[&format!("c{n}")]));
    let rig = Rig::start_witnessed(&fake, generic(), &kernel);
    fake.world().tells_pids = false;
    sleep(Duration::from_mins(5)).await;
    let witness = rig.pleg.health().report().mode.witness;
    assert!(fake.world().pid_calls <= 8, "{}", fake.world().pid_calls);
    assert_eq!((witness.on, period(&rig)), (false, 1.0));
    assert_eq!(
        &*witness.reason,
        "the runtime does not say which processes containers have"
    );

    // One container that cannot be watched is enough.
    for error in [
        WatchError::Mismatch(7),
        WatchError::Limit("half of the open files are in use (RLIMIT_NOFILE)"),
        WatchError::NotFound(8),
    ] {
        let (fake, kernel, rig) = node(5).await;
        assert!(period(&rig) > 59.0);
        kernel.state().refuses = Some(error.clone());
        fake.world().add_pod("new", &["late"]);
        kernel.made("late", Some("new"));
        sleep(Duration::from_mins(5)).await;
        let witness = rig.pleg.health().report().mode.witness;
        assert_eq!(
            (witness.on, witness.complete, period(&rig)),
            (true, false, 1.0),
            "{error}"
        );
        assert_eq!(&*witness.reason, format!("1 container cannot be watched: {error}"));
        assert_eq!(troubles(&rig), []);
        // When it is gone, the others are enough again.
        fake.world().remove_pod("new");
        sleep(Duration::from_mins(5)).await;
        assert!(period(&rig) > 59.0);
    }
}

/// Containers that end before the runtime has said which processes they have are no sign that it does not know.
#[tokio::test(start_paused = true)]
async fn short_lived_containers_do_not_end_the_watch() {
    let (fake, kernel, mut rig) = node(5).await;
    fake.world().pid_latency = ms(50);
    for n in 0..20 {
        let (pod, id) = (format!("short{n}"), format!("brief{n}"));
        fake.world().add_pod(&pod, &[&id]);
        kernel.made(&id, Some(&pod));
        sleep(ms(30)).await;
        fake.world().exit(&id, 0);
        sleep(ms(200)).await;
        let lines = rig.drain();
        let died = |line: &String| line.starts_with("ContainerDied");
        assert!(lines.iter().any(died), "{id}: {lines:?}");
    }
    let witness = rig.pleg.health().report().mode.witness;
    assert_eq!((witness.complete, witness.processes), (true, 5), "{witness}");
    fake.world().add_pod("long", &["lasting"]);
    kernel.made("lasting", Some("long"));
    sleep(ms(200)).await;
    assert!(kernel.state().watched.contains_key("lasting"));
}

/// Each process that exits makes room for one that was refused; those whose container has ended meanwhile take none.
#[tokio::test(start_paused = true)]
async fn what_a_limit_refused_is_tried_again_when_there_is_room() {
    let (fake, kernel, rig) = node(5).await;
    kernel.state().refuses = Some(WatchError::Limit("half of the open files are in use (RLIMIT_NOFILE)"));
    for id in ["gone", "first", "second"] {
        fake.world().add_pod(&format!("pod-{id}"), &[id]);
        kernel.made(id, None);
        sleep(Duration::from_secs(5)).await;
    }
    fake.world().exit("gone", 0);
    sleep(Duration::from_secs(5)).await;
    kernel.state().refuses = None;
    sleep(Duration::from_mins(5)).await;
    assert!(!kernel.state().watched.contains_key("first"), "no room yet");
    for (exits, watched) in [("c0", "first"), ("c1", "second")] {
        fake.world().exit(exits, 0);
        kernel.exit(exits, 0);
        sleep(Duration::from_secs(5)).await;
        assert!(kernel.state().watched.contains_key(watched), "{watched}");
    }
    assert!(rig.pleg.health().report().mode.witness.complete);
}

#[tokio::test(start_paused = true)]
async fn without_cgroups_starts_are_polled_for() {
    let (fake, kernel, mut rig) = node(5).await;
    kernel.state().no_cgroups = true;
    fake.world().add_pod("new", &["late"]);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(period(&rig), 1.0);
    rig.drain();
    kernel.exit("c1", 0);
    fake.world().exit("c1", 0);
    sleep(ms(10)).await;
    assert!(rig.drain().iter().any(|line| line.starts_with("ContainerDied")));
}

/// Nonsense costs a few calls, and nothing else.
#[tokio::test(start_paused = true)]
async fn nonsense_does_no_harm() {
    let (fake, kernel, mut rig) = node(5).await;
    let at = jiff::Timestamp::now();
    for id in ["c1", "nobody", "", "sandbox", "\u{0}"] {
        for pid in [0, 1, u32::MAX] {
            kernel.announce(Announcement::Exited {
                id: id.into(),
                pid,
                at,
                exit_code: Some(-1),
            });
        }
        kernel.made(id, Some("nowhere"));
        kernel.made(id, None);
        kernel.removed(id);
        kernel.announce(Announcement::OomKilled { id: id.into() });
    }
    kernel.announce(Announcement::Overflow);
    sleep(Duration::from_secs(100)).await;
    assert_eq!((rig.drain(), troubles(&rig)), (vec![], vec![]));
    let lists = lists(&fake);
    sleep(Duration::from_mins(10)).await;
    assert!(lists + 11 >= self::lists(&fake));
}

/// Whatever starts is watched, and whatever ends is forgotten.
#[tokio::test(start_paused = true)]
async fn nothing_leaks_over_a_hundred_thousand_starts_and_deaths() {
    const AT_ONCE: usize = 1000;
    let (fake, kernel, mut rig) = node(1).await;
    for round in 0..100 {
        let id = |n: usize| format!("r{round}-{n}");
        for n in 0..AT_ONCE {
            fake.world().add_pod(&format!("u{round}-{n}"), &[&id(n)]);
            kernel.made(&id(n), None);
        }
        sleep(Duration::from_secs(5)).await;
        assert_eq!(kernel.state().watched.len(), AT_ONCE + 1, "{round}");
        for n in 0..AT_ONCE {
            kernel.exit(&id(n), 0);
            fake.world().exit(&id(n), 0);
        }
        sleep(Duration::from_secs(2)).await;
        (0..AT_ONCE).for_each(|n| fake.world().remove_pod(&format!("u{round}-{n}")));
        rig.pleg.request_all();
        sleep(Duration::from_secs(2)).await;
        rig.drain();
        let report = rig.pleg.health().report();
        assert_eq!((kernel.state().watched.len(), report.mode.witness.processes), (1, 1));
    }
    assert_eq!(kernel.state().watches, 100 * AT_ONCE + 1);
    assert_eq!(troubles(&rig), []);
}
