//! Readers that come back: to the same generator, or to another one that observes the same runtime, as after a restart of the daemon.
//! A reader gets a gap for whatever it missed, and what it reads afterwards gives the truth.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use common::history::{Change, change};
use common::oracle::{States, container_states};
use common::{Fake, Rig, line};
use pleg::event::Subject;
use pleg::runtime::ErrorKind;
use pleg::{
    Config, ContainerState, Cursor, Event, EventType, Gap, GapReason, InstanceId, Item, Overflow, Pleg, PodEntry,
    PodUid, Start, Subscriber,
};
use proptest::prelude::*;
use tokio::time::sleep;

async fn end(rig: Rig) -> (InstanceId, u64) {
    rig.shutdown.cancel();
    rig.task.await.unwrap();
    (rig.pleg.instance(), rig.pleg.feed().newest())
}

fn read_all(subscriber: &mut Subscriber) -> Vec<String> {
    let items = std::iter::from_fn(|| subscriber.try_next());
    let text = |item| match item {
        Item::Event(event) => line(&event),
        Item::Gap(gap) => format!("{:?} {}..={}", gap.reason, gap.from, gap.to),
    };
    items.map(text).collect()
}

/// A number that both generators have reached, and that means two things.
#[tokio::test(start_paused = true)]
async fn a_reader_that_returns_after_a_restart_gets_a_gap() {
    let fake = Fake::default();
    fake.world().add_pod("a", &["a1"]);
    fake.world().add_pod("b", &["b1"]);
    let rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    let cursor = rig.pleg.instance().at(2);
    assert!(end(rig).await.1 > 2);
    fake.world().exit("a1", 3);
    fake.world().remove_pod("b");

    let rig = Rig::start(&fake, Config::default());
    assert_ne!(rig.pleg.instance(), cursor.instance);
    rig.seen().await;
    assert_eq!(rig.pleg.feed().newest(), 2);
    let mut log = rig.pleg.subscribe(Start::After(cursor), Overflow::Gap);
    assert_eq!(
        read_all(&mut log),
        [
            "Restarted 1..=0",
            "PodSandboxChanged a s-a:Ready initial",
            "ContainerDied a a1=3 initial"
        ]
    );
    let mut level = rig.pleg.subscribe(Start::After(cursor), Overflow::PodSync);
    assert_eq!(read_all(&mut level), ["Restarted 1..=2", "PodSync a"]);
}

#[derive(Debug, Clone)]
enum Step {
    Change(Change),
    /// Time passes: some relists happen.
    Pass(u64),
    FailLists(bool),
    /// The reader takes up to this many items.
    Read(usize),
    /// The reader ends, and comes back with its cursor and what it knew.
    RestartReader,
    /// The generator ends, and another one takes its place.
    RestartDaemon,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        16 => change().prop_map(Step::Change),
        6 => (1..3000u64).prop_map(Step::Pass),
        1 => (8000..15_000u64).prop_map(Step::Pass),
        1 => any::<bool>().prop_map(Step::FailLists),
        6 => (1..12usize).prop_map(Step::Read),
        2 => Just(Step::RestartReader),
        2 => Just(Step::RestartDaemon),
    ]
}

/// A reader with all it has: its cursor, its picture of the node, and an account of what it read and of the gaps that it got.
struct Reader {
    overflow: Overflow,
    cursor: Cursor,
    subscriber: Option<Subscriber>,
    /// It has got a gap since it returned, which says that the generator is another one.
    told: bool,
    containers: States,
    health: Option<EventType>,
    read: BTreeSet<(InstanceId, u64)>,
    gaps: Vec<Gap>,
    /// Numbers in whose place there was a `PodSync` or an event about the node.
    replaced: Vec<(InstanceId, RangeInclusive<u64>)>,
}

impl Reader {
    fn new(overflow: Overflow, cursor: Cursor) -> Self {
        Self {
            overflow,
            cursor,
            subscriber: None,
            told: false,
            containers: States::new(),
            health: None,
            read: BTreeSet::new(),
            gaps: Vec::new(),
            replaced: Vec::new(),
        }
    }

    fn leave(&mut self) {
        self.subscriber = None;
        self.told = false;
    }

    fn read(&mut self, pleg: &Pleg, most: usize) -> Result<(), TestCaseError> {
        for _ in 0..most {
            let (start, overflow) = (Start::After(self.cursor), self.overflow);
            let subscriber = self.subscriber.get_or_insert_with(|| pleg.subscribe(start, overflow));
            let Some(item) = subscriber.try_next() else { break };
            match &item {
                Item::Event(event) => self.event(event, pleg)?,
                Item::Gap(gap) => self.gap(*gap, pleg)?,
            }
            self.cursor = item.cursor().unwrap_or(self.cursor);
        }
        Ok(())
    }

