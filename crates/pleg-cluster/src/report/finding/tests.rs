//! Findings of reports that are written as the HTTP API writes them.

use serde_json::{Value, json};

use super::*;

fn report(level: &str, causes: &[Value]) -> Report {
    let mode = json!({
        "mode": "generic", "configured": "auto", "reason": "", "full_look_period_seconds": 1.0, "missed_changes": 0,
    });
    let report = json!({
        "level": level, "headline": "PLEG is late", "message": "", "causes": causes, "warnings": [], "last_seen_seconds": 1.0,
        "threshold_seconds": 180, "looks": 3, "mode": mode, "odd_objects": {},
    });
    serde_json::from_value(report).unwrap()
}

/// A cause about container `app` of pod `shop/web`, with changes.
fn cause(trouble: &str, changes: &Value) -> Value {
    let mut cause = json!({
        "stage": "inspect", "trouble": trouble, "text": "x (for 12s)", "means": "", "next": "", "rpc": "ContainerStatus",
        "pod": "shop/web", "container": "app", "id": "c1", "sandbox": "s1", "age_seconds": 12, "attempts": 1,
    });
    for (name, value) in changes.as_object().unwrap() {
        cause[name] = value.clone();
    }
    cause
}

fn web() -> PodRef {
    PodRef {
        uid: "u1".into(),
        namespace: "shop".into(),
        name: "web".into(),
    }
}

fn find(causes: &[Value]) -> Vec<Finding> {
    of_report(&report("Degraded", causes), |cause| {
        (cause.who.pod.as_deref() == Some("shop/web")).then(web)
    })
}

#[test]
fn words_name_call_container_and_pod_and_have_no_age() {
    let whole =
        json!({"pod": null, "container": null, "id": null, "sandbox": null, "stage": "list", "rpc": "ListContainers"});
    let with_error = json!({"last_error": "ContainerStatus of c1: gone"});
    let stopped = json!({"shim": {"pid": 7, "state": "T"}});
    for (trouble, changes, words) in [
        (
            "stuck-inspection",
            json!({}),
            "ContainerStatus of container app in pod shop/web is not answered",
        ),
        ("not-inspectable", with_error, "ContainerStatus of c1: gone"),
        (
            "missed-exit",
            stopped.clone(),
            "the process of container app in pod shop/web has exited, but ContainerStatus reports it as running; the parent process 7 is \
             stopped",
        ),
        (
            "hung-shim",
            stopped,
            "the shim of pod shop/web hangs: ContainerStatus through it is not answered; its process 7 is stopped",
        ),
        (
            "leftover-process",
            json!({}),
            "ContainerStatus reports container app in pod shop/web as exited, but its process is alive",
        ),
        (
            "locked-container",
            json!({"rpc": "ListContainers", "stage": "list"}),
            "ListContainers is not answered; container app in pod shop/web does not answer by its id either",
        ),
        ("runtime-stuck", whole.clone(), "ListContainers is not answered"),
        (
            "stalled-storage",
            whole,
            "ListContainers is not answered for most containers",
        ),
    ] {
        let found = find(&[cause(trouble, &changes)]);
        assert_eq!(found.len(), 1, "{trouble}");
        assert_eq!(found[0].text, words, "{trouble}");
        assert_eq!(found[0].age, Duration::from_secs(12));
        let is_whole = changes["pod"].is_null() && changes.get("pod").is_some();
        assert_eq!(found[0].pod.is_none(), is_whole, "{trouble}");
    }
}

#[test]
fn what_stops_nothing_is_not_reported() {
    for (stage, trouble) in [
        ("stream", "stream-down"),
        ("stream", "lossy-stream"),
        ("generator", "generator-ended"),
    ] {
        assert_eq!(find(&[cause(trouble, &json!({ "stage": stage }))]), [], "{trouble}");
    }
    assert_eq!(of_report(&report("Healthy", &[]), |_| None), []);
}

#[test]
fn relists_that_are_late_for_no_known_cause_are_reported() {
    let found = of_report(&report("Unhealthy", &[]), |_| None);
    assert_eq!((found.len(), found[0].trouble), (1, Trouble::RuntimeStuck));
    assert!(found[0].text.contains("no complete relist within 3m0s"), "{found:?}");
    // A generator that has ended says nothing about the runtime.
    let ended = cause("generator-ended", &json!({"stage": "generator"}));
    assert_eq!(of_report(&report("Unhealthy", &[ended]), |_| None), []);
}

/// They are parts of paths at the API server.
#[test]
fn names_that_no_pod_of_the_api_has_are_no_pod() {
    for (namespace, name, uid, valid) in [
        ("shop", "web-0.a", "u", true),
        ("shop", "web", "", false),
        ("", "web", "u", false),
        ("shop", "", "u", false),
        ("..", "web", "u", false),
        ("shop/../x", "web", "u", false),
        ("a.b", "web", "u", false),
        ("shop", "../../x", "u", false),
        ("shop", "a..b", "u", false),
        ("shop", "Web", "u", false),
        ("shop", "-web", "u", false),
        ("shop", "we\nb", "u", false),
    ] {
        let pod = PodRef {
            uid: uid.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        assert_eq!(has_valid_names(&pod), valid, "{pod:?}");
    }
    let long = PodRef {
        name: "a".repeat(254).as_str().into(),
        ..web()
    };
    assert!(!has_valid_names(&long));
}

#[test]
fn words_of_the_runtime_are_cut() {
    let error = format!("a\u{1b}[2J\n{}", "ü".repeat(5000));
    let found = find(&[cause("not-inspectable", &json!({ "last_error": error }))]);
    let text = &found[0].text;
    assert!(
        text.len() < MAX_TEXT + 8 && text.ends_with('…') && !text.contains(['\n', '\u{1b}']),
        "{text}"
    );
}

#[test]
fn every_trouble_has_a_reason_word() {
    assert_eq!(reason(Trouble::HungShim), "HungShim");
    for trouble in Trouble::ALL {
        let word = reason(trouble);
        assert_eq!(word, format!("{trouble:?}"));
        assert!(word.chars().all(char::is_alphanumeric), "{word}");
    }
}
