//! Tests of writer and reader together, with small segments.

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleg::{EventType, InstanceId, PodUid};
use proptest::prelude::*;

use crate::codec::Labels;
use crate::entry::{Entry, EntryType, Note, Record, What};
use crate::file::{HistoryError, open};
use crate::hours::HourSums;
use crate::layout::{EDGE, FileHeader, HEADER, SLOT, Tail};
use crate::query::{Order, PodMatch, Query};
use crate::reader::HistoryReader;
use crate::store::{LEAST_SIZE, Limits, PodLabels, Store};
use crate::testing::{PODS, event, pod};

const A: InstanceId = InstanceId::new(0xa);

/// The labels of pods: `app` by their number, and `tier` of every other one.
struct TestLabels;

impl PodLabels for TestLabels {
    fn labels(&self, uid: &PodUid) -> Option<Labels> {
        let n = (0..PODS).find(|&n| pod(n).uid == *uid)?;
        let mut labels = vec![("app".into(), format!("web-{}", n % 5).into())];
        if n.is_multiple_of(2) {
            labels.push(("tier".into(), "front".into()));
        }
        Some(labels.into())
    }
}

/// Tests do not age.
fn limits() -> Limits {
    Limits {
        size: LEAST_SIZE,
        age: Duration::from_hours(24 * 365 * 100),
    }
}

fn events(seqs: std::ops::Range<u64>) -> Vec<Record> {
    seqs.map(|seq| Record::Event(Arc::new(event(A, seq)))).collect()
}

/// Writes all records, however many writes that takes.
fn append_all(store: &mut Store, records: &[Record]) {
    let mut written = 0;
    while written < records.len() {
        let count = store.append(&records[written..], &TestLabels).unwrap();
        assert!(count > 0);
        written += count;
    }
}

fn store(path: &Path) -> Store {
    Store::new(Arc::new(open(path).unwrap()), limits(), A, 1)
}

fn read_all(path: &Path) -> Vec<Entry> {
    let reader = HistoryReader::open(path).unwrap();
    let types = EntryType::all().collect();
    let query = Query {
        types,
        ..Query::default()
    };
    reader.entries(query).map(Result::unwrap).collect()
}

#[test]
fn what_was_written_is_read_back_and_continues_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state/history.dat");
    let (first, second) = (events(1..6000), events(6000..9000));
    let mut writer = store(&path);
    append_all(&mut writer, &first);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(open(&path), Err(HistoryError::InUse(_))));
    // A reader needs no lock.
    assert_eq!(read_all(&path).len(), first.len());
    drop(writer);
    append_all(&mut store(&path), &second);
    let read = read_all(&path);
    let records: Vec<_> = read.iter().map(|entry| &entry.record).collect();
    assert!(records.into_iter().eq(first.iter().chain(&second)));
    assert!(read.windows(2).all(|pair| pair[0].id + 1 == pair[1].id));
    assert!(
        read[0].id > 1_000_000_000_000_000,
        "later than any id of an earlier file"
    );
    assert!(read[0].id < 1 << 53);
}

#[test]
fn the_size_holds_and_the_newest_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.dat");
    let mut writer = store(&path);
    let mut seq = 1;
    while seq < 300_000 {
        append_all(&mut writer, &events(seq..seq + 5000));
        seq += 5000;
        assert!(std::fs::metadata(&path).unwrap().len() <= LEAST_SIZE);
    }
    let read = read_all(&path);
    let seqs: Vec<u64> = read.iter().map(|entry| entry.event().unwrap().seq).collect();
    assert_eq!(*seqs.last().unwrap(), seq - 1);
    assert!(seqs.windows(2).all(|pair| pair[0] + 1 == pair[1]), "no holes");
    assert!(seqs[0] > 1 && seqs.len() > 50_000, "{} from {}", seqs.len(), seqs[0]);
    // After a restart the same.
    drop(writer);
    assert_eq!(read_all(&path).len(), seqs.len());
    append_all(&mut store(&path), &events(seq..seq + 5000));
    assert!(std::fs::metadata(&path).unwrap().len() <= LEAST_SIZE);
}

