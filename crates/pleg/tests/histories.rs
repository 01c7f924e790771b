//! Random histories of a runtime, with failing lists, failing and hanging inspections, vanishing containers, waiting callers and
//! sleeping subscribers. What must hold always holds.

#![allow(clippy::unwrap_used, clippy::too_many_lines, reason = "the steps of a test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::history::{CONTAINERS, Change, Chronicle, PODS, Waiter, change, newest, toggle};
use common::oracle::{cache_is_right, container_states, explained, replay, replayed};
use common::{Fake, Rig};
use pleg::event::Subject;
use pleg::health::Stage;
use pleg::model::PodView;
use pleg::model::kubelet_events::KubeletEventType;
use pleg::runtime::ErrorKind;
use pleg::{
    Config, ContainerState, Event, EventType, Item, Level, Overflow, RecorderConfig, SandboxState, Start, Trouble,
    kubelet_events,
};
use proptest::prelude::*;
use tokio::time::{sleep, timeout};

#[derive(Debug, Clone)]
enum Step {
    Change(Change),
    /// Time passes: some relists happen.
    Pass(u64),
    Request(usize),
    Wait(usize),
    FailLists(bool),
    Fail(usize, usize, bool),
    Hang(usize, usize, bool),
    /// The lock of a container is held: the list of containers hangs with it.
    Lock(usize, usize),
    Unlock,
    /// The list of sandboxes hangs.
    HangSandboxes(bool),
}

fn step(faults: bool) -> impl Strategy<Value = Step> {
    let (p, c) = (0..PODS, 0..CONTAINERS);
    let pc = (p.clone(), c);
    let on = any::<bool>();
    let calm = prop_oneof![
        19 => change().prop_map(Step::Change),
        6 => (1..3000u64).prop_map(Step::Pass),
        1 => p.clone().prop_map(Step::Request),
        1 => p.prop_map(Step::Wait),
    ];
    let faulty = prop_oneof![
        1 => on.prop_map(Step::FailLists),
        2 => (pc.clone(), any::<bool>()).prop_map(|((p, c), on)| Step::Fail(p, c, on)),
        1 => (pc, any::<bool>()).prop_map(|((p, c), on)| Step::Hang(p, c, on)),
    ];
    if faults {
        prop_oneof![5 => calm, 1 => faulty].boxed()
    } else {
        calm.boxed()
    }
}

/// Changes beside containers that hang, and relists of which one list hangs.
fn partial_step() -> impl Strategy<Value = Step> {
    let pc = (0..PODS, 0..CONTAINERS);
    prop_oneof![
        12 => change().prop_map(Step::Change),
        6 => (1..12_000u64).prop_map(Step::Pass),
        1 => (0..PODS).prop_map(Step::Request),
        1 => (0..PODS).prop_map(Step::Wait),
        3 => (pc.clone(), any::<bool>()).prop_map(|((p, c), on)| Step::Hang(p, c, on)),
        1 => pc.clone().prop_map(|(p, c)| Step::Lock(p, c)),
        1 => pc.prop_map(|(p, c)| Step::Fail(p, c, true)),
        1 => Just(Step::Unlock),
        1 => any::<bool>().prop_map(Step::HangSandboxes),
    ]
}

fn apply(fake: &Fake, step: &Step, n: usize) {
    match *step {
        Step::Change(ref change) => change.apply(fake, n),
        Step::FailLists(on) => fake.world().list_error = on.then(|| ErrorKind::Unreachable("gone".into())),
        Step::Fail(p, c, on) => toggle(fake, p, c, on, |world| &mut world.failing),
        Step::Hang(p, c, on) => toggle(fake, p, c, on, |world| &mut world.hung),
        Step::Lock(p, c) => fake.world().locked = newest(fake, p, c),
        Step::Unlock => fake.world().locked = None,
        Step::HangSandboxes(on) => fake.world().sandbox_list_hangs = on,
        Step::Pass(_) | Step::Request(_) | Step::Wait(_) => {}
    }
}

/// The rules of the table, written down once more and in another way than the product does it: one object at a time.
fn expected_events(old: Option<ContainerState>, new: Option<ContainerState>) -> Vec<EventType> {
    use ContainerState::{Created, Exited, Running, Unknown};
    if old == new {
        return vec![];
    }
    match new {
        Some(Created) => vec![EventType::ContainerCreated],
        Some(Running) => vec![EventType::ContainerStarted],
        Some(Exited) => vec![EventType::ContainerDied],
        Some(Unknown) => vec![EventType::ContainerChanged],
        None if old == Some(Exited) => vec![EventType::ContainerRemoved],
        None => vec![EventType::ContainerDied, EventType::ContainerRemoved],
    }
}

