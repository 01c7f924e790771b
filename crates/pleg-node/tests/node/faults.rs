//! The runtime fails, hangs and restarts: pods that are not affected do not notice.

use std::time::Duration;

use pleg::Level;
use pleg_cri::Rpc;
use pleg_node::status::Phase;

use crate::machine::{Machine, is_ready, pod, spec};

#[tokio::test(start_paused = true)]
async fn a_missing_image_is_reported_and_retried() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let never = "containers: [{name: app, image: img, imagePullPolicy: Never}]";
    let uids = node
        .want(&[spec("a", "containers: [{name: app, image: missing}]"), spec("b", never)])
        .await;
    node.until("the first failure", |_| node.state(&uids[0], "app") == "ErrImagePull")
        .await;
    node.until("back-off", |_| node.state(&uids[0], "app") == "ImagePullBackOff")
        .await;
    node.until("never", |_| node.state(&uids[1], "app") == "ErrImageNeverPull")
        .await;
    assert_eq!(node.reports.get(&uids[0]).unwrap().phase(), Phase::Pending);
    // Once the image exists, the pod starts.
    machine.sim.world().pull_image("img").unwrap();
    node.until_ready(&uids[1]).await;
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn calls_that_fail_are_made_again() {
    let machine = Machine::start().await;
    for rpc in [
        Rpc::RunPodSandbox,
        Rpc::CreateContainer,
        Rpc::StartContainer,
        Rpc::StopContainer,
        Rpc::RemovePodSandbox,
    ] {
        machine
            .sim
            .faults()
            .fail(rpc, "UNAVAILABLE".parse().unwrap(), 0.5)
            .unwrap();
    }
    let node = machine.node().await;
    let manifests: Vec<String> = (0..10).map(|n| pod(&format!("web-{n}"), "serve")).collect();
    let uids = node.want(&manifests).await;
    node.until("10 pods", |reports| uids.iter().all(|uid| is_ready(reports, uid)))
        .await;
    node.want(&[]).await;
    node.until_gone().await;
    assert_eq!(
        (machine.sandboxes().len(), machine.sim.truth().containers.len()),
        (0, 0)
    );
    node.stop().await;
    machine.check();
}

/// More pods hang than may start at once, and others start all the same.
#[tokio::test(start_paused = true)]
async fn a_pod_that_hangs_delays_no_other_pod() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let first: Vec<String> = (0..6).map(|n| pod(&format!("bad-{n}"), "serve")).collect();
    machine.sim.faults().hang(Rpc::CreateContainer, None, None).unwrap();
    let bad = node.want(&first).await;
    node.until("sandboxes", |_| machine.sandboxes().len() == 6).await;
    assert_eq!(machine.running().len(), 0);
    // Sandboxes that are created from now on do not hang.
    let hung: Vec<_> = machine.sandboxes().into_iter().map(|sandbox| sandbox.id).collect();
    for id in &hung {
        machine.sim.faults().hang_id(Rpc::CreateContainer, id).unwrap();
    }
    machine.sim.faults().unhang(Some(Rpc::CreateContainer), None);
    for id in &hung {
        machine.sim.faults().hang_id(Rpc::CreateContainer, id).unwrap();
    }
    let all: Vec<String> = first
        .iter()
        .cloned()
        .chain((0..10).map(|n| pod(&format!("good-{n}"), "serve")))
        .collect();
    let uids = node.want(&all).await;
    let began = tokio::time::Instant::now();
    node.until("the good ones", |reports| {
        uids[6..].iter().all(|uid| is_ready(reports, uid))
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    machine.sim.faults().clear();
    node.until("all", |reports| uids.iter().all(|uid| is_ready(reports, uid)))
        .await;
    assert_eq!(bad[..], uids[..6]);
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_restarts_loses_no_pod() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let uids = node.want(&[pod("a", "serve"), pod("b", "sleep-exit, 30s, '3'")]).await;
    node.until("both", |reports| uids.iter().all(|uid| is_ready(reports, uid)))
        .await;
    machine.sim.down(Duration::from_mins(1)).await;
    // While nothing is observed, no pod is shown as ready.
    node.until("stale", |reports| {
        reports.get(&uids[0]).unwrap().conditions()[2].status == "Unknown"
    })
    .await;
    let message = node.reports.get(&uids[0]).unwrap().conditions()[2]
        .message
        .clone()
        .unwrap();
    assert!(message.starts_with("Last observed at "), "{message}");
    machine.sim.wait_up().await;
    // The container that died meanwhile is restarted; the other one is untouched.
    node.until("both again", |reports| {
        let restarts = |n: usize| reports.get(&uids[n]).unwrap().containers()[0].restart_count;
        restarts(0) == 0 && restarts(1) >= 1 && reports.get(&uids[0]).unwrap().conditions()[2].status == "True"
    })
    .await;
    node.stop().await;
    machine.check();
}

/// The same if the sandbox hangs, for example in its network plugin.
#[tokio::test(start_paused = true)]
async fn a_hung_sandbox_delays_no_other_pod() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let bad: Vec<String> = (0..6).map(|n| pod(&format!("bad-{n}"), "serve")).collect();
    let takes = |time| {
        machine
            .sim
            .faults()
            .set_latency(Some(Rpc::RunPodSandbox), time, Duration::ZERO);
    };
    takes(Duration::from_hours(1));
    node.want(&bad).await;
    machine.until_in_flight(Rpc::RunPodSandbox, 6).await;
    // Calls in flight keep hanging; new ones do not.
    takes(Duration::ZERO);
    let all: Vec<String> = bad.into_iter().chain([pod("good", "serve")]).collect();
    let uids = node.want(&all).await;
    let began = tokio::time::Instant::now();
    node.until_ready(&uids[6]).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    node.stop().await;
    machine.check();
}

