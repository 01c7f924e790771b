//! What the observing commands print.

use pleg_cri::Rpc;
use pleg_sim::{Ending, Selector};
use serde_json::Value;

use crate::node::{Node, pleg, settings};

fn stdout(mut command: assert_cmd::Command) -> String {
    let output = command.assert().success().get_output().clone();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing on stderr");
    String::from_utf8(output.stdout).unwrap()
}

fn selector(pod: &str, container: &str) -> Selector {
    Selector {
        pod: pod.parse().unwrap(),
        container: Some(container.to_owned()),
    }
}

#[test]
fn pods_as_a_table() {
    let node = Node::with_pods(3);
    node.sim
        .world()
        .exit(&"default/web-1".parse().unwrap(), Some("app"), Ending::Oom)
        .unwrap();
    settings().bind(|| {
        insta::assert_snapshot!("pods", stdout(node.pleg(&["pods"])));
        insta::assert_snapshot!("pods_wide", stdout(node.pleg(&["pods", "-o", "wide"])));
    });
}

#[test]
fn pods_as_json_and_yaml_say_the_same() {
    let node = Node::with_pods(2);
    let json: Value = serde_json::from_str(&stdout(node.pleg(&["pods", "-o", "json"]))).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 2);
    assert_eq!(json[0]["pod"]["name"], "web-0");
    assert_eq!(json[0]["containers"][0]["state"], "Running");
    let yaml = stdout(node.pleg(&["pods", "-o", "yaml"]));
    let mut yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    let mut json = json;
    for value in [&mut yaml, &mut json] {
        for pod in value.as_array_mut().unwrap() {
            pod.as_object_mut().unwrap().remove("inspected_at");
        }
    }
    assert_eq!(yaml, json);
}

#[test]
fn one_pod_in_full() {
    let node = Node::with_pods(2);
    let pod = "default/web-1".parse().unwrap();
    node.sim.world().exit(&pod, Some("sidecar"), Ending::Exit(3)).unwrap();
    settings().bind(|| {
        insta::assert_snapshot!("inspect", stdout(node.pleg(&["inspect", "web-1"])));
    });
    let json: Value = serde_json::from_str(&stdout(node.pleg(&["inspect", "default/web-1", "-o", "json"]))).unwrap();
    let uid = json["pod"]["uid"].as_str().unwrap();
    let by_uid: Value = serde_json::from_str(&stdout(node.pleg(&["inspect", uid, "-o", "json"]))).unwrap();
    assert_eq!(by_uid["pod"], json["pod"]);
}

#[test]
fn a_name_that_is_not_there_gets_an_offer() {
    let node = Node::with_pods(2);
    node.pleg(&["inspect", "wbe-1"])
        .assert()
        .code(1)
        .stdout("")
        .stderr("Error: no pod, container or sandbox wbe-1. Did you mean default/web-1, default/web-0?\n");
}

// One bad pod takes down a kubelet: kubernetes/kubernetes#94829, #98044.
#[test]
fn a_pod_that_hangs_is_named_and_the_others_are_there() {
    let node = Node::with_pods(3);
    node.sim
        .hang(Rpc::ContainerStatus, Some(selector("default/web-1", "app")))
        .unwrap();
    settings().bind(|| {
        let pods = node.pleg(&["pods", "-t", "2s"]);
        insta::assert_snapshot!("pods_hung", stdout(pods));
        let health = node.pleg(&["health", "-t", "2s"]);
        insta::assert_snapshot!("health_degraded", stdout(health));
    });
    // Who asks for another pod does not wait for it: with the default deadline this would take ten seconds.
    let mut other = node.pleg(&["inspect", "web-2"]);
    other.timeout(std::time::Duration::from_secs(8));
    assert!(stdout(other).contains("Name:            web-2"));
}

#[test]
fn health_tells_by_its_exit_code() {
    let node = Node::with_pods(1);
    settings().bind(|| {
        insta::assert_snapshot!("health", stdout(node.pleg(&["health"])));
        insta::assert_snapshot!("health_json", stdout(node.pleg(&["health", "-o", "json"])));
    });
    node.sim.hang(Rpc::ListContainers, None).unwrap();
    let output = node.pleg(&["health", "-t", "2s"]).assert().code(1).get_output().clone();
    settings().bind(|| {
        insta::assert_snapshot!("health_unhealthy", String::from_utf8(output.stdout).unwrap());
    });
    node.pleg(&["pods", "-t", "2s"]).assert().code(1).stderr(format!(
        "Error: ListContainers on {}: no answer within 2s\n",
        node.sim.endpoint()
    ));
}