/// What the kubelet's rules say about a container or sandbox, again one object at a time.
fn expected_kubelet(old: Option<ContainerState>, new: Option<ContainerState>) -> Vec<KubeletEventType> {
    use ContainerState::{Created, Exited, Running, Unknown};
    use KubeletEventType as K;
    // The kubelet does not use "created": to it that is "unknown".
    let known = |state: Option<ContainerState>| state.map(|s| if s == Created { Unknown } else { s });
    match (known(old), known(new)) {
        (a, b) if a == b => vec![],
        (_, Some(Running)) => vec![K::ContainerStarted],
        (_, Some(Exited)) => vec![K::ContainerDied],
        (_, Some(Unknown | Created)) => vec![K::ContainerChanged],
        (Some(Exited), None) => vec![K::ContainerRemoved],
        (_, None) => vec![K::ContainerDied, K::ContainerRemoved],
    }
}

fn sandbox_states(views: &BTreeMap<String, PodView>) -> BTreeMap<String, SandboxState> {
    views
        .values()
        .flat_map(|view| view.sandboxes.iter().map(|(id, state)| (id.to_string(), *state)))
        .collect()
}

async fn history(steps: Vec<Step>, faults: bool, capacity: usize) -> Result<(), TestCaseError> {
    let fake = Fake::default();
    let mut rig = Rig::start(
        &fake,
        Config {
            feed_capacity: capacity.max(4096),
            ..Config::default()
        },
    );
    // A second generator with a tiny feed, whose subscriber sleeps through everything.
    let sleepy = Rig::start(
        &fake,
        Config {
            feed_capacity: capacity,
            // And a recorder that has to drop most of it.
            recorder: RecorderConfig {
                limit: 500 * capacity,
                ..RecorderConfig::default()
            },
            ..Config::default()
        },
    );
    let mut sleeper = sleepy.pleg.subscribe(Start::Oldest, Overflow::PodSync);
    let mut waiters = Vec::new();
    let mut chronicle = Chronicle::default();
    chronicle.note(&fake);
    let mut events: Vec<Event> = Vec::new();
    let mut take = |rig: &mut Rig| -> Result<(), TestCaseError> {
        while let Some(item) = rig.events.try_next() {
            let Item::Event(event) = item else {
                return Err(TestCaseError::fail("a gap"));
            };
            prop_assert!(explained(rig, &event), "visible before its status: {:?}", event);
            prop_assert_eq!(event.seq, events.len() as u64 + 1);
            if event.kind == EventType::PodRemoved {
                let uid = event.pod.as_ref().map(|pod| pod.uid.to_string());
                prop_assert!(removed_in_a_list(&rig.fake, uid.as_deref()), "listed: {:?}", event);
            }
            events.push((*event).clone());
        }
        Ok(())
    };

    let mut watch = Watch::default();
    for (n, step) in steps.iter().enumerate() {
        apply(&fake, step, n);
        watch.note(&fake);
        let noted = chronicle.note(&fake);
        match step {
            Step::Pass(millis) => sleep(Duration::from_millis(*millis)).await,
            Step::Request(p) => {
                // Of both, so that both take the same relists.
                rig.pleg.request_relist(&format!("p{p}").into());
                sleepy.pleg.request_relist(&format!("p{p}").into());
            }
            Step::Wait(p) => waiters.push(Waiter::start(&rig, *p, noted, false)),
            _ => {}
        }
        rig.settle().await;
        take(&mut rig)?;
        rig.fake.world().forget_sandbox_lists();
        watch.blames_only_the_guilty(&rig)?;
        report_and_cache_agree(&rig)?;
        if let Step::Pass(3000..) = step {
            watch.hides_nothing(&rig)?;
        }
        if n % 20 == 19 {
            replayed(&rig).await?;
            replayed(&sleepy).await?;
        }
    }

    // Quiet: no more faults, enough time for every retry.
    {
        let mut world = fake.world();
        world.list_error = None;
        world.failing.clear();
        world.hung.clear();
        world.locked = None;
        world.sandbox_list_hangs = false;
    }
    sleep(Duration::from_secs(90)).await;
    rig.seen().await;
    sleepy.seen().await;
    take(&mut rig)?;

    cache_is_right(&rig)?;
    let truth = fake.world().views();
    prop_assert_eq!(rig.pleg.health().report().level, Level::Healthy);

    // The events lead from nothing to there, each said once.
    prop_assert_eq!(replay(&events)?, container_states(&truth));

    // And the recorded lists lead to the same events.
    let of_pods = events
        .iter()
        .filter(|event| event.pod.is_some() && !event.kind.is_trouble())
        .count();
    prop_assert_eq!(replayed(&rig).await?, (of_pods as u64, 0));
    replayed(&sleepy).await?;

    // Without faults they are exactly those of the table between each relist and the next.
    if !faults {
        exact(&fake, &events)?;
    }

    // No caller waits any more, and no caller got something older than it asked for.
    for mut waiter in waiters {
        match timeout(Duration::from_secs(5), &mut waiter.task).await {
            Ok(Ok(Ok(entry))) => waiter.check(&entry, &chronicle)?,
            Ok(Ok(Err(_))) => prop_assert!(faults),
            _ => return Err(TestCaseError::fail(format!("still waiting for {}", waiter.uid))),
        }
    }
    prop_assert!(rig.pleg.cache().waits().is_empty());

    // The sleeper learns of every pod that ever changed, or gets a gap and then every pod there is.
    let (mut learned, mut told) = (BTreeSet::new(), false);
    while let Some(item) = sleeper.try_next() {
        match item {
            Item::Event(event) => drop(event.pod.as_ref().map(|pod| learned.insert(pod.uid.to_string()))),
            Item::Gap(_) => told = true,
        }
    }
    let changed: BTreeSet<_> = events
        .iter()
        .filter_map(|event| event.pod.as_ref())
        .map(|pod| pod.uid.to_string())
        .collect();
    let owed: BTreeSet<_> = if told { truth.keys().cloned().collect() } else { changed };
    prop_assert!(learned.is_superset(&owed), "{:?} misses {:?}", learned, owed);
    Ok(())
}

