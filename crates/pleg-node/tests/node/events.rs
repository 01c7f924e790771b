//! What a node tells people about the life of a pod.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pleg_cri::Rpc;
use pleg_node::events::{Event, EventObject, EventSink, EventType};

use crate::machine::{Machine, Running, spec};

/// Keeps all events.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<Event>>);

impl EventSink for Kept {
    fn record(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

impl Kept {
    /// Reason and message of each event, without the time of a pull.
    fn told(&self) -> Vec<(String, String)> {
        let all = self.0.lock().unwrap();
        let told = all.iter().map(|event| {
            let pull = event.reason == "Pulled";
            let message = event
                .message
                .split(" in ")
                .next()
                .filter(|_| pull)
                .unwrap_or(&event.message);
            (event.reason.to_string(), message.to_owned())
        });
        told.collect()
    }
}

async fn node(machine: &Machine) -> (Running, Arc<Kept>) {
    let kept = Arc::new(Kept::default());
    let sink = Arc::clone(&kept);
    let node = machine.node_set_up(|node| node.with_events(sink)).await;
    (node, kept)
}

#[tokio::test(start_paused = true)]
async fn a_pod_starts_and_is_stopped() {
    let machine = Machine::start().await;
    let (node, kept) = node(&machine).await;
    let sidecar = "initContainers: [{name: side, image: img, restartPolicy: Always, \
                   lifecycle: {preStop: {sleep: {seconds: 1}}}}]";
    let uid = node
        .want(&[spec(
            "p",
            &format!("{sidecar}, containers: [{{name: app, image: img, imagePullPolicy: IfNotPresent}}]"),
        )])
        .await
        .remove(0);
    node.until_ready(&uid).await;
    node.want(&[]).await;
    node.until_gone().await;
    let expected = [
        ("Pulling", "Pulling image \"img\""),
        ("Pulled", "Successfully pulled image \"img\""),
        ("Created", "Container created"),
        ("Started", "Container started"),
        ("Pulled", "Container image \"img\" already present on machine"),
        ("Created", "Container created"),
        ("Started", "Container started"),
        ("Killing", "Stopping container app"),
        ("Killing", "Stopping container side"),
    ];
    let mut told = kept.told();
    // Both begin at once.
    told[7..].sort();
    let told: Vec<_> = told.iter().map(|(reason, message)| (&**reason, &**message)).collect();
    assert_eq!(told, expected);
    for event in kept.0.lock().unwrap().iter() {
        assert_eq!(event.kind, EventType::Normal);
        let EventObject::Pod { id, field_path } = &event.object else {
            panic!("{event:?}");
        };
        assert_eq!((&id.uid, &*id.name), (&uid, "p-n"), "as its mirror pod says");
        let path = field_path.as_deref().unwrap();
        assert!(
            ["spec.containers{app}", "spec.initContainers{side}"].contains(&path),
            "{path}"
        );
    }
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn what_goes_wrong_is_told_with_the_kubelets_reasons() {
    let machine = Machine::start().await;
    let (node, kept) = node(&machine).await;
    let probe = "livenessProbe: {exec: {command: [exit, '1']}, periodSeconds: 2, failureThreshold: 3}";
    let app = |more: &str| format!("terminationGracePeriodSeconds: 1, containers: [{{name: app, image: img, {more}}}]");
    let uids = node
        .want(&[
            spec("sick", &app(probe)),
            spec("crash", &app("command: [exit, '3']")),
            spec("never", &app("imagePullPolicy: Never").replace("img", "absent")),
            spec("hook", &app("lifecycle: {postStart: {exec: {command: [exit, '1']}}}")),
        ])
        .await;
    let crash = format!(
        "Back-off restarting failed container app in pod crash-n_default({})",
        uids[1]
    );
    for wanted in [
        ("Killing", "Container app failed liveness probe, will be restarted"),
        ("BackOff", &*crash),
        (
            "ErrImageNeverPull",
            "Container image \"absent\" is not present with pull policy of Never",
        ),
        ("Failed", "Error: ErrImageNeverPull"),
        ("FailedPostStartHook", "PostStartHook failed"),
        ("Killing", "FailedPostStartHook"),
    ] {
        until(&kept, wanted.1, |reason, text| (reason, text) == wanted).await;
    }
    let told = kept.told();
    assert!(
        told.iter()
            .any(|(reason, text)| reason == "Unhealthy" && text.starts_with("Liveness probe failed: "))
    );
    // A back-off is told once, not with each decision.
    let restarts = node.reports.get(&uids[1]).unwrap().containers()[0].restart_count;
    let back_offs = told
        .iter()
        .filter(|(reason, text)| reason == "BackOff" && text.contains("crash"))
        .count();
    let restarts = usize::try_from(restarts).unwrap();
    assert!(
        (restarts.saturating_sub(1)..=restarts + 1).contains(&back_offs),
        "{back_offs} of {restarts}"
    );
    node.stop().await;
    machine.check();
}

/// The sandbox cannot be created and is lost later; an image cannot be pulled.
#[tokio::test(start_paused = true)]
async fn faults_of_the_runtime_are_told() {
    let machine = Machine::start().await;
    let (node, kept) = node(&machine).await;
    let faults = machine.sim.faults();
    faults
        .fail(Rpc::RunPodSandbox, "UNKNOWN".parse().unwrap(), 1.0)
        .unwrap();
    let app = "containers: [{name: app, image: img}]";
    let manifests = [spec("p", app), spec("q", &app.replace("img", "missing"))];
    let uid = node.want(&manifests).await.remove(0);
    until(&kept, "no sandbox", |reason, text| {
        reason == "FailedCreatePodSandBox"
            && text.starts_with("Failed to create pod sandbox: rpc error: code = Unknown")
    })
    .await;
    faults.clear();
    node.until_ready(&uid).await;
    assert!(
        !kept.told().iter().any(|(reason, _)| reason == "SandboxChanged"),
        "it is the first one"
    );
    let sandboxes = machine.sandboxes();
    let sandbox = sandboxes.iter().find(|sandbox| *sandbox.uid == *uid.as_str()).unwrap();
    machine.sim.world().stop_sandbox(&sandbox.id);
    until(&kept, "sandbox", |reason, text| {
        (reason, text)
            == (
                "SandboxChanged",
                "Pod sandbox changed, it will be killed and re-created.",
            )
    })
    .await;
    for wanted in [
        ("Failed", "Error: ErrImagePull"),
        ("BackOff", "Back-off pulling image \"missing\""),
        ("Failed", "Error: ImagePullBackOff"),
    ] {
        until(&kept, wanted.1, |reason, text| (reason, text) == wanted).await;
    }
    node.stop().await;
    machine.check();
}

/// Waits for an event, for at most an hour of simulated time.
async fn until(kept: &Kept, what: &str, is: impl Fn(&str, &str) -> bool) {
    let wait = async {
        while !kept.told().iter().any(|(reason, text)| is(reason, text)) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_hours(1), wait).await;
    assert!(waited.is_ok(), "{what}: {:#?}", kept.told());
}

/// Pods wait for the network of the runtime, unless they use the host's.
#[tokio::test(start_paused = true)]
async fn without_a_network_pods_wait_and_those_with_the_hosts_run() {
    let machine = Machine::start().await;
    let readiness = pleg_sim::Readiness {
        network: false,
        ..pleg_sim::Readiness::default()
    };
    machine.sim.world().set_readiness(readiness);
    let (node, kept) = node(&machine).await;
    while node.pleg.readiness().network_not_ready().is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let containers = "containers: [{name: app, image: img}]";
    let pods = [
        spec("own", containers),
        spec("host", &format!("hostNetwork: true, {containers}")),
    ];
    let uids = node.want(&pods).await;
    node.until_ready(&uids[1]).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(node.state(&uids[0], "app"), "NetworkNotReady");
    assert_eq!(machine.sandboxes().len(), 1);
    let report = node.reports.get(&uids[0]).unwrap();
    assert_eq!(report.phase(), pleg_node::status::Phase::Pending);
    let told: Vec<_> = kept
        .told()
        .into_iter()
        .filter(|(reason, _)| reason == "NetworkNotReady")
        .collect();
    let [(_, message)] = &told[..] else {
        panic!("told once: {told:?}");
    };
    let wanted = "network is not ready: container runtime network not ready: NetworkReady=false";
    assert!(message.starts_with(wanted), "{message}");

    machine.sim.world().set_readiness(pleg_sim::Readiness::default());
    node.until_ready(&uids[0]).await;
    // What runs is not touched when the network goes, and a container is restarted in the sandbox that it has.
    machine.sim.world().set_readiness(readiness);
    while node.pleg.readiness().network_not_ready().is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let app = machine.attempts(&uids[0]).remove(0);
    machine.sim.world().kill_container(&app.id);
    let restarted = |reports: &pleg_node::PodReports| {
        let report = reports.get(&uids[0]);
        report.is_some_and(|report| report.containers()[0].ready && report.containers()[0].restart_count == 1)
    };
    node.until("it is restarted", restarted).await;
    node.stop().await;
    machine.check();
}
