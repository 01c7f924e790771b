use serde_json::json;
use tokio::time::advance;

use super::*;

/// A pod as an API server has it.
fn object(name: &str, uid: &str, version: u64) -> core::Pod {
    let value = json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid, "resourceVersion": version.to_string()},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Pending", "startTime": "2027-01-15T08:00:00Z"},
    });
    serde_json::from_value(value).unwrap()
}

fn deleting(mut object: core::Pod) -> core::Pod {
    object.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2027-01-15T08:00:00Z")).unwrap());
    object.metadata.deletion_grace_period_seconds = Some(30);
    object
}

fn listed(pods: Vec<core::Pod>, version: u64, known: &KnownPods) -> Listed {
    Listed {
        pods,
        version: version.to_string(),
        newest_before: known.newest(),
    }
}

fn uids(known: &KnownPods) -> Vec<String> {
    assert!(known.held().is_empty(), "a pod is held");
    let snapshot = known.snapshot(&"api".into());
    let uid = |desired: &DesiredPod| desired.pod.id.uid.to_string();
    snapshot.pods.iter().map(uid).collect()
}

fn with(pods: Vec<core::Pod>, version: u64) -> KnownPods {
    let mut known = KnownPods::default();
    let listed = listed(pods, version, &known);
    assert_eq!(
        known.relist(listed, Instant::now()),
        Changed {
            desired: true,
            mirrors: true
        }
    );
    known
}

type Row = (
    &'static str,
    core::Pod,
    Vec<core::Pod>,
    u64,
    &'static [&'static str],
    Option<u64>,
);

