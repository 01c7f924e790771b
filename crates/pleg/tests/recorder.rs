//! The flight recorder of a running generator, and the replay of what it has. Time is paused. `histories.rs` replays random ones.

#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Fake, Rig};
use pleg::recorder::line::{Header, Line, State, Turn, What};
use pleg::recorder::{ReplayError, Replayed, replay};
use pleg::runtime::ErrorKind;
use pleg::{Config, ContainerState, EventType, RecorderConfig};
use tokio::time::sleep;

async fn lines(rig: &Rig) -> Vec<Line> {
    rig.pleg.recording().await.unwrap().into_lines().collect()
}

fn header(lines: &[Line]) -> &Header {
    match &lines[0].what {
        What::Recording(header) => header,
        other => panic!("{other:?}"),
    }
}

fn turns(lines: &[Line]) -> Vec<Turn> {
    let turn = |line: &Line| match &line.what {
        What::Transition(transition) => Some(transition.to),
        _ => None,
    };
    lines.iter().filter_map(turn).collect()
}

/// As by a reader of the file.
fn again(lines: &[Line]) -> Replayed {
    let read = |line| serde_json::from_str(&serde_json::to_string(line).unwrap()).unwrap();
    replay(lines.iter().map(read)).unwrap()
}

fn start(fake: &Fake, recorder: RecorderConfig) -> Rig {
    let config = Config {
        recorder,
        ..Config::default()
    };
    Rig::start(fake, config)
}

