//! Pods that change while they run, as those of an API server do: a source in memory hands out objects, and a publisher takes statuses.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod as Object;
use pleg::PodUid;
use pleg_cri::Rpc;
use pleg_node::manifest::Pod;
use pleg_node::sources::{DesiredPod, Snapshot};
use pleg_node::status::Phase;
use pleg_node::status::updates::{StatusUpdate, StatusUpdates};
use serde_json::{Value, json};

use crate::machine::{Machine, Running};

const UID: &str = "6f0c2f3a-0b5c-4c65-9a35-0a8f9c1f3b11";

/// A pod of an API server with one container that runs this command.
fn object(command: &[&str]) -> Value {
    json!({
        "metadata": {"name": "web-0", "namespace": "shop", "uid": UID, "generation": 1, "labels": {"app": "web"}},
        "spec": {
            "nodeName": "n", "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "Default",
            "containers": [{"name": "app", "image": "v1", "command": command}],
        },
    })
}

/// Desires these objects from now on.
async fn want(node: &Running, objects: &[&Value]) {
    let desired = |object: &&Value| {
        let object: Object = serde_json::from_value((*object).clone()).unwrap();
        DesiredPod {
            origin: "api".into(),
            pod: Pod::from_object(object).unwrap().into(),
        }
    };
    let snapshot = Snapshot {
        source: "test".into(),
        pods: objects.iter().map(desired).collect(),
        problems: Vec::new(),
        refused: Vec::new(),
        complete: true,
    };
    node.wants.send(snapshot).await.unwrap();
}

fn uid() -> PodUid {
    UID.into()
}

fn restarts(node: &Running) -> Option<i32> {
    let report = node.reports.get(&uid())?;
    let app = &report.containers()[0];
    app.ready.then_some(app.restart_count)
}

