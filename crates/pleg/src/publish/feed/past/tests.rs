//! Readers of a feed with a history, which is a list here.

use std::collections::BTreeSet;

use super::*;
use crate::model::event::EventType;
use crate::publish::cache::CacheWriter;
use crate::publish::past::PastFuture;

const BEFORE: InstanceId = InstanceId::new(2);
const THIS: InstanceId = InstanceId::new(1);
/// The number of the first event of this instance.
const FIRST: u64 = 11;

/// Events 3 to 10 of the instance before, which ended cleanly, and those of this one up to `written`. Two at a time.
#[derive(Debug)]
struct List {
    written: u64,
}

impl EventHistory for List {
    fn after(&self, cursor: Cursor, _: u64) -> PastFuture {
        let known = BTreeSet::from([BEFORE, THIS]);
        if !known.contains(&cursor.instance) {
            return Box::pin(std::future::ready(None));
        }
        // A number of this instance before its first is one of the instance before.
        let at = if cursor.instance == THIS && cursor.seq + 1 < FIRST {
            BEFORE.at(cursor.seq)
        } else {
            cursor
        };
        let end = if at.instance == BEFORE { FIRST - 1 } else { self.written };
        let mut items = Vec::new();
        let mut next = at;
        if at.instance == BEFORE && at.seq < 2 {
            items.push(Item::Gap(Gap {
                from: at.seq + 1,
                to: 2,
                instance: BEFORE,
                reason: GapReason::Overflow,
                after: None,
            }));
            next.seq = 2;
        }
        for seq in (next.seq + 1..=end).take(2) {
            items.push(Item::Event(Arc::new(Event {
                seq,
                instance: next.instance,
                ..Event::of_generator(EventType::PlegHealthy)
            })));
            next.seq = seq;
        }
        if next == BEFORE.at(FIRST - 1) {
            next = THIS.at(FIRST - 1);
        }
        Box::pin(std::future::ready(Some(Past { items, next, place: 0 })))
    }
}

/// A feed that holds the last three of ten events, with a history that has the events up to `written`.
fn feed(written: u64) -> FeedWriter {
    let overflows = prometheus::IntCounter::new("overflows", "overflows").unwrap();
    let history = FeedHistory {
        first_seq: FIRST,
        events: Arc::new(List { written }),
    };
    let writer = FeedWriter::new(THIS, 3, Some(history), CacheWriter::default().reader(), overflows);
    writer.publish((0..10).map(|_| Event::of_generator(EventType::PlegHealthy)));
    writer
}

/// Everything there is to read: `instance seq`, or a gap.
async fn read(mut subscriber: Subscriber) -> Vec<String> {
    let mut read = Vec::new();
    while let Some(item) = subscriber.next().await {
        read.push(match item {
            Item::Event(event) => format!("{} {}", event.instance.number(), event.seq),
            Item::Gap(gap) => format!("{} gap {}-{} {:?}", gap.instance.number(), gap.from, gap.to, gap.reason),
        });
    }
    read
}

fn events(instance: u64, seqs: std::ops::RangeInclusive<u64>) -> Vec<String> {
    seqs.map(|seq| format!("{instance} {seq}")).collect()
}

#[tokio::test]
async fn a_reader_with_a_cursor_reads_on_in_the_history() {
    let all = |from| [events(2, from..=10), events(1, 11..=20)].concat();
    let gap = |text: &str| vec![text.to_owned()];
    for (start, expected) in [
        (Start::After(BEFORE.at(7)), all(8)),
        (Start::After(BEFORE.at(10)), events(1, 11..=20)),
        (Start::After(BEFORE.at(0)), [gap("2 gap 1-2 Overflow"), all(3)].concat()),
        // A number of the instance before, and of this one.
        (Start::After(THIS.at(7)), all(8)),
        (Start::After(THIS.at(10)), events(1, 11..=20)),
        (Start::After(THIS.at(12)), events(1, 13..=20)),
        (Start::After(THIS.at(18)), events(1, 19..=20)),
        (Start::After(THIS.at(0)), events(1, 11..=20)),
        // Only what is held, as before.
        (Start::Oldest, events(1, 18..=20)),
    ] {
        let writer = feed(20);
        let subscriber = writer.reader().subscribe(start, Overflow::Gap);
        drop(writer);
        assert_eq!(read(subscriber).await, expected, "{start:?}");
    }
}

#[tokio::test]
async fn what_the_history_does_not_have_is_a_gap() {
    // It is behind: events 16 and 17 are neither written nor held.
    let writer = feed(15);
    let subscriber = writer.reader().subscribe(Start::After(BEFORE.at(9)), Overflow::Gap);
    drop(writer);
    let expected = [
        events(2, 10..=10),
        events(1, 11..=15),
        vec!["1 gap 16-17 Overflow".to_owned()],
        events(1, 18..=20),
    ];
    assert_eq!(read(subscriber).await, expected.concat());

    // An instance that it does not know: the state, as without a history.
    let writer = feed(20);
    let stranger = Start::After(InstanceId::new(9).at(5));
    let subscriber = writer.reader().subscribe(stranger, Overflow::Gap);
    drop(writer);
    assert_eq!(read(subscriber).await[0], "1 gap 11-17 Restarted");
}

#[tokio::test]
async fn the_history_itself_and_level_readers_do_not_read_there() {
    let writer = feed(20);
    let own = writer.reader().subscribe(Start::After(THIS.at(12)), Overflow::Gap);
    let level = writer.reader().subscribe(Start::After(THIS.at(12)), Overflow::PodSync);
    drop(writer);
    let own = read(own.without_history()).await;
    assert_eq!(own[0], "1 gap 13-17 Overflow");
    assert!(read(level).await.iter().all(|line| !line.contains(" 13")));
}
