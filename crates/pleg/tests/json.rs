//! What the library writes as JSON it reads back.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Fake, Rig};
use pleg::{Config, Cursor, Item, NodeHealth, PodEntry, Report};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The JSON of a value, which is also the JSON of what is read from it.
fn round_trip<T: Serialize + DeserializeOwned>(value: &T) -> Value {
    let json = serde_json::to_string(value).unwrap();
    let read: T = serde_json::from_str(&json).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), json);
    serde_json::from_str(&json).unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_is_written_is_read_back() {
    let fake = Fake::default();
    fake.world().add_pod("p", &["a", "b"]);
    fake.world().add_pod("q", &["c"]);
    let mut rig = Rig::start(&fake, Config::default());
    rig.seen().await;
    fake.world().exit("a", 137);
    fake.world().failing.insert("c".to_owned());
    fake.world().exit("c", 1);
    rig.seen().await;

    let entry = round_trip::<PodEntry>(&rig.pleg.cache().get(&"p".into()).unwrap());
    assert_eq!(entry["pod"]["uid"], "p");
    assert_eq!(entry["containers"][0]["exit_code"], 137);
    let quarantined = round_trip::<PodEntry>(&rig.pleg.cache().get(&"q".into()).unwrap());
    assert_eq!(quarantined["error"]["age_seconds"], 0);
    assert_eq!(quarantined["stale"][0]["kind"], "container");

    let report = round_trip::<Report>(&rig.pleg.health().report());
    assert_eq!(
        (&report["level"], report["looks"].as_u64().is_some()),
        (&"Degraded".into(), true)
    );
    let node = round_trip::<NodeHealth>(&rig.pleg.observe());
    assert_eq!(node["ready"]["status"], "False");

    let mut seen = 0;
    while let Some(item) = rig.events.try_next() {
        let read: Item = serde_json::from_value(round_trip(&item)).unwrap();
        assert_eq!(read.cursor(), item.cursor());
        let cursor: Cursor = item.cursor().unwrap().to_string().parse().unwrap();
        assert_eq!(Some(cursor), item.cursor());
        seen += 1;
    }
    assert!(seen > 5, "{seen}");
}
