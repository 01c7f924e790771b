//! Against a fake API server, with paused time.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use pleg::{PodRef, Trouble};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::super::finding::Finding;
use super::*;
use crate::testing::{Answer, FakeApi, Request};

/// What the API server has, and what is wrong with it.
#[derive(Default)]
struct Objects {
    /// Nodes and pods, by path.
    objects: BTreeMap<String, Value>,
    fault: Option<fn(&Request) -> Option<Answer>>,
}

impl Objects {
    fn answer(&mut self, request: &Request) -> Answer {
        if let Some(answer) = self.fault.and_then(|fault| fault(request)) {
            return answer;
        }
        if request.path.ends_with("/events") || request.path.contains("/events/") {
            return Answer::Json(201, request.body.clone());
        }
        if request.path == "/api/v1/pods" || request.path == "/api/v1/nodes" {
            let kind = if request.path.ends_with("pods") {
                "/pods/"
            } else {
                "/nodes/"
            };
            let items = self.objects.iter().filter(|(path, _)| path.contains(kind));
            let items: Vec<&Value> = items.map(|(_, object)| object).collect();
            return Answer::ok(&json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}));
        }
        let path = request.path.trim_end_matches("/status");
        let Some(object) = self.objects.get_mut(path) else {
            return Answer::not_found();
        };
        if request.method == "PATCH" {
            let uid = &request.body["metadata"]["uid"];
            if !uid.is_null() && *uid != object["metadata"]["uid"] {
                return Answer::refuse(409, "Conflict", "another UID");
            }
            merge(object, &request.body["status"]["conditions"]);
        }
        Answer::ok(object)
    }
}

/// A strategic merge of conditions.
fn merge(object: &mut Value, patch: &Value) {
    let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    for new in patch.as_array().into_iter().flatten() {
        conditions.retain(|old| old["type"] != new["type"]);
        if new["$patch"] != "delete" {
            conditions.push(new.clone());
        }
    }
    object["status"]["conditions"] = conditions.into();
}

#[derive(Default)]
struct FakeFindings(Mutex<Option<Vec<Finding>>>);

