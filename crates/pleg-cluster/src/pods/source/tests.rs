use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{advance, timeout};

use super::*;
use crate::testing::{Answer, FakeApi, Request};

const PODS: &str = "GET /api/v1/pods";

fn pod(name: &str, version: u64) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": version.to_string()},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
        "status": {"startTime": "2027-01-15T08:00:00Z"},
    })
}

fn list(names: &[&str], version: u64) -> Answer {
    let items: Vec<Value> = names.iter().map(|name| pod(name, 1)).collect();
    let metadata = json!({"resourceVersion": version.to_string()});
    Answer::ok(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}))
}

fn event(kind: &str, pod: &Value) -> Value {
    json!({"type": kind, "object": pod})
}

/// A source and what it sends to the node loop.
struct Started {
    fake: FakeApi,
    snapshots: mpsc::Receiver<Snapshot>,
    task: JoinHandle<()>,
}

impl Drop for Started {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Started {
    fn new(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let fake = FakeApi::start(answer);
        let (sender, snapshots) = mpsc::channel(1);
        let name = NodeName::new("n").unwrap();
        let source = PodSource::new(fake.api(), &name, PodTable::default(), sender);
        let task = tokio::spawn(source.run(CancellationToken::new()));
        Self { fake, snapshots, task }
    }

    /// The names of the pods of the next snapshot.
    async fn next(&mut self) -> Vec<String> {
        let snapshot = timeout(Duration::from_mins(10), self.snapshots.recv()).await;
        let snapshot = snapshot.expect("no snapshot").expect("the source has ended");
        assert!(snapshot.complete);
        let name = |desired: &pleg_node::sources::DesiredPod| desired.pod.id.name.to_string();
        snapshot.pods.iter().map(name).collect()
    }

    fn has_another(&mut self) -> bool {
        self.snapshots.try_recv().is_ok()
    }
}

/// Answers watches with the receivers, one after the other, and then hangs.
fn watches(streams: Vec<mpsc::UnboundedReceiver<Value>>) -> impl Fn() -> Answer + Send + Sync {
    let streams = Mutex::new(streams.into_iter());
    move || streams.lock().next().map_or(Answer::Hang, Answer::Watch)
}

#[tokio::test(start_paused = true)]
async fn many_events_make_few_snapshots() {
    let (events, stream) = mpsc::unbounded_channel();
    let watch = watches(vec![stream]);
    let mut started = Started::new(move |request| if request.is_watch() { watch() } else { list(&["a"], 5) });
    assert_eq!(started.next().await, ["a"]);
    started.fake.wait_for(|requests| requests.len() == 2).await;
    let requests = started.fake.requests();
    assert!(requests.iter().all(|request| request.line() == PODS), "{requests:?}");
    assert!(
        requests
            .iter()
            .all(|request| request.query.contains("fieldSelector=spec.nodeName%3Dn"))
    );
    assert!(requests[1].query.contains("resourceVersion=5"), "{}", requests[1].query);
    for n in 10..60 {
        events.send(event("ADDED", &pod(&format!("p{n}"), n))).unwrap();
    }
    events.send(event("DELETED", &pod("a", 99))).unwrap();
    let mut snapshots = 0;
    let last = loop {
        snapshots += 1;
        let names = started.next().await;
        if !names.contains(&"a".to_owned()) {
            break names;
        }
    };
    assert!(last.len() == 50 && snapshots <= 3, "{snapshots} snapshots");
    // What only this node writes is no reason for another.
    let mut running = pod("p10", 100);
    running["status"] = json!({"phase": "Running"});
    events.send(event("MODIFIED", &running)).unwrap();
    advance(Duration::from_secs(1)).await;
    assert!(!started.has_another());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_cut_every_second_costs_one_request_a_second() {
    let mut started = Started::new(|request| {
        if !request.is_watch() {
            return list(&["a"], 5);
        }
        let (events, stream) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            sleep(Duration::from_millis(300)).await;
            drop(events);
        });
        Answer::Watch(stream)
    });
    assert_eq!(started.next().await, ["a"]);
    let before = started.fake.requests().len();
    sleep(Duration::from_mins(1)).await;
    let requests = started.fake.requests();
    let made = requests.len() - before;
    assert!((50..=61).contains(&made), "{made} requests in a minute");
    assert_eq!(
        requests.iter().filter(|request| !request.is_watch()).count(),
        1,
        "it was listed again"
    );
    assert!(!started.has_another(), "nothing changed");
}

