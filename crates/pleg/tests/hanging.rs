//! One pod hangs, in each of the ways in which pods hang; the others never notice. Paused time.

mod common;

use std::time::Duration;

use common::{Fake, Rig};
use pleg::{Config, Level, PodUid, Trouble};
use tokio::time::{Instant, sleep};

fn node(pods: usize) -> Fake {
    let fake = Fake::default();
    for n in 0..pods {
        fake.world()
            .add_pod(&format!("p{n}"), &[&format!("c{n}"), &format!("d{n}")]);
    }
    fake
}

/// Runs until an event of that container's death is there; how long that took.
async fn death_of(rig: &mut Rig, id: &str) -> Duration {
    let started = Instant::now();
    loop {
        if rig
            .drain()
            .iter()
            .any(|line| line.starts_with("ContainerDied") && line.contains(id))
        {
            return started.elapsed();
        }
        assert!(started.elapsed() < Duration::from_mins(15), "no death of {id}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// containerd#9770, #12680, #10583: a container's lock hangs every list for 10 minutes.
#[tokio::test(start_paused = true)]
async fn a_locked_container_hangs_every_list_and_no_other_container() {
    let fake = node(20);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    rig.drain();
    let complete = rig.pleg.cache().token();

    fake.world().locked = Some("c7".into());
    sleep(Duration::from_secs(2)).await;
    fake.world().exit("c3", 3);
    assert!(death_of(&mut rig, "c3=3").await < Duration::from_secs(10));
    fake.world().remove_pod("p4");
    assert!(death_of(&mut rig, "c4").await < Duration::from_secs(10));

    // The culprit is named, the node still works.
    let started = Instant::now();
    while rig
        .pleg
        .health()
        .report()
        .causes
        .iter()
        .all(|cause| cause.who.pod.is_none())
    {
        assert!(started.elapsed() < Duration::from_secs(5), "no container is named");
        sleep(Duration::from_millis(100)).await;
    }
    let report = rig.pleg.health().report();
    assert_eq!(report.level, Level::Degraded, "{}", report.message);
    let cause = &report.causes[0];
    assert_eq!(cause.trouble, Trouble::LockedContainer);
    assert_eq!(cause.who.pod.as_deref(), Some("default/p7"));
    assert_eq!(cause.who.container.as_deref(), Some("name-c7"));
    assert!(cause.text.contains("ListContainers has been waiting"), "{}", cause.text);
    assert!(report.message.contains("name-c7"), "{}", report.message);
    assert!(
        report.message.contains(Trouble::LockedContainer.meaning()),
        "{}",
        report.message
    );

    // What was seen by id is no complete relist: a container that was not listed yet may be missing.
    let uid = PodUid::from("p3");
    let fresh = rig.pleg.cache().newer_than(&uid, complete, Duration::MAX);
    assert!(tokio::time::timeout(Duration::from_secs(1), fresh).await.is_err());

    // Later deaths too, beyond the list's own deadline; and after 3 minutes the node is not healthy, with the name.
    sleep(Duration::from_mins(4)).await;
    let report = rig.pleg.health().report();
    assert_eq!(report.level, Level::Unhealthy);
    assert!(
        report
            .message
            .starts_with("PLEG is not healthy: pleg was last seen active 4m"),
        "{}",
        report.message
    );
    assert!(
        report.message.contains("container name-c7 in pod default/p7"),
        "{}",
        report.message
    );
    rig.drain();
    fake.world().exit("d9", 1);
    assert!(death_of(&mut rig, "d9=1").await < Duration::from_secs(10));

    // A container is asked for once at a time, and so the locked one collects no calls.
    let asked = fake
        .world()
        .inflight
        .calls()
        .iter()
        .filter(|call| call.subject.id.as_deref() == Some("c7"))
        .count();
    assert!(asked <= 1, "{asked}");

    // Freed: within one relist all is well, and nothing is reported twice.
    fake.world().locked = None;
    rig.seen().await;
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
    let late: Vec<_> = rig
        .drain()
        .into_iter()
        .filter(|line| line.contains("Container"))
        .collect();
    assert!(late.is_empty(), "{late:?}");
    rig.pleg
        .cache()
        .newer_than(&uid, complete, Duration::MAX)
        .await
        .unwrap();
}

/// The list was sent before the death that was seen by id, and answers after it with what was true before.
#[tokio::test(start_paused = true)]
async fn a_list_older_than_an_answer_by_id_revives_no_container() {
    let fake = node(3);
    fake.world()
        .add_container("p1", "s-p1", "x", pleg::ContainerState::Created);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    rig.drain();
    fake.world().locked = Some("c2".into());
    sleep(Duration::from_secs(2)).await;
    fake.world().exit("x", 1);
    death_of(&mut rig, "x=1").await;
    // The list answers with a state between the two.
    fake.world().containers.get_mut("x").unwrap().state = pleg::ContainerState::Running;
    fake.world().locked = None;
    sleep(Duration::from_millis(500)).await;
    fake.world().exit("x", 1);
    rig.seen().await;
    let lines = rig.drain();
    assert!(lines.iter().all(|line| !line.contains(" x")), "{lines:?}");
}

/// A runtime that answers no call gets few calls, and no container is named.
#[tokio::test(start_paused = true)]
async fn a_stuck_runtime_has_no_suspects() {
    let fake = node(50);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    {
        let mut world = fake.world();
        world.list_hangs = true;
        world.hung = world.containers.keys().chain(world.sandboxes.keys()).cloned().collect();
        world.most_in_flight = 0;
    }
    sleep(Duration::from_secs(30)).await;
    let report = rig.pleg.health().report();
    assert_eq!(report.causes[0].trouble, Trouble::RuntimeStuck, "{}", report.message);
    assert!(
        report
            .causes
            .iter()
            .all(|cause| cause.trouble != Trouble::LockedContainer)
    );
    assert!(fake.world().most_in_flight <= 16, "{}", fake.world().most_in_flight);
}

/// A list hangs because of one container; later the whole runtime does not answer, and recovers. No container is named that does not hang.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_sticks_later_has_no_more_suspects() {
    let fake = node(50);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().locked = Some("c7".into());
    // One that fails at once is no suspect: it answers.
    fake.world().failing.insert("c9".into());
    sleep(Duration::from_secs(20)).await;
    let accused = |report: &pleg::Report| -> Vec<String> {
        let locked = report
            .causes
            .iter()
            .filter(|cause| cause.trouble == Trouble::LockedContainer);
        locked
            .filter_map(|cause| Some(cause.who.id.as_ref()?.to_string()))
            .collect()
    };
    assert_eq!(accused(&rig.pleg.health().report()), ["c7"]);

    let all: std::collections::BTreeSet<_> = {
        let world = fake.world();
        world.containers.keys().chain(world.sandboxes.keys()).cloned().collect()
    };
    fake.world().hung = all;
    fake.world().list_hangs = true;
    for _ in 0..60 {
        sleep(Duration::from_secs(1)).await;
        let accused = accused(&rig.pleg.health().report());
        assert!(accused.iter().all(|id| id == "c7"), "{accused:?}");
    }
    let report = rig.pleg.health().report();
    assert_eq!(accused(&report), [""; 0], "{}", report.message);

    fake.world().hung.clear();
    fake.world().list_hangs = false;
    fake.world().locked = None;
    rig.seen().await;
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
}

/// Many shims hang: the round goes on, and each is found well again.
#[tokio::test(start_paused = true)]
async fn many_hung_shims_do_not_end_the_round() {
    let fake = node(40);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    for n in 0..20 {
        fake.world().hung_shims.insert(format!("s-p{n}"));
    }
    sleep(Duration::from_mins(5)).await;
    assert_eq!(rig.pleg.health().report().causes.len(), 20);
    fake.world().hung_shims.insert("s-p33".into());
    sleep(Duration::from_mins(5)).await;
    let report = rig.pleg.health().report();
    assert_eq!(report.causes.len() + report.more_causes, 21, "{report:?}");
    fake.world().hung_shims.clear();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
}

/// A single pod does not make its suspect wait for a round of 45 s.
#[tokio::test(start_paused = true)]
async fn a_suspect_on_a_small_node_is_probed_at_once() {
    let fake = node(1);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    sleep(Duration::from_secs(50)).await;
    fake.world().hung_shims.insert("s-p0".into());
    rig.pleg.suspect(&PodUid::from("p0"));
    sleep(Duration::from_secs(8)).await;
    assert_eq!(rig.pleg.health().report().level, Level::Degraded);
}

/// containerd#8167, #2438, #3529: lists and statuses stay green while a pod is dead in the water.
#[tokio::test(start_paused = true)]
async fn a_silent_hung_shim_is_found_and_named() {
    let fake = node(110);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().hung_shims.insert("s-p77".into());
    let started = Instant::now();
    while rig.pleg.health().report().level == Level::Healthy {
        assert!(started.elapsed() < Duration::from_mins(1), "not found");
        sleep(Duration::from_millis(100)).await;
    }
    let report = rig.pleg.health().report();
    assert_eq!(report.level, Level::Degraded);
    assert_eq!(report.causes.len(), 1);
    assert_eq!(report.causes[0].trouble, Trouble::HungShim);
    assert_eq!(report.causes[0].who.sandbox.as_deref(), Some("s-p77"));
    assert!(
        report.message.contains("the shim of pod default/p77 hangs"),
        "{}",
        report.message
    );

    fake.world().hung_shims.clear();
    sleep(Duration::from_secs(20)).await;
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);

    // A few a second at most; the one that hangs is asked twice to be sure.
    let world = fake.world();
    let others: Vec<_> = world.probes.iter().filter(|(_, id)| id != "s-p77").collect();
    let pause = others.windows(2).map(|two| two[1].0 - two[0].0).min().unwrap();
    assert!(pause >= Duration::from_millis(250), "{pause:?}");
}

/// A container that is under suspicion is probed before its turn in the round.
#[tokio::test(start_paused = true)]
async fn suspects_are_probed_first() {
    let fake = node(1000);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().hung_shims.insert("s-p777".into());
    rig.pleg.suspect(&PodUid::from("p777"));
    sleep(Duration::from_secs(7)).await;
    assert_eq!(rig.pleg.health().report().causes[0].trouble, Trouble::HungShim);

    // So is one whose inspection hangs.
    fake.world().hung_shims.insert("s-p500".into());
    fake.world().hung.insert("c500".into());
    fake.world().exit("d500", 1);
    sleep(Duration::from_secs(20)).await;
    let report = rig.pleg.health().report();
    let of = |cause: &&pleg::health::Cause| cause.who.pod.as_deref() == Some("default/p500");
    assert!(
        report
            .causes
            .iter()
            .filter(of)
            .all(|cause| cause.trouble == Trouble::HungShim),
        "{report:?}"
    );
    assert_eq!(report.causes.iter().filter(of).count(), 2);
}

/// Everything is slow: no shim is to blame.
#[tokio::test(start_paused = true)]
async fn a_slow_runtime_is_no_hung_shim() {
    let fake = node(10);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    {
        let mut world = fake.world();
        world.latency = Duration::from_secs(3);
        world.hung_shims = world.sandboxes.keys().cloned().collect();
    }
    sleep(Duration::from_secs(90)).await;
    let report = rig.pleg.health().report();
    assert!(
        report.causes.iter().all(|cause| cause.trouble != Trouble::HungShim),
        "{}",
        report.message
    );
}

/// No call was answered, and now all are: earlier calls waited for the runtime, not for a shim.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_thaws_is_no_hung_shim() {
    let fake = node(10);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    {
        let mut world = fake.world();
        world.hung_shims = world.sandboxes.keys().cloned().collect();
        world.probes.clear();
    }
    while fake.world().probes.is_empty() {
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_secs(3)).await;
    fake.world().hung_shims.clear();
    sleep(Duration::from_secs(10)).await;
    let report = rig.pleg.health().report();
    assert_eq!(report.level, Level::Healthy, "{}", report.message);
}

/// A watchdog that restarts a daemon because the runtime hangs would take away what names the culprit.
#[tokio::test(start_paused = true)]
async fn a_hung_runtime_does_not_stop_the_generators_turns() {
    let fake = node(2);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().locked = Some("c1".into());
    sleep(Duration::from_mins(5)).await;
    let before = rig.pleg.progress();
    sleep(Duration::from_millis(1)).await;
    assert!(rig.pleg.progress() > before, "asked for a turn, and took none");
}
