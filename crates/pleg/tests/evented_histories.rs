//! Random histories of a runtime that reports its changes, well or badly: events are dropped, doubled, late, out of order, half
//! filled, from another time or invented, streams are cut and refused, answers take their time and are of one moment or another.
//! What must hold always holds; and where the runtime reports changes in time, nothing waits for a full relist. A stream that drops and
//! delays is found out: no change waits longer than the stream is trusted, and health says when misses repeat.

#![allow(clippy::unwrap_used, reason = "the steps of a test")]
#![allow(clippy::float_cmp, reason = "these figures are whole numbers")]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::history::{CONTAINERS, Change, Chronicle, PODS, Waiter, change, toggle};
use common::oracle::{cache_is_right, container_states, explained, replay, replayed};
use common::{Fake, Rig};
use pleg::health::Cause;
use pleg::runtime::{ErrorKind, RuntimeEvent};
use pleg::{Config, Event, EventType, Item, Level, Mode, Reached, Report, Trouble};
use proptest::prelude::*;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// What becomes of the events of a change.
#[derive(Debug, Clone)]
enum Fate {
    Told,
    Doubled,
    /// Told after so many milliseconds; so others overtake it.
    Late(u64),
    Dropped,
    WithoutPod,
    WithoutId,
    Empty,
    /// Made at that time, as it says.
    Wild(i64),
    /// DELETED, whatever it was.
    Deleted,
}

#[derive(Debug, Clone)]
enum Step {
    Change(Change, Fate),
    /// An event about nothing that happened: of an object that was made in a step, of a pod, either or neither named.
    Invented(Option<(bool, usize)>, Option<usize>, Option<Reached>),
    Cut,
    Refuse(bool),
    /// Time passes, in milliseconds.
    Pass(u64),
    /// The tasks take so many turns.
    Turns(usize),
    Request(usize),
    RequestAll,
    /// Waits for news; having asked for it or not.
    Wait(usize, bool),
    /// The oldest waiting caller gives up.
    GiveUp,
    /// What calls take from now on, one after the other, in milliseconds.
    Latencies(Vec<u64>),
    /// Lists and statuses are of the moment when they are asked for, and not when they are answered.
    Early(bool, bool),
    FailLists(bool),
    Fail(usize, usize, bool),
    Hang(usize, usize, bool),
}

/// What may go wrong in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Faults {
    /// Nothing: every event comes at once, and every call is answered.
    None,
    /// Calls.
    Calls,
    /// Calls and events.
    All,
}

fn fate(faults: Faults) -> impl Strategy<Value = Fate> {
    let wild = prop_oneof![Just(i64::MIN), Just(-1), Just(0), Just(1), Just(i64::MAX), any::<i64>()];
    let good = prop_oneof![
        6 => Just(Fate::Told),
        1 => Just(Fate::Doubled),
        1 => wild.prop_map(Fate::Wild),
    ];
    let bad = prop_oneof![
        2 => (1..5000u64).prop_map(Fate::Late),
        2 => Just(Fate::Dropped),
        1 => Just(Fate::WithoutPod),
        1 => Just(Fate::WithoutId),
        1 => Just(Fate::Empty),
        1 => Just(Fate::Deleted),
    ];
    match faults {
        Faults::All => prop_oneof![3 => good, 2 => bad].boxed(),
        Faults::None | Faults::Calls => good.boxed(),
    }
}

