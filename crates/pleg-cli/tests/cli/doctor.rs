//! What `pleg doctor` says about a node that is well, and about each way of being ill that the field has reported.

use std::time::Duration;

use pleg_cri::Rpc;
use pleg_sim::control::Shim;
use pleg_sim::{Command, GrpcCode, Odd, Selector, SimConfig};
use serde_json::Value;

use crate::node::{Node, block_on, pleg, wait_for};

/// The calls that an examination may make; all of them only read.
const READING: [&str; 9] = [
    "Version",
    "Status",
    "RuntimeConfig",
    "ListPodSandbox",
    "StreamPodSandboxes",
    "ListContainers",
    "StreamContainers",
    "PodSandboxStatus",
    "ContainerStatus",
];

/// What it prints, and that it ends with this code. Calls get one second, so that tests of hangs are short.
fn examine(node: &Node, code: i32, args: &[&str]) -> String {
    let mut command = node.pleg(&[&["doctor", "-t", "1s"], args].concat());
    let output = command.assert().code(code).get_output().clone();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing on stderr");
    let stats = node.sim.stats();
    for rpc in stats.rpcs.keys() {
        let asked = args.contains(&"--events") && rpc == "GetContainerEvents";
        assert!(READING.contains(&rpc.as_str()) || asked, "an examination made a {rpc}");
    }
    String::from_utf8(output.stdout).unwrap()
}

fn json(node: &Node, code: i32, args: &[&str]) -> Value {
    serde_json::from_str(&examine(node, code, &[&["-o", "json"], args].concat())).unwrap()
}

/// The snapshot of a report, without times, and without the table of calls, whose columns are as wide as the times.
fn snapshot(name: &str, report: &str) {
    let told = report.split("\n\nRPC ").next().unwrap();
    let mut settings = insta::Settings::clone_current();
    for (pattern, to) in [
        (r"unix:///[^\s:`]+/cri\.sock", "[runtime]"),
        (r"/[^\s:`]+/cri\.sock", "[socket]"),
        (r"\b[0-9a-f]{64}\b|\b[0-9a-f]{13}\b", "[id]"),
        (r"uid \d+, gid \d+", "uid [n], gid [n]"),
        (r"examined in [^)]+", "examined in [time]"),
        (r"takes a kubelet [\dms.]+", "takes a kubelet [time]"),
        (r"(restart of the kubelet, takes (more than )?)[\dms.]+", "$1[time]"),
        (r"A relist takes [\dms.]+", "A relist takes [time]"),
        (r"\b\d+(\.\d+)?ms\b", "[ms]"),
    ] {
        settings.add_filter(pattern, to);
    }
    settings.bind(|| insta::assert_snapshot!(name, told));
}

fn selector(pod: &str) -> Selector {
    Selector {
        pod: pod.parse().unwrap(),
        container: Some("app".to_owned()),
    }
}

fn troubles(report: &Value) -> Vec<&str> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings.map(|finding| finding["trouble"].as_str().unwrap()).collect()
}

#[test]
fn a_node_that_is_well() {
    let node = Node::with_pods(3);
    snapshot("doctor_well", &examine(&node, 0, &[]));
    let report = json(&node, 0, &[]);
    assert_eq!(report["findings"], Value::Array(Vec::new()));
    assert!(report.get("severity").is_none());
    assert_eq!(report["counts"]["pods"], 3);
    assert_eq!(report["counts"]["containers"], 6);
    assert_eq!(report["counts"]["running"], 6);
    assert_eq!(report["runtime"]["streaming_lists"], false);
    assert_eq!(report["runtime"]["runtime_config"], true);
    assert_eq!(report["socket"]["mode"], "0600");
    assert_eq!(report["kubelet"]["verdict"], "ready");
    assert_eq!(report["kubelet"]["more_hangs_to_not_ready"], 2);
    let statuses = report["calls"].as_array().unwrap().iter();
    let statuses: Vec<_> = statuses.filter(|call| call["rpc"] == "ContainerStatus").collect();
    assert_eq!(statuses[0]["calls"], 6, "each was asked for once: {report}");
    assert!(statuses[0]["worst_pod"].as_str().unwrap().starts_with("default/web-"));
    let yaml: Value = serde_saphyr::from_str(&examine(&node, 0, &["-o", "yaml"])).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&yaml), keys(&report));
}

