//! Answers in part: a container that does not answer hides nothing but itself, and a list that does not answer keeps the other one
//! from nothing. Paused time.

mod common;

use std::time::Duration;

use common::{Fake, Rig};
use pleg::model::{ObjectRef, ObjectState};
use pleg::{Config, ContainerState, EventedConfig, Level, Mode, PodUid, SandboxState, Trouble};
use tokio::time::{Instant, sleep};

fn generic() -> Config {
    Config {
        evented: EventedConfig {
            mode: Mode::Generic,
            ..EventedConfig::default()
        },
        ..Config::default()
    }
}

fn node(pods: usize) -> Fake {
    let fake = Fake::default();
    for n in 0..pods {
        fake.world()
            .add_pod(&format!("p{n}"), &[&format!("app{n}"), &format!("sidecar{n}")]);
    }
    fake
}

/// Waits for a line, and says how long that took.
async fn line(rig: &mut Rig, wanted: &str) -> Duration {
    let started = Instant::now();
    loop {
        if rig.drain().iter().any(|line| line == wanted) {
            return started.elapsed();
        }
        assert!(started.elapsed() < Duration::from_mins(15), "no {wanted}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hung_container_does_not_hide_its_siblings() {
    let fake = node(25);
    let mut rig = Rig::start(&fake, generic());
    rig.seen().await;
    rig.drain();
    fake.world().hung.insert("sidecar1".into());
    fake.world().exit("app1", 3);
    assert!(line(&mut rig, "ContainerDied p1 app1=3").await < Duration::from_secs(2));
    let entry = rig.pleg.cache().get(&PodUid::from("p1")).unwrap();
    assert_eq!(entry.status.containers[0].exit_code, Some(3));
    // The one that does not answer is stale, and what is known of it stays.
    assert_eq!(entry.stale.len(), 1);
    assert_eq!(&**entry.stale[0].object.id(), "sidecar1");
    assert!(entry.observed_of("app1") > entry.observed_of("sidecar1"));
    assert_eq!(entry.status.containers[1].state, ContainerState::Running);

    // Once its call has failed it carries the error, by name; the age counts from the start of the call.
    sleep(Duration::from_secs(10)).await;
    let entry = rig.pleg.cache().get(&PodUid::from("p1")).unwrap();
    let error = entry.error.clone().unwrap();
    assert_eq!((error.container.as_deref(), error.attempts), (Some("name-sidecar1"), 1));
    assert!(error.since.age() >= Duration::from_secs(10));
    assert_eq!(rig.pleg.health().report().level, Level::Degraded);

    // Later changes of its siblings come at once too, and so does what happens to the whole pod.
    fake.world()
        .add_container("p1", "s-p1", "again", ContainerState::Running);
    assert!(line(&mut rig, "ContainerStarted p1 again").await < Duration::from_secs(2));
    fake.world().exit("sidecar1", 5);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(rig.drain(), [""; 0]);
    fake.world().hung.clear();
    assert!(line(&mut rig, "ContainerDied p1 sidecar1=5").await < Duration::from_mins(1));
    rig.seen().await;
    let entry = rig.pleg.cache().get(&PodUid::from("p1")).unwrap();
    assert!(entry.stale.is_empty() && entry.error.is_none());
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
}

/// A pod that has never been inspected shows what the lists say, and that the rest is not known yet.
#[tokio::test(start_paused = true)]
async fn a_new_pod_is_what_the_lists_say() {
    let fake = node(1);
    let rig = Rig::start(&fake, generic());
    rig.seen().await;
    fake.world().add_pod("new", &["x", "y"]);
    fake.world().hung.extend(["s-new".into(), "x".into(), "y".into()]);
    sleep(Duration::from_secs(3)).await;
    let entry = rig.pleg.cache().get(&PodUid::from("new")).unwrap();
    let states: Vec<_> = entry
        .status
        .containers
        .iter()
        .map(|c| (c.id.as_str(), c.state))
        .collect();
    assert_eq!(states, [("x", ContainerState::Running), ("y", ContainerState::Running)]);
    assert_eq!(entry.status.sandboxes[0].state, SandboxState::Ready);
    assert_eq!(entry.stale.len(), 3);
    let listed: Vec<_> = entry.stale.iter().map(|part| part.listed).collect();
    assert!(
        listed.contains(&Some(ObjectState::Container(ContainerState::Running))),
        "{listed:?}"
    );
    assert!(
        entry
            .stale
            .iter()
            .any(|part| matches!(part.object, ObjectRef::Sandbox { .. }))
    );
}

/// Most of the node hangs: the rest does not notice.
#[tokio::test(start_paused = true)]
async fn many_hung_containers_delay_no_other_pod() {
    for hung in [1, 50, 150] {
        let fake = node(200);
        fake.world().latency = Duration::from_millis(2);
        let mut rig = Rig::start(&fake, generic());
        rig.seen().await;
        // What is on its way when the hang begins would be answered after it.
        sleep(Duration::from_secs(5)).await;
        rig.drain();
        for n in 0..hung {
            fake.world().hung.insert(format!("app{n}"));
            fake.world().exit(&format!("app{n}"), 1);
        }
        let mut worst = Duration::ZERO;
        for (round, n) in (0..40).zip((hung..200).cycle()) {
            // While the hangs are news, while they are in quarantine, and in between.
            sleep(Duration::from_millis(130 * round)).await;
            rig.drain();
            let id = format!("round{round}");
            fake.world()
                .add_container(&format!("p{n}"), &format!("s-p{n}"), &id, ContainerState::Running);
            worst = worst.max(line(&mut rig, &format!("ContainerStarted p{n} {id}")).await);
        }
        assert!(worst < Duration::from_secs(2), "{hung} hang: {worst:?}");
        let report = rig.pleg.health().report();
        assert_eq!(report.causes.len() + report.more_causes, hung, "{}", report.message);
    }
}

/// While the list of containers hangs, the list of sandboxes is the anchor: a pod whose new sandbox is listed is not gone.
#[tokio::test(start_paused = true)]
async fn a_pod_with_a_new_sandbox_is_not_removed_while_a_list_hangs() {
    let fake = node(3);
    let mut rig = Rig::start(&fake, generic());
    rig.seen().await;
    rig.drain();
    fake.world().locked = Some("app0".into());
    sleep(Duration::from_secs(8)).await;
    {
        let mut world = fake.world();
        world.add_sandbox("p1", "second");
        world.containers.retain(|_, container| container.uid != "p1");
        world.sandboxes.remove("s-p1");
    }
    sleep(Duration::from_secs(20)).await;
    let lines = rig.drain();
    assert!(!lines.contains(&"PodRemoved p1".to_owned()), "{lines:?}");
    assert!(
        lines.contains(&"PodSandboxChanged p1 second:Ready".to_owned()),
        "{lines:?}"
    );
    assert!(
        lines.contains(&"PodSandboxChanged p1 s-p1:gone".to_owned()),
        "{lines:?}"
    );
    assert!(lines.contains(&"ContainerDied p1 app1".to_owned()), "{lines:?}");
    assert!(rig.pleg.cache().get(&PodUid::from("p1")).is_some());

    // A pod that is gone from that list is gone, and a pod that is new in it is there.
    fake.world().remove_pod("p2");
    fake.world().add_pod("new", &[]);
    sleep(Duration::from_secs(5)).await;
    let lines = rig.drain();
    assert!(lines.contains(&"PodRemoved p2".to_owned()), "{lines:?}");
    assert!(
        lines.contains(&"PodSandboxChanged new s-new:Ready".to_owned()),
        "{lines:?}"
    );
    fake.world().locked = None;
    rig.seen().await;
    assert_eq!(rig.drain(), [""; 0]);
}

/// The list of sandboxes hangs: containers are seen all the same, and no pod is gone.
#[tokio::test(start_paused = true)]
async fn containers_are_seen_while_the_list_of_sandboxes_hangs() {
    let fake = node(3);
    let mut rig = Rig::start(&fake, generic());
    rig.seen().await;
    rig.drain();
    fake.world().sandbox_list_hangs = true;
    sleep(Duration::from_secs(2)).await;
    fake.world().exit("app1", 4);
    fake.world().remove_pod("p2");
    fake.world()
        .add_container("p0", "s-p0", "more", ContainerState::Running);
    sleep(Duration::from_secs(12)).await;
    let lines = rig.drain();
    for wanted in [
        "ContainerDied p1 app1=4",
        "ContainerRemoved p2 app2",
        "ContainerStarted p0 more",
    ] {
        assert!(lines.contains(&wanted.to_owned()), "{lines:?}");
    }
    assert!(!lines.contains(&"PodRemoved p2".to_owned()), "{lines:?}");
    fake.world().sandbox_list_hangs = false;
    rig.seen().await;
    assert!(rig.drain().contains(&"PodRemoved p2".to_owned()));
}

/// Two sandboxes, and a container of the older one is locked: it is that one's shim to look at.
#[tokio::test(start_paused = true)]
async fn the_sandbox_of_a_locked_container_is_its_own() {
    let fake = node(10);
    fake.world().add_sandbox("p3", "newer");
    let rig = Rig::start(&fake, generic());
    rig.seen().await;
    fake.world().locked = Some("app3".into());
    sleep(Duration::from_secs(15)).await;
    let report = rig.pleg.health().report();
    assert_eq!(report.causes[0].who.id.as_deref(), Some("app3"), "{}", report.message);
    assert_eq!(report.causes[0].who.sandbox.as_deref(), Some("s-p3"));
}

/// Lists that are slow, and always were, are no lock: no object is asked for by id, none is named, and the level does not flap.
#[tokio::test(start_paused = true)]
async fn slow_lists_are_not_locked_ones() {
    let fake = node(75);
    let mut config = generic();
    // Probes ask for containers too.
    config.probe.round = Duration::ZERO;
    let rig = Rig::start(&fake, config);
    rig.seen().await;
    fake.world().list_latency = Some(Duration::from_secs(8));
    // It takes one relist to learn that.
    sleep(Duration::from_secs(20)).await;
    fake.world().status_calls.clear();
    let started = Instant::now();
    while started.elapsed() < Duration::from_mins(2) {
        let report = rig.pleg.health().report();
        assert_eq!(report.level, Level::Healthy, "{}", report.message);
        sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(fake.world().status_calls.len(), 0);
}

/// While a list hangs, statuses take 1.2 to 3.2 s: that is how this runtime is, and only the one that hangs stands out.
#[tokio::test(start_paused = true)]
async fn only_an_outlier_is_a_suspect() {
    let fake = node(75);
    let rig = Rig::start(&fake, generic());
    rig.seen().await;
    {
        let mut world = fake.world();
        world.locked = Some("app7".into());
        world.latencies = (0..21)
            .map(|n| Duration::from_millis(1200 + 100 * (n * 8 % 21)))
            .collect();
    }
    let started = Instant::now();
    let mut named = false;
    while started.elapsed() < Duration::from_mins(1) {
        let report = rig.pleg.health().report();
        for cause in report
            .causes
            .iter()
            .filter(|cause| cause.trouble == Trouble::LockedContainer)
        {
            if let Some(id) = &cause.who.id {
                assert_eq!(&**id, "app7", "{}", report.message);
                named = true;
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
    assert!(named);
}

/// An answer by id that was on its way for long does not undo a death that is known since.
#[tokio::test(start_paused = true)]
async fn a_late_answer_by_id_revives_no_container() {
    let fake = node(10);
    let mut rig = Rig::start(&fake, generic());
    rig.seen().await;
    rig.drain();
    fake.world().status_snapshot_early = true;
    fake.world().locked = Some("app7".into());
    // Answers by id are on their way for 3 s, with what was true when they were asked for; the pod is asked for meanwhile.
    sleep(Duration::from_millis(4900)).await;
    fake.world().latency = Duration::from_secs(3);
    sleep(Duration::from_millis(400)).await;
    fake.world().exit("app3", 1);
    fake.world().latency = Duration::from_millis(1);
    rig.pleg.request_relist(&PodUid::from("p3"));
    sleep(Duration::from_mins(1)).await;
    fake.world().locked = None;
    rig.seen().await;
    let lines: Vec<_> = rig.drain().into_iter().filter(|line| line.contains("app3")).collect();
    assert_eq!(lines, ["ContainerDied p3 app3=1"]);
}

/// A request hangs with its lists, and the pod gets a new sandbox meanwhile: the list of its sandboxes is older than that.
#[tokio::test(start_paused = true)]
async fn lists_of_a_pod_that_are_far_apart_remove_nothing() {
    let fake = node(2);
    fake.world()
        .add_container("orphan", "none", "alone", ContainerState::Running);
    let mut rig = Rig::start(&fake, generic());
    rig.seen().await;
    rig.drain();
    fake.world().locked = Some("app0".into());
    rig.pleg.request_relist(&PodUid::from("orphan"));
    rig.settle().await;
    fake.world().remove_pod("orphan");
    fake.world().add_sandbox("orphan", "second");
    sleep(Duration::from_millis(5500)).await;
    fake.world().locked = None;
    rig.seen().await;
    let lines = rig.drain();
    assert!(!lines.contains(&"PodRemoved orphan".to_owned()), "{lines:?}");
    assert!(lines.contains(&"ContainerRemoved orphan alone".to_owned()), "{lines:?}");
}