fn step(faults: Faults) -> impl Strategy<Value = Step> {
    let p = 0..PODS;
    let pc = (p.clone(), 0..CONTAINERS);
    let invented = (
        proptest::option::of((any::<bool>(), 0..40usize)),
        proptest::option::of(0..PODS + 2),
        proptest::option::of(prop_oneof![
            Just(Reached::Running),
            Just(Reached::Ended),
            Just(Reached::Gone)
        ]),
    );
    // Most calls are fast, some slower than the pauses between relists.
    let millis = prop_oneof![3 => Just(0), 3 => 1..20u64, 2 => 20..400u64];
    let latencies = proptest::collection::vec(millis, 0..4);
    let calm = prop_oneof![
        20 => (change(), fate(faults)).prop_map(|(change, fate)| Step::Change(change, fate)),
        1 => invented.prop_map(|(id, pod, reached)| Step::Invented(id, pod, reached)),
        5 => (1..50u64).prop_map(Step::Pass),
        3 => (50..5000u64).prop_map(Step::Pass),
        3 => (1..8usize).prop_map(Step::Turns),
        2 => p.clone().prop_map(Step::Request),
        1 => Just(Step::RequestAll),
        2 => (p, any::<bool>()).prop_map(|(p, ask)| Step::Wait(p, ask)),
        1 => Just(Step::GiveUp),
        2 => latencies.prop_map(Step::Latencies),
        1 => any::<(bool, bool)>().prop_map(|(lists, statuses)| Step::Early(lists, statuses)),
    ];
    let calls = prop_oneof![
        1 => any::<bool>().prop_map(Step::FailLists),
        2 => (pc.clone(), any::<bool>()).prop_map(|((p, c), on)| Step::Fail(p, c, on)),
        1 => (pc, any::<bool>()).prop_map(|((p, c), on)| Step::Hang(p, c, on)),
    ];
    let stream = prop_oneof![Just(Step::Cut), any::<bool>().prop_map(Step::Refuse)];
    match faults {
        Faults::None => calm.boxed(),
        Faults::Calls => prop_oneof![6 => calm, 1 => calls].boxed(),
        Faults::All => prop_oneof![12 => calm, 2 => calls, 1 => stream].boxed(),
    }
}

/// Tells of a change, as its fate is.
fn tell(fake: &Fake, mut events: Vec<RuntimeEvent>, fate: &Fate) {
    for event in &mut events {
        match fate {
            Fate::WithoutPod => event.pod = None,
            Fate::WithoutId => event.id = None,
            Fate::Empty => *event = RuntimeEvent::default(),
            Fate::Wild(created_at) => event.created_at = *created_at,
            Fate::Deleted => event.reached = Some(Reached::Gone),
            Fate::Told | Fate::Doubled | Fate::Late(_) | Fate::Dropped => {}
        }
    }
    let all = |fake: &Fake, events: &[RuntimeEvent]| events.iter().for_each(|event| fake.world().tell(event));
    match fate {
        Fate::Dropped => {}
        Fate::Late(millis) => {
            let (fake, late) = (fake.clone(), Duration::from_millis(*millis));
            tokio::spawn(async move {
                sleep(late).await;
                all(&fake, &events);
            });
        }
        Fate::Doubled => {
            all(fake, &events);
            all(fake, &events);
        }
        _ => all(fake, &events),
    }
}

fn apply(fake: &Fake, step: &Step, n: usize) {
    match step {
        Step::Change(change, fate) => tell(fake, change.apply_and_tell(fake, n), fate),
        Step::Invented(object, pod, reached) => {
            let event = RuntimeEvent {
                id: object.map(|(container, n)| format!("{}{n}", if container { "k" } else { "s" }).into()),
                pod: pod.map(|p| format!("p{p}").into()),
                reached: *reached,
                created_at: 1,
            };
            fake.world().tell(&event);
        }
        Step::Cut => fake.world().cut(),
        Step::Refuse(on) => {
            let refusal = ErrorKind::Status {
                code: "UNKNOWN",
                message: "not now".into(),
            };
            fake.world().events_error = on.then_some(refusal);
        }
        Step::Latencies(millis) => {
            fake.world().latencies = millis.iter().copied().map(Duration::from_millis).collect();
        }
        Step::Early(lists, statuses) => {
            let mut world = fake.world();
            (world.list_snapshot_early, world.status_snapshot_early) = (*lists, *statuses);
        }
        Step::FailLists(on) => fake.world().list_error = on.then(|| ErrorKind::Unreachable("gone".into())),
        Step::Fail(p, c, on) => toggle(fake, *p, *c, *on, |world| &mut world.failing),
        Step::Hang(p, c, on) => toggle(fake, *p, *c, *on, |world| &mut world.hung),
        Step::Pass(_) | Step::Turns(_) | Step::Request(_) | Step::RequestAll | Step::Wait(..) | Step::GiveUp => {}
    }
}

