//! Manifests that are refused: before they go live, and while they are.

use serde_json::Value;

use crate::manifests::{manifest, start};
use crate::node::{Node, pleg, wait_for};

#[test]
fn manifests_are_checked_before_they_go_live() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("good.yaml"), manifest("web", "img:1")).unwrap();
    std::fs::write(path("bad.yaml"), manifest("db", "img:1").replace("image", "imag")).unwrap();
    std::fs::write(path("twice.yaml"), manifest("web", "img:2")).unwrap();
    pleg(&["node", "check", "--node-name", "n1", &path("good.yaml")])
        .assert()
        .success()
        .stdout(format!("{}: ok: default/web-n1\n", path("good.yaml")))
        .stderr("");
    let check = |args: &[&str]| {
        let mut command = pleg(&["node", "check", "--node-name", "n1"]);
        let output = command.args(args).assert().code(1).get_output().clone();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = check(&[&path("good.yaml"), &path("bad.yaml"), &path("none.yaml")]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].ends_with("good.yaml: ok: default/web-n1"), "{text}");
    assert!(
        lines[1].contains("bad.yaml: document 1 (pod default/db): spec.containers[0].imag: "),
        "{text}"
    );
    assert!(lines[2].contains("none.yaml: cannot be read: "), "{text}");
    // A directory is what is in it, and two pods of one name are refused as the daemon refuses them.
    let text = check(&[&dir.path().display().to_string()]);
    assert!(
        text.contains("twice.yaml: pod default/web-n1 is refused: ")
            && text.contains("already defines a pod of this name"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&check(&[&path("good.yaml"), &path("bad.yaml"), "-o", "json"])).unwrap();
    assert_eq!(json[0]["pods"][0], "default/web-n1");
    assert!(json[0].get("problems").is_none());
    assert_eq!(json[1]["problems"].as_array().unwrap().len(), 1, "{json}");
    pleg(&["node", "check"]).assert().code(2);
}

#[test]
fn refused_manifests_have_a_command_and_stand_in_health() {
    let node = Node::with_pods(0);
    let (daemon, directory) = start(&node, &[]);
    let ask = |args: &[&str]| {
        let mut command = pleg(args);
        command.args(["--daemon", &daemon.endpoint()]);
        command.assert().success().get_output().clone()
    };
    let output = ask(&["node", "problems"]);
    assert_eq!(
        (&*output.stdout, &*String::from_utf8_lossy(&output.stderr)),
        (&b""[..], "No problems found.\n")
    );
    assert!(!String::from_utf8_lossy(&ask(&["health"]).stdout).contains("Manifests"));
    let bad = directory.join("bad.yaml");
    std::fs::write(&bad, manifest("bad", "img:1").replace("image", "imag")).unwrap();
    let what = format!("{}: document 1 (pod default/bad): ", bad.display());
    wait_for("the problem", || {
        String::from_utf8_lossy(&ask(&["node", "problems"]).stdout).starts_with(&what)
    });
    let text = String::from_utf8(ask(&["health"]).stdout).unwrap();
    assert!(text.contains(&format!("\nManifests refused:\n  - {what}")), "{text}");
    let json: Value = serde_json::from_slice(&ask(&["health", "-o", "json"]).stdout).unwrap();
    assert_eq!(json["refused_manifests"][0]["origin"], bad.display().to_string());
    let json: Value = serde_json::from_slice(&ask(&["node", "problems", "-o", "json"]).stdout).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 1);

    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    pleg(&["node", "problems", "--daemon", &daemon.endpoint()])
        .assert()
        .code(1)
        .stderr(format!(
            "Error: the daemon at {} runs no pods from manifests: it is not `pleg node`\n",
            daemon.endpoint()
        ));
}

#[test]
fn health_fails_on_what_it_is_told_to() {
    let node = Node::with_pods(1);
    let code = |args: &[&str]| {
        let mut command = node.pleg(&["health", "-t", "1s"]);
        command.args(args).assert().get_output().status.code().unwrap()
    };
    assert_eq!(code(&["--fail-on", "degraded,not-ready"]), 0);
    let readiness = pleg_sim::Readiness {
        network: false,
        ..Default::default()
    };
    node.sim.world().set_readiness(readiness);
    assert_eq!(code(&[]), 0);
    assert_eq!(code(&["--fail-on", "degraded"]), 0);
    assert_eq!(code(&["--fail-on", "not-ready"]), 1);
    node.sim.world().set_readiness(pleg_sim::Readiness::default());
    node.sim.hang(pleg_cri::Rpc::ContainerStatus, None).unwrap();
    assert_eq!(code(&[]), 0, "degraded");
    assert_eq!(code(&["--fail-on", "unhealthy"]), 0);
    assert_eq!(code(&["--fail-on", "degraded"]), 1);
    node.sim.hang(pleg_cri::Rpc::ListContainers, None).unwrap();
    assert_eq!(code(&["--fail-on", "degraded"]), 1, "unhealthy is worse");
    assert_eq!(code(&["--fail-on", "nothing"]), 2);
}