impl Findings for FakeFindings {
    fn now(&self) -> Option<Vec<Finding>> {
        self.0.lock().clone()
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<PodRef> {
        (namespace == "shop").then(|| pod(name))
    }
}

fn pod(name: &str) -> PodRef {
    PodRef {
        uid: format!("uid-{name}").as_str().into(),
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn stuck(name: &str) -> Finding {
    Finding {
        trouble: Trouble::StuckInspection,
        text: format!("ContainerStatus of container app in pod shop/{name} is not answered"),
        pod: Some(pod(name)),
        age: Duration::from_secs(10),
    }
}

const NODE: &str = "/api/v1/nodes/n1";

/// A reporter beside a kubelet.
struct Case {
    objects: Arc<Mutex<Objects>>,
    fake: FakeApi,
    findings: Arc<FakeFindings>,
    handle: ReportHandle,
    shutdown: CancellationToken,
}

impl Case {
    /// With conditions that the node has already.
    fn start(conditions: &[Value], change: impl FnOnce(&mut ReporterConfig)) -> Self {
        let objects: Arc<Mutex<Objects>> = Arc::default();
        let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady"});
        let all: Vec<&Value> = std::iter::once(&ready).chain(conditions).collect();
        let node = json!({
            "metadata": {"name": "n1", "uid": "uid-n1"}, "spec": {"taints": []},
            "status": {"conditions": all, "nodeInfo": node_info("boot-1")},
        });
        objects.lock().objects.insert(NODE.to_owned(), node);
        for name in ["web", "db"] {
            let pod =
                json!({"metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}")}, "status": {}});
            let path = format!("/api/v1/namespaces/shop/pods/{name}");
            objects.lock().objects.insert(path, pod);
        }
        let server = Arc::clone(&objects);
        let fake = FakeApi::start(move |request| server.lock().answer(request));
        let mut config = ReporterConfig {
            node: NodeName::new("n1").unwrap(),
            boot_id: "boot-1".to_owned(),
            pod_conditions: false,
            found_within: Duration::from_mins(1),
        };
        change(&mut config);
        let findings = Arc::new(FakeFindings::default());
        *findings.0.lock() = Some(Vec::new());
        let reporter = Reporter::new(fake.api(), config, Arc::clone(&findings) as _);
        let (handle, shutdown) = (reporter.handle(), CancellationToken::new());
        tokio::spawn(reporter.run(shutdown.clone()));
        Self {
            objects,
            fake,
            findings,
            handle,
            shutdown,
        }
    }

    fn find(&self, found: &[Finding]) {
        *self.findings.0.lock() = Some(found.to_vec());
    }

    /// Our condition of the node, or of a pod, as `status reason`.
    fn condition(&self, path: &str) -> String {
        let objects = self.objects.lock();
        let conditions = objects.objects[path]["status"]["conditions"].as_array().cloned();
        let mut ours = conditions.into_iter().flatten().filter(|one| one["type"] == STUCK);
        ours.next().map_or_else(String::new, |ours| {
            let word = |name: &str| ours[name].as_str().unwrap_or_default().to_owned();
            format!("{} {}", word("status"), word("reason"))
        })
    }

    /// Waits until it is this.
    async fn until(&self, path: &str, expected: &str) {
        let waited = timeout(Duration::from_hours(1), async {
            while self.condition(path) != expected {
                sleep(Duration::from_millis(100)).await;
            }
        });
        assert!(
            waited.await.is_ok(),
            "{}: {:?}",
            self.condition(path),
            self.fake.lines()
        );
    }

    /// Events so far, as `kind/name type reason`.
    fn events(&self) -> Vec<String> {
        let created = self
            .fake
            .requests()
            .into_iter()
            .filter(|request| request.method == "POST");
        let line = |event: Value| {
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let object = &event["involvedObject"];
            let parts = [&object["kind"], &object["uid"], &event["type"], &event["reason"]];
            parts.map(word).join(" ")
        };
        created.map(|request| line(request.body)).collect()
    }

    fn requests_of(&self, method: &str) -> usize {
        self.fake
            .requests()
            .iter()
            .filter(|request| request.method == method)
            .count()
    }
}

fn node_info(boot_id: &str) -> Value {
    let mut info = json!({"bootID": boot_id});
    for name in [
        "architecture",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "kubeletVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ] {
        info[name] = "x".into();
    }
    info
}

const FINE: &str = "False NothingIsStuck";
const BAD: &str = "True StuckInspection";

#[tokio::test(start_paused = true)]
async fn a_trouble_is_reported_and_cleared() {
    let case = Case::start(&[], |_| ());
    case.until(NODE, FINE).await;
    assert_eq!(case.events(), Vec::<String>::new());
    let began = Instant::now();
    case.find(&[stuck("web")]);
    case.until(NODE, BAD).await;
    assert!(began.elapsed() <= Duration::from_secs(12), "{:?}", began.elapsed());
    sleep(Duration::from_mins(2)).await;
    case.find(&[]);
    case.until(NODE, FINE).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(
        case.events(),
        [
            "Pod uid-web Warning StuckInspection",
            "Node uid-n1 Warning StuckInspection",
            "Pod uid-web Normal Recovered",
            "Node uid-n1 Normal Recovered",
        ]
    );
    let lines = case.fake.lines();
    assert!(
        lines.contains(&"POST /api/v1/namespaces/shop/events".to_owned()),
        "{lines:?}"
    );
    // Nothing but our own is touched.
    let patches = case
        .fake
        .requests()
        .into_iter()
        .filter(|request| request.method == "PATCH");
    for patch in patches.filter(|request| request.path.starts_with("/api/v1/nodes")) {
        assert_eq!(patch.path, format!("{NODE}/status"));
        assert_eq!(patch.content_type, "application/strategic-merge-patch+json");
        let (body, conditions) = (patch.body.as_object().unwrap(), &patch.body["status"]["conditions"]);
        assert!(
            body.len() == 1 && patch.body["status"].as_object().unwrap().len() == 1,
            "{body:?}"
        );
        assert!(
            conditions.as_array().unwrap().iter().all(|one| one["type"] == STUCK),
            "{conditions}"
        );
    }
    let ready = case.objects.lock().objects[NODE]["status"]["conditions"][0].clone();
    assert_eq!(
        ready,
        json!({"type": "Ready", "status": "True", "reason": "KubeletReady"})
    );
    case.shutdown.cancel();
}

#[tokio::test(start_paused = true)]
async fn at_rest_there_is_one_request_in_five_minutes() {
    let case = Case::start(&[], |_| ());
    case.until(NODE, FINE).await;
    let before = case.fake.requests().len();
    sleep(Duration::from_hours(10)).await;
    let after = case.fake.requests().len() - before;
    assert!((100..=120).contains(&after), "{after} in 10 h");
}

/// Before everything was looked at, nothing is known.
#[tokio::test(start_paused = true)]
async fn nothing_is_said_before_it_is_known() {
    let case = Case::start(&[], |_| ());
    *case.findings.0.lock() = None;
    sleep(Duration::from_mins(5)).await;
    assert_eq!(case.condition(NODE), "");
    case.find(&[]);
    case.until(NODE, FINE).await;
}

#[tokio::test(start_paused = true)]
async fn a_trouble_that_comes_and_goes_is_no_flood() {
    let case = Case::start(&[], |_| ());
    case.until(NODE, FINE).await;
    let before = case.fake.requests().len();
    for round in 0..360 {
        case.find(&if round % 2 == 0 {
            vec![stuck("web"), stuck("db")]
        } else {
            vec![]
        });
        sleep(Duration::from_secs(10)).await;
    }
    let (patches, posts) = (case.requests_of("PATCH"), case.requests_of("POST"));
    let all = case.fake.requests().len() - before;
    // Without limits there would be some 2000.
    assert!(
        all < 700 && posts < 60,
        "{all} requests: {patches} patches, {posts} events"
    );
}

#[expect(clippy::unnecessary_wraps, reason = "the signature of a fault")]
fn is_away(_: &Request) -> Option<Answer> {
    Some(Answer::Fail("no route"))
}

#[expect(clippy::unnecessary_wraps, reason = "the signature of a fault")]
fn throttles(_: &Request) -> Option<Answer> {
    Some(Answer::refuse(429, "TooManyRequests", "slow down"))
}

/// Ten minutes: few requests, the state is reported afterwards and no backlog, and health says so meanwhile.
#[tokio::test(start_paused = true)]
async fn an_outage_ends_with_the_state_of_the_day() {
    for fault in [is_away as fn(&Request) -> _, throttles] {
        let case = Case::start(&[], |_| ());
        case.until(NODE, FINE).await;
        let before = case.fake.requests().len();
        case.objects.lock().fault = Some(fault);
        for minute in 0..10 {
            case.find(&[stuck(&format!("brief-{minute}"))]);
            sleep(Duration::from_mins(1)).await;
        }
        let during = case.fake.requests().len() - before;
        assert!(during < 120, "{during} requests in ten minutes");
        let progress = case.handle.progress();
        let error = progress.error.unwrap_or_default();
        assert!(error.starts_with("cannot patch nodes/status of node n1: "), "{error}");
        assert!(progress.failing_since.is_some() && progress.stuck == Some(false));
        case.find(&[stuck("web")]);
        sleep(Duration::from_secs(10)).await;
        case.objects.lock().fault = None;
        case.until(NODE, BAD).await;
        sleep(Duration::from_mins(2)).await;
        assert_eq!(case.handle.progress().error, None);
        let told: Vec<String> = case.events();
        let web = told.iter().filter(|line| line.contains("uid-web")).count();
        assert!(web == 1, "{told:?}");
    }
}

/// Each verb that is missing is named, and the rest works.
#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_named_and_the_rest_works() {
    fn forbids(verb: &str, path: &str, request: &Request) -> Option<Answer> {
        let is = request.method == verb && request.path.contains(path);
        is.then(|| Answer::refuse(403, "Forbidden", "User \"x\" cannot do this"))
    }
    let no_patch: fn(&Request) -> _ = |request| forbids("PATCH", "/nodes/", request);
    let no_get: fn(&Request) -> _ = |request| forbids("GET", "/nodes/", request);
    let no_events: fn(&Request) -> _ = |request| forbids("POST", "/events", request);
    let no_counts: fn(&Request) -> _ = |request| forbids("PATCH", "/events/", request);
    let no_pods: fn(&Request) -> _ = |request| forbids("PATCH", "/pods/", request);
    let asked = "Grant the verb patch on nodes/status: deploy/rbac.yaml";
    for (fault, condition, events, says, missing, lost) in [
        (no_patch, "", 2, asked, "patch nodes/status", 0),
        (no_get, BAD, 2, "", "get nodes", 0),
        (no_events, BAD, 2, "", "create events", 2),
        (no_counts, BAD, 2, "", "", 0),
        (no_pods, BAD, 2, "", "patch pods/status", 0),
    ] {
        let case = Case::start(&[], |config| config.pod_conditions = true);
        case.objects.lock().fault = Some(fault);
        case.find(&[stuck("web")]);
        sleep(Duration::from_mins(2)).await;
        assert_eq!(case.condition(NODE), condition, "{missing}");
        assert_eq!(case.events().len(), events, "{:?}", case.fake.lines());
        let progress = case.handle.progress();
        let error = progress.error.unwrap_or_default();
        assert!(error.contains(says), "{error}");
        assert_eq!(error.is_empty(), says.is_empty(), "{error}");
        assert_eq!(progress.missing_rights.join(", "), missing);
        assert_eq!(progress.events_lost, lost, "{missing}");
        assert!(case.fake.requests().len() < 20, "{:?}", case.fake.lines());
        // Once it is granted, it is used.
        case.objects.lock().fault = None;
        case.until(NODE, BAD).await;
        assert_eq!(case.handle.progress().error, None);
        // What is tried again only with the next event, or at the next start, is known then.
        case.find(&[]);
        case.until(NODE, FINE).await;
        sleep(Duration::from_mins(6)).await;
        // The condition of a pod that is fine and never had one is not written: the next pod that gets stuck shows it.
        if missing == "patch pods/status" {
            case.find(&[stuck("web")]);
            case.until(NODE, BAD).await;
            sleep(Duration::from_mins(6)).await;
        }
        let left = case.handle.progress().missing_rights;
        let until_restart = (missing == "get nodes").then(|| missing.to_owned());
        assert_eq!(left, Vec::from_iter(until_restart));
    }
}

