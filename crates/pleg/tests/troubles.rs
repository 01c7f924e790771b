//! Troubles are reported in the feed, beside what happens to pods. Paused time.

mod common;

use std::time::Duration;

use common::{Fake, Rig};
use pleg::{Config, Event, EventType, Item, Level};
use pleg_cri::ErrorKind;
use tokio::time::sleep;

fn node(pods: usize) -> Fake {
    let fake = Fake::default();
    for n in 0..pods {
        fake.world()
            .add_pod(&format!("p{n}"), &[&format!("c{n}"), &format!("d{n}")]);
    }
    fake
}

/// Everything about troubles and health since the last call.
fn told(rig: &mut Rig) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(item) = rig.events.try_next() {
        if let Item::Event(event) = item
            && (event.kind.is_trouble() || event.kind.is_health())
        {
            events.push((*event).clone());
        }
    }
    events
}

fn lines(events: &[Event]) -> Vec<String> {
    let line = |event: &Event| {
        let trouble = event.trouble.map_or("", pleg::Trouble::name);
        let pod = event.pod.as_ref().map_or("", |pod| pod.uid.as_str());
        let words = [event.kind.name(), trouble, pod];
        words
            .into_iter()
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    };
    events.iter().map(line).collect()
}

#[tokio::test(start_paused = true)]
async fn quarantine_is_reported_when_it_starts_and_when_it_ends() {
    let fake = node(3);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    sleep(Duration::from_secs(5)).await;
    assert!(told(&mut rig).is_empty());

    fake.world().hung.insert("c1".into());
    fake.world().exit("c1", 3);
    sleep(Duration::from_secs(30)).await;
    let events = told(&mut rig);
    assert_eq!(
        lines(&events)[..2],
        ["PlegDegraded", "TroubleStarted stuck-inspection p1"]
    );
    assert!(events[1].reason.as_ref().unwrap().contains("no answer within 10s"));

    fake.world().hung.clear();
    sleep(Duration::from_mins(2)).await;
    assert_eq!(rig.pleg.health().report().level, Level::Healthy);
    let events = told(&mut rig);
    assert!(
        lines(&events).contains(&"TroubleEnded stuck-inspection p1".to_owned()),
        "{events:?}"
    );
    assert_eq!(events.last().map(|event| event.kind), Some(EventType::PlegHealthy));
    let ended = events
        .iter()
        .find(|event| event.kind == EventType::TroubleEnded)
        .unwrap();
    assert!(ended.lasted.unwrap() >= Duration::from_secs(30), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hung_list_is_reported_with_the_container_behind_it() {
    let fake = node(20);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    told(&mut rig);
    fake.world().locked = Some("c7".into());
    sleep(Duration::from_secs(20)).await;
    assert_eq!(
        lines(&told(&mut rig)),
        ["PlegDegraded", "TroubleStarted locked-container p7"]
    );
    fake.world().locked = None;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(
        lines(&told(&mut rig)),
        ["TroubleEnded locked-container p7", "PlegHealthy"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_down_is_reported_before_the_threshold_and_once_after() {
    let fake = node(1);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    told(&mut rig);
    fake.world().list_error = Some(ErrorKind::Unreachable("gone".into()));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(lines(&told(&mut rig)), ["TroubleStarted runtime-down", "PlegDegraded"]);
    sleep(Duration::from_mins(4)).await;
    assert_eq!(lines(&told(&mut rig)), ["PlegNotHealthy"]);
    fake.world().list_error = None;
    sleep(Duration::from_secs(10)).await;
    let events = told(&mut rig);
    assert_eq!(lines(&events), ["PlegHealthy", "TroubleEnded runtime-down"]);
    assert!(events[1].lasted.unwrap() > Duration::from_mins(4));
}