#[test]
fn lists_may_be_streamed() {
    let node = Node::start(SimConfig {
        pods: 2,
        streaming_lists: true,
        ..SimConfig::default()
    });
    // More than a kubelet takes in one message, and no trouble in many.
    node.sim.world().pad_lists(17 << 20);
    let report = json(&node, 0, &[]);
    assert_eq!(report["runtime"]["streaming_lists"], true);
    assert_eq!(report["lists"][1]["streamed"], true);
    assert!(report["lists"][1]["bytes"].as_u64().unwrap() > 16 << 20, "{report}");
}

// One bad pod takes down the node: kubernetes/kubernetes#94829 (dead NFS), #97362, #98044.
// Inspect hangs while `crictl ps` is fine: cri-o/cri-o#2584, awslabs/amazon-eks-ami#1228.
#[test]
fn a_status_that_hangs() {
    let node = Node::with_pods(3);
    node.sim
        .hang(Rpc::ContainerStatus, Some(selector("default/web-1")))
        .unwrap();
    snapshot("doctor_stuck_inspection", &examine(&node, 1, &[]));
    node.sim
        .hang(Rpc::ContainerStatus, Some(selector("default/web-2")))
        .unwrap();
    let report = json(&node, 1, &[]);
    assert_eq!(report["kubelet"]["verdict"], "not-ready", "two are enough");
    assert_eq!(report["findings"][0]["objects"][1]["pod"], "default/web-2");
}

// One locked container hangs every list: containerd/containerd#9770, #12680, #10583, Azure/AKS#4507.
#[test]
fn a_container_that_is_locked() {
    let node = Node::with_pods(3);
    let daemon = node.daemon(&["--mode", "generic"]);
    // A complete relist may be there before the last inspection it made necessary.
    wait_for("every pod to be inspected", || {
        daemon.get("/api/v1/pods").1.matches("\"inspected_at\"").count() == 3
    });
    node.sim.lock(selector("default/web-1")).unwrap();
    let report = examine(&node, 1, &["--daemon", &daemon.endpoint()]);
    snapshot("doctor_locked_container", &report);
    drop(daemon);
    // Without a daemon the container cannot be named, but the trouble can.
    let nobody = format!("unix://{}", node.dir.path().join("nobody.sock").display());
    snapshot(
        "doctor_locked_container_unknown",
        &examine(&node, 1, &["--daemon", &nobody]),
    );
}

// A hung shim behind lists that are green: containerd/containerd#8167, #2438, #3529, #13814; cri-o/cri-o#9406.
#[test]
fn a_shim_that_hangs() {
    let node = Node::with_pods(3);
    let shim = Shim {
        pod: "default/web-1".parse().unwrap(),
    };
    block_on(node.sim.execute(Command::HangShim(shim))).unwrap();
    snapshot("doctor_hung_shim", &examine(&node, 1, &[]));
    // A call into it holds a container's lock, and no daemon knows its id: the pod is named all the same.
    node.sim.lock(selector("default/web-1")).unwrap();
    let report = json(&node, 1, &["--daemon", "unix:///nobody.sock"]);
    assert_eq!(troubles(&report), ["locked-container", "hung-shim"], "{report}");
    assert_eq!(report["findings"][0]["objects"][0]["pod"], "default/web-1");
}