/// The line of the log has the verb, and is there once however long it is missing.
#[tokio::test(start_paused = true)]
async fn a_missing_verb_is_one_line_of_the_log() {
    fn refuse(request: &Request) -> Option<Answer> {
        let (verb, what) = match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/api/v1/nodes/n1") => ("get", "nodes \"n1\""),
            ("PATCH", "/api/v1/nodes/n1/status") => ("patch", "nodes/status \"n1\""),
            ("PATCH", path) if path.contains("/pods/") => ("patch", "pods/status \"web\""),
            ("POST", path) if path.ends_with("/events") => ("create", "events"),
            _ => return None,
        };
        let message = format!("User \"x\" cannot {verb} resource {what}");
        Some(Answer::refuse(403, "Forbidden", &message))
    }
    let log = crate::testing::LogLines::default();
    let _logging = log.capture();
    let case = Case::start(&[], |config| config.pod_conditions = true);
    case.objects.lock().fault = Some(refuse);
    case.find(&[stuck("web")]);
    sleep(Duration::from_mins(9)).await;
    for says in [
        "Grant the verb get on nodes: deploy/rbac.yaml has the rules",
        "Grant the verb patch on nodes/status: deploy/rbac.yaml has the rules",
        "Grant the verb patch on pods/status: deploy/rbac-pod-condition.yaml has the rules",
        "Grant the verb create on events: deploy/rbac.yaml has the rules",
    ] {
        let lines = log.lines();
        let count = lines.iter().filter(|line| line.contains(says)).count();
        assert_eq!(count, 1, "{says}: {lines:#?}");
    }
}

