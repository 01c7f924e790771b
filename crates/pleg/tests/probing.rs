//! What the rotating probe finds while nothing changes, and what it learns of the runtime's latency. Paused time.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Fake, Rig};
use pleg::health::{Cause, Stage};
use pleg::{Config, ContainerState, Level, Report, Trouble};
use tokio::time::{Instant, sleep};

fn node(pods: usize) -> Fake {
    let fake = Fake::default();
    for n in 0..pods {
        fake.world()
            .add_pod(&format!("p{n}"), &[&format!("c{n}"), &format!("d{n}")]);
    }
    fake
}

/// Waits for a report that is so; how long that took.
async fn until(rig: &Rig, within: Duration, is: impl Fn(&Report) -> bool) -> (Report, Duration) {
    let started = Instant::now();
    loop {
        let report = rig.pleg.health().report();
        if is(&report) {
            return (report, started.elapsed());
        }
        assert!(started.elapsed() <= within, "{report:#?}");
        sleep(Duration::from_millis(100)).await;
    }
}

fn stuck(cause: &Cause) -> bool {
    cause.stage == Stage::Probe && cause.trouble == Trouble::StuckInspection
}

/// amazon-eks-ami#1228, cri-o#2584: the container does not change, so no inspection meets it; its status hangs all the same.
#[tokio::test(start_paused = true)]
async fn a_container_that_does_not_change_and_does_not_answer_is_named() {
    for id in ["c77", "d77"] {
        let fake = node(110);
        let rig = Rig::start(&fake, Config::default());
        rig.seen().await;
        fake.world().hung.insert(id.into());
        // One container of each pod in a round of 45 s.
        let (report, _) = until(&rig, Duration::from_secs(100), |report| report.level != Level::Healthy).await;
        assert_eq!((report.level, report.causes.len()), (Level::Degraded, 1), "{report:#?}");
        let cause = &report.causes[0];
        assert!(stuck(cause), "{cause:#?}");
        assert_eq!(cause.rpc, "ContainerStatus");
        assert_eq!(cause.who.pod.as_deref(), Some("default/p77"));
        assert_eq!(cause.who.container.as_deref(), Some(&*format!("name-{id}")));
        assert_eq!(cause.who.id.as_deref(), Some(id));
        assert_eq!(cause.who.sandbox.as_deref(), Some("s-p77"));
        assert!(cause.text.contains("asked twice"), "{}", cause.text);

        // Neither the other containers of the pod nor any other pod is affected, and it stays named.
        sleep(Duration::from_mins(3)).await;
        let report = rig.pleg.health().report();
        assert_eq!((report.level, report.causes.len()), (Level::Degraded, 1), "{report:#?}");
        assert!(stuck(&report.causes[0]) && report.causes[0].age_seconds >= 180);

        fake.world().hung.clear();
        until(&rig, Duration::from_secs(40), |report| report.level == Level::Healthy).await;
    }
}

/// The same while events let full relists be rare and probes are made together.
#[tokio::test(start_paused = true)]
async fn at_rest_too() {
    let fake = node(30);
    {
        let mut world = fake.world();
        world.has_events = true;
        (world.version.name, world.version.version) = ("containerd".into(), "2.1.9".into());
    }
    let rig = Rig::start(&fake, Config::default());
    sleep(Duration::from_secs(200)).await;
    assert!(rig.pleg.health().report().mode.full_relist_period_seconds >= 60.0);
    fake.world().hung.insert("d20".into());
    let (report, _) = until(&rig, Duration::from_secs(100), |report| report.level != Level::Healthy).await;
    assert!(stuck(&report.causes[0]), "{report:#?}");
    // One status call a probe, and no pod twice in a round.
    fake.world().hung.clear();
    sleep(Duration::from_secs(100)).await;
    (fake.world().probes, fake.world().status_calls) = Default::default();
    sleep(Duration::from_secs(450)).await;
    let world = fake.world();
    assert!(world.probes.len() <= 30 * 11, "{}", world.probes.len());
    assert!(
        world.status_calls.len() <= world.probes.len(),
        "{}",
        world.status_calls.len()
    );
}

/// A container that goes, or ends, is not in trouble any more.
#[tokio::test(start_paused = true)]
async fn a_stuck_container_that_goes_is_forgotten() {
    for gone in [true, false] {
        let fake = node(5);
        let rig = Rig::start(&fake, Config::default());
        rig.seen().await;
        fake.world().hung.insert("c3".into());
        until(&rig, Duration::from_secs(100), |report| report.causes.iter().any(stuck)).await;
        if gone {
            fake.world().remove_pod("p3");
        } else {
            // Its end cannot be inspected: that is one cause, not two.
            fake.world().exit("c3", 1);
            let (report, _) = until(&rig, Duration::from_secs(30), |report| {
                report
                    .causes
                    .iter()
                    .any(|cause| cause.attempts > 0 && cause.stage == Stage::Inspect)
            })
            .await;
            assert_eq!(report.causes.len(), 1, "{report:#?}");
            fake.world().hung.clear();
        }
        until(&rig, Duration::from_mins(1), |report| report.level == Level::Healthy).await;
    }
}

