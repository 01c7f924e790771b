use std::collections::BTreeSet;

use jiff::Timestamp;

use super::*;
use crate::model::event::{EventType, Source};
use crate::model::status::{Pairs, PodStatus, SandboxStatus};
use crate::model::{PodRef, SandboxState};
use crate::publish::cache::{CacheWriter, Committed, Token};

const THIS: InstanceId = InstanceId::new(1);
const OTHER: InstanceId = InstanceId::new(2);

fn writer(capacity: usize, cache: &CacheWriter) -> FeedWriter {
    let overflows = prometheus::IntCounter::new("overflows", "overflows").unwrap();
    FeedWriter::new(THIS, capacity, None, cache.reader(), overflows)
}

fn pod_ref(uid: &str) -> PodRef {
    PodRef {
        uid: uid.into(),
        namespace: "default".into(),
        name: uid.into(),
    }
}

/// A cache that has these pods.
fn cache_of(pods: &[&str]) -> CacheWriter {
    let cache = CacheWriter::default();
    for pod in pods {
        let committed = Committed {
            token: Token::default(),
            at: Timestamp::UNIX_EPOCH,
            stale: Arc::default(),
            held: false,
            inspecting: false,
        };
        cache.commit(PodStatus::empty(pod_ref(pod)), committed);
    }
    cache
}

fn event(kind: EventType, pod: Option<&str>) -> Event {
    Event {
        seq: 0,
        instance: InstanceId::default(),
        time: Timestamp::UNIX_EPOCH,
        kind,
        pod: pod.map(pod_ref),
        subject: None,
        pid: None,
        exit_code: None,
        reason: None,
        initial: false,
        source: Source::Relist,
        lag: None,
        trouble: None,
        lasted: None,
    }
}

fn started(pod: &str) -> Event {
    event(EventType::ContainerStarted, Some(pod))
}

fn health(kind: EventType) -> Event {
    event(kind, None)
}

/// Everything there is to read, in short: `seq type pod`.
fn read(subscriber: &mut Subscriber) -> Vec<String> {
    let short = |item| match item {
        Item::Event(event) => {
            let pod = event.pod.as_ref().map_or("-", |pod| pod.uid.as_str());
            format!("{} {} {pod}", event.seq, event.kind)
        }
        Item::Gap(gap) => {
            assert_eq!(
                (gap.instance, gap.after.is_some()),
                (THIS, gap.reason == GapReason::Restarted)
            );
            format!("{:?} {}..={}", gap.reason, gap.from, gap.to)
        }
    };
    let mut lines: Vec<_> = std::iter::from_fn(|| subscriber.try_next()).map(short).collect();
    // The cache is in no order: neither are the syncs made of it.
    lines
        .chunk_by_mut(|a, b| a.contains(" PodSync ") && b.contains(" PodSync "))
        .for_each(<[String]>::sort);
    lines
}

/// Events about the node are about no pod, so no `PodSync` stands for them.
#[test]
fn a_level_reader_learns_what_it_missed_about_the_node() {
    use EventType::{PlegDegraded, PlegHealthy, PlegNotHealthy, TroubleEnded, TroubleStarted};
    for (missed, told) in [
        (
            vec![health(PlegNotHealthy), started("a")],
            vec!["1 PlegNotHealthy -", "2 PodSync a"],
        ),
        (
            vec![started("a"), health(PlegNotHealthy)],
            vec!["1 PodSync a", "2 PlegNotHealthy -"],
        ),
        // Only the latest counts.
        (
            vec![health(PlegNotHealthy), started("a"), health(PlegHealthy), started("b")],
            vec!["2 PodSync a", "3 PlegHealthy -", "4 PodSync b"],
        ),
        // A trouble of the node changes no level by itself, and no pod either.
        (
            vec![health(PlegDegraded), event(TroubleStarted, None), started("a")],
            vec!["1 PlegDegraded -", "2 TroubleStarted -", "3 PodSync a"],
        ),
        (
            vec![event(TroubleStarted, None), started("a"), event(TroubleEnded, None)],
            vec!["2 PodSync a", "3 TroubleEnded -"],
        ),
    ] {
        let writer = writer(2, &CacheWriter::default());
        let mut reader = writer.reader().subscribe(Start::Now, Overflow::PodSync);
        let next = missed.len() + 1;
        writer.publish(missed);
        writer.publish([started("y"), started("z")]);
        let mut expected: Vec<String> = told.into_iter().map(str::to_owned).collect();
        expected.push(format!("{next} ContainerStarted y"));
        expected.push(format!("{} ContainerStarted z", next + 1));
        assert_eq!(read(&mut reader), expected);
    }
}