/// The condition a kubelet would post is part of the report, in Kubernetes' shape.
#[test]
fn health_has_the_condition_of_the_node() {
    let node = Node::with_pods(1);
    let yaml = stdout(node.pleg(&["health", "-o", "yaml"]));
    let (_, conditions) = yaml.split_once("\nconditions:\n").unwrap();
    settings().bind(|| insta::assert_snapshot!("health_yaml", conditions));
    let report: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(report["conditions"][0]["status"], "True", "a text, not a truth value");
    // Nobody waits for a Status beyond its time, and the generator not at all.
    node.sim.hang(Rpc::Status, None).unwrap();
    let text = stdout(node.pleg(&["health", "-t", "500ms"]));
    let unknown = "Node: Ready=False (KubeletNotReady: \
        [container runtime status check may not have completed yet, network state unknown])\n";
    assert!(
        text.starts_with("Healthy: PLEG is healthy\n") && text.contains(unknown),
        "{text}"
    );
}

#[test]
fn events_as_a_table_and_as_json() {
    let node = Node::with_pods(1);
    settings().bind(|| {
        insta::assert_snapshot!("watch", stdout(node.pleg(&["watch", "--count", "3"])));
        let json = stdout(node.pleg(&["watch", "--count", "3", "-o", "json"]));
        insta::assert_snapshot!("watch_json", json);
    });
    let only = stdout(node.pleg(&[
        "watch",
        "--type",
        "containerrunning",
        "--pod",
        "web-0",
        "--count",
        "2",
        "-o",
        "json",
    ]));
    for line in only.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["type"], "ContainerStarted");
    }
    assert_eq!(only.lines().count(), 2);
    let kubelet = stdout(node.pleg(&["watch", "--count", "3", "-o", "kubelet"]));
    for line in kubelet.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["Type"], "ContainerStarted", "{line}");
        assert_eq!(event["Data"].as_str().unwrap().len(), 64, "{line}");
    }
    assert_eq!(kubelet.lines().count(), 3);
    // Nothing new happens: the time ends it.
    assert_eq!(
        stdout(node.pleg(&["watch", "--no-initial", "--for", "300ms", "-o", "json"])),
        ""
    );
}

#[test]
fn versions() {
    let node = Node::with_pods(0);
    settings().bind(|| {
        insta::assert_snapshot!("version", stdout(node.pleg(&["version"])));
        insta::assert_snapshot!("version_json", stdout(node.pleg(&["version", "-o", "json"])));
    });
}

#[test]
fn a_bench_has_the_promised_fields() {
    let node = Node::with_pods(20);
    let json: Value = serde_json::from_str(&stdout(node.pleg(&["bench", "--looks", "3", "-o", "json"]))).unwrap();
    assert_eq!(json["pods"], 20);
    assert_eq!(json["containers"], 40);
    for path in [
        "/look/cpu_ms_p50",
        "/look/wall_ms_p50",
        "/floor/cpu_ms_p50",
        "/floor/wall_ms_p50",
        "/cpu_ratio",
        "/rss_mib",
    ] {
        assert!(
            json.pointer(path).and_then(Value::as_f64).unwrap() > 0.0,
            "{path}: {json}"
        );
    }
    assert!(stdout(node.pleg(&["bench", "--relists", "1"])).contains("floor"));
    let args = ["bench", "--relists", "1", "--every", "1ms", "--statuses", "-o", "json"];
    let json: Value = serde_json::from_str(&stdout(node.pleg(&args))).unwrap();
    assert_eq!(json["statuses"]["calls"], 60);
    assert!(json["statuses"]["bytes"].as_u64().unwrap() > 60 * 100, "{json}");
}

#[test]
fn a_demonstration_ends_with_a_summary() {
    let text = stdout(pleg(&["demo", "--for", "4s", "--churn", "20", "-o", "json"]));
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let summary = &last["summary"];
    assert!(summary["events"].as_u64().unwrap() >= 90, "{summary}");
    assert_eq!(text.lines().count() as u64, summary["events"].as_u64().unwrap() + 1);
    assert!(
        summary["runtime_calls"]["ListContainers"].as_u64().unwrap() > 1,
        "{summary}"
    );
    for line in text.lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
}

#[test]
fn a_demonstration_names_what_is_stuck() {
    let text = stdout(pleg(&["demo", "--for", "7s", "--pods", "5", "--churn", "0"]));
    for part in [
        "--- the runtime now hangs on ContainerStatus of container app of pod default/web-0",
        "--- PLEG is degraded: ContainerStatus of container app",
        "--- the runtime answers for container app of pod default/web-0 again",
        "--- healthy again",
        "Summary",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn help_and_completions() {
    insta::assert_snapshot!("help", stdout(pleg(&["--help"])));
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(pleg(&["completions", shell])).contains("pleg"));
    }
}