/// A registry that does not answer delays only pods with its images, and no pod that is no longer desired waits for it.
#[tokio::test(start_paused = true)]
async fn a_hung_image_pull_delays_no_other_pod() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let with = |name: &str, image: &str| spec(name, &format!("containers: [{{name: app, image: {image}}}]"));
    let mut bad: Vec<String> = (0..6).map(|n| with(&format!("bad-{n}"), &format!("slow{n}"))).collect();
    let takes = |time| {
        machine
            .sim
            .faults()
            .set_latency(Some(Rpc::PullImage), time, Duration::ZERO);
    };
    takes(Duration::from_hours(1));
    node.want(&bad).await;
    machine.until_in_flight(Rpc::PullImage, 6).await;
    takes(Duration::ZERO);
    bad.push(with("good", "quick"));
    let uids = node.want(&bad).await;
    let began = tokio::time::Instant::now();
    node.until_ready(&uids[6]).await;
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    // The image name is corrected: the pod does not wait for the old image.
    let began = tokio::time::Instant::now();
    let mended = node.want(&[with("bad-0", "quick"), with("good", "quick")]).await;
    node.until("the mended one", |reports| {
        reports.pods().len() == 2 && is_ready(reports, &mended[0])
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    node.stop().await;
    machine.check();
}

/// Exited containers that cannot be removed delay nothing.
#[tokio::test(start_paused = true)]
async fn removals_that_fail_hold_up_nothing() {
    let machine = Machine::start().await;
    machine
        .sim
        .faults()
        .fail(Rpc::RemoveContainer, "INTERNAL".parse().unwrap(), 1.0)
        .unwrap();
    let node = machine.node().await;
    let uid = node.want(&[pod("web", "sleep-exit, 2s, '3'")]).await.remove(0);
    let began = tokio::time::Instant::now();
    node.until("six restarts", |reports| {
        reports
            .get(&uid)
            .is_some_and(|pod| pod.containers()[0].restart_count >= 6)
    })
    .await;
    // Six runs of 2 s and delays of 0, 10, 20, 40, 80 and 160 s, each observed within a second.
    let took = began.elapsed();
    assert!((321..335).contains(&took.as_secs()), "{took:?}");
    machine.sim.faults().clear();
    node.until("they are cleaned away", |_| machine.attempts(&uid).len() <= 3)
        .await;
    node.stop().await;
    machine.check();
}

/// With events, an idle node has one heartbeat, not two.
#[tokio::test(start_paused = true)]
async fn a_node_at_rest_has_one_heartbeat() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let uid = node.want(&[pod("web", "serve")]).await.remove(0);
    node.until_ready(&uid).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let calls = |rpc| machine.sim.stats().of(rpc).calls;
    let before = (calls(Rpc::Version), calls(Rpc::Status));
    tokio::time::sleep(Duration::from_mins(1)).await;
    let asked = (calls(Rpc::Version) - before.0, calls(Rpc::Status) - before.1);
    assert!(asked.0 == 0 && (28..=31).contains(&asked.1), "{asked:?}");
    node.stop().await;
    machine.check();
}

/// A runtime that is stopped (`kill -STOP`) answers nothing and closes no connection. A kubelet shows its pods as Running and ready, and
/// reports a problem only after two minutes.
#[tokio::test(start_paused = true)]
async fn a_frozen_runtime_shows_within_ten_seconds() {
    // With events there is one full relist a minute: it may freeze at any time between two of them.
    for after in [0, 1, 13, 31, 47, 59] {
        let machine = Machine::start().await;
        let node = machine.node().await;
        let uid = node.want(&[pod("web", "serve")]).await.remove(0);
        node.until_ready(&uid).await;
        tokio::time::sleep(Duration::from_secs(300 + after)).await;
        assert_eq!(node.pleg.health().report().level, Level::Healthy);
        assert!(node.reports.get(&uid).unwrap().stale.is_none());
        machine
            .sim
            .faults()
            .set_latency(None, Duration::from_hours(1), Duration::ZERO);
        let frozen = machine.now();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let report = node.pleg.health().report();
        assert_eq!(report.level, Level::Degraded, "{after}: {report:?}");
        let shown = node.reports.get(&uid).unwrap();
        let stale = shown.stale.clone().expect("said to be old");
        let as_of = stale.as_of.unwrap();
        let before = frozen.duration_since(as_of).as_secs();
        assert!((0..=4).contains(&before), "as of {before} s before it froze");
        assert!(stale.why.ends_with("is not answered"), "{stale}");
        let status = serde_json::to_value(&shown).unwrap();
        assert_eq!(status["status"]["reason"], "StatusStale");
        let ready = &status["status"]["conditions"][2];
        assert_eq!((&ready["type"], &ready["status"]), (&"Ready".into(), &"Unknown".into()));
        let since = &status["metadata"]["annotations"]["pleg.io/status-as-of"];
        assert!(since.is_string() && ready["lastProbeTime"] == *since, "{status}");
        // They stay stale, however long that lasts.
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert_ne!(node.pleg.health().report().level, Level::Healthy);
            assert_eq!(node.reports.get(&uid).unwrap().stale.as_ref(), Some(&stale));
        }
        machine.sim.faults().clear();
        node.until("it is seen again", |reports| reports.get(&uid).unwrap().stale.is_none())
            .await;
        assert_eq!(machine.attempts(&uid).len(), 1);
        node.stop().await;
        machine.check();
    }
}