/// Pods that were made together wait for the same: each is named, the round goes on, and a pod whose shim hangs as well is not asked more
/// often for having two troubles.
#[tokio::test(start_paused = true)]
async fn many_that_hang_do_not_end_the_round() {
    let fake = node(40);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().hung = (0..15).map(|n| format!("c{n}")).collect();
    let named = |report: &Report| report.causes.iter().filter(|cause| stuck(cause)).count();
    until(&rig, Duration::from_mins(5), |report| named(report) == 15).await;
    fake.world().hung_shims.insert("s-p3".into());
    let hangs = |report: &Report| report.causes.iter().any(|cause| cause.trouble == Trouble::HungShim);
    until(&rig, Duration::from_mins(2), hangs).await;
    fake.world().probes.clear();
    sleep(Duration::from_mins(3)).await;
    let world = fake.world();
    let asked = |pod: &str| world.probes.iter().filter(|(_, id)| id == pod).count();
    assert!(asked("s-p3") <= 60, "{}", asked("s-p3"));
    assert!((20..40).all(|n| asked(&format!("s-p{n}")) >= 2), "{:?}", world.probes);
}

/// All containers take 3 s, sandboxes do not: no container is an outlier, and nothing hangs.
#[tokio::test(start_paused = true)]
async fn a_container_that_is_as_slow_as_the_others_is_not_named() {
    let fake = node(20);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().container_latency = Duration::from_secs(3);
    for _ in 0..180 {
        sleep(Duration::from_secs(1)).await;
        let report = rig.pleg.health().report();
        assert_eq!(report.level, Level::Healthy, "{report:#?}");
    }
}

/// No container answers, but sandboxes do: that is reported, and no container is named.
#[tokio::test(start_paused = true)]
async fn where_no_container_answers_none_is_named() {
    let fake = node(20);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    {
        let mut world = fake.world();
        world.hung = world.containers.keys().cloned().collect();
    }
    let (report, _) = until(&rig, Duration::from_mins(1), |report| report.level != Level::Healthy).await;
    assert_eq!(report.causes[0].trouble, Trouble::StalledStorage, "{report:#?}");
    for _ in 0..120 {
        sleep(Duration::from_secs(1)).await;
        let report = rig.pleg.health().report();
        assert_eq!(report.causes.len(), 1, "{report:#?}");
        assert!(
            report.causes.iter().all(|cause| cause.who.container.is_none()),
            "{report:#?}"
        );
    }
    fake.world().hung.clear();
    until(&rig, Duration::from_secs(20), |report| report.level == Level::Healthy).await;
}

/// Containers that have exited are not asked: their status is known for good.
#[tokio::test(start_paused = true)]
async fn what_has_exited_is_not_probed() {
    let fake = node(3);
    fake.world().add_container("p1", "s-p1", "old", ContainerState::Exited);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().hung.insert("old".into());
    sleep(Duration::from_mins(10)).await;
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
    assert_eq!(fake.world().status_calls.iter().filter(|id| *id == "old").count(), 1);
}

/// A call takes 2 ms alone and 64 ms among 63 others: only the first says what a kubelet, which asks one by one, would wait for.
#[tokio::test(start_paused = true)]
async fn our_own_load_is_not_taken_for_the_runtimes_latency() {
    let warned = |report: &Report| {
        report
            .warnings
            .iter()
            .any(|warning| warning.trouble == Trouble::LongRelist)
    };
    for events in [false, true] {
        let fake = node(700);
        {
            let mut world = fake.world();
            world.latency = Duration::from_millis(2);
            world.contention = Duration::from_millis(5);
            world.has_events = events;
            (world.version.name, world.version.version) = ("containerd".into(), "2.1.9".into());
        }
        let rig = Rig::start(&fake, Config::default());
        for round in 0..60 {
            sleep(Duration::from_secs(5)).await;
            let report = rig.pleg.health().report();
            assert!(!warned(&report), "{:?}", report.warnings);
            // Something is always going on.
            let n = round * 10;
            for n in n..n + 10 {
                let id = format!("c{n}");
                fake.world().exit(&id, 1);
            }
        }
        // A runtime that is slow for all containers is reported: 2100 calls of 30 ms.
        fake.world().latency = Duration::from_millis(30);
        until(&rig, Duration::from_mins(10), warned).await;
    }
}

/// Probes that overlap because each takes long are made one at a time now and then, so that a slow runtime is reported.
#[tokio::test(start_paused = true)]
async fn a_slow_runtime_is_reported_on_a_large_node() {
    let fake = node(500);
    {
        let mut world = fake.world();
        world.contention = Duration::from_micros(1);
        world.latency = Duration::from_millis(400);
    }
    let rig = Rig::start(&fake, Config::default());
    let told = |report: &Report| {
        let mut warnings = report.warnings.iter();
        warnings.any(|warning| warning.trouble == Trouble::LongRelist)
    };
    until(&rig, Duration::from_mins(5), told).await;
}