/// Takes statuses, and acknowledges each, until one is as asked for. Returns that one, which is not acknowledged.
async fn publish_until(updates: &mut StatusUpdates, is: impl Fn(&StatusUpdate) -> bool) -> StatusUpdate {
    let waited = tokio::time::timeout(Duration::from_hours(1), async {
        loop {
            let update = updates.next().await;
            if is(&update) {
                return update;
            }
            updates.acknowledge(&update.report.pod.id.uid, update.revision);
        }
    });
    waited.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn labels_change_nothing_that_runs_and_an_image_replaces_its_container() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let mut pod = object(&["serve"]);
    want(&node, &[&pod]).await;
    node.until_ready(&uid()).await;

    pod["metadata"]["labels"]["app"] = "shop".into();
    pod["metadata"]["resourceVersion"] = "2".into();
    want(&node, &[&pod]).await;
    let labelled = |reports: &pleg_node::PodReports| reports.get(&uid()).is_some_and(|r| r.pod.labels["app"] == "shop");
    // A label alone is no reason to decide anew at once; the next decision reports it.
    node.until("the label", labelled).await;
    assert_eq!((machine.running().len(), restarts(&node)), (1, Some(0)));

    pod["spec"]["containers"][0]["image"] = "v2".into();
    want(&node, &[&pod]).await;
    node.until("the new image", |_| restarts(&node) == Some(1)).await;
    let report = node.reports.get(&uid()).unwrap();
    assert_eq!(report.containers()[0].image, "v2");
    assert_eq!((machine.sandboxes().len(), node.kills("image")), (1, 1));

    // After a restart of the node, the same image is no change.
    node.stop().await;
    let node = machine.node().await;
    want(&node, &[&pod]).await;
    node.until("it runs on", |_| restarts(&node) == Some(1)).await;
    // Whatever the restart policy says: the container has not ended by itself.
    pod["spec"]["restartPolicy"] = "Never".into();
    pod["spec"]["containers"][0]["image"] = "v3".into();
    want(&node, &[&pod]).await;
    node.until("the third image", |_| restarts(&node) == Some(2)).await;
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_comes_later_counts() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let mut pod = object(&["serve"]);
    want(&node, &[&pod]).await;
    node.until_ready(&uid()).await;
    pod["spec"]["activeDeadlineSeconds"] = 5.into();
    want(&node, &[&pod]).await;
    node.until_phase(&uid(), Phase::Failed).await;
    let reason = node.reports.get(&uid()).unwrap().status.reason.clone();
    assert_eq!(reason.as_deref(), Some("DeadlineExceeded"));
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_second_shorter_delete_counts_and_the_record_waits_for_the_publisher() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let mut updates = node.reports.publish();
    let mut pod = object(&["ignore-term"]);
    want(&node, &[&pod]).await;
    let ready = |update: &StatusUpdate| update.report.containers().iter().any(|app| app.ready);
    let update = publish_until(&mut updates, ready).await;
    updates.acknowledge(&uid(), update.revision);

    let start = tokio::time::Instant::now();
    pod["metadata"]["deletionTimestamp"] = "2030-01-02T03:04:05Z".into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 900.into();
    want(&node, &[&pod]).await;
    let terminating = |reports: &pleg_node::PodReports| {
        reports
            .get(&uid())
            .is_some_and(|report| report.goal != pleg_node::reconcile::decide::Goal::Run)
    };
    node.until("it terminates", terminating).await;
    pod["metadata"]["deletionGracePeriodSeconds"] = 5.into();
    want(&node, &[&pod]).await;
    let last = publish_until(&mut updates, |update| update.last).await;
    assert!(start.elapsed() < Duration::from_mins(1), "{:?}", start.elapsed());
    assert_eq!(last.report.phase(), Phase::Failed);
    let state = last.report.containers()[0].state.clone().unwrap();
    assert_eq!(state.terminated.unwrap().exit_code, 137);
    assert!(machine.running().is_empty());
    machine.until_no_sandbox().await;

    // More news of the object start nothing, and a restart before the acknowledgement publishes the same status again.
    pod["metadata"]["resourceVersion"] = "9".into();
    want(&node, &[&pod]).await;
    node.stop().await;
    let node = machine.node().await;
    let mut updates = node.reports.publish();
    want(&node, &[&pod]).await;
    let again = publish_until(&mut updates, |update| update.last).await;
    assert_eq!(again.report.phase(), Phase::Failed);
    assert_eq!(again.report.containers()[0].state, last.report.containers()[0].state);
    updates.acknowledge(&uid(), again.revision);
    want(&node, &[]).await;
    node.until_gone().await;
    assert!(machine.sim.truth().containers.is_empty());
    node.stop().await;
    machine.check();
}

/// A runtime takes longest to remove a sandbox, and nobody who deletes a pod waits for that.
#[tokio::test(start_paused = true)]
async fn a_deleted_pod_is_reported_as_gone_before_its_sandbox_is_removed() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let mut updates = node.reports.publish();
    let mut pod = object(&["serve"]);
    want(&node, &[&pod]).await;
    let ready = |update: &StatusUpdate| update.report.containers().iter().any(|app| app.ready);
    let update = publish_until(&mut updates, ready).await;
    updates.acknowledge(&uid(), update.revision);

    let faults = machine.sim.faults();
    faults.hang(Rpc::RemovePodSandbox, None, None).unwrap();
    pod["metadata"]["deletionTimestamp"] = "2030-01-02T03:04:05Z".into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 5.into();
    want(&node, &[&pod]).await;
    // Its first status without a running container is the last one: what is removed later changes nothing.
    let is_over = |update: &StatusUpdate| update.report.containers().iter().all(|app| !app.ready);
    let ended = publish_until(&mut updates, is_over).await;
    assert_ne!(ended.report.phase(), Phase::Running);
    updates.acknowledge(&uid(), ended.revision);
    let last = publish_until(&mut updates, |update| {
        assert_eq!(update.report.status, ended.report.status);
        update.last
    });
    let last = last.await;
    assert_eq!(machine.sandboxes().len(), 1);
    updates.acknowledge(&uid(), last.revision);

    // The next pod of its name waits for the runtime, not for the API server.
    want(&node, &[]).await;
    let mut next = object(&["serve"]);
    next["metadata"]["uid"] = "6f0c2f3a-0b5c-4c65-9a35-0a8f9c1f3b12".into();
    want(&node, &[&next]).await;
    machine.until_in_flight(Rpc::RemovePodSandbox, 1).await;
    assert!(machine.running().is_empty());
    faults.unhang(Some(Rpc::RemovePodSandbox), None);
    node.until_ready(&"6f0c2f3a-0b5c-4c65-9a35-0a8f9c1f3b12".into()).await;
    assert_eq!(machine.sandboxes().len(), 1);
    node.stop().await;
    machine.check();
}