#[tokio::test(start_paused = true)]
async fn what_the_runtime_denies_is_replayed_too() {
    let fake = Fake::default();
    fake.world().add_pod("a", &["a1", "a2"]);
    fake.world().denied.insert("a2".into());
    let mut rig = start(&fake, RecorderConfig::default());
    rig.seen().await;
    // It dies in the list while it is denied, then it is found again.
    fake.world().exit("a2", 1);
    sleep(Duration::from_secs(3)).await;
    fake.world().denied.clear();
    fake.world().containers.get_mut("a2").unwrap().state = ContainerState::Running;
    sleep(Duration::from_secs(3)).await;
    let all = rig.drain();
    assert_eq!(all.last().unwrap(), "ContainerStarted a a2");
    let lines = lines(&rig).await;
    let replayed = again(&lines);
    assert_eq!((replayed.events, replayed.difference), (all.len() as u64, None));
    // From any line on, as if everything before had been dropped: the beginning is found from the end.
    for first in 2..lines.len() {
        let rest = [&lines[..2], &lines[first..]].concat();
        let replayed = again(&rest);
        assert_eq!(replayed.difference, None, "from line {first}");
        assert!(replayed.events + replayed.not_compared <= all.len() as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn what_goes_while_it_is_inspected_is_replayed_too() {
    let fake = Fake::default();
    fake.world().add_pod("a", &["a1"]);
    let mut rig = start(&fake, RecorderConfig::default());
    rig.seen().await;
    rig.drain();
    fake.world().add_container("a", "a-s", "stays", ContainerState::Running);
    fake.world().add_container("a", "a-s", "goes", ContainerState::Running);
    fake.world().slow_ends_well = true;
    fake.world().hung.insert("stays".into());
    sleep(Duration::from_secs(3)).await;
    // No longer listed before it is committed.
    fake.world().containers.remove("goes");
    sleep(Duration::from_secs(30)).await;
    let all = rig.drain();
    assert!(all.contains(&"ContainerRemoved a goes".to_owned()), "{all:?}");
    assert_eq!(all.last().unwrap(), "ContainerStarted a stays");
    let replayed = again(&lines(&rig).await);
    assert_eq!((replayed.not_compared, replayed.difference), (0, None));
}

#[tokio::test(start_paused = true)]
async fn troubles_are_reported_with_their_duration() {
    let fake = Fake::default();
    fake.world().add_pod("a", &["a1"]);
    fake.world().add_pod("b", &["b1"]);
    let rig = start(&fake, RecorderConfig::default());
    rig.seen().await;
    fake.world().hung.insert("a1".into());
    fake.world().exit("a1", 1);
    sleep(Duration::from_secs(30)).await;
    fake.world().hung.clear();
    sleep(Duration::from_mins(1)).await;
    fake.world().list_error = Some(ErrorKind::Unreachable("gone".into()));
    sleep(Duration::from_mins(4)).await;
    fake.world().list_error = None;
    sleep(Duration::from_secs(5)).await;
    let lines = lines(&rig).await;
    assert_eq!(
        turns(&lines),
        [
            Turn::Generic,
            Turn::Quarantined,
            Turn::Released,
            Turn::RuntimeLost,
            Turn::Unhealthy,
            Turn::RuntimeBack,
            Turn::Healthy
        ]
    );
    let released = lines.iter().find_map(|line| match &line.what {
        What::Transition(transition) if transition.to == Turn::Released => Some(transition),
        _ => None,
    });
    let released = released.unwrap();
    assert_eq!(&*released.pod.as_ref().unwrap().name, "a");
    assert!((20.0..90.0).contains(&released.lasted_seconds.unwrap()), "{released:?}");
    let failed = lines
        .iter()
        .filter(|line| matches!(line.what, What::RelistFailed(_)))
        .count();
    assert!((230..=241).contains(&failed), "{failed}");
    assert_eq!(again(&lines).difference, None);
}

/// What is found by id while a list hangs was in no list; it is recorded as if it had been.
#[tokio::test(start_paused = true)]
async fn what_is_found_by_id_is_replayed_too() {
    let fake = Fake::default();
    for n in 0..5 {
        fake.world().add_pod(&format!("p{n}"), &[&format!("c{n}")]);
    }
    let mut rig = start(&fake, RecorderConfig::default());
    rig.seen().await;
    rig.drain();
    fake.world().locked = Some("c0".into());
    sleep(Duration::from_secs(10)).await;
    fake.world().exit("c1", 1);
    fake.world().remove_pod("p2");
    sleep(Duration::from_secs(20)).await;
    let by_id = rig.drain();
    assert!(by_id.contains(&"ContainerDied p1 c1=1".to_owned()), "{by_id:?}");
    let replayed = again(&lines(&rig).await);
    assert_eq!((replayed.events, replayed.difference), (10 + by_id.len() as u64, None));
    fake.world().locked = None;
    fake.world().add_pod("p6", &["c6"]);
    sleep(Duration::from_mins(3)).await;
    let after = rig.drain();
    assert!(after.contains(&"ContainerStarted p6 c6".to_owned()), "{after:?}");
    let replayed = again(&lines(&rig).await);
    let all = (10 + by_id.len() + after.len()) as u64;
    assert_eq!((replayed.events, replayed.difference), (all, None));
}

#[tokio::test(start_paused = true)]
async fn an_idle_relist_is_one_entry_and_old_ones_go() {
    let fake = Fake::default();
    for n in 0..100 {
        fake.world().add_pod(&format!("p{n}"), &[&format!("c{n}")]);
    }
    let window = Duration::from_mins(2);
    let rig = start(&fake, RecorderConfig { window, limit: 1 << 20 });
    rig.seen().await;
    sleep(window + Duration::from_secs(5)).await;
    let lines = lines(&rig).await;
    let relists = lines.iter().filter(|line| matches!(line.what, What::Relist(_))).count();
    assert!((119..=121).contains(&relists), "{relists}");
    // Everything else of the first relist is gone, and nothing of it was dropped for want of room.
    assert_eq!(lines.len(), 1 + 100 + relists);
    let header = header(&lines);
    assert_eq!(header.dropped, 0);
    assert!(header.bytes <= relists * 100, "{} bytes", header.bytes);
    let replayed = again(&lines);
    assert_eq!((replayed.relists, replayed.events), (relists as u64, 0));
}

#[tokio::test(start_paused = true)]
async fn it_never_takes_more_than_its_limit() {
    let fake = Fake::default();
    let limit = 64 * 1024;
    let window = Duration::from_hours(1);
    let rig = start(&fake, RecorderConfig { window, limit });
    for round in 0..200 {
        let pod = format!("p{}", round % 7);
        fake.world().remove_pod(&pod);
        let ids: Vec<_> = (0..round % 40).map(|n| format!("c{round}-{n}")).collect();
        fake.world()
            .add_pod(&pod, &ids.iter().map(String::as_str).collect::<Vec<_>>());
        sleep(Duration::from_secs(1)).await;
    }
    rig.seen().await;
    let all = lines(&rig).await;
    let told = header(&all);
    assert!(told.bytes <= limit && told.bytes > limit / 2, "{}", told.bytes);
    assert!(told.dropped > 0);
    let replayed = again(&all);
    assert_eq!(replayed.difference, None);
    assert!(replayed.events > 100, "{replayed:?}");

    // One pod alone is too much for it.
    let ids: Vec<_> = (0..2000).map(|n| format!("huge-{n}")).collect();
    fake.world()
        .add_pod("huge", &ids.iter().map(String::as_str).collect::<Vec<_>>());
    rig.seen().await;
    let all = lines(&rig).await;
    assert!(header(&all).bytes <= limit);
    assert_eq!(again(&all).difference, None);
}

#[tokio::test(start_paused = true)]
async fn it_can_be_switched_off() {
    let fake = Fake::default();
    fake.world().add_pod("a", &["a1"]);
    let off = RecorderConfig {
        limit: 0,
        ..RecorderConfig::default()
    };
    let rig = start(&fake, off);
    rig.seen().await;
    let lines = lines(&rig).await;
    assert_eq!(lines.len(), 2, "the header and the pod");
    rig.shutdown.cancel();
    rig.task.await.unwrap();
    assert!(rig.pleg.recording().await.is_none(), "the generator has ended");
}

/// A recording of a pod that comes, and of one container that dies.
async fn short() -> Vec<Line> {
    let fake = Fake::default();
    fake.world().add_pod("a", &["a1"]);
    let rig = start(&fake, RecorderConfig::default());
    rig.seen().await;
    fake.world().exit("a1", 1);
    sleep(Duration::from_secs(2)).await;
    lines(&rig).await
}

#[tokio::test(start_paused = true)]
async fn another_event_is_a_difference() {
    let mut lines = short().await;
    assert_eq!(again(&lines).events, 3);
    // As if the version that recorded it had said something else.
    for line in &mut lines {
        if let What::Commit(commit) = &mut line.what {
            let mut other = (**commit).clone();
            for sent in &mut other.events {
                if sent.kind == EventType::ContainerDied {
                    sent.kind = EventType::ContainerChanged;
                }
            }
            *commit = other.into();
        }
    }
    let replayed = again(&lines);
    let difference = replayed.difference.unwrap();
    assert_eq!((replayed.events, difference.seq, &*difference.pod.name), (2, 3, "a"));
    assert_eq!(difference.recorded.unwrap().kind, EventType::ContainerChanged);
    assert_eq!(difference.replayed.unwrap().kind, EventType::ContainerDied);
}

#[tokio::test(start_paused = true)]
async fn what_contradicts_itself_is_no_recording() {
    let lines = short().await;
    assert_eq!(replay([]), Err(ReplayError::NoHeader));
    assert_eq!(replay(lines[1..].to_vec()), Err(ReplayError::NoHeader));
    let mut newer = lines.clone();
    newer[0].what = What::Recording(
        Header {
            format: 2,
            ..header(&lines).clone()
        }
        .into(),
    );
    assert_eq!(replay(newer), Err(ReplayError::Format(2)));

    // A list that says what no later line has seen.
    let mut bent = lines.clone();
    let (at, seen) = bent
        .iter()
        .enumerate()
        .find_map(|(at, line)| match &line.what {
            What::Seen(seen) => Some((at, (**seen).clone())),
            _ => None,
        })
        .unwrap();
    let mut seen = seen;
    seen.objects[1].after = Some(State::Exited);
    bent[at].what = What::Seen(seen.into());
    let error = replay(bent).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "line {} of the recording contradicts what follows it: a1 is Exited, then it is Running",
            at + 1
        )
    );
    // Without the pods there is no end to begin from.
    let without: Vec<_> = lines
        .into_iter()
        .filter(|line| !matches!(line.what, What::Pod(_)))
        .collect();
    assert!(matches!(replay(without), Err(ReplayError::Contradiction { .. })));
}