const ALL_FIVE: [&str; 5] = [
    "1 ContainerStarted a",
    "2 PlegNotHealthy -",
    "3 ContainerStarted b",
    "4 ContainerStarted c",
    "5 ContainerStarted a",
];
const RESTARTED_WHOLE: [&str; 6] = [
    "Restarted 1..=0",
    ALL_FIVE[0],
    ALL_FIVE[1],
    ALL_FIVE[2],
    ALL_FIVE[3],
    ALL_FIVE[4],
];
const RESTARTED_LEVEL: [&str; 5] = [
    "Restarted 1..=5",
    "0 PodSync a",
    "0 PodSync b",
    "0 PodSync c",
    "2 PlegNotHealthy -",
];

type Row<'a> = (usize, Cursor, Overflow, &'a [&'a str]);

/// What a reader gets that comes back, by its cursor, what it chose and how much is held.
#[test]
fn what_a_returning_reader_gets() {
    use EventType::PlegNotHealthy;
    use Overflow::{Gap, PodSync};
    let all = 100;
    // Five events; a, b and c are in the cache.
    let table: [Row<'_>; 15] = [
        // Of this instance: it continues.
        (all, THIS.at(3), Gap, &["4 ContainerStarted c", "5 ContainerStarted a"]),
        (
            all,
            THIS.at(3),
            PodSync,
            &["4 ContainerStarted c", "5 ContainerStarted a"],
        ),
        (all, THIS.at(5), Gap, &[]),
        // The same, too late.
        (
            2,
            THIS.at(1),
            Gap,
            &["Overflow 2..=3", "4 ContainerStarted c", "5 ContainerStarted a"],
        ),
        (
            2,
            THIS.at(1),
            PodSync,
            &[
                "2 PlegNotHealthy -",
                "3 PodSync b",
                "4 ContainerStarted c",
                "5 ContainerStarted a",
            ],
        ),
        // It has read nothing: without the first event it needs the state.
        (all, THIS.at(0), Gap, &ALL_FIVE),
        (
            2,
            THIS.at(0),
            Gap,
            &[
                "Overflow 1..=3",
                "0 PodSync a",
                "0 PodSync b",
                "0 PodSync c",
                "2 PlegNotHealthy -",
                "4 ContainerStarted c",
                "5 ContainerStarted a",
            ],
        ),
        // Of another instance: a gap and the state, however small or large the number is.
        (all, OTHER.at(0), Gap, &RESTARTED_WHOLE),
        (all, OTHER.at(3), Gap, &RESTARTED_WHOLE),
        (all, OTHER.at(5), Gap, &RESTARTED_WHOLE),
        (all, OTHER.at(u64::MAX), Gap, &RESTARTED_WHOLE),
        (
            2,
            OTHER.at(3),
            Gap,
            &[
                "Restarted 1..=3",
                "0 PodSync a",
                "0 PodSync b",
                "0 PodSync c",
                "2 PlegNotHealthy -",
                "4 ContainerStarted c",
                "5 ContainerStarted a",
            ],
        ),
        (all, OTHER.at(3), PodSync, &RESTARTED_LEVEL),
        // A number that this instance has not reached was issued by another, whatever the cursor says.
        (all, THIS.at(6), Gap, &RESTARTED_WHOLE),
        (2, THIS.at(u64::MAX), PodSync, &RESTARTED_LEVEL),
    ];
    for (n, (capacity, cursor, overflow, expected)) in table.into_iter().enumerate() {
        let cache = cache_of(&["a", "b", "c"]);
        let writer = writer(capacity, &cache);
        let events = [
            started("a"),
            health(PlegNotHealthy),
            started("b"),
            started("c"),
            started("a"),
        ];
        writer.publish(events);
        let mut reader = writer.reader().subscribe(Start::After(cursor), overflow);
        assert_eq!(read(&mut reader), expected, "row {n}");
        // And then what comes.
        writer.publish([started("d")]);
        assert_eq!(read(&mut reader), ["6 ContainerStarted d"], "row {n}");
    }
}

/// A reader that keeps what it has read and where.
struct Follower {
    cursor: Cursor,
    pods: BTreeSet<String>,
}

impl Follower {
    fn read(&mut self, feed: &Feed, overflow: Overflow, most: usize) -> usize {
        let mut subscriber = feed.subscribe(Start::After(self.cursor), overflow);
        let items: Vec<_> = std::iter::from_fn(|| subscriber.try_next()).take(most).collect();
        for item in &items {
            self.cursor = item.cursor().unwrap_or(self.cursor);
            if let Item::Event(event) = item {
                self.pods.extend(event.pod.iter().map(|pod| pod.uid.to_string()));
            }
        }
        items.len()
    }
}

/// Wherever a reader stops: what it has read, and what it gets when it comes back, make up the state.
#[test]
fn a_state_that_was_read_in_part_is_given_again() {
    for overflow in [Overflow::Gap, Overflow::PodSync] {
        let cache = cache_of(&["a", "b", "c"]);
        let writer = writer(1, &cache);
        writer.publish(["a", "b", "c", "a", "b"].map(started));
        let feed = writer.reader();
        let follower = || Follower {
            cursor: OTHER.at(9),
            pods: BTreeSet::new(),
        };
        let whole = follower().read(&feed, overflow, usize::MAX);
        for stop in 0..whole {
            let mut follower = follower();
            assert_eq!(follower.read(&feed, overflow, stop), stop);
            follower.read(&feed, overflow, usize::MAX);
            assert_eq!(follower.pods.len(), 3, "{overflow:?}, stopped after {stop} of {whole}");
        }
    }
}

#[test]
fn a_reader_of_news_gets_no_initial_events() {
    let feed = writer(10, &cache_of(&[]));
    let initial = Event {
        initial: true,
        ..started("old")
    };
    let mut early = feed.reader().subscribe(Start::AfterFirstRelist, Overflow::Gap);
    let mut now = feed.reader().subscribe(Start::Now, Overflow::Gap);
    feed.publish([initial.clone(), started("a")]);
    let mut late = feed.reader().subscribe(Start::AfterFirstRelist, Overflow::Gap);
    // A pod whose first inspection was late.
    feed.publish([initial, started("b")]);
    assert_eq!(read(&mut early), ["2 ContainerStarted a", "4 ContainerStarted b"]);
    assert_eq!(early.caught_up(), Some(THIS.at(4)));
    assert_eq!(read(&mut late), ["4 ContainerStarted b"]);
    assert_eq!(read(&mut now).len(), 4);
}

/// A pod with the label `app`.
fn labelled(cache: &CacheWriter, pod: &str, app: &str) {
    let labels = std::collections::HashMap::from([("app".to_owned(), app.to_owned())]);
    let sandbox = SandboxStatus {
        labels: Pairs::new(&labels),
        ..SandboxStatus::listed(&"s".into(), SandboxState::Ready, 0, 1)
    };
    let status = PodStatus {
        sandboxes: [sandbox].into(),
        ..PodStatus::empty(pod_ref(pod))
    };
    let committed = Committed {
        token: Token::default(),
        at: Timestamp::UNIX_EPOCH,
        stale: Arc::default(),
        held: false,
        inspecting: false,
    };
    cache.commit(status, committed);
}

#[test]
fn a_filter_is_an_and() {
    let cache = CacheWriter::default();
    labelled(&cache, "web", "web");
    labelled(&cache, "db", "db");
    let feed = writer(10, &cache);
    let web = || EventFilter::default().labels("app=web".parse().unwrap());
    let [mut types, mut namespace, mut labels, mut both] = [
        EventFilter::default().types([EventType::PlegHealthy, EventType::PodRemoved]),
        EventFilter::default().namespaces(["other"]),
        web(),
        web().types([EventType::PodRemoved]).namespaces(["default", "other"]),
    ]
    .map(|filter| {
        feed.reader()
            .subscribe(Start::Oldest, Overflow::Gap)
            .with_filter(filter)
    });
    feed.publish([started("web"), started("db"), health(EventType::PlegHealthy)]);
    assert_eq!(read(&mut labels), ["1 ContainerStarted web"]);
    assert!(read(&mut both).is_empty());
    // Read after the pods have left the cache: the label is that of an earlier event.
    cache.remove(&"web".into());
    cache.remove(&"db".into());
    let removed = |pod| event(EventType::PodRemoved, Some(pod));
    feed.publish([removed("web"), removed("db")]);
    assert_eq!(read(&mut labels), ["4 PodRemoved web"]);
    assert_eq!(read(&mut both), ["4 PodRemoved web"]);
    assert_eq!(
        read(&mut types),
        ["3 PlegHealthy -", "4 PodRemoved web", "5 PodRemoved db"]
    );
    assert!(read(&mut namespace).is_empty());
    assert_eq!(namespace.caught_up(), Some(THIS.at(5)));
}

#[test]
fn a_filter_lets_pass_what_stands_for_missed_events() {
    let feed = writer(1, &cache_of(&[]));
    let died = || EventFilter::default().types([EventType::ContainerDied]);
    let subscribe = |overflow| feed.reader().subscribe(Start::Oldest, overflow).with_filter(died());
    let (mut log, mut level) = (subscribe(Overflow::Gap), subscribe(Overflow::PodSync));
    feed.publish([started("a"), started("b")]);
    assert_eq!(read(&mut log), ["Overflow 1..=1"]);
    assert_eq!(read(&mut level), ["1 PodSync a"]);
}

#[tokio::test]
async fn a_subscriber_is_a_stream() {
    use futures_util::{FutureExt as _, StreamExt};
    let feed = writer(10, &cache_of(&[]));
    let mut events = feed.reader().subscribe(Start::Oldest, Overflow::Gap);
    assert_eq!(StreamExt::next(&mut events).now_or_never(), None);
    feed.publish([started("a")]);
    assert!(StreamExt::next(&mut events).await.is_some());
    let waiting = tokio::spawn(events.map(|item| item.cursor()).collect::<Vec<_>>());
    tokio::task::yield_now().await;
    feed.publish([started("b"), started("c")]);
    drop(feed);
    assert_eq!(waiting.await.unwrap(), [Some(THIS.at(2)), Some(THIS.at(3))]);
}