/// `kubectl debug`: containers are added to a pod that runs.
#[tokio::test(start_paused = true)]
async fn ephemeral_containers_run_once_and_end_with_their_pod() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let mut pod = object(&["serve"]);
    want(&node, &[&pod]).await;
    node.until_ready(&uid()).await;

    pod["metadata"]["generation"] = 2.into();
    pod["spec"]["ephemeralContainers"] = json!([
        {"name": "debug", "image": "tools", "command": ["serve"], "targetContainerName": "app"},
        {"name": "once", "image": "tools", "command": ["exit", "3"]},
        {"name": "typo", "image": "tools", "command": ["serve"], "targetContainerName": "ap"},
    ]);
    want(&node, &[&pod]).await;
    let states = |node: &Running| match node.reports.get(&uid()) {
        Some(report) if report.ephemeral_containers().len() == 3 => ["debug", "once", "typo"]
            .map(|name| node.state(&uid(), name))
            .join(", "),
        _ => String::new(),
    };
    let wanted = "Running, Terminated 3, CreateContainerConfigError";
    node.until("all three", |_| states(&node) == wanted).await;
    let report = node.reports.get(&uid()).unwrap();
    assert_eq!((report.phase(), restarts(&node)), (Phase::Running, Some(0)));
    assert!(report.conditions().iter().all(|condition| condition.status == "True"));

    // Neither a decision about another container nor another node starts one again.
    node.stop().await;
    let node = machine.node().await;
    want(&node, &[&pod]).await;
    let app = machine.running().into_iter().find(|container| container.name == "app");
    machine.sim.world().kill_container(&app.unwrap().id);
    node.until("the app again", |_| restarts(&node) == Some(1)).await;
    node.until("the same states", |_| states(&node) == wanted).await;
    let attempts = |name: &str| {
        let all = machine.attempts(&uid()).into_iter();
        all.filter(|container| container.name == name).count()
    };
    assert_eq!(["app", "debug", "once", "typo"].map(attempts), [2, 1, 1, 0]);

    // A new sandbox gets the app, and nothing of these.
    let sandbox = machine.sandboxes().remove(0).id;
    machine.sim.world().stop_sandbox(&sandbox);
    node.until("the app in a new sandbox", |_| restarts(&node) == Some(2))
        .await;
    assert_eq!(node.state(&uid(), "once"), "Terminated 3");
    assert!(node.state(&uid(), "debug").starts_with("Terminated"));
    assert_eq!(machine.running().len(), 1);

    pod["spec"]["ephemeralContainers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "second", "image": "tools", "command": ["serve"]}));
    want(&node, &[&pod]).await;
    let runs = || machine.running().iter().any(|container| container.name == "second");
    node.until("one that was added later", |_| runs()).await;
    want(&node, &[]).await;
    node.until_gone().await;
    assert!(machine.sim.truth().containers.is_empty() && machine.sandboxes().is_empty());
    node.stop().await;
    machine.check();
}

