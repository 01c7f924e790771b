//! Against the fake API server, on paused time.

use k8s_openapi::api::core::v1::NodeCondition;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::advance;

use super::super::NodeObject;
use super::super::machine::Machine;
use super::super::testing::{FakeCluster, NAME};
use super::*;
use crate::testing::Answer;

const POST: &str = "POST /api/v1/nodes";
const GET: &str = "GET /api/v1/nodes/a";
const PATCH: &str = "PATCH /api/v1/nodes/a/status";
const WATCH: &str = "GET /api/v1/nodes";

struct Managed {
    cluster: FakeCluster,
    object: NodeObject,
    /// Why the node is not ready.
    trouble: Arc<Mutex<Vec<String>>>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Managed {
    fn start(cluster: &FakeCluster, settings: NodeSettings) -> Self {
        let (sender, object) = NodeObject::new();
        let (_, images) = watch::channel(Vec::new());
        let trouble: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&trouble);
        let observe: Observe = Box::new(move || Observation {
            not_ready_because: seen.lock().clone(),
            pressure: Vec::new(),
        });
        let name = NodeName::new(NAME).unwrap();
        let manager = NodeManager::new(cluster.fake.api(), name, settings, observe, images, sender);
        let shutdown = CancellationToken::new();
        Self {
            cluster: cluster.clone(),
            object,
            trouble,
            task: tokio::spawn(manager.run(shutdown.clone())),
            shutdown,
        }
    }