#[tokio::test(start_paused = true)]
async fn which_pods_a_list_removes() {
    let pod = || object("web", "1", 10);
    // What was known, what the next list has and its version; what is left at once, and after how long the API server is asked.
    let rows: Vec<Row> = vec![
        ("it is still there", pod(), vec![pod()], 20, &["1"], None),
        ("it was being deleted", deleting(pod()), vec![], 20, &[], None),
        (
            "its name has another pod",
            pod(),
            vec![object("web", "2", 15)],
            20,
            &["2"],
            None,
        ),
        ("it is gone", pod(), vec![], 20, &["1"], Some(30)),
        ("the API server was restored", pod(), vec![], 5, &["1"], Some(300)),
        (
            "restored while it was being deleted",
            deleting(pod()),
            vec![],
            5,
            &[],
            None,
        ),
    ];
    for (what, before, pods, version, left, asked) in rows {
        let mut known = with(vec![before], 12);
        let list = listed(pods, version, &known);
        known.relist(list, Instant::now());
        assert_eq!(uids(&known), left, "{what}");
        let asked_in = known.next_missing().map(|(at, _)| (at - Instant::now()).as_secs());
        assert_eq!(asked_in, asked, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_pod_is_removed_only_by_an_answer() {
    let missing = || {
        let mut known = with(vec![object("web", "1", 10)], 12);
        let list = listed(vec![], 20, &known);
        known.relist(list, Instant::now());
        known
    };
    let id = missing().next_missing().unwrap().1;

    let mut known = missing();
    known.ask_again(&id.uid, Instant::now());
    assert_eq!(uids(&known), ["1"]);
    // Another list without it changes nothing about when it is asked for.
    advance(Duration::from_secs(7)).await;
    let list = listed(vec![], 21, &known);
    known.relist(list, Instant::now());
    assert_eq!((known.next_missing().unwrap().0 - Instant::now()).as_secs(), 3);
    assert_eq!(known.asked(&id, None), DESIRED);
    assert_eq!(uids(&known), [""; 0]);

    let mut known = missing();
    assert_eq!(known.asked(&id, Some(object("web", "2", 30))), DESIRED);
    assert_eq!(uids(&known), [""; 0]);

    // It is back, as it was: an older state of the API server has it.
    let mut known = missing();
    known.asked(&id, Some(object("web", "1", 10)));
    assert_eq!((uids(&known), known.next_missing()), (vec!["1".to_owned()], None));
    // An answer that comes too late says nothing.
    assert_eq!(known.asked(&id, None), Changed::default());
}

#[test]
fn only_what_matters_to_the_node_is_a_change() {
    let base = object("web", "1", 10);
    let edit = |path: &[&str], value: serde_json::Value| {
        let mut json = serde_json::to_value(&base).unwrap();
        let mut at = &mut json;
        for key in path {
            at = &mut at[*key];
        }
        *at = value;
        json["metadata"]["resourceVersion"] = "11".into();
        serde_json::from_value::<core::Pod>(json).unwrap()
    };
    let condition = |kind: &str| json!([{"type": kind, "status": "True"}]);
    for (what, changed, matters, touched) in vec![
        ("nothing", base.clone(), false, false),
        ("its version", edit(&["kind"], "Pod".into()), false, false),
        ("our phase", edit(&["status", "phase"], "Running".into()), false, true),
        ("the end", edit(&["status", "phase"], "Failed".into()), true, true),
        (
            "a condition of ours",
            edit(&["status", "conditions"], condition("Ready")),
            false,
            true,
        ),
        (
            "a condition of others",
            edit(&["status", "conditions"], condition("example.com/gate")),
            true,
            true,
        ),
        ("a label", edit(&["metadata", "labels"], json!({"a": "b"})), true, false),
        (
            "the image",
            edit(&["spec", "containers"], json!([{"name": "c", "image": "j"}])),
            true,
            false,
        ),
        (
            "its deletion",
            edit(&["metadata", "deletionTimestamp"], "2027-01-15T08:00:00Z".into()),
            true,
            false,
        ),
    ] {
        let mut known = with(vec![base.clone()], 10);
        let before = Arc::clone(&known.get(&"1".into()).unwrap().pod);
        assert_eq!(known.apply(changed).desired, matters, "{what}");
        let after = &known.get(&"1".into()).unwrap().pod;
        assert_eq!(Arc::ptr_eq(&before, after), !matters, "{what}");
        assert_eq!(!known.take_touched().is_empty(), touched, "{what}");
    }
}

#[test]
fn what_is_older_than_an_answer_is_ignored() {
    let mut known = with(vec![object("web", "1", 10)], 10);
    let mut newer = object("web", "1", 20);
    newer.status = Some(core::PodStatus {
        phase: Some("Running".to_owned()),
        ..core::PodStatus::default()
    });
    known.apply(newer);
    known.take_touched();
    // The watch is behind the answer to our patch.
    assert_eq!(known.apply(object("web", "1", 15)), Changed::default());
    let phase = |known: &KnownPods| known.get(&"1".into()).unwrap().status.phase.clone();
    assert_eq!(phase(&known).as_deref(), Some("Running"));
    assert!(known.take_touched().is_empty());
    // A list from before the answer is no sign of a restored API server, nor is it newer.
    let list = Listed {
        newest_before: 10,
        ..listed(vec![object("web", "1", 15)], 15, &known)
    };
    known.relist(list, Instant::now());
    assert_eq!(phase(&known).as_deref(), Some("Running"));
    // After a restore, what it says is true, and its status is ours to write again.
    let list = listed(vec![object("web", "1", 4)], 5, &known);
    known.relist(list, Instant::now());
    assert_eq!(phase(&known).as_deref(), Some("Pending"));
    assert_eq!(known.take_touched().len(), 1);
    assert_eq!(known.newest(), 5);
}

#[test]
fn mirror_pods_are_not_run() {
    let mut mirror = object("static-n", "7", 3);
    mirror.metadata.annotations = Some([(MIRROR.to_owned(), "abc".to_owned())].into());
    let mut known = with(vec![mirror.clone()], 3);
    assert_eq!(uids(&known), [""; 0]);
    assert_eq!(known.mirrors()["default/static-n"].of(), Some("abc".into()));
    assert_eq!(known.delete(&object("other", "8", 4)), Changed::default());
    assert_eq!(known.delete(&mirror), MIRRORS);
    assert!(known.mirrors().is_empty());
}

#[test]
fn what_cannot_run_has_failed_and_what_runs_goes_on() {
    let mut unusable = object("web", "1", 10);
    unusable.spec.as_mut().unwrap().containers.clear();
    let known = with(vec![unusable.clone()], 10);
    let pod = &known.get(&"1".into()).unwrap().pod;
    let rejected = pod.rejected.as_ref().unwrap();
    assert_eq!(rejected.reason, "UnsupportedPodSpec");
    assert!(
        rejected.message.starts_with("Pod was rejected: spec.containers"),
        "{}",
        rejected.message
    );

    let mut foreign = object("web", "1", 10);
    foreign.spec.as_mut().unwrap().os = Some(core::PodOS {
        name: "windows".to_owned(),
    });
    let known = with(vec![foreign], 10);
    let pod = &known.get(&"1".into()).unwrap().pod;
    assert_eq!(pod.rejected.as_ref().unwrap().reason, "PodOSNotSupported");

    let mut known = with(vec![object("web", "1", 9)], 9);
    assert_eq!(known.apply(deleting(unusable)), DESIRED);
    let pod = &known.get(&"1".into()).unwrap().pod;
    assert_eq!((pod.spec.containers.len(), pod.rejected.is_some()), (1, false));
    assert_eq!(pod.deletion.unwrap().grace, Duration::from_secs(30));
}

#[test]
fn a_deleted_event_removes_at_once() {
    let mut known = with(vec![object("web", "1", 10), object("db", "2", 10)], 10);
    assert_eq!(known.delete(&object("web", "1", 11)), DESIRED);
    assert_eq!(known.delete(&object("web", "1", 11)), Changed::default());
    assert_eq!(uids(&known), ["2"]);
}

#[test]
fn a_new_pod_is_held_until_it_is_checked() {
    let new = |name: &str| {
        let mut object = object(name, name, 10);
        object.status = None;
        object
    };
    let mut known = with(vec![new("a"), new("b"), deleting(new("c")), object("d", "d", 9)], 10);
    let desired = |known: &KnownPods| -> Vec<String> {
        let snapshot = known.snapshot(&"api".into());
        let text = |one: &DesiredPod| {
            let rejected = one.pod.rejected.as_ref().map(|failure| failure.reason.as_str());
            format!("{}{}", one.pod.id.uid, rejected.unwrap_or_default())
        };
        snapshot.pods.iter().map(text).collect()
    };
    assert_eq!(desired(&known), ["c", "d"]);
    assert_eq!(known.held().len(), 2);
    assert_eq!(known.checked(&"a".into(), Ok(())), DESIRED);
    let failure = PodFailure {
        reason: "No".to_owned(),
        message: String::new(),
    };
    assert_eq!(known.checked(&"b".into(), Err(failure.clone())), DESIRED);
    assert_eq!(desired(&known), ["a", "bNo", "c", "d"]);
    // What was checked is not checked again.
    assert_eq!(known.checked(&"a".into(), Err(failure)), Changed::default());
}