// Thousands of dead containers: kubernetes/kubernetes#64507, #45419.
#[test]
fn dead_containers_by_the_thousand() {
    let node = Node::start(SimConfig {
        pods: 2,
        dead: 300,
        ..SimConfig::default()
    });
    snapshot("doctor_many_dead", &examine(&node, 0, &[]));
    let report = json(&node, 0, &[]);
    assert_eq!(report["counts"]["dead"], 1200);
    assert_eq!(report["counts"]["dead_by_pod"][0]["dead"], 600);
}

// A list beyond 16 MiB: siderolabs/talos#10801, kubernetes/kubernetes#131407.
#[test]
fn lists_that_are_too_large() {
    let node = Node::with_pods(2);
    node.sim.world().pad_lists(9 << 20);
    snapshot("doctor_list_near_limit", &examine(&node, 0, &[]));
    node.sim.world().pad_lists(17 << 20);
    snapshot("doctor_list_over_limit", &examine(&node, 1, &[]));
}

// Many changes at once: kubernetes/kubernetes#93886 (765 containers, 1m23s), #139788.
#[test]
fn many_changes_would_take_minutes() {
    let node = Node::start(SimConfig {
        pods: 150,
        latency: Duration::from_millis(150),
        ..SimConfig::default()
    });
    snapshot("doctor_long_relist", &examine(&node, 0, &[]));
}

// Neither listable nor inspectable: moby/moby#44300.
#[test]
fn containers_that_cannot_be_inspected() {
    let node = Node::with_pods(1);
    let code: GrpcCode = "UNKNOWN".parse().unwrap();
    node.sim.faults().fail(Rpc::ContainerStatus, code, 1.0).unwrap();
    snapshot("doctor_not_inspectable", &examine(&node, 1, &[]));
    node.sim.faults().clear();
    let code: GrpcCode = "INTERNAL".parse().unwrap();
    node.sim.faults().fail(Rpc::ListContainers, code, 1.0).unwrap();
    snapshot("doctor_list_fails", &examine(&node, 1, &[]));
}

#[test]
fn slow_everything() {
    let node = Node::start(SimConfig {
        pods: 2,
        latency: Duration::from_millis(1200),
        ..SimConfig::default()
    });
    let mut command = node.pleg(&["doctor", "-o", "json"]);
    let output = command.assert().code(1).get_output().clone();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(troubles(&report)[0], "runtime-slow", "{report}");
    assert!(!troubles(&report).contains(&"hung-shim"), "{report}");
    assert!(!troubles(&report).contains(&"stuck-inspection"), "{report}");
}

/// Nothing changes, and the status of one container hangs: the daemon, a single examination and the doctor name the same one.
#[test]
fn all_agree_on_a_container_that_does_not_change() {
    let node = Node::with_pods(3);
    let daemon = node.daemon(&["--probe-round", "1s", "--mode", "generic"]);
    // Else it may hang as it is inspected for the first time.
    wait_for("the statuses of all pods", || {
        daemon.json("/api/v1/pods").as_array().map(Vec::len) == Some(3)
    });
    node.sim
        .hang(Rpc::ContainerStatus, Some(selector("default/web-1")))
        .unwrap();
    let named = |report: &Value| {
        let causes = report["causes"].as_array().unwrap().iter();
        let name = |cause: &Value| {
            let part = |key: &str| cause[key].as_str().unwrap_or_default().to_owned();
            [part("trouble"), part("pod"), part("container")]
        };
        causes.map(name).collect::<Vec<_>>()
    };
    let expected = ["stuck-inspection", "default/web-1", "app"].map(str::to_owned);
    wait_for("the daemon's cause", || {
        let report = daemon.json("/api/v1/health");
        report["level"] == "Degraded" && named(&report) == [expected.clone()]
    });
    assert_eq!(daemon.json("/api/v1/health")["causes"][0]["stage"], "probe");
    let once = node
        .pleg(&["health", "-o", "json", "-t", "1s"])
        .assert()
        .code(0)
        .get_output()
        .clone();
    let once: Value = serde_json::from_slice(&once.stdout).unwrap();
    assert_eq!(
        (&once["level"], named(&once)),
        (&Value::from("Degraded"), vec![expected.clone()])
    );
    let report = json(&node, 1, &[]);
    assert_eq!(troubles(&report), ["stuck-inspection"]);
    let object = &report["findings"][0]["objects"][0];
    assert_eq!(
        (&object["pod"], &object["container"]),
        (&"default/web-1".into(), &"app".into())
    );

    node.sim.faults().unhang(None, None);
    wait_for("recovery", || daemon.json("/api/v1/health")["level"] == "Healthy");
}

