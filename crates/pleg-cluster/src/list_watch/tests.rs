use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::testing::{Answer, FakeApi, Request};

/// Writes down what it is told.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().push(what.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Follower<ConfigMap> for Notes {
    fn begin(&mut self) {
        self.note("begin");
    }

    fn set(&mut self, object: ConfigMap) {
        self.note(object.metadata.name.unwrap_or_default());
    }

    fn remove(&mut self, object: &ConfigMap) {
        self.note(format!("no {}", object.metadata.name.as_deref().unwrap_or_default()));
    }

    fn listed(&mut self, version: &str) {
        self.note(format!("listed {version}"));
    }

    fn failed(&mut self, error: &ApiError) {
        self.note(format!("failed {:?}", error.code()));
    }

    fn is_final(&self) -> bool {
        self.0.lock().iter().any(|note| note == "last")
    }
}

fn object(name: &str, version: u64) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "a", "resourceVersion": version.to_string()}})
}

fn list(names: &[&str], version: u64, token: Option<&str>) -> Answer {
    let items: Vec<Value> = names.iter().map(|name| object(name, 1)).collect();
    let metadata = json!({"resourceVersion": version.to_string(), "continue": token});
    Answer::ok(&json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": metadata, "items": items}))
}

fn event(kind: &str, name: &str, version: u64) -> Value {
    json!({"type": kind, "object": object(name, version)})
}

/// A watch with these events, which then ends.
fn watch(events: &[Value]) -> Answer {
    let (sender, stream) = mpsc::unbounded_channel();
    for event in events {
        sender.send(event.clone()).unwrap();
    }
    Answer::Watch(stream)
}

/// Follows the answers of a script, one after the other; then nothing is answered.
fn start(answers: Vec<Answer>) -> (FakeApi, Notes, AbortOnDropHandle<()>) {
    let answers = Mutex::new(answers.into_iter());
    let fake = FakeApi::start(move |_: &Request| answers.lock().next().unwrap_or(Answer::Hang));
    let notes = Notes::default();
    let selection = Selection::one("config map a/b", "a", "b");
    let task = tokio::spawn(follow::<ConfigMap>(fake.api(), selection, notes.clone()));
    (fake, notes, AbortOnDropHandle::new(task))
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_goes_on_where_it_ended() {
    let answers = vec![
        list(&["a"], 5, None),
        watch(&[event("MODIFIED", "b", 6), event("BOOKMARK", "", 9)]),
        watch(&[event("DELETED", "b", 12)]),
    ];
    let (fake, notes, _task) = start(answers);
    fake.wait_for(|requests| requests.len() == 4).await;
    assert_eq!(notes.take(), ["begin", "a", "listed 5", "b", "no b"]);
    let requests = fake.requests();
    assert!(requests[0].query.contains("fieldSelector=metadata.name%3Db") && !requests[0].is_watch());
    for (request, version) in requests[1..].iter().zip(["5", "9", "12"]) {
        assert!(request.is_watch());
        assert!(
            request.query.contains(&format!("resourceVersion={version}")),
            "{}",
            request.query
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_go_on_is_listed_again() {
    let expired =
        json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}});
    for (second, failed) in [
        (watch(&[expired]), "failed Some(410)"),
        (Answer::refuse(410, "Expired", "too old"), "failed Some(410)"),
        (Answer::refuse(500, "InternalError", "etcd"), "failed Some(500)"),
        (
            watch(&[json!({"type": "ADDED", "object": {"metadata": 7}})]),
            // kube makes it a refusal without a code.
            "failed Some(0)",
        ),
    ] {
        let (fake, notes, _task) = start(vec![list(&["a"], 5, None), second, list(&[], 8, None)]);
        fake.wait_for(|requests| requests.len() == 4).await;
        assert_eq!(notes.take(), ["begin", "a", "listed 5", failed, "begin", "listed 8"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_comes_in_pages_and_has_the_version_of_the_first() {
    let (fake, notes, _task) = start(vec![list(&["a"], 5, Some("next")), list(&["b"], 7, None)]);
    fake.wait_for(|requests| requests.len() == 3).await;
    assert_eq!(notes.take(), ["begin", "a", "b", "listed 5"]);
    assert!(fake.requests()[1].query.contains("continue=next"));
}

#[tokio::test(start_paused = true)]
async fn a_list_without_an_end_is_an_error() {
    let fake = FakeApi::start(|_| list(&["a"], 5, Some("next")));
    let selection = Selection::<ConfigMap>::all("config maps");
    let error = super::list(&fake.api(), &selection, &mut Notes::default()).await;
    assert!(error.unwrap_err().to_string().contains("more than 128 pages"));
}

/// A watch may be dead without a word: one that was open in an outage is opened again. Who waits is woken.
#[tokio::test(start_paused = true)]
async fn the_end_of_an_outage_opens_the_watch_again() {
    let (_open, stream) = mpsc::unbounded_channel();
    let (fake, notes, _task) = start(vec![
        list(&["a"], 5, None),
        Answer::Watch(stream),
        Answer::Fail("connection refused"),
        list(&[], 8, None),
    ]);
    fake.wait_for(|requests| requests.len() == 2).await;
    let nodes: kube::Api<ConfigMap> = kube::Api::default_namespaced(fake.api().client());
    assert!(nodes.get("x").await.is_err());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(fake.requests().len(), 3);
    let began = Instant::now();
    assert!(nodes.list(&ListParams::default()).await.is_ok());
    fake.wait_for(|requests| requests.len() == 5).await;
    assert!(began.elapsed() < SILENCE, "the watch was not opened again");
    assert!(fake.requests()[4].is_watch());
    assert_eq!(notes.take(), ["begin", "a", "listed 5"]);
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_nothing_else_is_of_interest() {
    let (_fake, notes, task) = start(vec![list(&["last"], 5, None)]);
    timeout(Duration::from_mins(1), task).await.unwrap().unwrap();
    assert_eq!(notes.take(), ["begin", "last", "listed 5"]);
}