/// The resources of a pod change: its container gets new limits while it runs, or is restarted if its policy says so.
#[tokio::test(start_paused = true)]
async fn a_container_is_resized_in_place() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let mut pod = object(&["serve"]);
    let resources = |cpu: &str, memory: &str| {
        let list = json!({"cpu": cpu, "memory": memory});
        json!({"requests": list, "limits": list})
    };
    pod["spec"]["containers"][0]["resources"] = resources("500m", "64Mi");
    pod["spec"]["containers"][0]["resizePolicy"] = json!([
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
    ]);
    want(&node, &[&pod]).await;
    node.until_ready(&uid()).await;
    let shown = |list: &str, resource: &str| {
        let status = serde_json::to_value(node.reports.get(&uid())?.containers().first()?).ok()?;
        Some(status["resources"][list][resource].as_str()?.to_owned())
    };
    let condition = || {
        let report = node.reports.get(&uid())?;
        let mut all = report.conditions().iter().cloned();
        all.find(|condition| condition.type_ == "PodResizeInProgress")
    };
    let quota = || {
        let id = machine.running()[0].id.clone();
        let status = machine.sim.world().container_status(&id).unwrap();
        let linux = status.resources.unwrap_or_default().linux.unwrap_or_default();
        (linux.cpu_quota, linux.memory_limit_in_bytes >> 20)
    };
    assert_eq!(shown("limits", "cpu").as_deref(), Some("500m"));
    assert_eq!((quota(), condition().is_none()), ((50_000, 64), true));

    // The runtime refuses at first.
    let refused = "INTERNAL".parse().unwrap();
    machine
        .sim
        .faults()
        .fail(Rpc::UpdateContainerResources, refused, 1.0)
        .unwrap();
    pod["spec"]["containers"][0]["resources"] = resources("1500m", "64Mi");
    want(&node, &[&pod]).await;
    node.until("the failure", |_| {
        condition().is_some_and(|condition| condition.reason.as_deref() == Some("Error"))
    })
    .await;
    assert_eq!(shown("limits", "cpu").as_deref(), Some("500m"), "as it still is");
    machine.sim.faults().clear();
    node.until("the new limit", |_| shown("limits", "cpu").as_deref() == Some("1500m"))
        .await;
    assert_eq!((quota(), condition().is_none()), ((150_000, 64), true));
    assert_eq!((restarts(&node), machine.attempts(&uid()).len()), (Some(0), 1));

    // After a restart of the node, the same resources are no change; other memory restarts the container.
    node.stop().await;
    let node = machine.node().await;
    pod["spec"]["containers"][0]["resources"] = resources("1500m", "128Mi");
    want(&node, &[&pod]).await;
    node.until("the restart", |_| restarts(&node) == Some(1)).await;
    assert_eq!(quota(), (150_000, 128));
    assert_eq!(node.kills("resources"), 1);
    node.stop().await;
    machine.check();
}

/// This one, and these.
fn with<'a>(one: &'a Value, more: &'a [Value]) -> Vec<&'a Value> {
    std::iter::once(one).chain(more).collect()
}

