use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use parking_lot::Mutex;
use pleg_node::Report;
use pleg_node::reconcile::decide::{Goal, Stage};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::testing::{Answer, FakeApi, Request};

fn object(name: &str, deleting: bool) -> Value {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Pending", "conditions": [{"type": "example.com/gate", "status": "True"}]},
    });
    if deleting {
        object["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z".into();
    }
    object
}

/// Answers instead of the server, if it does.
type Fail = fn(&Request) -> Option<Answer>;

/// The API server with its pods, which takes patches. `fail` answers instead, if it does.
struct Server {
    pods: Mutex<std::collections::BTreeMap<String, Value>>,
    version: Mutex<u64>,
    fail: Mutex<Option<Fail>>,
}

impl Server {
    fn answer(&self, request: &Request) -> Answer {
        if let Some(answer) = self.fail.lock().and_then(|fail| fail(request)) {
            return answer;
        }
        if request.line() == "GET /api/v1/namespaces/default/pods" {
            let is = |name: &str| request.query.ends_with(&format!("metadata.name%3D{name}"));
            let pods = self.pods.lock();
            let items: Vec<&Value> = pods.iter().filter(|(name, _)| is(name)).map(|(_, pod)| pod).collect();
            return Answer::ok(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}));
        }
        let name = request.path.trim_start_matches("/api/v1/namespaces/default/pods/");
        let name = name.trim_end_matches("/status");
        let mut pods = self.pods.lock();
        let Some(pod) = pods.get_mut(name) else {
            return Answer::not_found();
        };
        match request.method.as_str() {
            "PATCH" if request.body["metadata"]["uid"] != pod["metadata"]["uid"] => {
                Answer::refuse(409, "Conflict", "Precondition failed: UID")
            }
            "PATCH" => {
                *self.version.lock() += 1;
                pod["metadata"]["resourceVersion"] = self.version.lock().to_string().into();
                for (key, value) in request.body["status"].as_object().unwrap() {
                    // Good enough for what these tests send.
                    pod["status"][key] = value.clone();
                }
                Answer::ok(pod)
            }
            "DELETE" => {
                let gone = pods.remove(name);
                Answer::ok(&gone)
            }
            // As the node authorizer does, sooner or later.
            _ => Answer::refuse(
                403,
                "Forbidden",
                "no relationship found between node 'n' and this object",
            ),
        }
    }
}

struct Started {
    server: Arc<Server>,
    fake: FakeApi,
    table: PodTable,
    reports: PodReports,
    task: JoinHandle<()>,
}

impl Drop for Started {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Started {
    fn new(pods: &[Value]) -> Self {
        let server = Arc::new(Server {
            pods: Mutex::default(),
            version: Mutex::new(10),
            fail: Mutex::new(None),
        });
        let table = PodTable::default();
        let listed = pods.iter().map(|pod| serde_json::from_value(pod.clone()).unwrap());
        table.relist_for_tests(listed.collect());
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
            server.pods.lock().insert(name, pod.clone());
        }
        let answering = Arc::clone(&server);
        let fake = FakeApi::start(move |request| answering.answer(request));
        let reports = PodReports::default();
        let publisher = StatusPublisher::new(fake.api(), &NodeName::new("n").unwrap(), table.clone(), reports.clone());
        let task = tokio::spawn(publisher.run(CancellationToken::new()));
        Self {
            server,
            fake,
            table,
            reports,
            task,
        }
    }

    fn report(&self, name: &str, status: Value) -> Report {
        let known = self.table.get(&format!("uid-{name}").as_str().into()).unwrap();
        Report {
            pod: known.pod,
            status: Arc::new(serde_json::from_value(status).unwrap()),
            stage: Stage::Running,
            goal: Goal::Run,
            stale: None,
            stuck: None,
        }
    }

    fn set(&self, name: &str, phase: &str) {
        self.reports.set(self.report(name, json!({"phase": phase})));
    }

    fn fail(&self, fail: Option<Fail>) {
        *self.server.fail.lock() = fail;
    }

    fn phase(&self, name: &str) -> String {
        let pods = self.server.pods.lock();
        pods[name]["status"]["phase"].as_str().unwrap().to_owned()
    }

