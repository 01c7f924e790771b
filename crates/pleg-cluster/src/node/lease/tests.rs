//! Against the fake API server, on paused time.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::super::testing::{FakeCluster, NAME};
use super::*;
use crate::testing::Answer;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a";

struct Kept {
    cluster: FakeCluster,
    node: watch::Sender<Option<Arc<Node>>>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Kept {
    fn start() -> Self {
        let cluster = FakeCluster::start();
        let (node, object) = NodeObject::new();
        let shutdown = CancellationToken::new();
        let keeper = LeaseKeeper::new(cluster.fake.api(), NodeName::new(NAME).unwrap(), object);
        Self {
            cluster,
            node,
            task: tokio::spawn(keeper.run(shutdown.clone())),
            shutdown,
        }
    }

    fn register(&self, uid: &str) {
        let metadata = ObjectMeta {
            uid: Some(uid.to_owned()),
            ..ObjectMeta::default()
        };
        self.node.send_replace(Some(Arc::new(Node {
            metadata,
            ..Node::default()
        })));
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_renewed_every_ten_seconds() {
    let kept = Kept::start();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(kept.cluster.fake.lines(), Vec::<String>::new(), "there is no node yet");
    kept.register("uid-1");
    kept.cluster
        .wait_for("POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", 1)
        .await;
    let lease = kept.cluster.lease().unwrap();
    let spec = lease.spec.clone().unwrap();
    assert_eq!(
        (spec.holder_identity.as_deref(), spec.lease_duration_seconds),
        (Some(NAME), Some(40))
    );
    assert!(spec.renew_time.is_some());
    let owners = lease.metadata.owner_references.unwrap();
    assert_eq!((owners[0].kind.as_str(), owners[0].uid.as_str()), ("Node", "uid-1"));
    sleep(Duration::from_secs(120)).await;
    let renewals = kept.cluster.count(&format!("PUT {LEASE}"));
    assert!((11..=12).contains(&renewals), "{renewals}");
    assert_eq!(kept.cluster.count(&format!("GET {LEASE}")), 1);
    kept.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_over_with_the_next_attempt() {
    let kept = Kept::start();
    kept.register("uid-1");
    kept.cluster.wait_for(&format!("PUT {LEASE}"), 1).await;
    kept.cluster.objects.lock().lease.as_mut().unwrap()["metadata"]["resourceVersion"] = json!("999");
    kept.cluster.wait_for(&format!("PUT {LEASE}"), 2).await;
    let since = tokio::time::Instant::now();
    kept.cluster.wait_for(&format!("PUT {LEASE}"), 3).await;
    assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
    // A lease that was deleted is created again.
    kept.cluster.objects.lock().lease = None;
    sleep(Duration::from_secs(15)).await;
    assert!(kept.cluster.lease().is_some());
    kept.stop().await;
}

/// The control plane gives a node 40 s: an outage shorter than that has to be made up for at once.
#[tokio::test(start_paused = true)]
async fn it_is_renewed_soon_after_an_outage() {
    let kept = Kept::start();
    kept.register("uid-1");
    kept.cluster.wait_for(&format!("PUT {LEASE}"), 1).await;
    for fault in [
        (|_: &_| Some(Answer::Hang)) as fn(&crate::testing::Request) -> Option<Answer>,
        |_| Some(Answer::Fail("connection refused")),
        |_| Some(Answer::refuse(503, "ServiceUnavailable", "starting")),
    ] {
        kept.cluster.objects.lock().fault = Some(fault);
        let before = kept.cluster.fake.lines().len();
        sleep(Duration::from_mins(1)).await;
        let attempts = kept.cluster.fake.lines().len() - before;
        assert!((3..=40).contains(&attempts), "{attempts}");
        kept.cluster.objects.lock().fault = None;
        let renewed = kept.cluster.count(&format!("PUT {LEASE}"));
        let since = tokio::time::Instant::now();
        kept.cluster.wait_for(&format!("PUT {LEASE}"), renewed + 1).await;
        assert!(since.elapsed() <= Duration::from_secs(14), "{:?}", since.elapsed());
    }
    kept.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_has_no_lease() {
    let kept = Kept::start();
    kept.register("uid-1");
    kept.cluster.wait_for(&format!("PUT {LEASE}"), 2).await;
    kept.node.send_replace(None);
    // As the garbage collector does.
    kept.cluster.objects.lock().lease = None;
    sleep(Duration::from_secs(30)).await;
    assert!(kept.cluster.lease().is_none());
    kept.register("uid-2");
    sleep(Duration::from_secs(1)).await;
    let owners = kept.cluster.lease().unwrap().metadata.owner_references.unwrap();
    assert_eq!(owners[0].uid, "uid-2");
    kept.stop().await;
}