    fn ready(&self) -> NodeCondition {
        let status = self.cluster.node().unwrap().status.unwrap();
        status
            .conditions
            .unwrap()
            .into_iter()
            .find(|condition| condition.type_ == "Ready")
            .unwrap()
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

fn settings() -> NodeSettings {
    NodeSettings {
        ips: vec!["192.0.2.7".parse().unwrap()],
        machine: Machine {
            machine_id: "m".to_owned(),
            system_uuid: "u".to_owned(),
            boot_id: "b".to_owned(),
            architecture: "amd64".to_owned(),
            ..Machine::default()
        },
        ..NodeSettings::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_at_rest_costs_a_heartbeat_every_five_minutes() {
    let cluster = FakeCluster::start();
    let mut node = Managed::start(&cluster, settings());
    let registered = node.object.registered().await;
    assert_eq!(registered.metadata.uid.as_deref(), Some("uid-1"));
    assert_eq!(node.ready().message.as_deref(), Some("pleg is posting ready status"));
    cluster.wait_for(WATCH, 1).await;
    advance(Duration::from_secs(299)).await;
    assert_eq!((cluster.count(POST), cluster.count(PATCH)), (1, 0));
    cluster.wait_for(PATCH, 1).await;
    let before = cluster.fake.lines().len();
    sleep(Duration::from_secs(280)).await;
    // Of the five minutes, one heartbeat and the watch.
    assert!(cluster.fake.lines().len() - before <= 2, "{:?}", cluster.fake.lines());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_is_posted_at_once_and_only_once() {
    let cluster = FakeCluster::start();
    let mut node = Managed::start(&cluster, settings());
    node.object.registered().await;
    cluster.wait_for(WATCH, 1).await;
    sleep(Duration::from_secs(60)).await;
    let before = node.ready();
    *node.trouble.lock() = vec!["container runtime is down".to_owned()];
    let since = Instant::now();
    cluster.wait_for(PATCH, 1).await;
    assert!(since.elapsed() <= Duration::from_secs(1));
    let turned = node.ready();
    assert_eq!(
        (
            turned.status.as_str(),
            turned.reason.as_deref(),
            turned.message.as_deref()
        ),
        ("False", Some("KubeletNotReady"), Some("container runtime is down"))
    );
    assert!(turned.last_transition_time >= before.last_transition_time);
    sleep(Duration::from_mins(4)).await;
    assert_eq!(cluster.count(PATCH), 1);
    node.trouble.lock().clear();
    cluster.wait_for(PATCH, 2).await;
    assert_eq!(node.ready().status, "True");
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_existing_node_is_reconciled_after_a_restart() {
    let cluster = FakeCluster::start();
    let mut first = Managed::start(&cluster, settings());
    first.object.registered().await;
    first.stop().await;
    cluster.change_node(|node| {
        node["metadata"]["labels"]["kubernetes.io/arch"] = "mips".into();
        node["metadata"]["labels"]["mine"] = "stays".into();
        node["status"]["capacity"]["example.com/dongle"] = "4".into();
        let conditions = node["status"]["conditions"].as_array_mut().unwrap();
        conditions.push(json!({"type": "KernelDeadlock", "status": "False"}));
    });
    let mut second = Managed::start(&cluster, settings());
    second.object.registered().await;
    let node = cluster.node().unwrap();
    let labels = node.metadata.labels.unwrap();
    assert_eq!(
        (labels["kubernetes.io/arch"].as_str(), labels["mine"].as_str()),
        ("amd64", "stays")
    );
    let status = node.status.unwrap();
    assert_eq!(status.allocatable.unwrap()["example.com/dongle"].0, "4");
    assert_eq!(status.conditions.unwrap().len(), 5);
    assert_eq!((cluster.count(POST), cluster.count(PATCH)), (2, 1));
    assert_eq!(node.metadata.uid.as_deref(), Some("uid-1"));
    second.stop().await;
}

/// A controller gives up a node that was silent; the node says that it is there as soon as it knows.
#[tokio::test(start_paused = true)]
async fn what_a_controller_wrote_is_corrected() {
    let cluster = FakeCluster::start();
    let mut node = Managed::start(&cluster, settings());
    node.object.registered().await;
    cluster.wait_for(WATCH, 1).await;
    sleep(Duration::from_secs(20)).await;
    let unknown = |node: &mut serde_json::Value| node["status"]["conditions"][3]["status"] = "Unknown".into();
    cluster.change_node(unknown);
    cluster.wait_for(PATCH, 1).await;
    assert_eq!(node.ready().status, "True");
    // A writer that insists is answered every ten seconds, not at once.
    let since = Instant::now();
    cluster.change_node(unknown);
    cluster.wait_for(PATCH, 2).await;
    assert!(since.elapsed() >= Duration::from_secs(9), "{:?}", since.elapsed());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_is_registered_again_or_stays_away() {
    for (register, posts) in [(Register::Always, 2), (Register::Once, 1)] {
        let cluster = FakeCluster::start();
        let settings = NodeSettings { register, ..settings() };
        let mut node = Managed::start(&cluster, settings);
        node.object.registered().await;
        cluster.wait_for(WATCH, 1).await;
        sleep(Duration::from_secs(5)).await;
        cluster.delete_node();
        sleep(Duration::from_mins(1)).await;
        assert_eq!(cluster.count(POST), posts, "{register:?}");
        assert_eq!(node.object.get().is_some(), register == Register::Always);
        node.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_others_create_is_waited_for() {
    let cluster = FakeCluster::start();
    let settings = NodeSettings {
        register: Register::Never,
        ..settings()
    };
    let mut node = Managed::start(&cluster, settings);
    cluster.wait_for(GET, 5).await;
    assert_eq!(cluster.count(POST), 0);
    cluster.objects.lock().node = Some(json!({"metadata": {"name": NAME, "uid": "theirs", "resourceVersion": "1"}}));
    node.object.registered().await;
    assert_eq!(node.ready().status, "True");
    node.stop().await;
}

/// Attempts back off from 100 ms to 7 s, and the first answer after an outage ends the wait.
#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_down_is_retried_without_a_storm() {
    let cluster = FakeCluster::start();
    cluster.objects.lock().fault = Some(|_| Some(Answer::Fail("connection refused")));
    let mut node = Managed::start(&cluster, settings());
    sleep(Duration::from_mins(2)).await;
    let attempts = cluster.count(POST);
    assert!((15..=30).contains(&attempts), "{attempts}");
    assert!(!cluster.fake.api().reach().is_reachable());
    cluster.objects.lock().fault = None;
    let since = Instant::now();
    node.object.registered().await;
    assert!(since.elapsed() <= Duration::from_secs(8));
    assert!(cluster.fake.api().reach().is_reachable());
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_later_changes_nothing_but_the_time_of_the_patch() {
    let cluster = FakeCluster::start();
    let mut node = Managed::start(&cluster, settings());
    node.object.registered().await;
    cluster.wait_for(WATCH, 1).await;
    for fault in [
        (|_: &_| Some(Answer::Hang)) as fn(&crate::testing::Request) -> Option<Answer>,
        |_| Some(Answer::refuse(500, "InternalError", "etcd is away")),
        |_| Some(Answer::refuse(429, "TooManyRequests", "slow down")),
    ] {
        cluster.objects.lock().fault = Some(fault);
        let (before, change) = (cluster.fake.lines().len(), node.trouble.lock().is_empty());
        *node.trouble.lock() = if change {
            vec!["container runtime is down".to_owned()]
        } else {
            Vec::new()
        };
        sleep(Duration::from_mins(2)).await;
        let requests = cluster.fake.lines().len() - before;
        assert!(requests < 80, "{requests} requests in two minutes");
        assert!(node.object.get().is_some(), "an outage deletes nothing");
        cluster.objects.lock().fault = None;
        sleep(Duration::from_secs(10)).await;
        assert_eq!(node.ready().status, if change { "False" } else { "True" });
    }
    node.stop().await;
}

/// A node of our name that belongs to another machine is left alone as long as that machine renews its lease.
#[tokio::test(start_paused = true)]
async fn the_name_of_a_machine_that_runs_is_not_taken_over() {
    let cluster = FakeCluster::start();
    let theirs = NodeSettings {
        machine: Machine {
            machine_id: "other".to_owned(),
            system_uuid: "other".to_owned(),
            ..Machine::default()
        },
        ..settings()
    };
    let mut other = Managed::start(&cluster, theirs);
    other.object.registered().await;
    other.stop().await;
    let renew = |second: i64| {
        let at = Timestamp::from_second(second).unwrap();
        cluster.objects.lock().lease =
            Some(json!({"metadata": {"name": NAME}, "spec": {"renewTime": format!("{at:.6}")}}));
    };
    renew(0);
    let mut node = Managed::start(&cluster, settings());
    for second in 1..30 {
        renew(second);
        sleep(Duration::from_secs(10)).await;
    }
    assert!(node.object.get().is_none());
    assert_eq!(cluster.count(PATCH), 0);
    // It is gone: its node is ours.
    let since = Instant::now();
    node.object.registered().await;
    assert!((40..=90).contains(&since.elapsed().as_secs()), "{:?}", since.elapsed());
    assert_eq!(
        cluster.node().unwrap().status.unwrap().node_info.unwrap().machine_id,
        "m"
    );
    node.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_node_is_no_hot_loop() {
    let cluster = FakeCluster::start();
    cluster.objects.lock().fault = Some(|_| Some(Answer::refuse(403, "Forbidden", "nodes \"a\" is forbidden")));
    let node = Managed::start(&cluster, settings());
    sleep(Duration::from_mins(2)).await;
    // Each attempt creates and gets.
    let requests = cluster.fake.lines().len();
    assert!((30..=60).contains(&requests), "{requests}");
    assert!(node.object.get().is_none());
    node.stop().await;
}