/// What nobody waits for yields: a sandbox of a pod that is gone is removed once no other pod is being stopped, or after a while.
#[tokio::test(start_paused = true)]
async fn sandboxes_are_removed_after_all_others_are_stopped() {
    let others: Vec<String> = (1..5)
        .map(|n| format!("6f0c2f3a-0b5c-4c65-9a35-0a8f9c1f3b0{n}"))
        .collect();
    for (others_end, at_least, at_most) in [(true, 0, 2), (false, 5, 6)] {
        let machine = Machine::start().await;
        let node = machine.node().await;
        let mut pods = vec![object(&["serve"])];
        for (n, other) in others.iter().enumerate() {
            let mut pod = object(&["ignore-term"]);
            pod["metadata"]["uid"] = other.as_str().into();
            pod["metadata"]["name"] = format!("web-{}", n + 1).into();
            pods.push(pod);
        }
        want(&node, &pods.iter().collect::<Vec<_>>()).await;
        node.until_ready(&uid()).await;
        for other in &others {
            node.until_ready(&other.as_str().into()).await;
        }

        let started = tokio::time::Instant::now();
        let grace = if others_end { 1 } else { 60 };
        for (n, pod) in pods.iter_mut().enumerate() {
            pod["metadata"]["deletionTimestamp"] = "2030-01-02T03:04:05Z".into();
            pod["metadata"]["deletionGracePeriodSeconds"] = if n == 0 { 5 } else { grace }.into();
        }
        want(&node, &pods.iter().collect::<Vec<_>>()).await;
        // The first is reported as gone at once, and its sandbox stays for a moment.
        node.until("the first is gone", |reports| reports.get(&uid()).is_none())
            .await;
        assert!(
            started.elapsed() < Duration::from_millis(500),
            "{:?}",
            started.elapsed()
        );
        assert_eq!(machine.sandboxes().len(), 5);
        while !machine.objects_of("web-0").is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let took = started.elapsed().as_secs();
        assert!((at_least..=at_most).contains(&took), "{took}");
        if !others_end {
            assert!(node.reports.get(&others[0].as_str().into()).is_some());
        }

        // A pod that wants the name of another does not wait for others.
        if !others_end {
            let mut next = object(&["serve"]);
            next["metadata"]["uid"] = "6f0c2f3a-0b5c-4c65-9a35-0a8f9c1f3b13".into();
            want(&node, &with(&next, &pods[1..])).await;
            let next_uid = "6f0c2f3a-0b5c-4c65-9a35-0a8f9c1f3b13".into();
            node.until_ready(&next_uid).await;
            next["metadata"]["deletionTimestamp"] = "2030-01-02T03:04:05Z".into();
            next["metadata"]["deletionGracePeriodSeconds"] = 5.into();
            want(&node, &with(&next, &pods[1..])).await;
            node.until("gone", |reports| reports.get(&next_uid).is_none()).await;
            let again = tokio::time::Instant::now();
            next = object(&["serve"]);
            next["metadata"]["uid"] = "6f0c2f3a-0b5c-4c65-9a35-0a8f9c1f3b14".into();
            want(&node, &with(&next, &pods[1..])).await;
            node.until_ready(&"6f0c2f3a-0b5c-4c65-9a35-0a8f9c1f3b14".into()).await;
            assert!(again.elapsed() < Duration::from_secs(2), "{:?}", again.elapsed());
        }
        node.stop().await;
        machine.check();
    }
}

/// As in the kubelet: a critical pod that does not fit takes the place of others, and they fail, so that they run elsewhere.
#[tokio::test(start_paused = true)]
async fn pods_make_room_for_a_critical_one() {
    let machine = Machine::start().await;
    let allocatable = pleg_node::Allocatable {
        milli_cpu: 1000,
        memory: 1 << 30,
        ephemeral_storage: 1 << 30,
        pods: 10,
    };
    let node = machine.node_set_up(|node| node.with_allocatable(allocatable)).await;
    let sized = |name: &str, uid: &str, cpu: &str, priority: i32| {
        let mut pod = object(&["serve"]);
        (pod["metadata"]["name"], pod["metadata"]["uid"]) = (name.into(), uid.into());
        pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
        pod["spec"]["priority"] = priority.into();
        pod
    };
    let (cheap, dear, critical) = (
        sized("cheap", UID, "500m", 0),
        sized("dear", "6f0c2f3a-0b5c-4c65-9a35-0a8f9c1f3b12", "500m", 1000),
        sized("dns", "6f0c2f3a-0b5c-4c65-9a35-0a8f9c1f3b13", "400m", 2_000_001_000),
    );
    let uid_of = |pod: &Value| PodUid::from(pod["metadata"]["uid"].as_str().unwrap());
    want(&node, &[&cheap, &dear]).await;
    for pod in [&cheap, &dear] {
        node.until_ready(&uid_of(pod)).await;
    }
    want(&node, &[&cheap, &dear, &critical]).await;
    node.until_ready(&uid_of(&critical)).await;
    node.until_phase(&uid(), Phase::Failed).await;
    let status = node.reports.get(&uid()).unwrap().status.clone();
    let (reason, message) = (status.reason.as_deref(), status.message.as_deref());
    assert_eq!(
        (reason, message),
        (Some("Preempting"), Some("Preempted in order to admit critical pod"))
    );
    assert!(machine.runs(&uid_of(&dear)) && !machine.runs(&uid()));
    node.stop().await;
    machine.check();
}