    fn gap(&mut self, gap: Gap, pleg: &Pleg) -> Result<(), TestCaseError> {
        prop_assert_eq!(gap.instance, pleg.instance());
        let restarted = gap.reason == GapReason::Restarted;
        prop_assert_eq!(gap.after, restarted.then_some(self.cursor));
        prop_assert_eq!(restarted, self.cursor.instance != pleg.instance() && !self.told);
        self.told |= restarted;
        self.gaps.push(gap);
        // What it knew may be wrong. The state follows; only a log that goes on does without, and its reader has to read the cache.
        self.containers.clear();
        self.health = None;
        if self.overflow == Overflow::Gap && gap.from > 1 {
            for entry in pleg.cache().entries() {
                self.take(&entry);
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event, pleg: &Pleg) -> Result<(), TestCaseError> {
        prop_assert_eq!(event.instance, pleg.instance());
        prop_assert!(
            self.told || self.cursor.instance == event.instance,
            "not told: {:?}",
            event
        );
        if self.overflow == Overflow::PodSync && (event.kind == EventType::PodSync || event.pod.is_none()) {
            let here = self.cursor.instance == event.instance;
            let next = if here { self.cursor.seq + 1 } else { 1 };
            self.replaced.push((event.instance, next..=event.seq));
        }
        if event.kind == EventType::PodSync {
            let uid = &event.pod.as_ref().unwrap().uid;
            self.forget(uid);
            if let Some(entry) = pleg.cache().get(uid) {
                self.take(&entry);
            }
            return Ok(());
        }
        let newest = self.read.range(..=(event.instance, u64::MAX)).next_back();
        let before = newest.filter(|(instance, _)| *instance == event.instance);
        prop_assert!(
            before.is_none_or(|(_, seq)| *seq < event.seq),
            "read twice: {:?}",
            event
        );
        self.read.insert((event.instance, event.seq));
        match (&event.pod, &event.subject) {
            (None, _) if event.kind.is_health() => self.health = Some(event.kind),
            (Some(pod), Some(Subject::Container(container))) => {
                let key = (pod.uid.to_string(), container.id.to_string());
                let state = match event.kind {
                    EventType::ContainerCreated => ContainerState::Created,
                    EventType::ContainerStarted => ContainerState::Running,
                    EventType::ContainerDied => ContainerState::Exited,
                    EventType::ContainerChanged => ContainerState::Unknown,
                    EventType::ContainerRemoved => {
                        self.containers.remove(&key);
                        return Ok(());
                    }
                    _ => return Ok(()),
                };
                self.containers.insert(key, state);
            }
            _ => {}
        }
        Ok(())
    }

    fn forget(&mut self, uid: &PodUid) {
        self.containers.retain(|(pod, _), _| pod != uid.as_str());
    }

    fn take(&mut self, entry: &PodEntry) {
        self.forget(&entry.status.pod.uid);
        for container in &entry.status.containers {
            let key = (entry.status.pod.uid.to_string(), container.id.to_string());
            self.containers.insert(key, container.state);
        }
    }

    /// Each event of each of these generators, which ran one after the other, was read or is within a gap.
    fn accounts_for(&self, generators: &[(InstanceId, u64)]) -> Result<(), TestCaseError> {
        let place = |instance| generators.iter().position(|(other, _)| *other == instance).unwrap();
        for (n, &(instance, newest)) in generators.iter().enumerate() {
            for seq in 1..=newest {
                let within = |gap: &&Gap| {
                    let here = gap.instance == instance && (gap.from..=gap.to).contains(&seq);
                    // A change of instance is a gap from the cursor to the beginning of the other.
                    let between = gap.after.is_some_and(|after| {
                        let begins = (place(after.instance), after.seq);
                        begins < (n, seq) && n < place(gap.instance)
                    });
                    here || between
                };
                let read = self.read.contains(&(instance, seq));
                let missed = self.gaps.iter().any(|gap| within(&gap));
                let replaced =
                    |(of, range): &(InstanceId, RangeInclusive<u64>)| *of == instance && range.contains(&seq);
                let replaced = self.replaced.iter().any(replaced);
                prop_assert!(
                    read || missed || replaced,
                    "event {} of generator {} in silence",
                    seq,
                    n
                );
            }
        }
        Ok(())
    }
}

async fn history(steps: Vec<Step>, capacity: usize) -> Result<(), TestCaseError> {
    let fake = Fake::default();
    let config = || Config {
        feed_capacity: capacity,
        threshold: Duration::from_secs(10),
        ..Config::default()
    };
    let mut rig = Rig::start(&fake, config());
    let mut generators = Vec::new();
    let beginning = rig.pleg.instance().at(0);
    let mut readers = [Overflow::Gap, Overflow::PodSync].map(|overflow| Reader::new(overflow, beginning));

    for (n, step) in steps.iter().enumerate() {
        match step {
            Step::Change(change) => change.apply(&fake, n),
            Step::Pass(millis) => sleep(Duration::from_millis(*millis)).await,
            Step::FailLists(on) => fake.world().list_error = on.then(|| ErrorKind::Unreachable("gone".into())),
            Step::Read(most) => {
                for reader in &mut readers {
                    reader.read(&rig.pleg, *most)?;
                }
            }
            Step::RestartReader => readers.iter_mut().for_each(Reader::leave),
            Step::RestartDaemon => {
                readers.iter_mut().for_each(Reader::leave);
                generators.push(end(rig).await);
                rig = Rig::start(&fake, config());
            }
        }
        rig.settle().await;
    }

    fake.world().list_error = None;
    sleep(Duration::from_secs(30)).await;
    rig.seen().await;
    generators.push((rig.pleg.instance(), rig.pleg.feed().newest()));
    let truth = container_states(&fake.world().views());
    for mut reader in readers {
        reader.read(&rig.pleg, usize::MAX)?;
        reader.accounts_for(&generators)?;
        prop_assert_eq!(&reader.containers, &truth);
        prop_assert_ne!(reader.health, Some(EventType::PlegNotHealthy));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: common::cases(400),
        failure_persistence: Some(Box::new(proptest::test_runner::FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn histories_with_restarts(steps in proptest::collection::vec(step(), 1..80), capacity in 1usize..40) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(history(steps, capacity))?;
    }
}
