//! Pressure, by figures that a test sets.

use std::fs;
use std::time::Duration;

use pleg::PodUid;
use pleg_node::host::resources::Amount;
use pleg_node::status::Phase;
use pleg_node::{EvictionConfig, PodReports, Threshold};

use crate::machine::{Machine, Running, pod, spec};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

fn memory(mib: u64) -> Amount {
    Amount {
        capacity: 8 * GIB,
        available: mib * MIB,
    }
}

/// What the cgroup of a pod says, in place of the kernel.
fn uses_memory(machine: &Machine, class: &str, uid: &PodUid, bytes: u64) {
    let group = machine
        .dir
        .path()
        .join(format!("cgroup/memory/pleg-test/kubepods{class}/pod{uid}"));
    fs::create_dir_all(&group).unwrap();
    fs::write(group.join("memory.usage_in_bytes"), bytes.to_string()).unwrap();
}

fn condition(node: &Running, kind: &str) -> Option<bool> {
    let all = node.reports.pressure().conditions();
    all.into_iter().find(|one| one.kind == kind).map(|one| one.status)
}

fn reason(reports: &PodReports, uid: &PodUid) -> Option<String> {
    reports.get(uid)?.status.reason.clone()
}

fn burstable(name: &str) -> String {
    spec(
        name,
        "containers: [{name: app, image: img, command: [serve], resources: {requests: {memory: 1Gi}}}]",
    )
}

fn critical(name: &str) -> String {
    spec(
        name,
        "priorityClassName: system-node-critical, containers: [{name: app, image: img, command: [serve]}]",
    )
}

/// As in a kubelet: the pod over its request goes first, one at a time, a critical one never.
#[tokio::test(start_paused = true)]
async fn memory_pressure_evicts_one_pod_at_a_time() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let manifests = [
        pod("small", "serve"),
        burstable("large"),
        pod("greedy", "serve"),
        critical("critical"),
    ];
    let uids = node.want(&manifests).await;
    for uid in &uids {
        node.until_ready(uid).await;
    }
    uses_memory(&machine, "/besteffort", &uids[0], 10 * MIB);
    uses_memory(&machine, "/burstable", &uids[1], 900 * MIB);
    uses_memory(&machine, "/besteffort", &uids[2], 500 * MIB);
    uses_memory(&machine, "/besteffort", &uids[3], 5 * GIB);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(condition(&node, "MemoryPressure"), Some(false));

    // The end of one pod is enough.
    machine.figures().relieved_by = Some((uids[2].clone(), memory(4000)));
    machine.figures().memory = memory(50);
    node.until("evicted", |reports| {
        reason(reports, &uids[2]).as_deref() == Some("Evicted")
    })
    .await;
    node.until_phase(&uids[2], Phase::Failed).await;
    let evicted = node.reports.get(&uids[2]).unwrap().status.clone();
    let message = evicted.message.clone().unwrap();
    assert_eq!(
        message,
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. "
    );
    assert_eq!(condition(&node, "MemoryPressure"), Some(true));
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!machine.runs(&uids[2]), "its containers are stopped");
    for other in [0, 1, 3] {
        assert!(machine.runs(&uids[other]), "{other}");
    }

    // Under pressure a best-effort pod waits, others start.
    let late: Vec<String> = manifests
        .iter()
        .cloned()
        .chain([pod("late", "serve"), burstable("later")])
        .collect();
    let late = node.want(&late).await;
    node.until_ready(&late[5]).await;
    node.until("not admitted", |reports| {
        reason(reports, &late[4]).as_deref() == Some("Evicted")
    })
    .await;
    let waits = node.reports.get(&late[4]).unwrap().status.clone();
    assert_eq!(
        waits.message.as_deref(),
        Some("The node had condition: [MemoryPressure]. ")
    );
    assert_eq!(Phase::of(&waits), Some(Phase::Pending));
    // Five minutes after the last observation the pressure is over.
    node.until_ready(&late[4]).await;
    assert_eq!(condition(&node, "MemoryPressure"), Some(false));
    assert!(
        machine.attempts(&uids[2]).len() <= 1,
        "the evicted pod is not started again"
    );
    node.stop().await;

    // Nor by the next run.
    let node = machine.node().await;
    node.want(&manifests).await;
    node.until_ready(&uids[0]).await;
    node.until_phase(&uids[2], Phase::Failed).await;
    assert_eq!(reason(&node.reports, &uids[2]).as_deref(), Some("Evicted"));
    // An edit does.
    let edited = [manifests[0].clone(), pod("greedy", "serve, 1h")];
    let uid = node.want(&edited).await.remove(1);
    node.until_ready(&uid).await;
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn critical_pods_are_never_evicted() {
    let machine = Machine::start().await;
    machine.figures().memory = memory(1);
    let node = machine.node().await;
    let uid = node.want(&[critical("critical")]).await.remove(0);
    node.until_ready(&uid).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(machine.runs(&uid));
    assert_eq!(condition(&node, "MemoryPressure"), Some(true));
    node.stop().await;
    machine.check();
}

