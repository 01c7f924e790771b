//! Random histories of a runtime beside a kernel that announces its changes, well or badly: late, early, twice, about other objects, or not
//! at all. Announcements of the kernel never cause a wrong or a missing event, only earlier or later ones; and where it is true and in time,
//! nothing waits for a full relist.

#![allow(clippy::unwrap_used, reason = "the steps of a test")]
#![allow(clippy::float_cmp, reason = "these figures are whole numbers")]

mod common;

use std::time::Duration;

use common::history::{CONTAINERS, Change, Chronicle, PODS, Waiter, change, toggle};
use common::kernel::{FakeKernel, pid_of};
use common::oracle::{cache_is_right, container_states, explained, replay, replayed};
use common::{Fake, Rig};
use pleg::runtime::RuntimeEvent;
use pleg::witness::Announcement;
use pleg::{Config, ContainerState, Event, EventType, EventedConfig, Item, Level, Mode, Reached};
use proptest::prelude::*;
use tokio::time::{sleep, timeout};

/// What becomes of the announcements of a change.
#[derive(Debug, Clone)]
enum Fate {
    Announced,
    Doubled,
    /// After so many milliseconds.
    Late(u64),
    Silent,
    /// The pod is not in the path of the cgroup.
    WithoutPod,
}

#[derive(Debug, Clone)]
enum Step {
    Change(Change, Fate),
    /// So many milliseconds before the runtime exits the container, which it may never do.
    ExitsEarly(usize, usize),
    /// Nonsense about an object that may exist.
    Nonsense(usize, u8),
    Overflow,
    Pass(u64),
    Request(usize),
    Wait(usize),
    Hang(usize, usize, bool),
}

fn fate(honest: bool) -> BoxedStrategy<Fate> {
    let good = prop_oneof![4 => Just(Fate::Announced), 1 => Just(Fate::Doubled), 1 => Just(Fate::WithoutPod)];
    if honest {
        return good.boxed();
    }
    let bad = prop_oneof![1 => (1..5000u64).prop_map(Fate::Late), 1 => Just(Fate::Silent)];
    prop_oneof![2 => good, 1 => bad].boxed()
}

fn step(honest: bool) -> BoxedStrategy<Step> {
    let pc = (0..PODS, 0..CONTAINERS);
    let good = prop_oneof![
        8 => (change(), fate(honest)).prop_map(|(change, fate)| Step::Change(change, fate)),
        4 => prop_oneof![1..200u64, 200..3000u64].prop_map(Step::Pass),
        1 => (0..PODS).prop_map(Step::Request),
        1 => (0..PODS).prop_map(Step::Wait),
    ];
    if honest {
        return good.boxed();
    }
    prop_oneof![
        12 => good,
        1 => pc.clone().prop_map(|(p, c)| Step::ExitsEarly(p, c)),
        2 => (0..80usize, any::<u8>()).prop_map(|(n, what)| Step::Nonsense(n, what)),
        1 => Just(Step::Overflow),
        1 => (pc, any::<bool>()).prop_map(|((p, c), on)| Step::Hang(p, c, on)),
    ]
    .boxed()
}

/// What a kernel announces of the changes of a runtime.
fn announce(kernel: &FakeKernel, event: &RuntimeEvent, pod: bool) {
    let Some(id) = event.id.as_deref() else { return };
    match event.reached {
        Some(Reached::Running) => kernel.made(id, event.pod.as_ref().filter(|_| pod).map(pleg::PodUid::as_str)),
        Some(Reached::Ended | Reached::Gone) => {
            kernel.exit(id, 1);
            kernel.removed(id);
        }
        None => {}
    }
}

fn apply(fake: &Fake, kernel: &FakeKernel, step: &Step, n: usize) {
    match step {
        Step::Change(change, fate) => {
            let events = change.apply_and_tell(fake, n);
            let times = if matches!(fate, Fate::Doubled) { 2 } else { 1 };
            match fate {
                Fate::Silent => {}
                Fate::Late(millis) => {
                    let (kernel, pause) = (kernel.clone(), Duration::from_millis(*millis));
                    tokio::spawn(async move {
                        sleep(pause).await;
                        for event in &events {
                            announce(&kernel, event, true);
                        }
                    });
                }
                fate => {
                    for _ in 0..times {
                        for event in &events {
                            announce(kernel, event, !matches!(fate, Fate::WithoutPod));
                        }
                    }
                }
            }
        }
        Step::ExitsEarly(p, c) => {
            if let Some(id) = common::history::newest(fake, *p, *c) {
                kernel.exit(&id, 3);
            }
        }
        Step::Nonsense(of, what) => {
            let id: std::sync::Arc<str> = format!("{}{of}", if what % 2 == 0 { 'k' } else { 's' }).into();
            kernel.announce(match what % 5 {
                0 => Announcement::CgroupMade { id, pod: None },
                1 => Announcement::CgroupMade {
                    id,
                    pod: Some("elsewhere".into()),
                },
                2 => Announcement::CgroupRemoved { id },
                3 => Announcement::OomKilled { id },
                _ => Announcement::Exited {
                    pid: pid_of(&id) + u32::from(what % 3),
                    id,
                    at: jiff::Timestamp::UNIX_EPOCH,
                    exit_code: None,
                },
            });
        }
        Step::Overflow => kernel.announce(Announcement::Overflow),
        Step::Hang(p, c, on) => toggle(fake, *p, *c, *on, |world| &mut world.hung),
        Step::Pass(_) | Step::Request(_) | Step::Wait(_) => {}
    }
}

