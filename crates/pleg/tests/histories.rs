//! Random histories of a runtime, with failing lists, failing and hanging inspections, vanishing containers, waiting callers and
//! sleeping subscribers. What must hold always holds.

#![allow(clippy::unwrap_used, clippy::too_many_lines, reason = "the steps of a test")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::{Fake, Rig};
use pleg::event::Subject;
use pleg::kubelet::KubeletEventType;
use pleg::model::PodView;
use pleg::recorder::line::Line;
use pleg::runtime::ErrorKind;
use pleg::{
    Config, ContainerState, Event, EventType, Item, Level, Overflow, PodUid, RecorderConfig, SandboxState, Start,
    kubelet_events,
};
use proptest::prelude::*;
use tokio::time::{sleep, timeout};

const PODS: usize = 5;
const CONTAINERS: usize = 3;

#[derive(Debug, Clone)]
enum Step {
    /// A new sandbox for a pod; the old ones become not ready.
    Sandbox(usize),
    StopSandbox(usize),
    RemovePod(usize),
    /// A new attempt of one of the pod's containers.
    Create(usize, usize),
    Start(usize, usize),
    Exit(usize, usize, i32),
    Remove(usize, usize),
    Confuse(usize, usize),
    /// Time passes: some looks happen.
    Pass(u64),
    Request(usize),
    Wait(usize),
    FailLists(bool),
    Fail(usize, usize, bool),
    Hang(usize, usize, bool),
}

