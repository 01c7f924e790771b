//! What is chosen from what there is: names, namespaces, nothing at all.

use pleg_cri::Rpc;
use pleg_sim::{SimConfig, StatsSnapshot};

use crate::node::{Node, pleg};

#[test]
fn an_empty_result_says_so() {
    let node = Node::with_pods(1);
    let none = |args: &[&str], stderr: &'static str| {
        node.pleg(args).assert().success().stdout("").stderr(stderr);
    };
    none(&["pods", "-n", "nobody"], "No pods found in namespace nobody.\n");
    none(
        &["pods", "-n", "nobody", "-o", "wide"],
        "No pods found in namespace nobody.\n",
    );
    node.pleg(&["pods", "-n", "nobody", "-o", "json"])
        .assert()
        .success()
        .stdout("[]\n")
        .stderr("");
    Node::with_pods(0)
        .pleg(&["pods"])
        .assert()
        .success()
        .stdout("")
        .stderr("No pods found.\n");
}

#[test]
fn two_namespaces_for_one_pod_are_a_mistake() {
    let node = Node::with_pods(2);
    let words = "Error: -n kube-system and pod default/web-1 name different namespaces: omit one of them\n";
    for args in [
        &["inspect", "default/web-1", "-n", "kube-system"][..],
        &["watch", "--pod", "default/web-1", "-n", "kube-system"],
    ] {
        node.pleg(args).assert().code(2).stdout("").stderr(words);
    }
    node.pleg(&["inspect", "default/web-1", "-n", "default"])
        .assert()
        .success();
}

fn calls(stats: &StatsSnapshot) -> u64 {
    let version = stats.rpcs.get("Version").map_or(0, |version| version.calls);
    stats.total.calls - version
}

/// Two lists and what the pod has: no other pod is asked about.
#[test]
fn one_pod_costs_what_one_pod_has() {
    let node = Node::start(SimConfig {
        pods: 500,
        streaming_lists: true,
        ..SimConfig::default()
    });
    let output = node.pleg(&["inspect", "web-7"]).assert().success().get_output().clone();
    assert!(String::from_utf8_lossy(&output.stdout).contains("Name:            web-7\n"));
    let stats = node.sim.stats();
    assert_eq!(
        calls(&stats),
        2 + 3,
        "two lists, one sandbox, two containers: {stats:?}"
    );
    // One that is not there costs the lists.
    node.pleg(&["inspect", "web-7000"]).assert().code(1);
    assert_eq!(calls(&node.sim.stats()), 5 + 2);
}

/// What answers is shown, and what does not is named.
#[test]
fn one_pod_that_hangs_shows_the_rest_of_it() {
    let node = Node::with_pods(2);
    let selector = pleg_sim::Selector {
        pod: "default/web-1".parse().unwrap(),
        container: Some("app".to_owned()),
    };
    node.sim.hang(Rpc::ContainerStatus, Some(selector)).unwrap();
    let output = node
        .pleg(&["inspect", "web-1", "-t", "1s"])
        .assert()
        .success()
        .get_output()
        .clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("Trouble: in quarantine for 1s, 1 attempt: ContainerStatus of container app"),
        "{text}"
    );
    assert!(text.contains("Container:       sidecar\n"), "{text}");
    let json = node
        .pleg(&["inspect", "web-1", "-t", "1s", "-o", "json"])
        .assert()
        .success()
        .get_output()
        .clone();
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["error"]["trouble"], "stuck-inspection");
    assert_eq!(json["error"]["container"], "app");
    assert_eq!(json["error"]["age_seconds"], 1);
}

#[test]
fn a_flag_that_a_command_cannot_use_is_refused_and_not_offered() {
    for args in [
        &["demo", "-r", "/x.sock"][..],
        &["-r", "/x.sock", "demo"],
        &["sim", "-r", "/x.sock"],
        &["sim", "ctl", "-t", "5s", "pods"],
        &["completions", "bash", "-v"],
        &["debug", "replay", "x.tar.gz", "-r", "/x.sock"],
    ] {
        let output = pleg(args).assert().code(2).stdout("").get_output().clone();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("cannot be used with"), "{args:?}: {stderr}");
    }
    for args in [
        &["demo"][..],
        &["sim"],
        &["sim", "ctl"],
        &["sim", "ctl", "storm"],
        &["completions"],
        &["debug", "replay"],
    ] {
        let output = pleg(args).arg("--help").assert().success().get_output().clone();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(!help.contains("--runtime-endpoint"), "{args:?}: {help}");
        assert!(!help.contains("--timeout"), "{args:?}: {help}");
    }
    let help = pleg(&["pods", "--help"]).assert().success().get_output().clone();
    let help = String::from_utf8(help.stdout).unwrap();
    let (own, global) = help.split_once("\nGlobal options:\n").expect(&help);
    assert!(
        own.contains("--namespace") && !own.contains("--runtime-endpoint"),
        "{help}"
    );
    assert!(
        global.contains("--runtime-endpoint") && global.contains("--log-level"),
        "{help}"
    );
}