/// What was read, each with how much of the chronicle there was.
#[derive(Default)]
struct Read(Vec<(Event, usize)>);

impl Read {
    fn take(&mut self, rig: &mut Rig, noted: usize) -> Result<(), TestCaseError> {
        while let Some(item) = rig.events.try_next() {
            let Item::Event(event) = item else {
                return Err(TestCaseError::fail("a gap"));
            };
            prop_assert!(explained(rig, &event), "visible before its status: {:?}", event);
            prop_assert_eq!(event.seq, self.0.len() as u64 + 1);
            self.0.push(((*event).clone(), noted));
        }
        Ok(())
    }
}

/// `rested`: the stream has proved itself before the history begins, and full relists are rare.
async fn history(steps: Vec<Step>, faults: Faults, rested: bool) -> Result<(), TestCaseError> {
    let fake = Fake::default();
    {
        let mut world = fake.world();
        world.has_events = true;
        world.most_calls_at_once = 2000;
        world.version.name = "containerd".into();
        world.version.version = "2.1.9".into();
    }
    let mut config = Config::default();
    config.probe.round = Duration::ZERO;
    let mut rig = Rig::start(&fake, config);
    if rested {
        sleep(Duration::from_secs(200)).await;
        prop_assert_eq!(rig.pleg.health().report().mode.full_relist_period_seconds, 60.0);
    }
    let (mut chronicle, mut read) = (Chronicle::default(), Read::default());
    let mut waiters = Vec::new();
    chronicle.note(&fake);
    for (n, step) in steps.iter().enumerate() {
        apply(&fake, step, n);
        let noted = chronicle.note(&fake);
        match step {
            Step::Pass(millis) => sleep(Duration::from_millis(*millis)).await,
            Step::Turns(turns) => {
                for _ in 0..*turns {
                    tokio::task::yield_now().await;
                }
            }
            Step::Request(p) => drop(rig.pleg.request_relist(&format!("p{p}").into())),
            Step::RequestAll => drop(rig.pleg.request_all()),
            Step::Wait(p, ask) => waiters.push(Waiter::start(&rig, *p, noted, *ask)),
            Step::GiveUp if !waiters.is_empty() => waiters.remove(0).task.abort(),
            _ => {}
        }
        read.take(&mut rig, noted)?;
        prop_assert!(!fake.world().spun, "relists without end");
        if n % 20 == 19 {
            replayed(&rig).await?;
        }
    }

    let noted = chronicle.note(&fake);
    if faults == Faults::None && rested {
        // Everything was reported: it is known long before the next full relist. At worst by a few lists and statuses of 400 ms each, one
        // after the other, and the pauses between lists.
        sleep(Duration::from_secs(8)).await;
        read.take(&mut rig, noted)?;
        let events = read.0.iter().map(|(event, _)| event);
        prop_assert_eq!(replay(events)?, container_states(&fake.world().views()));
        cache_is_right(&rig)?;
    }

    // Quiet: no more faults, enough time for every retry and for the stream to come back.
    {
        let mut world = fake.world();
        (world.list_error, world.events_error) = (None, None);
        world.failing.clear();
        world.hung.clear();
    }
    sleep(Duration::from_secs(90)).await;
    rig.seen().await;
    read.take(&mut rig, noted)?;
    prop_assert!(!fake.world().spun, "relists without end");
    cache_is_right(&rig)?;
    let report = rig.pleg.health().report();
    prop_assert_eq!(report.mode.mode, Mode::Evented);
    if is_lossy(&report) {
        prop_assert!(
            report.mode.missed_changes >= 3 && report.causes.len() == 1,
            "{:?}",
            report
        );
    } else {
        prop_assert_eq!(report.level, Level::Healthy, "{:?}", report);
    }

    // The events lead from nothing to there, each said once, and each is something that really was.
    let events = || read.0.iter().map(|(event, _)| event);
    prop_assert_eq!(replay(events())?, container_states(&fake.world().views()));
    chronicle.check_events(&read.0)?;
    let of_pods = events()
        .filter(|event| event.pod.is_some() && !event.kind.is_trouble())
        .count();
    prop_assert_eq!(replayed(&rig).await?, (of_pods as u64, 0));

    // A stream that reported everything has not missed anything.
    if faults != Faults::All {
        prop_assert_eq!(report.mode.missed_changes, 0);
    }

    // No caller waits any more, and no caller got something older than it asked for.
    for mut waiter in waiters {
        match timeout(Duration::from_secs(5), &mut waiter.task).await {
            Ok(Ok(Ok(entry))) => waiter.check(&entry, &chronicle)?,
            Ok(Ok(Err(_))) => prop_assert!(faults != Faults::None),
            _ => return Err(TestCaseError::fail(format!("still waiting for {}", waiter.uid))),
        }
    }
    prop_assert!(rig.pleg.cache().waits().is_empty());
    Ok(())
}