#[test]
fn broken_descriptions() {
    let node = Node::with_pods(1);
    for odd in [
        Odd::SandboxWithoutMetadata,
        Odd::OrphanContainer,
        Odd::EmptyIds,
        Odd::BadUtf8,
    ] {
        node.sim.world().add_odd(odd).unwrap();
    }
    snapshot("doctor_odd", &examine(&node, 0, &[]));
}

#[test]
fn a_runtime_that_says_nothing() {
    let node = Node::with_pods(1);
    node.sim.hang(Rpc::Version, None).unwrap();
    snapshot("doctor_stuck", &examine(&node, 1, &["--budget", "10s"]));
    let none = format!("unix://{}", node.dir.path().join("none/cri.sock").display());
    let output = pleg(&["doctor", "-r", &none]).assert().code(1).get_output().clone();
    snapshot("doctor_down", &String::from_utf8(output.stdout).unwrap());
}

/// The budget is kept whatever hangs, and what did not fit is said.
#[test]
fn the_time_is_kept() {
    let node = Node::with_pods(60);
    node.sim.hang(Rpc::ContainerStatus, None).unwrap();
    let mut command = node.pleg(&["doctor", "--budget", "10s", "-o", "json"]);
    let output = command.assert().code(1).get_output().clone();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["took_seconds"].as_f64().unwrap() <= 10.0, "{report}");
    let left_out = report["left_out"][0].as_str().unwrap();
    assert!(left_out.ends_with("of 180 containers and sandboxes"), "{left_out}");
    // Never more at once than a busy kubelet would ask.
    assert!(node.sim.stats().rpcs["ContainerStatus"].most_in_flight <= 16);
}

#[test]
fn events_are_taken_from_nobody_unasked() {
    let node = Node::with_pods(1);
    let report = json(&node, 0, &[]);
    assert_eq!(report["events"]["state"], "not-tried");
    let report = json(&node, 0, &["--events"]);
    assert_eq!(report["events"]["state"], "open", "{report}");
    let code: GrpcCode = "UNKNOWN".parse().unwrap();
    node.sim.faults().fail(Rpc::GetContainerEvents, code, 1.0).unwrap();
    let report = json(&node, 0, &["--events"]);
    assert_eq!(report["events"]["state"], "failed", "{report}");
    assert_eq!(troubles(&report), ["stream-down"]);
}

#[test]
fn wrong_usage() {
    for (args, says) in [
        (&["--budget", "1s"][..], "from 10s to 10m"),
        (&["--budget", "soon"], "a duration"),
        (&["-o", "xml"], "[possible values: table, wide, json, yaml]"),
        (&["now"], "unexpected argument 'now'"),
    ] {
        let output = pleg(&[&["doctor"], args].concat())
            .assert()
            .code(2)
            .get_output()
            .clone();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(says), "{args:?}: {stderr}");
    }
    // What is no runtime at all is an error, not a finding.
    let node = Node::with_pods(0);
    let file = node.dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    pleg(&["doctor", "-r", file.to_str().unwrap()])
        .assert()
        .code(1)
        .stdout("")
        .stderr(format!(
            "Error: unix://{} is not a socket. Name the runtime's socket with --runtime-endpoint\n",
            file.display()
        ));
}