/// What an earlier process reported holds until it is found again or was looked for long enough.
#[tokio::test(start_paused = true)]
async fn a_restart_keeps_what_is_true() {
    let posted = json!({
        "type": STUCK, "status": "True", "reason": "HungShim", "lastTransitionTime": "2026-01-01T00:00:00Z",
        "message": "the shim of pod shop/web hangs (since 2026-01-01T00:00:00Z); the shim of pod shop/db hangs",
    });
    let case = Case::start(std::slice::from_ref(&posted), |_| ());
    sleep(Duration::from_secs(50)).await;
    assert_eq!(case.condition(NODE), "True HungShim");
    case.find(&[stuck("web")]);
    case.until(NODE, BAD).await;
    let condition = || case.objects.lock().objects[NODE]["status"]["conditions"][1].clone();
    assert_eq!(condition()["lastTransitionTime"], posted["lastTransitionTime"]);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(case.events(), ["Pod uid-db Normal Recovered"]);
    case.find(&[]);
    case.until(NODE, FINE).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(
        case.events()[1..],
        ["Pod uid-web Normal Recovered", "Node uid-n1 Normal Recovered"]
    );

    // Found before the node was read: it is known all the same.
    let case = Case::start(std::slice::from_ref(&posted), |_| ());
    case.find(&[stuck("web")]);
    case.until(NODE, BAD).await;
    sleep(Duration::from_mins(2)).await;
    assert_eq!(case.events(), ["Pod uid-db Normal Recovered"]);

    // Nothing is found: it is over.
    let case = Case::start(&[posted], |_| ());
    case.until(NODE, FINE).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(case.events().len(), 3, "{:?}", case.events());
}