async fn history(steps: Vec<Step>, honest: bool) -> Result<(), TestCaseError> {
    let (fake, kernel) = (Fake::default(), FakeKernel::default());
    fake.world().most_calls_at_once = 2000;
    // One that stays, so that there always is something to watch.
    fake.world().add_pod("first", &["stays"]);
    let mut config = Config {
        evented: EventedConfig {
            mode: Mode::Generic,
            ..EventedConfig::default()
        },
        ..Config::default()
    };
    config.probe.round = Duration::ZERO;
    let mut rig = Rig::start_witnessed(&fake, config, &kernel);
    sleep(Duration::from_secs(200)).await;
    prop_assert_eq!(rig.pleg.health().report().mode.full_relist_period_seconds, 60.0);

    let (mut chronicle, mut events) = (Chronicle::default(), Vec::<(Event, usize)>::new());
    let mut waiters = Vec::new();
    chronicle.note(&fake);
    let mut take = |rig: &mut Rig, noted: usize| -> Result<Vec<(Event, usize)>, TestCaseError> {
        while let Some(item) = rig.events.try_next() {
            let Item::Event(event) = item else {
                return Err(TestCaseError::fail("a gap"));
            };
            // What the kernel shows is evidence, and is not committed.
            if event.kind != EventType::ProcessExited {
                prop_assert!(explained(rig, &event), "visible before its status: {:?}", event);
                events.push(((*event).clone(), noted));
            }
        }
        Ok(events.clone())
    };
    for (n, step) in steps.iter().enumerate() {
        apply(&fake, &kernel, step, n);
        let noted = chronicle.note(&fake);
        match step {
            Step::Pass(millis) => sleep(Duration::from_millis(*millis)).await,
            Step::Request(p) => drop(rig.pleg.request_relist(&format!("p{p}").into())),
            Step::Wait(p) => waiters.push(Waiter::start(&rig, *p, noted, false)),
            _ => {}
        }
        rig.settle().await;
        take(&mut rig, noted)?;
        prop_assert!(!fake.world().spun, "relists without end");
    }
    let noted = chronicle.note(&fake);

    // Quiet: what the kernel has not announced so far it does, and the runtime answers.
    fake.world().hung.clear();
    let watched: Vec<_> = kernel.state().watched.keys().cloned().collect();
    for id in watched {
        let runs = |container: &common::Container| container.state == ContainerState::Running;
        if !fake.world().containers.get(&*id).is_some_and(runs) {
            kernel.exit(&id, 0);
        }
    }
    sleep(Duration::from_secs(150)).await;
    rig.seen().await;
    let events = take(&mut rig, noted)?;
    prop_assert!(!fake.world().spun, "relists without end");
    cache_is_right(&rig)?;

    // The events lead from nothing to there, each said once, and each is something that really was.
    let all = || events.iter().map(|(event, _)| event);
    prop_assert_eq!(replay(all())?, container_states(&fake.world().views()));
    chronicle.check_events(&events)?;
    let of_pods = all()
        .filter(|event| event.pod.is_some() && !event.kind.is_trouble())
        .count();
    prop_assert_eq!(replayed(&rig).await?, (of_pods as u64, 0));
    if honest {
        let report = rig.pleg.health().report();
        prop_assert_eq!(report.level, Level::Healthy, "{:?}", report);
    }
    for mut waiter in waiters {
        match timeout(Duration::from_secs(5), &mut waiter.task).await {
            Ok(Ok(Ok(entry))) => waiter.check(&entry, &chronicle)?,
            Ok(Ok(Err(_))) => prop_assert!(!honest),
            _ => return Err(TestCaseError::fail(format!("still waiting for {}", waiter.uid))),
        }
    }
    Ok(())
}

fn run(steps: Vec<Step>, honest: bool) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(history(steps, honest))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: common::cases(300),
        failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn honest_witnesses(steps in proptest::collection::vec(step(true), 1..60)) {
        run(steps, true)?;
    }

    #[test]
    fn bad_witnesses(steps in proptest::collection::vec(step(false), 1..60)) {
        run(steps, false)?;
    }
}