fn is_lossy(report: &Report) -> bool {
    let lossy = |cause: &Cause| cause.trouble == Trouble::LossyStream;
    report.level == Level::Degraded && report.causes.iter().any(lossy)
}

/// The stream is cut, or the next container dies and its event has this fate. Then so many milliseconds pass.
type Death = (Option<Fate>, u64);

fn death() -> impl Strategy<Value = Death> {
    let fate = prop_oneof![
        3 => Just(Fate::Told),
        1 => Just(Fate::Doubled),
        2 => (1..5000u64).prop_map(Fate::Late),
        4 => Just(Fate::Dropped),
    ];
    let pass = prop_oneof![2 => 1..3000u64, 3 => 3000..100_000u64, 1 => 100_000..1_500_000u64];
    prop_oneof![
        9 => (fate.prop_map(Some), pass),
        // Long enough for the stream to come back.
        1 => (3000..10_000u64).prop_map(|pass| (None, pass)),
    ]
}

/// Everything else that may happen between a death and its event: calls, and pauses between lists.
const SLACK: Duration = Duration::from_millis(300);
/// As long as the generator remembers a miss, at least.
const MEMORY: Duration = Duration::from_mins(15);

/// Deaths that are not reported yet, each with the time until which they have to be.
#[derive(Default)]
struct Pending(BTreeMap<String, Instant>);

impl Pending {
    /// Reads events for so long. Each death is reported once, and in time.
    async fn read(&mut self, rig: &mut Rig, pass: Duration) -> Result<(), TestCaseError> {
        let end = Instant::now() + pass;
        while let Ok(item) = timeout_at(end, rig.events.next()).await {
            let Some(Item::Event(event)) = item else {
                return Err(TestCaseError::fail("a gap"));
            };
            // What is said about the generator itself.
            if event.kind.is_trouble() || event.pod.is_none() {
                continue;
            }
            prop_assert_eq!(event.kind, EventType::ContainerDied);
            let uid = event.pod.as_ref().unwrap().uid.to_string();
            let until = self.0.remove(&uid);
            prop_assert!(
                until.is_some_and(|until| Instant::now() <= until),
                "{:?} is late",
                event
            );
        }
        let overdue = self.0.iter().find(|(_, until)| **until < Instant::now());
        prop_assert!(overdue.is_none(), "still to be reported: {:?}", overdue);
        Ok(())
    }
}

