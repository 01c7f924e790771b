//! Ten million events of 5,000 pods over seven days: how large the file is, how long a start, a query and a day's sums take.
//!
//! `cargo bench -p pleg-history`, or with another number of events: `cargo bench -p pleg-history -- 1000000`. It prints figures and fails
//! beyond the limits that docs/history.md states.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleg::event::Subject;
use pleg::{ContainerRef, Event, EventType, InstanceId, PodRef, PodUid, Source};
use pleg_history::{
    Config, History, HistoryReader, HistoryWriter, Labels, Limits, Order, PodLabels, PodMatch, Query, Record,
};
use tokio::time::Instant;

const PODS: u64 = 5000;
const BATCH: u64 = 100;
const DAYS: u64 = 7;

fn pod(n: u64) -> PodRef {
    PodRef {
        uid: format!("5f0c2a9b-e1d3-4c77-9d5a-{n:012x}").as_str().into(),
        namespace: format!("team-{}", n % 20).as_str().into(),
        name: format!("web-6d4cf56db6-{n:05}").as_str().into(),
    }
}

struct Apps;

impl PodLabels for Apps {
    fn labels(&self, uid: &PodUid) -> Option<Labels> {
        let app = format!("web-{}", uid.as_str().len());
        Some(Arc::from([
            ("app".into(), app.into()),
            ("pod-template-hash".into(), "6d4cf56db6".into()),
        ]))
    }
}

fn event(instance: InstanceId, seq: u64, total: u64, start: Timestamp) -> Event {
    let mut random = fastrand::Rng::with_seed(seq / 3);
    let n = random.u64(..PODS);
    let kinds = [
        EventType::ContainerCreated,
        EventType::ContainerStarted,
        EventType::ContainerDied,
    ];
    let kind = kinds[usize::try_from(seq % 3).unwrap()];
    let died = kind == EventType::ContainerDied;
    let nanos = u128::from(DAYS) * 86_400_000_000_000 * u128::from(seq) / u128::from(total);
    Event {
        seq,
        instance,
        time: start + Duration::from_nanos(u64::try_from(nanos).unwrap()),
        kind,
        pod: Some(pod(n)),
        subject: Some(Subject::Container(ContainerRef {
            id: format!("{:032x}{:032x}", random.u128(..), random.u128(..))
                .as_str()
                .into(),
            name: "app".into(),
            attempt: u32::try_from(seq / 3 % 100).unwrap(),
        })),
        pid: None,
        exit_code: died.then_some(1),
        reason: died.then(|| "Error".into()),
        initial: false,
        source: Source::Evented,
        lag: Some(Duration::from_micros(random.u64(300..90_000))),
        trouble: None,
        lasted: None,
    }
}

/// The shortest of a few runs, since the first has to fill the page cache.
fn best(mut run: impl FnMut() -> usize) -> (Duration, usize) {
    let runs = (0..5).map(|_| {
        let began = Instant::now();
        let found = run();
        (began.elapsed(), found)
    });
    runs.min().unwrap()
}

fn check(what: &str, took: Duration, limit: Duration) {
    println!(
        "{what}: {:.1} ms (limit {} ms)",
        took.as_secs_f64() * 1e3,
        limit.as_millis()
    );
    assert!(took <= limit, "{what} took {took:?}");
}

fn start(path: &Path) -> Duration {
    let (took, _) = best(|| {
        let config = Config {
            path: path.to_owned(),
            limits: Limits::default(),
            version: "bench".to_owned(),
        };
        let history = History::open(config).unwrap();
        usize::try_from(history.feed().first_seq).unwrap()
    });
    took
}

fn main() {
    let total = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(10_000_000);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.dat");
    let instance = InstanceId::new(1);
    let begin = Timestamp::now() - Duration::from_hours(24 * DAYS);
    let (mut writer, _) = HistoryWriter::open(&path, Limits::default(), instance).unwrap();
    let empty = start(&dir.path().join("empty.dat"));
    let mut spent = Duration::ZERO;
    let mut seq = 1;
    while seq <= total {
        let records: Vec<Record> = (seq..(seq + BATCH).min(total + 1))
            .map(|seq| Record::Event(Arc::new(event(instance, seq, total, begin))))
            .collect();
        let began = Instant::now();
        writer.append(&records, &Apps).unwrap();
        spent += began.elapsed();
        seq += BATCH;
    }
    drop(writer);
    let size = std::fs::metadata(&path).unwrap().len();
    let batches = u32::try_from(total.div_ceil(BATCH)).unwrap();
    println!(
        "written: {total} events, {:.0} µs for a batch of {BATCH} with its sync; the file has {:.1} MiB",
        spent.as_secs_f64() * 1e6 / f64::from(batches),
        size as f64 / f64::from(1 << 20)
    );
    assert!(size <= Limits::default().size);

    let full = start(&path);
    println!("start with an empty file: {:.2} ms", empty.as_secs_f64() * 1e3);
    check("start with this file", full, Duration::from_millis(50));

    let reader = HistoryReader::open(&path).unwrap();
    let held = reader.entries(Query {
        limit: Some(1),
        ..Query::default()
    });
    let oldest = held.map(Result::unwrap).next().unwrap();
    println!("held: {} events", total + 1 - oldest.event().unwrap().seq);
    for (what, wanted) in [
        ("one pod by UID", PodMatch::Uid(pod(17).uid)),
        (
            "one pod by name",
            PodMatch::parse(&format!("{}/{}", pod(17).namespace, pod(17).name)),
        ),
    ] {
        let query = Query {
            pod: Some(wanted),
            order: Order::NewestFirst,
            limit: Some(1000),
            ..Query::default()
        };
        let (took, found) = best(|| reader.page(&query).unwrap().entries.len());
        assert!(found > 0);
        check(&format!("{what}, {found} entries"), took, Duration::from_millis(50));
    }
    let since = Timestamp::now() - Duration::from_hours(24);
    let (took, found) = best(|| reader.hours(Some(since), None).unwrap().len());
    check(
        &format!("the sums of a day, {found} hours"),
        took,
        Duration::from_secs(2),
    );
}