/// What the runtime was made to do.
#[derive(Debug, Default)]
struct Watch {
    /// Containers that have hung at any time.
    hung: BTreeSet<String>,
}

impl Watch {
    fn note(&mut self, fake: &Fake) {
        let world = fake.world();
        self.hung.extend(world.hung.iter().chain(&world.locked).cloned());
    }

    /// A container that is blamed for a hung list has hung.
    fn blames_only_the_guilty(&self, rig: &Rig) -> Result<(), TestCaseError> {
        let report = rig.pleg.health().report();
        let named = |cause: &&pleg::health::Cause| cause.trouble == Trouble::LockedContainer;
        for id in report
            .causes
            .iter()
            .filter(named)
            .filter_map(|cause| cause.who.id.as_ref())
        {
            prop_assert!(self.hung.contains(&**id), "{} is innocent: {}", id, report.message);
        }
        Ok(())
    }

    /// While both lists answer, three seconds are enough to report every container that answers, whatever others do.
    fn hides_nothing(&self, rig: &Rig) -> Result<(), TestCaseError> {
        let world = rig.fake.world();
        if world.list_error.is_some() || world.locked.is_some() || world.sandbox_list_hangs {
            return Ok(());
        }
        for (id, container) in &world.containers {
            if self.hung.contains(id) || world.failing.contains(id) {
                continue;
            }
            let entry = rig.pleg.cache().get(&container.uid.as_str().into());
            let status = entry
                .as_ref()
                .and_then(|entry| entry.status.container(&id.as_str().into()));
            let seen = status.map(|status| status.state);
            prop_assert_eq!(seen, Some(container.state), "{} is hidden: {:?}", id, entry);
            let stale = |part: &pleg::StalePart| &**part.object.id() == id.as_str();
            prop_assert!(
                !entry.is_some_and(|entry| entry.stale.iter().any(stale)),
                "{} is stale",
                id
            );
        }
        Ok(())
    }
}

/// What `pods` and `inspect` show of pods in quarantine is what the report says of them.
fn report_and_cache_agree(rig: &Rig) -> Result<(), TestCaseError> {
    let report = rig.pleg.health().report();
    if report.more_causes > 0 {
        return Ok(());
    }
    let of_causes: BTreeSet<_> = report
        .causes
        .iter()
        .filter(|cause| cause.stage == Stage::Inspect && cause.attempts > 0)
        .map(|cause| (cause.who.id.clone(), cause.attempts, cause.last_error.clone()))
        .collect();
    let entries = rig.pleg.cache().entries();
    let of_cache: BTreeSet<_> = entries
        .iter()
        .flat_map(|entry| entry.stale.iter())
        .filter_map(|part| part.error.as_ref())
        .map(|error| (error.id.clone(), error.attempts, Some(error.message.clone())))
        .collect();
    prop_assert_eq!(of_causes, of_cache);
    for entry in &entries {
        let parts = entry.stale.iter().any(|part| part.error.is_some());
        prop_assert_eq!(entry.error.is_some(), parts, "{:?}", entry);
    }
    Ok(())
}