fn step(faults: bool) -> impl Strategy<Value = Step> {
    let (p, c) = (0..PODS, 0..CONTAINERS);
    let pc = (p.clone(), c);
    let on = any::<bool>();
    let calm = prop_oneof![
        2 => p.clone().prop_map(Step::Sandbox),
        1 => p.clone().prop_map(Step::StopSandbox),
        1 => p.clone().prop_map(Step::RemovePod),
        4 => pc.clone().prop_map(|(p, c)| Step::Create(p, c)),
        4 => pc.clone().prop_map(|(p, c)| Step::Start(p, c)),
        4 => (pc.clone(), 0..3i32).prop_map(|((p, c), code)| Step::Exit(p, c, code)),
        2 => pc.clone().prop_map(|(p, c)| Step::Remove(p, c)),
        1 => pc.clone().prop_map(|(p, c)| Step::Confuse(p, c)),
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

/// The newest container of that name in the pod.
fn newest(fake: &Fake, p: usize, c: usize) -> Option<String> {
    let world = fake.world();
    let of_name = world
        .containers
        .iter()
        .filter(|(_, k)| k.uid == format!("p{p}") && k.name == format!("c{c}"));
    of_name.max_by_key(|(_, k)| k.created_at).map(|(id, _)| id.clone())
}

fn apply(fake: &Fake, step: &Step, n: usize) {
    let set_state = |p, c, from: &[ContainerState], to| {
        if let Some(id) = newest(fake, p, c)
            && let Some(container) = fake.world().containers.get_mut(&id)
            && from.contains(&container.state)
        {
            container.state = to;
        }
    };
    match *step {
        Step::Sandbox(p) => {
            let mut world = fake.world();
            for sandbox in world.sandboxes.values_mut().filter(|s| s.uid == format!("p{p}")) {
                sandbox.state = SandboxState::NotReady;
            }
            world.add_sandbox(&format!("p{p}"), &format!("s{n}"));
        }
        Step::StopSandbox(p) => {
            for sandbox in fake.world().sandboxes.values_mut().filter(|s| s.uid == format!("p{p}")) {
                sandbox.state = SandboxState::NotReady;
            }
        }
        Step::RemovePod(p) => fake.world().remove_pod(&format!("p{p}")),
        Step::Create(p, c) => {
            let mut world = fake.world();
            let uid = format!("p{p}");
            let sandbox = world
                .sandboxes
                .iter()
                .find(|(_, s)| s.uid == uid)
                .map_or("none".to_owned(), |(id, _)| id.clone());
            let attempt = u32::try_from(n).unwrap();
            world.add_container(&uid, &sandbox, &format!("k{n}"), ContainerState::Created);
            let container = world.containers.get_mut(&format!("k{n}")).unwrap();
            (container.name, container.attempt) = (format!("c{c}"), attempt);
        }
        Step::Start(p, c) => set_state(p, c, &[ContainerState::Created], ContainerState::Running),
        Step::Exit(p, c, code) => {
            if let Some(id) = newest(fake, p, c)
                && fake.world().containers[&id].state != ContainerState::Exited
            {
                fake.world().exit(&id, code);
            }
        }
        Step::Confuse(p, c) => set_state(p, c, &[ContainerState::Running], ContainerState::Unknown),
        Step::Remove(p, c) => {
            if let Some(id) = newest(fake, p, c) {
                fake.world().containers.remove(&id);
            }
        }
        Step::FailLists(on) => fake.world().list_error = on.then(|| ErrorKind::Unreachable("gone".into())),
        Step::Fail(p, c, on) => toggle(fake, p, c, on, |world| &mut world.failing),
        Step::Hang(p, c, on) => toggle(fake, p, c, on, |world| &mut world.hung),
        Step::Pass(_) | Step::Request(_) | Step::Wait(_) => {}
    }
}

fn toggle(fake: &Fake, p: usize, c: usize, on: bool, set: fn(&mut common::World) -> &mut BTreeSet<String>) {
    if let Some(id) = newest(fake, p, c) {
        let mut world = fake.world();
        if on {
            set(&mut world).insert(id)
        } else {
            set(&mut world).remove(&id)
        };
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

type States = BTreeMap<(String, String), ContainerState>;

fn container_states(views: &BTreeMap<String, PodView>) -> States {
    let states = |(pod, view): (&String, &PodView)| {
        let pod = pod.clone();
        view.containers
            .iter()
            .map(move |(c, state)| ((pod.clone(), c.id.to_string()), *state))
            .collect::<Vec<_>>()
    };
    views.iter().flat_map(states).collect()
}

fn sandbox_states(views: &BTreeMap<String, PodView>) -> BTreeMap<String, SandboxState> {
    views
        .values()
        .flat_map(|view| view.sandboxes.iter().map(|(id, state)| (id.to_string(), *state)))
        .collect()
}

/// Replays the events of each container and checks that each is one the table allows from where the last one left it.
fn replay(events: &[Event]) -> Result<States, TestCaseError> {
    let mut states = States::new();
    for event in events {
        let (Some(pod), Some(Subject::Container(container))) = (&event.pod, &event.subject) else {
            continue;
        };
        let key = (pod.uid.to_string(), container.id.to_string());
        let old = states.get(&key).copied();
        let new = match event.kind {
            EventType::ContainerCreated => Some(ContainerState::Created),
            EventType::ContainerStarted => Some(ContainerState::Running),
            EventType::ContainerDied => Some(ContainerState::Exited),
            EventType::ContainerChanged => Some(ContainerState::Unknown),
            EventType::ContainerRemoved => None,
            _ => continue,
        };
        prop_assert_ne!(old, new, "said twice: {:?}", event);
        if new.is_none() {
            prop_assert_eq!(
                old,
                Some(ContainerState::Exited),
                "removed without a death: {:?}",
                event
            );
        }
        match new {
            Some(state) => states.insert(key, state),
            None => states.remove(&key),
        };
    }
    Ok(states)
}

/// A status that explains the event is in the cache when the event can be read: the same state, or a later one.
fn explained(rig: &Rig, event: &Event) -> bool {
    let (Some(pod), Some(Subject::Container(container))) = (&event.pod, &event.subject) else {
        return true;
    };
    let entry = rig.pleg.cache().get(&pod.uid);
    let state = entry.and_then(|entry| entry.status.container(&container.id).map(|status| status.state));
    match event.kind {
        EventType::ContainerStarted => state != Some(ContainerState::Created),
        EventType::ContainerDied => matches!(state, None | Some(ContainerState::Exited)),
        EventType::ContainerRemoved => state.is_none(),
        _ => true,
    }
}

/// A waiting caller: what it waits for, and what the pod was when it began.
struct Waiter {
    uid: PodUid,
    token: pleg::Token,
    then: PodView,
    task: tokio::task::JoinHandle<Result<pleg::PodEntry, pleg::NotFresh>>,
}

impl Waiter {
    fn start(rig: &Rig, pod: usize) -> Self {
        let (uid, token) = (PodUid::from(format!("p{pod}")), rig.pleg.cache().token());
        let then = rig.fake.world().views().remove(uid.as_str()).unwrap_or_default();
        let (cache, waited) = (rig.pleg.cache().clone(), uid.clone());
        let task = tokio::spawn(async move { cache.newer_than(&waited, token).await });
        Self { uid, token, then, task }
    }

    /// Nothing older than the token: states only move on, and what was gone stays gone.
    fn check(&self, entry: &pleg::PodEntry) -> Result<(), TestCaseError> {
        prop_assert!(entry.observed >= self.token);
        for status in &entry.status.containers {
            if let Some((_, state)) = self.then.containers.iter().find(|(c, _)| c.id == status.id) {
                // A runtime that did not know may know better now, whatever it is.
                let moved_on = *state == ContainerState::Unknown || status.state >= *state;
                prop_assert!(moved_on, "{}: {:?} after {:?}", self.uid, status, state);
            }
        }
        Ok(())
    }
}

/// The recording, written and read again, gives the same events: how many, and how many could not be compared.
async fn replayed(rig: &Rig) -> Result<(u64, u64), TestCaseError> {
    let recording = rig.pleg.recording().await.unwrap();
    let lines: Vec<Line> = recording
        .into_lines()
        .map(|line| serde_json::from_str(&serde_json::to_string(&line).unwrap()).unwrap())
        .collect();
    let replayed = pleg::recorder::replay(lines.clone()).map_err(|error| {
        let lines: Vec<_> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        TestCaseError::fail(format!("{error}\n{}", lines.join("\n")))
    })?;
    prop_assert!(replayed.header.bytes <= replayed.header.limit_bytes);
    if replayed.difference.is_some() {
        let lines: Vec<_> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        let text = format!("{:?}\n{}", replayed.difference, lines.join("\n"));
        return Err(TestCaseError::fail(text));
    }
    Ok((replayed.events, replayed.not_compared))
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
    let mut events: Vec<Event> = Vec::new();
    let mut take = |rig: &mut Rig| -> Result<(), TestCaseError> {
        while let Some(item) = rig.events.try_next() {
            let Item::Event(event) = item else {
                return Err(TestCaseError::fail("a gap"));
            };
            prop_assert!(explained(rig, &event), "visible before its status: {:?}", event);
            prop_assert_eq!(event.seq, events.len() as u64 + 1);
            events.push((*event).clone());
        }
        Ok(())
    };

    for (n, step) in steps.iter().enumerate() {
        apply(&fake, step, n);
        match step {
            Step::Pass(millis) => sleep(Duration::from_millis(*millis)).await,
            Step::Request(p) => {
                // Of both, so that both take the same looks.
                rig.pleg.request(&format!("p{p}").into());
                sleepy.pleg.request(&format!("p{p}").into());
            }
            Step::Wait(p) => waiters.push(Waiter::start(&rig, *p)),
            _ => {}
        }
        rig.settle().await;
        take(&mut rig)?;
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
    }
    sleep(Duration::from_secs(90)).await;
    rig.seen().await;
    sleepy.seen().await;
    take(&mut rig)?;

    // The cache is what the runtime is.
    let truth = fake.world().views();
    let entries: BTreeMap<String, _> = rig
        .pleg
        .cache()
        .entries()
        .into_iter()
        .map(|entry| (entry.status.pod.uid.to_string(), entry))
        .collect();
    prop_assert_eq!(entries.keys().collect::<Vec<_>>(), truth.keys().collect::<Vec<_>>());
    for (uid, view) in &truth {
        let status = &entries[uid].status;
        prop_assert!(entries[uid].error.is_none());
        let sandboxes: Vec<_> = status.sandboxes.iter().map(|s| (s.id.clone(), s.state)).collect();
        prop_assert_eq!(&sandboxes, &view.sandboxes);
        let containers: Vec<_> = status.containers.iter().map(|c| (c.id.clone(), c.state)).collect();
        let expected: Vec<_> = view
            .containers
            .iter()
            .map(|(c, state)| (c.id.clone(), *state))
            .collect();
        prop_assert_eq!(containers, expected);
        for container in status.containers.iter().filter(|c| c.state == ContainerState::Exited) {
            prop_assert_eq!(
                container.exit_code,
                Some(fake.world().containers[container.id.as_str()].exit_code)
            );
        }
    }
    prop_assert_eq!(rig.pleg.health().report().level, Level::Healthy);

    // The events lead from nothing to there, each said once.
    prop_assert_eq!(replay(&events)?, container_states(&truth));

    // And the recorded lists lead to the same events.
    let of_pods = events.iter().filter(|event| event.pod.is_some()).count();
    prop_assert_eq!(replayed(&rig).await?, (of_pods as u64, 0));
    replayed(&sleepy).await?;

    // Without faults they are exactly those of the table between each look and the next.
    if !faults {
        exact(&fake, &events)?;
    }

    // Nobody waits any more, and nobody was told something older than he asked for.
    for waiter in waiters {
        let answer = timeout(Duration::from_secs(5), waiter.task).await;
        match answer {
            Ok(Ok(Ok(entry))) => {
                // Checked against what was true when he began to wait.
                let waiter = Waiter {
                    task: tokio::spawn(std::future::pending()),
                    ..waiter
                };
                waiter.check(&entry)?;
                waiter.task.abort();
            }
            Ok(Ok(Err(_))) => prop_assert!(faults),
            _ => return Err(TestCaseError::fail(format!("still waiting for {}", waiter.uid))),
        }
    }
    prop_assert!(rig.pleg.cache().waits().is_empty());

    // The sleeper learns of every pod that ever changed, or is told that it cannot and gets every pod there is.
    let (mut learned, mut told) = (BTreeSet::new(), false);
    while let Some(item) = sleeper.try_next() {
        match item {
            Item::Event(event) => drop(event.pod.as_ref().map(|pod| learned.insert(pod.uid.to_string()))),
            Item::Gap { .. } => told = true,
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

/// Events of each container equal the table's over the looks that were taken; and the kubelet's equal its rules.
fn exact(fake: &Fake, events: &[Event]) -> Result<(), TestCaseError> {
    let looks = fake.world().looks.clone();
    let mut expected: BTreeMap<String, Vec<EventType>> = BTreeMap::new();
    let mut kubelet: BTreeMap<String, Vec<KubeletEventType>> = BTreeMap::new();
    let mut last = BTreeMap::new();
    for look in &looks {
        let (old, new) = (container_states(&last), container_states(look));
        for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let (a, b) = (old.get(key).copied(), new.get(key).copied());
            expected.entry(key.1.clone()).or_default().extend(expected_events(a, b));
            kubelet.entry(key.1.clone()).or_default().extend(expected_kubelet(a, b));
        }
        let (old, new) = (sandbox_states(&last), sandbox_states(look));
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
        for uid in last.keys().filter(|uid| !look.contains_key(*uid)) {
            expected.entry(uid.clone()).or_default().push(EventType::PodRemoved);
        }
        last = look.clone();
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

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn calm_histories(steps in proptest::collection::vec(step(false), 1..60), capacity in 1usize..40) {
        // One-pod looks see states that full looks do not; without them the looks are the whole story.
        let steps = steps.into_iter().filter(|step| !matches!(step, Step::Request(_))).collect();
        run(steps, false, capacity)?;
    }

    #[test]
    fn faulty_histories(steps in proptest::collection::vec(step(true), 1..80), capacity in 1usize..40) {
        run(steps, true, capacity)?;
    }
}