#[tokio::test(start_paused = true)]
async fn the_node_of_another_machine_is_left_alone() {
    let case = Case::start(&[], |config| "boot-2".clone_into(&mut config.boot_id));
    case.find(&[stuck("web")]);
    sleep(Duration::from_mins(20)).await;
    assert!(
        case.requests_of("PATCH") == 0 && case.requests_of("POST") == 0,
        "{:?}",
        case.fake.lines()
    );
    let error = case.handle.progress().error.unwrap_or_default();
    assert!(
        error.contains("boot ID boot-1") && error.contains("--node-name"),
        "{error}"
    );
    // Its kubelet has reported after the reboot.
    case.objects.lock().objects.get_mut(NODE).unwrap()["status"]["nodeInfo"]["bootID"] = "boot-2".into();
    case.until(NODE, BAD).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_deleted_is_reported_again_when_it_is_back() {
    let case = Case::start(&[], |_| ());
    case.until(NODE, FINE).await;
    let node = case.objects.lock().objects.remove(NODE).unwrap();
    case.find(&[stuck("web")]);
    sleep(Duration::from_mins(5)).await;
    let error = case.handle.progress().error.unwrap_or_default();
    assert!(error.contains("There is no node n1"), "{error}");
    case.objects.lock().objects.insert(NODE.to_owned(), node);
    case.until(NODE, BAD).await;
}

#[tokio::test(start_paused = true)]
async fn stuck_pods_have_a_condition_if_asked_for() {
    let (web, db) = ("/api/v1/namespaces/shop/pods/web", "/api/v1/namespaces/shop/pods/db");
    let case = Case::start(&[], |config| config.pod_conditions = true);
    // A static pod: its mirror has another UID.
    case.objects.lock().objects.get_mut(db).unwrap()["metadata"]["uid"] = "mirror".into();
    case.find(&[stuck("web"), stuck("db"), stuck("gone")]);
    case.until(web, BAD).await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(case.condition(db), "");
    let patches = case
        .fake
        .lines()
        .into_iter()
        .filter(|line| line.starts_with("PATCH") && line.contains("/pods/"));
    assert_eq!(patches.count(), 3);
    case.find(&[]);
    case.until(web, "False RuntimeAnswers").await;

    // `pleg cluster forget` leaves nothing.
    case.shutdown.cancel();
    let api = case.fake.api();
    let forgotten = super::super::forget_node(&api, "n1").await.unwrap();
    assert!(
        forgotten.had_condition && forgotten.pods == 1 && forgotten.pods_left.is_none(),
        "{forgotten:?}"
    );
    assert_eq!(
        (case.condition(NODE), case.condition(web)),
        (String::new(), String::new())
    );
    let again = super::super::forget_all(&api).await.unwrap();
    assert!(
        again.len() == 1 && !again[0].had_condition && again[0].pods == 0,
        "{again:?}"
    );
    assert_eq!(
        case.objects.lock().objects[NODE]["status"]["conditions"][0]["type"],
        "Ready"
    );
    case.objects.lock().fault = Some(is_away);
    assert!(super::super::forget_node(&api, "n1").await.is_err());
}