/// Images are removed before a pod is evicted, and if that is enough, no pod is.
#[tokio::test(start_paused = true)]
async fn disk_pressure_removes_images_first() {
    let machine = Machine::start().await;
    let node = machine.node().await;
    let volume = "volumes: [{name: tmp, emptyDir: {}}], containers: [{name: app, image: img, command: [serve]}]";
    let uid = node.want(&[spec("a", volume)]).await.remove(0);
    node.until_ready(&uid).await;
    let volumes = machine.dir.path().join(format!("pods/{uid}/volumes"));
    assert!(volumes.exists());
    for n in 0..9 {
        machine.sim.world().pull_image(&format!("unused{n}")).unwrap();
    }
    // They have to be seen, and to be two minutes old.
    tokio::time::sleep(Duration::from_mins(11)).await;
    let (used, _) = machine.sim.world().image_usage();
    machine.figures().image_disk = Some(used);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let (left, _) = machine.sim.world().image_usage();
    assert!(left < used, "{left} of {used}");
    assert!(machine.runs(&uid));
    assert_eq!(condition(&node, "DiskPressure"), Some(true));
    let report = node.reports.get(&uid).unwrap();
    assert_eq!(report.phase(), Phase::Running);

    // Nothing is left to remove, so the pod goes.
    machine.figures().image_disk = Some(left);
    node.until_phase(&uid, Phase::Failed).await;
    let message = node.reports.get(&uid).unwrap().status.message.clone().unwrap();
    assert!(
        message.starts_with("The node was low on resource: ephemeral-storage. "),
        "{message}"
    );
    // What it wrote is what was needed.
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!machine.runs(&uid) && !volumes.exists());
    node.stop().await;
    machine.check();
}

/// A pod that exceeds the limit of one of its volumes goes, though the node has enough; a critical one stays.
#[tokio::test(start_paused = true)]
async fn a_pod_that_exceeds_its_storage_limit_is_evicted() {
    let machine = Machine::start().await;
    // Also without any threshold of the node.
    let config = EvictionConfig {
        thresholds: Vec::new(),
        ..EvictionConfig::default()
    };
    let node = machine.node_set_up(|node| node.with_eviction(config)).await;
    let limited =
        "volumes: [{name: x, emptyDir: {sizeLimit: 1Mi}}], containers: [{name: app, image: img, command: [serve]}]";
    let critical = format!("priorityClassName: system-node-critical, {limited}");
    let uids = node
        .want(&[spec("a", limited), spec("b", limited), spec("c", &critical)])
        .await;
    for uid in &uids {
        node.until_ready(uid).await;
    }
    let write = |uid: &PodUid, kib: usize| {
        let volume = machine
            .dir
            .path()
            .join(format!("pods/{uid}/volumes/kubernetes.io~empty-dir/x"));
        fs::write(volume.join("file"), vec![1; kib << 10]).unwrap();
    };
    write(&uids[0], 900);
    write(&uids[1], 1100);
    write(&uids[2], 1100);
    node.until_phase(&uids[1], Phase::Failed).await;
    let status = node.reports.get(&uids[1]).unwrap().status.clone();
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    let message = "Usage of EmptyDir volume \"x\" exceeds the limit \"1Mi\". ";
    assert_eq!(status.message.as_deref(), Some(message));
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(!machine.runs(&uids[1]));
    assert!(machine.runs(&uids[0]) && machine.runs(&uids[2]));
    node.stop().await;
    machine.check();
}

#[tokio::test(start_paused = true)]
async fn a_soft_threshold_waits() {
    let machine = Machine::start().await;
    let config = EvictionConfig {
        thresholds: Threshold::parse_soft("pid.available<10%", "pid.available=2m").unwrap(),
        ..EvictionConfig::default()
    };
    let node = machine.node_set_up(|node| node.with_eviction(config)).await;
    let uid = node.want(&[pod("a", "serve")]).await.remove(0);
    node.until_ready(&uid).await;
    machine.figures().processes = Amount {
        capacity: 32_768,
        available: 2_000,
    };
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(machine.runs(&uid));
    assert_eq!(condition(&node, "PIDPressure"), Some(true));
    node.until_phase(&uid, Phase::Failed).await;
    let message = node.reports.get(&uid).unwrap().status.message.clone().unwrap();
    assert_eq!(
        message,
        "The node was low on resource: pids. Threshold quantity: 3276, available: 2k. "
    );
    node.stop().await;
    machine.check();
}

/// What cannot be helped is said when it begins, not every ten seconds.
#[tokio::test(start_paused = true)]
async fn the_same_warning_is_not_repeated() {
    #[derive(Debug, Default)]
    struct Count(std::sync::atomic::AtomicUsize);
    impl pleg_node::events::EventSink for Count {
        fn record(&self, event: pleg_node::events::Event) {
            if event.reason == "EvictionThresholdMet" {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }
    let machine = Machine::start().await;
    let count = std::sync::Arc::new(Count::default());
    let told = || count.0.load(std::sync::atomic::Ordering::Relaxed);
    let sink = std::sync::Arc::clone(&count);
    let node = machine.node_set_up(|node| node.with_events(sink)).await;
    let uids = node.want(&[critical("critical")]).await;
    node.until_ready(&uids[0]).await;
    for times in [1, 2] {
        machine.figures().memory = memory(50);
        tokio::time::sleep(Duration::from_mins(3)).await;
        assert_eq!(told(), times);
        machine.figures().memory = memory(4000);
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
    assert!(machine.runs(&uids[0]));
    node.stop().await;
    machine.check();
}