#[test]
fn what_is_too_old_goes_and_its_space_comes_back() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.dat");
    append_all(&mut store(&path), &events(1..20_000));
    let used = |path: &Path| std::fs::metadata(path).unwrap().blocks() * 512;
    let before = used(&path);
    let recent = Limits {
        age: Duration::from_hours(1),
        ..limits()
    };
    let mut writer = Store::new(Arc::new(open(&path).unwrap()), recent, A, 20_000);
    let now = Record::Note(Arc::new(Note {
        time: Timestamp::now(),
        instance: A,
        what: What::DaemonStopped { last_seq: 19_999 },
    }));
    append_all(&mut writer, std::slice::from_ref(&now));
    // The segment that is written to stays, with the last events.
    let left: Vec<u64> = read_all(&path)
        .iter()
        .filter_map(|entry| Some(entry.event()?.seq))
        .collect();
    assert!(left.len() < 4000 && left.last() == Some(&19_999), "{left:?}");
    assert!(left.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    assert!(used(&path) < before / 4, "{} of {before}", used(&path));
}

#[test]
fn a_file_that_cannot_be_used_is_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.dat");
    std::fs::write(&path, "no history").unwrap();
    append_all(&mut store(&path), &events(1..5));
    assert_eq!(std::fs::read(dir.path().join("history.broken")).unwrap(), b"no history");
    assert_eq!(read_all(&path).len(), 4);
    // One of a later release.
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&9_u32.to_le_bytes(), 16).unwrap();
    assert!(matches!(
        HistoryReader::open(&path),
        Err(HistoryError::Unreadable { .. })
    ));
    append_all(&mut store(&path), &events(1..3));
    assert_eq!(read_all(&path).len(), 2);
    let newer = std::fs::read(dir.path().join("history.newer")).unwrap();
    assert_eq!(FileHeader::decode(&newer), FileHeader::Newer(9));
    // A crash while it was created.
    std::fs::write(&path, [0; 4096]).unwrap();
    append_all(&mut store(&path), &events(1..3));
    assert_eq!(read_all(&path).len(), 2);
    // A directory is left alone.
    assert!(matches!(open(dir.path()), Err(HistoryError::Io { .. })));
}

#[test]
fn a_damaged_block_costs_its_own_entries() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.dat");
    append_all(&mut store(&path), &events(1..9000));
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // In the middle of the second segment, which is sealed.
    file.write_all_at(&[0xff; 16], HEADER + SLOT + SLOT / 4).unwrap();
    let read = read_all(&path).len();
    assert!(read < 8999 && read > 8000, "{read}");
    // With a damaged tail its segment is read up to there.
    file.write_all_at(&[0xff; 64], HEADER + 2 * SLOT - 128).unwrap();
    assert!(read_all(&path).len() > 5000);
}

/// Footer and tail are made durable together: a power failure may leave the tail, and not the footer that it tells of.
#[test]
fn a_tail_without_its_footer_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.dat");
    append_all(&mut store(&path), &events(1..9000));
    let pods = |reader: &HistoryReader| reader.pods(&Query::default()).unwrap();
    let of_pod = |reader: &HistoryReader| {
        let query = Query {
            pod: Some(PodMatch::Uid(pod(3).uid)),
            labels: Some("app=web-3".parse().unwrap()),
            ..Query::default()
        };
        reader.entries(query).map(Result::unwrap).collect::<Vec<_>>()
    };
    let whole = HistoryReader::open(&path).unwrap();
    let (known, found, hours) = (pods(&whole), of_pod(&whole), whole.hours(None, None).unwrap());
    assert!(!found.is_empty());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut tail = vec![0; usize::try_from(EDGE).unwrap()];
    file.read_exact_at(&mut tail, HEADER + SLOT - EDGE).unwrap();
    let (at, length) = Tail::decode(&tail).unwrap().footer;
    for torn in [&[0xff; 1][..], &vec![0; length as usize]] {
        file.write_all_at(torn, HEADER + u64::from(at)).unwrap();
        let reader = HistoryReader::open(&path).unwrap();
        assert_eq!(read_all(&path).len(), 8999);
        assert_eq!(pods(&reader), known);
        assert_eq!(of_pod(&reader), found);
        assert_eq!(reader.hours(None, None).unwrap(), hours);
    }
    // What comes next is written after it.
    append_all(&mut store(&path), &events(9000..12_000));
    assert_eq!(read_all(&path).len(), 11_999);
}

