//! The node shuts down, and its pods end before it does.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as Object;
use pleg::PodUid;
use pleg_node::GracefulShutdown;
use pleg_node::manifest::Pod;
use pleg_node::sources::DesiredPod;
use pleg_node::status::Phase;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::machine::{Machine, Running, snapshot, spec};

const UID: &str = "6f0c2f3a-0b5c-4c65-9a35-0a8f9c1f3b12";

/// A static pod that ignores SIGTERM.
fn static_pod(name: &str, class: &str) -> String {
    spec(
        name,
        &format!("{class} containers: [{{name: app, image: img, command: [ignore-term]}}]"),
    )
}

/// Two static pods, one of them critical, and a pod of an API server. Returns their UIDs in that order.
async fn want_all(node: &Running) -> [PodUid; 3] {
    let critical = "priorityClassName: system-node-critical,";
    let mut wanted = snapshot(&[static_pod("ordinary", ""), static_pod("critical", critical)]);
    let object: Object = serde_json::from_value(json!({
        "metadata": {"name": "web-0", "namespace": "shop", "uid": UID},
        "spec": {
            "nodeName": "n", "terminationGracePeriodSeconds": 300, "dnsPolicy": "Default",
            "containers": [{"name": "app", "image": "v1", "command": ["ignore-term"]}],
        },
    }))
    .unwrap();
    wanted.pods.push(DesiredPod {
        origin: "api".into(),
        pod: Pod::from_object(object).unwrap().into(),
    });
    let uids: Vec<PodUid> = wanted.pods.iter().map(|desired| desired.pod.id.uid.clone()).collect();
    node.wants.send(wanted).await.unwrap();
    uids.try_into().unwrap()
}

#[tokio::test(start_paused = true)]
async fn pods_end_with_the_node_and_critical_ones_last() {
    let machine = Machine::start().await;
    let requested = CancellationToken::new();
    let config = GracefulShutdown::new(requested.clone(), Duration::from_secs(30), Duration::from_secs(10));
    let node = machine.node_set_up(|node| node.with_graceful_shutdown(config)).await;
    let [ordinary, critical, api] = want_all(&node).await;
    for uid in [&ordinary, &critical, &api] {
        node.until_ready(uid).await;
    }
    let reports = node.reports.clone();
    let since = Instant::now();
    requested.cancel();
    // Grace periods are cut to what the group has: 20 s for ordinary pods, then 10 s for critical ones.
    node.until("ordinary pods have ended", |_| {
        !machine.runs(&ordinary) && !machine.runs(&api)
    })
    .await;
    assert!((19..=21).contains(&since.elapsed().as_secs()), "{:?}", since.elapsed());
    assert!(machine.runs(&critical));
    node.ended().await;
    assert!((28..=36).contains(&since.elapsed().as_secs()), "{:?}", since.elapsed());
    assert!(machine.running().is_empty());
    let report = reports.get(&api).unwrap();
    assert_eq!(
        (
            report.phase(),
            report.status.reason.as_deref(),
            report.status.message.as_deref()
        ),
        (
            Phase::Failed,
            Some("Terminated"),
            Some("Pod was terminated in response to imminent node shutdown.")
        )
    );

    // After the boot, static pods start again; the other one has failed for good.
    let node = machine.node().await;
    let [ordinary, critical, api] = want_all(&node).await;
    for uid in [&ordinary, &critical] {
        node.until_ready(uid).await;
    }
    node.until_phase(&api, Phase::Failed).await;
    assert!(!machine.runs(&api));
    node.stop().await;
    machine.check();
}

/// A pod that does not end holds up nothing beyond its time.
#[tokio::test(start_paused = true)]
async fn a_pod_that_hangs_does_not_hold_up_the_shutdown() {
    let machine = Machine::start().await;
    let requested = CancellationToken::new();
    let config = GracefulShutdown::new(requested.clone(), Duration::from_secs(20), Duration::ZERO);
    let node = machine.node_set_up(|node| node.with_graceful_shutdown(config)).await;
    let uids = node.want(&[static_pod("stuck", "")]).await;
    node.until_ready(&uids[0]).await;
    machine
        .sim
        .faults()
        .hang(pleg_cri::Rpc::StopContainer, None, None)
        .unwrap();
    let since = Instant::now();
    requested.cancel();
    node.ended().await;
    assert!(since.elapsed() <= Duration::from_secs(40), "{:?}", since.elapsed());
}

/// Three groups of priorities, each with its own time, the lowest first.
#[tokio::test(start_paused = true)]
async fn pods_end_by_priority() {
    let machine = Machine::start().await;
    let requested = CancellationToken::new();
    let periods = [(0, 10), (2_000_000_000, 20), (2_000_001_000, 5)];
    let periods = periods.map(|(priority, seconds)| (priority, Duration::from_secs(seconds)));
    let config = GracefulShutdown::by_priority(requested.clone(), periods.into());
    let node = machine.node_set_up(|node| node.with_graceful_shutdown(config)).await;
    let manifests = [
        static_pod("low", "terminationGracePeriodSeconds: 300,"),
        static_pod(
            "middle",
            "priorityClassName: system-cluster-critical, terminationGracePeriodSeconds: 300,",
        ),
        static_pod(
            "critical",
            "priorityClassName: system-node-critical, terminationGracePeriodSeconds: 300,",
        ),
    ];
    let uids = node.want(&manifests).await;
    for uid in &uids {
        node.until_ready(uid).await;
    }
    let since = Instant::now();
    requested.cancel();
    for (uid, ends) in uids.iter().zip([10, 30]) {
        node.until("the group has ended", |_| !machine.runs(uid)).await;
        let took = since.elapsed().as_secs();
        assert!((ends - 1..=ends + 2).contains(&took), "{ends}: {took}");
    }
    assert!(machine.runs(&uids[2]));
    node.ended().await;
    assert!(machine.running().is_empty());
}
