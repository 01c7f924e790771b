//! `pleg node --kubeconfig` without a usable API server, and the end of a node.

use std::net::{TcpListener, TcpStream};
use std::path::Path;

use pleg_cri::v1::ContainerState;
use rustix::process::Signal;

use crate::manifests::{manifest, start};
use crate::node::{Node, wait_for};

fn runs(node: &Node, pods: usize) -> bool {
    let truth = node.sim.truth();
    let running = truth.containers.iter();
    running
        .filter(|container| container.state == ContainerState::ContainerRunning)
        .count()
        == pods
}

/// No ports of this machine.
const NO_SERVER: [&str; 4] = ["--port", "0", "--healthz-port", "0"];

/// What is wrong with the kubeconfig is one line, and static pods run all the same.
#[test]
fn static_pods_run_without_an_api_server() {
    let away = "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}], \
                contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}";
    for (content, says) in [
        (
            None,
            "cannot use kubeconfig FILE: No such file or directory (os error 2). Static pods run",
        ),
        (
            Some("not: [yaml"),
            "cannot use kubeconfig FILE: not a kubeconfig: line 1",
        ),
        (Some(away), "cannot reach the API server at http://127.0.0.1:1/: "),
    ] {
        let node = Node::with_pods(0);
        let file = node.dir.path().join("kubeconfig");
        if let Some(content) = content {
            std::fs::write(&file, content).unwrap();
        }
        let log = node.dir.path().join("log");
        let mut daemon = logged(&node, &file, &log, &NO_SERVER);
        std::fs::write(node.dir.path().join("manifests/web.yaml"), manifest("web", "img")).unwrap();
        wait_for("the static pod", || runs(&node, 1));
        let says = says.replace("FILE", &file.display().to_string());
        let lines = || -> usize {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            log.lines().filter(|line| line.contains(&says)).count()
        };
        wait_for(&says, || lines() > 0);
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.end().0, Some(0));
        assert_eq!(lines(), 1, "{}", std::fs::read_to_string(&log).unwrap());
    }
}

/// Another program has the ports of the node's server: one line for each says so, pods run, and the ports are taken once they are free.
#[test]
fn pods_run_while_the_ports_of_the_server_are_taken() {
    let node = Node::with_pods(0);
    let (file, log) = (node.dir.path().join("kubeconfig"), node.dir.path().join("log"));
    let others: Vec<TcpListener> = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<String> = others
        .iter()
        .map(|other| other.local_addr().unwrap().port().to_string())
        .collect();
    let flags = [
        "--address",
        "127.0.0.1",
        "--port",
        &ports[0],
        "--healthz-port",
        &ports[1],
    ];
    let mut daemon = logged(&node, &file, &log, &flags);
    std::fs::write(node.dir.path().join("manifests/web.yaml"), manifest("web", "img")).unwrap();
    wait_for("the static pod", || runs(&node, 1));
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    for (port, missing) in ports.iter().zip(["kubectl logs", "/healthz"]) {
        let words = format!("cannot listen on 127.0.0.1:{port}: Address already in use");
        wait_for(&words, || said().contains(&words));
        let log = said();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(&words)).collect();
        assert!(lines.len() == 1 && lines[0].contains(missing), "{lines:#?}");
    }
    drop(others);
    wait_for("the server", || {
        said().contains("serving logs and sessions on https://127.0.0.1:")
    });
    wait_for("/healthz", || {
        TcpStream::connect(format!("127.0.0.1:{}", ports[1])).is_ok()
    });
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end().0, Some(0));
}

/// A node of a cluster whose log goes to a file.
fn logged(node: &Node, kubeconfig: &Path, log: &Path, ports: &[&str]) -> crate::node::Running {
    let path = |name: &str| node.dir.path().join(name).display().to_string();
    std::fs::create_dir_all(path("manifests")).unwrap();
    let mut command = std::process::Command::new("sh");
    command
        .arg("-c")
        .arg("log=$1; shift; exec \"$0\" \"$@\" 2>\"$log\"")
        .arg(env!("CARGO_BIN_EXE_pleg"))
        .arg(log)
        .args([
            "node",
            "-r",
            &node.sim.endpoint().to_string(),
            "--manifests",
            &path("manifests"),
        ])
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(ports)
        .args([
            "--node-name",
            "n1",
            "--log-dir",
            &path("logs"),
            "--log-link-dir",
            &path("containers"),
        ])
        .args(["--pod-dir", &path("pods"), "--state-file", &path("node.redb")])
        .args([
            "--listen",
            &format!("unix://{}", path("node.sock")),
            "--eviction-hard",
            "",
        ]);
    crate::node::Running::start(command)
}

#[test]
fn pods_end_with_a_node_that_is_told_so() {
    for (more, pods) in [(&[][..], 1), (&["--shutdown-grace-period", "5s"], 0)] {
        let node = Node::with_pods(0);
        let (mut daemon, directory) = start(&node, more);
        std::fs::write(directory.join("web.yaml"), manifest("web", "img")).unwrap();
        wait_for("the pod", || runs(&node, 1));
        daemon.running.signal(Signal::TERM);
        assert_eq!(daemon.running.end().0, Some(0));
        assert!(runs(&node, pods), "{more:?}");
    }
}