    async fn has_phase(&self, name: &str, phase: &str) {
        let began = Instant::now();
        while self.phase(name) != phase {
            assert!(
                began.elapsed() < Duration::from_mins(5),
                "{name} is {}",
                self.phase(name)
            );
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_changed_is_sent_once() {
    let started = Started::new(&[object("a", false)]);
    started.set("a", "Running");
    started.fake.wait_for(|requests| requests.len() == 1).await;
    let request = &started.fake.requests()[0];
    assert_eq!(request.line(), "PATCH /api/v1/namespaces/default/pods/a/status");
    assert_eq!(request.content_type, "application/strategic-merge-patch+json");
    assert_eq!(
        request.body,
        json!({"metadata": {"uid": "uid-a"}, "status": {"phase": "Running"}})
    );
    // The same again, and what the API server has already, cost nothing.
    started
        .reports
        .set(started.report("a", json!({"phase": "Running", "reason": "StatusStale"})));
    sleep(Duration::from_mins(1)).await;
    assert_eq!(started.fake.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_patch_for_a_pod_at_a_time_and_the_newest_wins() {
    let started = Started::new(&[object("a", false)]);
    started.fail(Some(|_| Some(Answer::Hang)));
    started.set("a", "Running");
    started.fake.wait_for(|requests| requests.len() == 1).await;
    for reason in ["one", "two", "three"] {
        let status = json!({"phase": "Running", "reason": reason});
        started.reports.set(started.report("a", status));
    }
    sleep(Duration::from_secs(5)).await;
    assert_eq!(started.fake.requests().len(), 1);
    started.fail(None);
    started.fake.wait_for(|requests| requests.len() == 2).await;
    assert_eq!(
        started.fake.requests()[1].body["status"],
        json!({"phase": "Running", "reason": "three"})
    );
}

#[tokio::test(start_paused = true)]
async fn an_outage_loses_no_status_and_makes_no_hot_loop() {
    let names: Vec<String> = (0..200).map(|n| format!("p{n}")).collect();
    let pods: Vec<Value> = names.iter().map(|name| object(name, false)).collect();
    let started = Started::new(&pods);
    started.fail(Some(|_| Some(Answer::Fail("connection refused"))));
    for name in &names {
        started.set(name, "Running");
    }
    sleep(Duration::from_mins(10)).await;
    let made = started.fake.requests().len();
    // At first as many as are in flight, then one every few seconds.
    assert!((100..=200).contains(&made), "{made} requests in ten minutes");
    started.fail(None);
    sleep(Duration::from_secs(10)).await;
    for name in &names {
        assert_eq!(started.phase(name), "Running");
    }
    assert_eq!(started.fake.requests().len(), made + names.len());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_refused_keeps_no_other_waiting() {
    let started = Started::new(&[object("a", false), object("b", false)]);
    started.fail(Some(|request| {
        let is_bad = request.path.contains("/pods/a/");
        is_bad.then(|| Answer::refuse(500, "InternalError", "a webhook of this namespace"))
    }));
    started.set("a", "Running");
    started.set("b", "Running");
    started.has_phase("b", "Running").await;
    sleep(Duration::from_mins(2)).await;
    let made = started.fake.requests().len();
    assert!((20..=60).contains(&made), "{made} requests in two minutes");
    started.fail(None);
    started.has_phase("a", "Running").await;
}

#[tokio::test(start_paused = true)]
async fn what_others_overwrite_is_written_again() {
    let started = Started::new(&[object("a", false)]);
    started.set("a", "Running");
    started.has_phase("a", "Running").await;
    let mut overwritten = object("a", false);
    overwritten["metadata"]["resourceVersion"] = "50".into();
    *started.server.version.lock() = 50;
    started.server.pods.lock().insert("a".to_owned(), overwritten.clone());
    started
        .table
        .apply(serde_json::from_value::<core::Pod>(overwritten).unwrap());
    assert_eq!(started.phase("a"), "Pending");
    sleep(RECONCILE * 2).await;
    assert_eq!(
        (started.phase("a").as_str(), started.fake.requests().len()),
        ("Running", 2)
    );
}

#[tokio::test(start_paused = true)]
async fn a_deletion_ends_after_the_last_status_and_survives_an_outage() {
    let started = Started::new(&[object("a", true)]);
    started.set("a", "Running");
    started.has_phase("a", "Running").await;
    // The patch goes well, and then the API server is away.
    started.fail(Some(|request| {
        (request.method == "DELETE").then_some(Answer::Fail("no route"))
    }));
    started
        .reports
        .set_last(started.report("a", json!({"phase": "Succeeded"})));
    started.has_phase("a", "Succeeded").await;
    sleep(Duration::from_mins(2)).await;
    started.fail(None);
    started
        .fake
        .wait_for(|requests| requests.iter().filter(|one| one.method == "PATCH").count() == 2)
        .await;
    while started.server.pods.lock().contains_key("a") {
        sleep(Duration::from_millis(100)).await;
    }
    let requests = started.fake.requests();
    let delete = requests.last().unwrap();
    assert_eq!(delete.line(), "DELETE /api/v1/namespaces/default/pods/a");
    assert_eq!(delete.body["gracePeriodSeconds"], 0);
    assert_eq!(delete.body["preconditions"], json!({"uid": "uid-a"}));
}

#[tokio::test(start_paused = true)]
async fn only_what_is_being_deleted_is_deleted() {
    let started = Started::new(&[object("a", false), object("gone", true), object("other", true)]);
    started.server.pods.lock().remove("gone");
    started.server.pods.lock().get_mut("other").unwrap()["metadata"]["uid"] = "newer".into();
    for name in ["a", "gone", "other"] {
        started
            .reports
            .set_last(started.report(name, json!({"phase": "Failed"})));
    }
    sleep(Duration::from_mins(2)).await;
    assert_eq!(started.phase("a"), "Failed");
    assert_eq!(started.phase("other"), "Pending", "it is another pod");
    let lines = started.fake.lines();
    // A DELETE of a pod of another UID changes nothing: the fake ignores preconditions, so there must be none at all for `a`.
    assert!(
        !lines.contains(&"DELETE /api/v1/namespaces/default/pods/a".to_owned()),
        "{lines:?}"
    );
    assert!(lines.len() < 10, "{lines:?}");
}