#[tokio::test(start_paused = true)]
async fn an_outage_removes_no_pod_and_makes_no_hot_loop() {
    for failure in [
        || Answer::Fail("connection refused"),
        || Answer::refuse(500, "InternalError", "etcd is away"),
        || Answer::refuse(429, "TooManyRequests", "slow down"),
    ] {
        let (events, stream) = mpsc::unbounded_channel();
        let is_away = Arc::new(Mutex::new(false));
        let (watch, away) = (watches(vec![stream]), Arc::clone(&is_away));
        let mut started = Started::new(move |request| match request.is_watch() {
            _ if *away.lock() => failure(),
            true => watch(),
            false => list(&["a"], 5),
        });
        assert_eq!(started.next().await, ["a"]);
        started.fake.wait_for(|requests| requests.len() == 2).await;
        *is_away.lock() = true;
        drop(events);
        sleep(Duration::from_mins(2)).await;
        let made = started.fake.requests().len() - 2;
        assert!((20..=60).contains(&made), "{made} requests in two minutes");
        assert!(!started.has_another());
        *is_away.lock() = false;
        let asked = started.fake.requests().len();
        sleep(Duration::from_secs(6)).await;
        let requests = started.fake.requests();
        assert!(requests.len() > asked, "it was not tried within 6 s");
        assert!(
            !requests[asked].is_watch(),
            "its state may be an older one: a list comes first"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_that_expired_needs_a_list_and_what_is_missing_an_answer() {
    let (events, stream) = mpsc::unbounded_channel();
    let lists = Mutex::new(0);
    let watch = watches(vec![stream]);
    let mut started = Started::new(move |request| {
        if request.path.ends_with("/pods/b") {
            // As the node authorizer does for a pod that does not exist.
            return Answer::refuse(
                403,
                "Forbidden",
                "no relationship found between node 'n' and this object",
            );
        }
        if request.path == "/api/v1/namespaces/default/pods" {
            return list(&[], 9);
        }
        if request.is_watch() {
            return watch();
        }
        *lists.lock() += 1;
        match *lists.lock() {
            1 => list(&["a", "b"], 5),
            _ => list(&["a"], 9),
        }
    });
    assert_eq!(started.next().await, ["a", "b"]);
    let expired = json!({"type": "ERROR", "object": {"code": 410, "reason": "Expired", "status": "Failure", "message": "too old"}});
    events.send(expired).unwrap();
    let began = Instant::now();
    assert_eq!(started.next().await, ["a"]);
    assert!(began.elapsed() >= Duration::from_secs(30), "{:?}", began.elapsed());
    let asked = started.fake.requests().pop().unwrap();
    assert_eq!(asked.line(), "GET /api/v1/namespaces/default/pods");
    assert!(
        asked
            .query
            .contains("fieldSelector=spec.nodeName%3Dn%2Cmetadata.name%3Db"),
        "{}",
        asked.query
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_is_read_page_by_page() {
    let mut started = Started::new(|request| {
        if request.is_watch() {
            return Answer::Hang;
        }
        let (name, token) = if request.query.contains("continue=next") {
            ("b", "")
        } else {
            ("a", "next")
        };
        let metadata = json!({"resourceVersion": "7", "continue": token});
        Answer::ok(&json!({"metadata": metadata, "items": [pod(name, 3)]}))
    });
    assert_eq!(started.next().await, ["a", "b"]);
    assert!(started.fake.requests()[0].query.contains("limit=500"));
}

/// A connection that is half open says nothing: bookmarks would come every minute.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_silent_is_opened_again() {
    let (events, stream) = mpsc::unbounded_channel();
    let (more, second) = mpsc::unbounded_channel();
    let watch = watches(vec![stream, second]);
    let mut started = Started::new(move |request| if request.is_watch() { watch() } else { list(&[], 5) });
    assert_eq!(started.next().await, [""; 0]);
    let bookmark = json!({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "8"}}});
    events.send(bookmark).unwrap();
    started.fake.wait_for(|requests| requests.len() == 3).await;
    assert!(started.fake.requests()[2].query.contains("resourceVersion=8"));
    more.send(event("ADDED", &pod("late", 9))).unwrap();
    assert_eq!(started.next().await, ["late"]);
}

/// Labels may be newer on the API server than what was read before.
#[tokio::test(start_paused = true)]
async fn a_pod_is_rejected_only_by_what_was_just_read() {
    let (events, stream) = mpsc::unbounded_channel();
    let watch = watches(vec![stream]);
    let label = Arc::new(Mutex::new("hdd"));
    let current = Arc::clone(&label);
    let mut started = Started::new(move |request| match request.path.as_str() {
        "/api/v1/nodes/n" => Answer::ok(&json!({"metadata": {"name": "n", "labels": {"disk": *current.lock()}}})),
        _ if request.is_watch() => watch(),
        _ => list(&[], 5),
    });
    assert_eq!(started.next().await, [""; 0]);
    let with_selector = |name: &str, disk: &str, version: u64| {
        let mut pod = pod(name, version);
        pod["status"] = json!({});
        pod["spec"]["nodeSelector"] = json!({"disk": disk});
        pod
    };
    let node_reads = |fake: &FakeApi| fake.lines().iter().filter(|line| line.ends_with("/nodes/n")).count();
    events.send(event("ADDED", &with_selector("a", "hdd", 10))).unwrap();
    assert_eq!(started.next().await, ["a"]);
    assert_eq!(node_reads(&started.fake), 1);
    *label.lock() = "ssd";
    events.send(event("ADDED", &with_selector("b", "ssd", 11))).unwrap();
    assert_eq!(started.next().await, ["a", "b"]);
    assert_eq!(node_reads(&started.fake), 2);
    events.send(event("ADDED", &with_selector("c", "hdd", 12))).unwrap();
    let snapshot = started.snapshots.recv().await.unwrap();
    let rejected = |name: &str| {
        let pod = snapshot
            .pods
            .iter()
            .find(|desired| &*desired.pod.id.name == name)
            .unwrap();
        pod.pod.rejected.as_ref().map(|failure| failure.reason.clone())
    };
    assert_eq!((rejected("b"), rejected("c").as_deref()), (None, Some("NodeAffinity")));
}