#[test]
fn hours_are_the_sums_of_their_entries() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.dat");
    let records = events(1..30_000);
    append_all(&mut store(&path), &records);
    let mut sums = std::collections::BTreeMap::<i64, HourSums>::new();
    for record in &records {
        let Record::Event(event) = record else { continue };
        let hour = crate::hours::hour_of(event.time);
        sums.entry(hour).or_default().add(record);
    }
    let reader = HistoryReader::open(&path).unwrap();
    let mut hours = reader.hours(None, None).unwrap();
    assert_eq!(hours.len(), sums.len());
    for (hour, (number, sums)) in hours.iter_mut().zip(&sums) {
        hour.partial = false;
        assert_eq!(*hour, sums.finish(*number));
    }
    let (since, until) = (hours[2].start, hours[5].start);
    let some = reader.hours(Some(since), Some(until)).unwrap();
    let starts: Vec<_> = some.iter().map(|hour| hour.start).collect();
    assert_eq!(starts, hours[2..5].iter().map(|hour| hour.start).collect::<Vec<_>>());
}

#[test]
fn pods_are_found_with_their_labels() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.dat");
    append_all(&mut store(&path), &events(1..9000));
    let reader = HistoryReader::open(&path).unwrap();
    let count = |query: Query| reader.pods(&query).unwrap().len() as u64;
    assert_eq!(count(Query::default()), PODS);
    let labelled = Query {
        labels: Some("tier=front".parse().unwrap()),
        ..Query::default()
    };
    assert_eq!(count(labelled), PODS.div_ceil(2));
    let prefix = Query {
        pod: Some(PodMatch::parse("shop/web-1*")),
        ..Query::default()
    };
    let found = reader.pods(&prefix).unwrap();
    assert!(
        found
            .iter()
            .all(|pod| pod.name.starts_with("web-1") && pod.namespace == "shop")
    );
    assert!(!found.is_empty() && found[0].labels.contains_key("app"));
}

#[test]
fn the_clock_may_go_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.dat");
    let mut writer = store(&path);
    // Later blocks have earlier times, over several segments.
    let back = |seq: u64| {
        let mut event = event(A, seq);
        event.time = Timestamp::from_second(1_800_000_000 - i64::try_from(seq).unwrap()).unwrap();
        Record::Event(Arc::new(event))
    };
    let records: Vec<_> = (1..9000).map(back).collect();
    append_all(&mut writer, &records);
    let reader = HistoryReader::open(&path).unwrap();
    let time = |seq: i64| Timestamp::from_second(1_800_000_000 - seq).unwrap();
    let query = Query {
        since: Some(time(5000)),
        until: Some(time(4000)),
        ..Query::default()
    };
    let seqs: Vec<u64> = reader
        .entries(query)
        .map(|entry| entry.unwrap().event().unwrap().seq)
        .collect();
    assert_eq!(seqs, (4001..=5000).collect::<Vec<_>>());
}

fn any_query() -> impl Strategy<Value = Query> {
    let pods = prop_oneof![
        3 => Just(None),
        1 => (0..PODS).prop_map(|n| Some(PodMatch::Uid(pod(n).uid))),
        1 => (0..PODS).prop_map(|n| Some(PodMatch::parse(&format!("web-{n}")))),
        1 => (0..4_u64).prop_map(|n| Some(PodMatch::parse(&format!("shop/web-{n}*")))),
    ];
    let types = proptest::collection::vec(0..EventType::ALL.len(), 0..3)
        .prop_map(|types| types.into_iter().map(|n| EntryType::Event(EventType::ALL[n])).collect());
    let seq = || proptest::option::of(0..7000_i64);
    let word = |words: &'static [&'static str]| proptest::option::of(proptest::sample::select(words));
    let parts = (
        pods,
        word(&["default", "shop", "none"]),
        word(&["app", "0000", "other"]),
        word(&["OOMKilled", "hung-shim", "error"]),
        word(&["app=web-1", "tier=front", "!tier"]),
    );
    (
        parts,
        types,
        seq(),
        seq(),
        proptest::option::of(1..2500_usize),
        any::<bool>(),
    )
        .prop_map(
            |((pod, namespace, container, reason, labels), types, since, until, limit, newest)| {
                let time = |seq: i64| Timestamp::from_second(1_700_000_000 + seq).unwrap();
                Query {
                    pod,
                    namespace: namespace.map(str::to_owned),
                    labels: labels.map(|labels| labels.parse().unwrap()),
                    container: container.map(str::to_owned),
                    since: since.map(time),
                    until: until.map(time),
                    types,
                    reasons: reason.into_iter().map(str::to_owned).collect(),
                    limit,
                    order: if newest { Order::NewestFirst } else { Order::OldestFirst },
                    ..Query::default()
                }
            },
        )
}

