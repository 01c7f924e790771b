//! `pleg run --report-to-cluster` without a usable API server: the daemon works, and says so.

use pleg_cri::Rpc;
use pleg_sim::{Ending, Selector};
use serde_json::Value;

use crate::node::{Node, pleg, wait_for};

const AWAY: &str = "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}], \
                    contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}";

#[test]
fn an_api_server_that_is_away_is_shown() {
    let node = Node::with_pods(2);
    let file = node.dir.path().join("kubeconfig");
    std::fs::write(&file, AWAY).unwrap();
    let file = file.to_str().unwrap();
    let report = ["--report-to-cluster", "--kubeconfig", file, "--node-name", "n1"];
    let daemon = node.daemon(&[&report[..], &["--inspect-timeout", "200ms"]].concat());
    let progress = || -> Value {
        let health: Value = serde_json::from_str(&daemon.get("/api/v1/health").1).unwrap();
        health["cluster_report"].clone()
    };
    assert_eq!(progress()["node"], "n1");
    // What is stuck is reported at once.
    let pod: pleg_sim::PodRef = "default/web-0".parse().unwrap();
    let (about, container) = (pod.clone(), Some("app".to_owned()));
    let selector = Selector { pod: about, container };
    node.sim.hang(Rpc::ContainerStatus, Some(selector)).unwrap();
    node.sim.world().exit(&pod, Some("app"), Ending::Exit(3)).unwrap();
    wait_for("the failure", || progress()["error"].is_string());
    let error = progress()["error"].as_str().unwrap_or_default().to_owned();
    assert!(error.starts_with("cannot get node n1: "), "{error}");

    let (status, ready) = daemon.get("/readyz?verbose");
    assert!(
        status == 200 && ready.contains("[-]cluster-report failed: cannot get node n1"),
        "{ready}"
    );
    let (_, metrics) = daemon.get("/metrics");
    for line in ["pleg_report_failing 1", "pleg_report_last_success_timestamp_seconds 0"] {
        assert!(metrics.lines().any(|one| one == line), "{metrics}");
    }
    let text = pleg(&["health", "--daemon", &daemon.endpoint()]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("Cluster: "))
        .unwrap_or_default();
    assert!(
        line.starts_with("Cluster: node n1 at http://127.0.0.1:1/: nothing reported yet; failing for "),
        "{text}"
    );
    assert!(text.starts_with("Degraded"), "{text}");

    let forget = ["cluster", "forget", "--node", "n1", "--kubeconfig", file];
    let output = pleg(&forget).assert().code(1).stdout("").get_output().clone();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with("Error: cannot get node n1: ") && stderr.lines().count() == 1,
        "{stderr}"
    );
}

/// Without the flag nothing of it is there.
#[test]
fn it_is_off_by_default() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    assert!(!daemon.get("/metrics").1.contains("pleg_report_"));
    assert!(!daemon.get("/api/v1/health").1.contains("cluster_report"));
    assert!(!daemon.get("/readyz?verbose").1.contains("cluster-report"));
}
