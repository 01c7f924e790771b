//! States for tests.

use jiff::{SignedDuration, Timestamp};
use pleg::event::Subject;
use pleg::{ContainerRef, PodRef};

use super::input::{Input, Update};
use super::state::{Column, Filter, PodTable, Row, Sort, State};
use super::tone::Tone;
use crate::wire::{self, Event, Line, Report};

/// All tests happen at this time.
pub(super) fn now() -> Timestamp {
    "2026-11-18T07:00:00Z".parse().unwrap()
}

/// So many seconds after a minute before now.
pub(super) fn second(n: i64) -> Timestamp {
    now() + SignedDuration::from_secs(n - 60)
}

/// Without pods.
pub(super) fn state(size: (u16, u16)) -> State {
    let sort = Sort {
        by: Column::State,
        reversed: false,
    };
    let pods = PodTable::new(sort, Filter::default());
    State::new("unix:///run/pleg/pleg.sock".to_owned(), pods, size, now())
}

pub(super) fn wire_pod(namespace: &str, name: &str, state: &str, restarts: u64, minutes: i64) -> wire::Pod {
    let created = now() - SignedDuration::from_mins(minutes);
    let running = usize::from(state == "Running");
    serde_json::from_value(serde_json::json!({
        "pod": {"uid": format!("uid-{name}"), "namespace": namespace, "name": name},
        "ips": if name == "api" { vec!["10.0.0.1"] } else { vec!["10.0.0.7"] },
        "sandboxes": [{"id": "s", "state": "Ready", "attempt": 0, "created_at": created, "ips": []}],
        "containers": [],
        "state": state, "running": running, "total": 1, "restarts": restarts,
        "inspected_at": created,
    }))
    .unwrap()
}

pub(super) fn pod(namespace: &str, name: &str, state: &str, restarts: u64, minutes: i64) -> Row {
    Row::of_runtime(&wire_pod(namespace, name, state, restarts, minutes))
}

/// Five pods.
pub(super) fn with_pods() -> State {
    pods_at((80, 24))
}

pub(super) fn pods_at(size: (u16, u16)) -> State {
    let mut state = state(size);
    state.apply(Input::Update(Update::Pods(vec![
        pod("default", "web-0", "Running", 0, 5),
        pod("default", "web-1", "Running", 2, 6),
        pod("kube-system", "api", "Running", 0, 600),
        pod("default", "crash", "CrashLoopBackOff", 17, 9000),
        pod("default", "start", "Created", 0, 0),
    ])));
    state
}

/// A container of this pod died.
pub(super) fn died(name: &str, seq: u64, attempt: u32, at: Timestamp) -> Line {
    Line::Event(Box::new(event("ContainerDied", name, seq, attempt, at)))
}

pub(super) fn event(kind: &str, name: &str, seq: u64, attempt: u32, at: Timestamp) -> Event {
    let is_death = kind == "ContainerDied";
    Event {
        seq,
        instance: None,
        time: at,
        kind: kind.to_owned(),
        pod: Some(PodRef {
            uid: format!("uid-{name}").as_str().into(),
            namespace: "default".into(),
            name: name.into(),
        }),
        subject: Some(Subject::Container(ContainerRef {
            id: format!("c{attempt}").as_str().into(),
            name: "app".into(),
            attempt,
        })),
        pid: None,
        exit_code: is_death.then_some(137),
        reason: is_death.then(|| "OOMKilled".to_owned()),
        initial: false,
        source: "relist".to_owned(),
        lag: Some(0.0),
        trouble: None,
        lasted: None,
    }
}

/// A report without causes.
pub(super) fn report(level: &str) -> Report {
    serde_json::from_value(serde_json::json!({
        "level": level, "headline": "all pods are seen", "message": "", "causes": [], "warnings": [],
        "last_seen_seconds": 0.5, "threshold_seconds": 180, "looks": 12, "odd_objects": {},
    }))
    .unwrap()
}

/// A report with a container that does not answer.
pub(super) fn trouble() -> Report {
    let id = "0123456789abcdef".repeat(4);
    serde_json::from_value(serde_json::json!({
        "level": "Degraded", "headline": "1 pod is in quarantine: default/crash", "message": "",
        "causes": [{
            "stage": "inspect", "trouble": "hung-shim", "rpc": "ContainerStatus",
            "text": format!("ContainerStatus of default/crash/app ({id}) has not answered for 12s, 3 attempts"),
            "means": "the shim of the sandbox hangs, so that nothing about its containers can be learned or done",
            "next": "ps -o pid,stat,wchan:32,cmd -C containerd-shim-runc-v2",
            "pod": "default/crash", "container": "app", "age_seconds": 12, "attempts": 3,
        }],
        "warnings": [{
            "trouble": "many-dead", "text": "1200 dead containers are kept",
            "means": "nobody collects garbage", "next": "crictl rmp -a",
        }],
        "last_seen_seconds": 0.5, "threshold_seconds": 180, "looks": 12, "odd_objects": {},
    }))
    .unwrap()
}

#[test]
fn states_have_the_tones_that_tests_expect() {
    assert_eq!(pod("a", "b", "Running", 0, 0).tone, Tone::Good);
    assert_eq!(pod("a", "b", "CrashLoopBackOff", 0, 0).tone, Tone::Bad);
    assert_eq!(pod("a", "b", "Created", 0, 0).tone, Tone::Wait);
}