/// What a query finds in all entries, one by one.
fn found_slowly(all: &[Entry], query: &Query) -> Vec<Entry> {
    let selected = |entry: &&Entry| match (&query.labels, entry.pod()) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(selector), Some(pod)) => {
            let labels = TestLabels.labels(&pod.uid).unwrap();
            selector.matches(|name| {
                labels
                    .iter()
                    .find(|(known, _)| **known == *name)
                    .map(|(_, value)| &**value)
            })
        }
    };
    let mut found: Vec<Entry> = all
        .iter()
        .filter(|entry| query.matches(entry))
        .filter(selected)
        .cloned()
        .collect();
    if query.order == Order::NewestFirst {
        found.reverse();
    }
    found.truncate(query.limit.unwrap_or(usize::MAX));
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// The index finds what a walk through everything finds.
    #[test]
    fn queries_find_what_there_is(queries in proptest::collection::vec(any_query(), 8), batch in 1..700_u64) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.dat");
        let mut writer = store(&path);
        let mut seq = 1;
        while seq < 6500 {
            append_all(&mut writer, &events(seq..seq + batch));
            seq += batch;
        }
        let reader = HistoryReader::open(&path).unwrap();
        let all: Vec<Entry> = reader.entries(Query::default()).map(Result::unwrap).collect();
        for query in queries {
            let found: Vec<Entry> = reader.entries(query.clone()).map(Result::unwrap).collect();
            prop_assert_eq!(found, found_slowly(&all, &query), "{:?}", query);
        }
    }

    /// Whatever of the last write reached the disk, what is read back is a prefix of what was written, with everything before it.
    #[test]
    fn a_crash_leaves_a_prefix(
        batches in proptest::collection::vec(1..400_u64, 1..40),
        sector in prop_oneof![Just(1_usize), Just(64), Just(512), Just(4096)],
        seed in any::<u64>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.dat");
        let mut writer = store(&path);
        let (mut seq, mut durable) = (1, 0);
        let mut before = Vec::new();
        for batch in &batches {
            before = std::fs::read(&path).unwrap();
            durable = read_all(&path).len();
            let records = events(seq..seq + batch);
            // One write: what it leaves for the next one is not published as written.
            seq += writer.append(&records, &TestLabels).unwrap() as u64;
        }
        drop(writer);
        let after = std::fs::read(&path).unwrap();
        // Some sectors of the last write are there, others are not.
        let mut random = fastrand::Rng::with_seed(seed);
        let mut torn = before.clone();
        torn.resize(after.len(), 0);
        let keep = random.f32();
        for at in (0..after.len()).step_by(sector) {
            let end = (at + sector).min(after.len());
            if torn[at..end] != after[at..end] && random.f32() < keep {
                torn[at..end].copy_from_slice(&after[at..end]);
            }
        }
        std::fs::write(&path, &torn).unwrap();
        let mut writer = store(&path);
        let read = read_all(&path);
        let seqs: Vec<u64> = read.iter().map(|entry| entry.event().unwrap().seq).collect();
        prop_assert!(seqs.iter().copied().eq(1..=seqs.len() as u64), "{:?}", seqs);
        prop_assert!(seqs.len() >= durable && seqs.len() < usize::try_from(seq).unwrap());
        for entry in &read {
            let event = entry.event().unwrap();
            prop_assert_eq!(&**event, &crate::testing::event(A, event.seq));
        }
        // And it goes on from there.
        let next = seqs.len() as u64 + 1;
        append_all(&mut writer, &events(next..next + 300));
        let seqs = read_all(&path).len() as u64;
        prop_assert_eq!(seqs, next + 299);
    }
}