/// A list of sandboxes that was answered since the last step, or the one before, did not have the pod.
fn removed_in_a_list(fake: &Fake, uid: Option<&str>) -> bool {
    let world = fake.world();
    world
        .sandbox_lists
        .iter()
        .any(|list| uid.is_some_and(|uid| !list.contains(uid)))
}

/// Events of each container equal the table's over the relists that were taken; and the kubelet's equal its rules.
fn exact(fake: &Fake, events: &[Event]) -> Result<(), TestCaseError> {
    let relists = fake.world().relists.clone();
    let mut expected: BTreeMap<String, Vec<EventType>> = BTreeMap::new();
    let mut kubelet: BTreeMap<String, Vec<KubeletEventType>> = BTreeMap::new();
    let mut last = BTreeMap::new();
    for relist in &relists {
        let (old, new) = (container_states(&last), container_states(relist));
        for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let (a, b) = (old.get(key).copied(), new.get(key).copied());
            expected.entry(key.1.clone()).or_default().extend(expected_events(a, b));
            kubelet.entry(key.1.clone()).or_default().extend(expected_kubelet(a, b));
        }
        let (old, new) = (sandbox_states(&last), sandbox_states(relist));
        let as_container = |state: Option<&SandboxState>| {
            state.map(|s| {
                if *s == SandboxState::Ready {
                    ContainerState::Running
                } else {
                    ContainerState::Exited
                }
            })
        };
        for id in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let (a, b) = (old.get(id), new.get(id));
            if a != b {
                expected
                    .entry(id.clone())
                    .or_default()
                    .push(EventType::PodSandboxChanged);
            }
            kubelet
                .entry(id.clone())
                .or_default()
                .extend(expected_kubelet(as_container(a), as_container(b)));
        }
        for uid in last.keys().filter(|uid| !relist.contains_key(*uid)) {
            expected.entry(uid.clone()).or_default().push(EventType::PodRemoved);
        }
        last = relist.clone();
    }
    let mut got: BTreeMap<String, Vec<EventType>> = BTreeMap::new();
    for event in events {
        let object = match &event.subject {
            Some(Subject::Container(container)) => container.id.to_string(),
            Some(Subject::Sandbox { id, .. }) => id.to_string(),
            None => event.pod.as_ref().unwrap().uid.to_string(),
        };
        got.entry(object).or_default().push(event.kind);
    }
    expected.retain(|_, events| !events.is_empty());
    kubelet.retain(|_, events| !events.is_empty());
    prop_assert_eq!(got, expected);

    let mut projected: BTreeMap<String, Vec<KubeletEventType>> = BTreeMap::new();
    for event in kubelet_events(events) {
        projected.entry(event.id).or_default().push(event.kind);
    }
    prop_assert_eq!(projected, kubelet);
    Ok(())
}

fn run(steps: Vec<Step>, faults: bool, capacity: usize) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(history(steps, faults, capacity))
}

/// A pod of which nothing is committed any more, only a container that was never inspected, is removed: there is one event, and no
/// object changes with it. The recording has that event too.
#[test]
fn the_removal_of_a_pod_that_was_never_inspected_is_recorded() {
    let steps = vec![
        Step::Change(Change::Create(2, 1)),
        Step::Change(Change::Create(2, 2)),
        Step::Fail(2, 2, true),
        Step::Change(Change::Remove(2, 1)),
        Step::Pass(1000),
        Step::Change(Change::RemovePod(2)),
        Step::Request(2),
    ];
    run(steps, true, 1).unwrap();
}

/// The list of containers shows that a container without a sandbox is gone, while the list of sandboxes hangs: a reader that waits for
/// the pod is not served with the container, although both lists of the relist have answered in the end.
#[test]
fn a_relist_in_two_parts_vouches_for_no_container_that_it_did_not_list() {
    let steps = vec![
        Step::Change(Change::Create(4, 1)),
        Step::Hang(4, 1, true),
        Step::Change(Change::RemovePod(4)),
        Step::HangSandboxes(true),
        Step::Wait(4),
        Step::Pass(6000),
    ];
    run(steps, true, 1).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: common::cases(400),
        failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn calm_histories(steps in proptest::collection::vec(step(false), 1..60), capacity in 1usize..40) {
        // Relists of one pod see states that full relists do not; without them the relists are the whole story.
        let steps = steps.into_iter().filter(|step| !matches!(step, Step::Request(_))).collect();
        run(steps, false, capacity)?;
    }

    #[test]
    fn partial_histories(steps in proptest::collection::vec(partial_step(), 1..60), capacity in 1usize..40) {
        run(steps, true, capacity)?;
    }

    #[test]
    fn faulty_histories(steps in proptest::collection::vec(step(true), 1..80), capacity in 1usize..40) {
        run(steps, true, capacity)?;
    }
}