/// Containers die one after the other on a stream that drops, doubles and delays.
async fn deaths(steps: Vec<Death>, latency: u64) -> Result<(), TestCaseError> {
    let fake = Fake::default();
    {
        let mut world = fake.world();
        world.has_events = true;
        world.version.name = "containerd".into();
        world.version.version = "2.1.9".into();
        for n in 0..=steps.len() {
            world.add_pod(&format!("p{n}"), &[&format!("c{n}")]);
        }
    }
    let mut config = Config::default();
    config.probe.round = Duration::ZERO;
    let mut rig = Rig::start(&fake, config);
    sleep(Duration::from_secs(200)).await;
    rig.drain();
    fake.world().latency = Duration::from_millis(latency);
    let (mut pending, mut misses, mut missed) = (Pending::default(), Vec::new(), 0);
    for (n, (fate, pass)) in steps.iter().enumerate() {
        let now = Instant::now();
        let mode = rig.pleg.health().report().mode;
        if let Some(fate) = fate {
            let trusted = Duration::from_secs_f64(mode.full_relist_period_seconds);
            let within = match fate {
                Fate::Told | Fate::Doubled => Duration::ZERO,
                Fate::Late(millis) => trusted.min(Duration::from_millis(*millis)),
                _ => trusted,
            };
            pending.0.insert(format!("p{n}"), now + within + SLACK);
            fake.world().exit(&format!("c{n}"), 1);
            let event = RuntimeEvent {
                id: Some(format!("c{n}").into()),
                pod: Some(format!("p{n}").into()),
                reached: Some(Reached::Ended),
                created_at: 0,
            };
            tell(&fake, vec![event], fate);
        } else {
            fake.world().cut();
        }
        pending.read(&mut rig, Duration::from_millis(*pass)).await?;

        let report = rig.pleg.health().report();
        if report.mode.missed_changes > missed {
            // At that time or later.
            misses.push(now);
            missed = report.mode.missed_changes;
        }
        let third = misses.len().checked_sub(3).map(|n| misses[n]);
        if third.is_some_and(|third| third.elapsed() < MEMORY) && report.mode.mode == Mode::Evented {
            prop_assert!(is_lossy(&report), "{} misses: {:?}", misses.len(), report);
        }
        if is_lossy(&report) {
            prop_assert!(
                missed >= 3 && report.mode.full_relist_period_seconds <= 2.0,
                "{:?}",
                report
            );
        } else {
            prop_assert_eq!(report.level, Level::Healthy, "{:?}", report);
        }
    }

    // It behaves again, and proves it.
    pending.read(&mut rig, Duration::from_secs(70)).await?;
    let last = steps.len();
    fake.world().exit(&format!("c{last}"), 1);
    fake.world().tell_of(&format!("c{last}"), Some(&format!("p{last}")));
    pending.0.insert(format!("p{last}"), Instant::now() + SLACK);
    pending.read(&mut rig, MEMORY + Duration::from_mins(1)).await?;
    prop_assert_eq!(rig.pleg.health().report().level, Level::Healthy);
    Ok(())
}

fn run<T>(history: impl Future<Output = T>) -> T {
    // Pauses before a lost stream is asked for again are of random length: here of the same each time.
    fastrand::seed(7);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(history)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: common::cases(1000),
        max_shrink_time: 20_000,
        failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn told_histories(steps in proptest::collection::vec(step(Faults::None), 1..60)) {
        run(history(steps, Faults::None, true))?;
    }

    #[test]
    fn told_histories_of_faulty_runtimes(
        steps in proptest::collection::vec(step(Faults::Calls), 1..60), rested in any::<bool>()
    ) {
        run(history(steps, Faults::Calls, rested))?;
    }

    #[test]
    fn histories_with_faulty_events(steps in proptest::collection::vec(step(Faults::All), 1..80), rested in any::<bool>()) {
        run(history(steps, Faults::All, rested))?;
    }
}

proptest! {
    // Each lasts for hours of its own time.
    #![proptest_config(ProptestConfig {
        cases: common::cases(200),
        max_shrink_time: 20_000,
        failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn deaths_on_a_stream_that_drops(steps in proptest::collection::vec(death(), 1..30), latency in 0..30u64) {
        run(deaths(steps, latency))?;
    }
}
