//! The event stream as a client gets it: faults on its way, flavours, and subscribers that do not read.

#![allow(
    clippy::unwrap_used,
    clippy::large_futures,
    reason = "tests: a failure is a panic, and futures live on the test's stack"
)]

mod common;

use common::{PATIENCE, impatient, pods, rig};
use pleg_cri::{ErrorKind, v1};
use pleg_sim::control::{Reply, Set};
use pleg_sim::{Command, Ending, EventFaults, Flavour, SimConfig};
use tokio::time::timeout;

#[tokio::test]
async fn neighbours_change_places() {
    let rig = rig(pods(20)).await;
    let reorder = EventFaults {
        reorder: 0.5,
        ..Default::default()
    };
    rig.sim.execute(Command::Events(reorder)).await.unwrap();
    let mut events = rig.client.container_events().await.unwrap();
    rig.sim.world().storm(Ending::Exit(1));
    let mut times = Vec::new();
    for _ in 0..40 {
        times.push(timeout(PATIENCE, events.next()).await.unwrap().unwrap().created_at);
    }
    assert!(!times.is_sorted(), "none changed its place");
    let mut sorted = times.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), 40, "none is lost, none comes twice");
    // Each is in its place, or in its neighbour's.
    for (place, time) in times.iter().enumerate() {
        let right = sorted.binary_search(time).unwrap();
        assert!(place.abs_diff(right) <= 1, "{place} {right}");
    }
    // The last one of all is not kept forever.
    let always = EventFaults {
        reorder: 1.0,
        ..Default::default()
    };
    rig.sim.faults().set_events(always).unwrap();
    rig.sim.world().add_pods(1).unwrap();
    for _ in 0..6 {
        timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_flavour_answers_as_its_runtime() {
    for (flavour, name, version, has_config, has_events) in [
        (Flavour::Sim, "pleg-sim", env!("CARGO_PKG_VERSION"), true, true),
        (Flavour::Containerd1_6, "containerd", "1.6.20", false, false),
        (Flavour::Containerd1_7, "containerd", "1.7.24", false, true),
        (Flavour::Containerd2_1, "containerd", "2.1.9", true, true),
        (Flavour::CriO, "cri-o", "1.31.0", true, true),
    ] {
        let rig = rig(SimConfig { flavour, ..pods(1) }).await;
        let answer = rig.client.version().await.unwrap();
        assert_eq!((&*answer.runtime_name, &*answer.runtime_version), (name, version));
        let config = rig.client.call(v1::RuntimeConfigRequest {}).await;
        assert_eq!(config.is_ok(), has_config, "{flavour}");
        match rig.client.container_events().await {
            Ok(_) => assert!(has_events, "{flavour}"),
            Err(error) => {
                assert!(!has_events, "{flavour}: {error}");
                assert_eq!(error.kind, ErrorKind::Unimplemented);
            }
        }
    }
}

/// On containerd 2.1 a subscriber that never reads hangs `RunPodSandbox` and `CreateContainer` of the node.
#[tokio::test]
async fn a_subscriber_that_does_not_read_blocks_only_if_it_was_asked_for() {
    let rig = rig(SimConfig {
        event_queue: 4,
        ..pods(1)
    })
    .await;
    let mut sleeper = rig.sim.world().subscribe().unwrap();
    let run = |name: &str| v1::RunPodSandboxRequest {
        config: Some(v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.into(),
                namespace: "default".into(),
                uid: name.into(),
                attempt: 0,
            }),
            ..Default::default()
        }),
        runtime_handler: String::new(),
    };
    for name in ["a", "b", "c"] {
        rig.client.call(run(name)).await.unwrap();
    }
    let events = rig.sim.stats().events.unwrap();
    assert_eq!((events.subscribers, events.waiting, events.dropped), (1, 4, 2));

    let block = |block| {
        Command::Set(Set {
            block_on_subscribers: Some(block),
            ..Default::default()
        })
    };
    rig.sim.execute(block(true)).await.unwrap();
    let hung = impatient(&rig).call(run("d")).await.unwrap_err();
    assert!(hung.kind.is_deadline(), "{hung}");
    // It took effect all the same, and its events are not lost.
    assert_eq!(rig.sim.world().counts().sandboxes, 5);
    let waiting = tokio::spawn({
        let (client, request) = (rig.client.clone(), run("e"));
        async move { client.call(request).await }
    });
    let mut taken = 0;
    while !waiting.is_finished() {
        taken += usize::from(sleeper.try_recv().is_some());
        tokio::task::yield_now().await;
    }
    waiting.await.unwrap().unwrap();
    assert!(taken >= 4, "{taken}");
    rig.sim.execute(block(false)).await.unwrap();
    assert_eq!(rig.sim.stats().events.unwrap().dropped, 2);
}

#[tokio::test]
async fn status_answers_as_configured() {
    let rig = rig(pods(0)).await;
    let conditions = async || {
        let answer = rig.client.call(v1::StatusRequest::default()).await.unwrap();
        let conditions = answer.status.unwrap().conditions;
        conditions
            .iter()
            .map(|c| (c.r#type.clone(), c.status, c.reason.clone()))
            .collect::<Vec<_>>()
    };
    let ready = |name: &str| (name.to_owned(), true, String::new());
    assert_eq!(conditions().await, [ready("RuntimeReady"), ready("NetworkReady")]);
    let set = Set {
        network_ready: Some(false),
        ..Default::default()
    };
    let reply = rig.sim.execute(Command::Set(set)).await.unwrap();
    assert_eq!(reply, Reply::Done("NetworkReady is false".into()));
    let not_ready = ("NetworkReady".to_owned(), false, "NetworkPluginNotReady".to_owned());
    assert_eq!(conditions().await, [ready("RuntimeReady"), not_ready]);
    rig.sim.execute(Command::Clear {}).await.unwrap();
    assert_eq!(conditions().await, [ready("RuntimeReady"), ready("NetworkReady")]);
}
