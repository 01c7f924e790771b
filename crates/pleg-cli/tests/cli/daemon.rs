//! The daemon's HTTP API, and the commands that ask it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;

use pleg_cri::Rpc;
use pleg_sim::{Ending, Selector};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::node::{Daemon, LONG, Node, pleg, request, settings, wait_for};

fn lines(body: &str) -> Vec<Value> {
    body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn exit(node: &Node, pod: &str) {
    node.sim
        .world()
        .exit(&pod.parse().unwrap(), Some("app"), Ending::Exit(3))
        .unwrap();
}

#[test]
fn it_serves_and_ends_cleanly() {
    let node = Node::with_pods(1);
    let mut daemon = node.daemon(&[]);
    let meta = std::fs::metadata(&daemon.socket).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);

    // A second one does not take its socket.
    let output = node
        .pleg(&["run", "--listen", &daemon.endpoint()])
        .assert()
        .code(1)
        .get_output()
        .clone();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.starts_with("Error: another process listens on "), "{stderr}");
    assert_eq!(daemon.get("/livez").0, 200);

    // A follower does not hold up the end.
    let mut follower = BufReader::new(open(&daemon, "/api/v1/events?follow", ""));
    let mut line = String::new();
    follower.read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 200 OK\r\n");
    daemon.running.signal(Signal::TERM);
    let (code, rest) = daemon.running.end();
    assert_eq!(code, Some(0));
    assert!(rest.ends_with("stopped\n") && rest.lines().count() == 1, "{rest}");
    assert!(!daemon.socket.exists());
}

#[test]
fn a_stale_socket_is_replaced_and_a_file_is_not() {
    let node = Node::with_pods(1);
    let path = node.dir.path().join("run/pleg.sock");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    drop(node.daemon(&[]));

    let file = node.dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let output = node
        .pleg(&["run", "--listen", file.to_str().unwrap()])
        .assert()
        .code(1)
        .get_output()
        .clone();
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is not a socket"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

fn open(daemon: &Daemon, path: &str, headers: &str) -> UnixStream {
    let mut stream = UnixStream::connect(&daemon.socket).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n").unwrap();
    stream
}

#[test]
fn plain_answers() {
    let node = Node::with_pods(2);
    let daemon = node.daemon(&[]);
    assert_eq!(daemon.get("/healthz"), (200, "ok".to_owned()));
    assert_eq!(daemon.get("/livez"), (200, "ok".to_owned()));
    assert_eq!(daemon.get("/readyz"), (200, "ok".to_owned()));
    let (status, head, _) = request(&daemon.socket, "GET /metrics HTTP/1.1", "");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");

    assert_eq!(daemon.json("/api/v1/health")["level"], "Healthy");
    let pods = daemon.json("/api/v1/pods");
    assert_eq!(pods.as_array().unwrap().len(), 2);
    assert_eq!(
        daemon.json("/api/v1/pods?pod=default/web-1").as_array().unwrap().len(),
        1
    );
    assert_eq!(daemon.json("/api/v1/pods?namespace=x"), json!([]));
    assert_eq!(daemon.json("/api/v1/pods/default/web-1")["pod"], pods[1]["pod"]);
    settings().bind(|| {
        let pod = daemon.json("/api/v1/pods/default/web-0");
        insta::assert_snapshot!("http_pod", serde_json::to_string_pretty(&pod).unwrap());
        wait_for("the runtime's status", || {
            let text = daemon.get("/readyz?verbose").1;
            !text.contains("[-]") && text.contains("is up")
        });
        insta::assert_snapshot!("http_readyz", daemon.get("/readyz?verbose").1);
        let conditions = daemon.get("/api/v1/node/conditions").1;
        insta::assert_snapshot!("http_node_conditions", conditions);
        let health = daemon.json("/api/v1/health");
        assert_eq!(health["conditions"][0]["reason"], "KubeletReady");
    });
}

/// All is seen, and yet a kubelet would call the node not ready.
#[test]
fn a_network_that_is_not_ready_is_told() {
    let node = Node::with_pods(1);
    let readiness = pleg_sim::Readiness {
        network: false,
        ..Default::default()
    };
    node.sim.world().set_readiness(readiness);
    let daemon = node.daemon(&[]);
    let why = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
        message:Network plugin returns error: cni plugin not initialized";
    wait_for("the runtime's status", || {
        daemon
            .get("/readyz?verbose")
            .1
            .contains(&format!("[-]network-ready failed: {why}\n"))
    });
    let (status, text) = daemon.get("/readyz?verbose");
    assert_eq!(status, 200);
    assert!(
        text.ends_with(
            "node: Ready=False (KubeletNotReady)\nreadyz check passed for pleg only: the node is not ready\n"
        ),
        "{text}"
    );
    let ready = &daemon.json("/api/v1/node/conditions")["conditions"][0];
    assert_eq!((&ready["status"], &ready["message"]), (&"False".into(), &why.into()));
    assert!(daemon.get("/metrics").1.contains("\npleg_node_ready 0\n"));
    let health = pleg(&["health", "--daemon", &daemon.endpoint()])
        .assert()
        .success()
        .get_output()
        .clone();
    let text = String::from_utf8(health.stdout).unwrap();
    assert!(
        text.contains(&format!("\nNode: Ready=False (KubeletNotReady: {why})\n")),
        "{text}"
    );
}

#[test]
fn bad_requests_are_told_what_is_accepted() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    let mut answers = Vec::new();
    for path in [
        "/nope",
        "/api/v1/pods/default/nope",
        "/api/v1/pods?name=x",
        "/api/v1/events?type=Nope",
        "/api/v1/events?since=minus",
        "/api/v1/events?follow=maybe",
        "/readyz?verbose=perhaps",
    ] {
        let (status, body) = daemon.get(path);
        answers.push(format!("{path}\n  {status} {body}"));
    }
    let (status, _, body) = request(&daemon.socket, "DELETE /api/v1/pods HTTP/1.1", "");
    answers.push(format!("DELETE\n  {status} {body}"));
    insta::assert_snapshot!("http_bad_requests", answers.join("\n"));
    // Heads that are too large or broken end with an error, not with us.
    let (status, ..) = request(&daemon.socket, &format!("GET /{} HTTP/1.1", "x".repeat(60_000)), "");
    assert!((400..500).contains(&status), "{status}");
    let (status, ..) = request(&daemon.socket, "NONSENSE", "");
    assert_eq!(status, 400);
    assert_eq!(daemon.get("/livez").0, 200);
}

#[test]
fn events_are_held_followed_and_resumed() {
    let node = Node::with_pods(2);
    let daemon = node.daemon(&[]);
    wait_for("the first events", || lines(&daemon.get("/api/v1/events").1).len() == 6);
    let held = lines(&daemon.get("/api/v1/events").1);
    let seqs: Vec<_> = held.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
    assert!(held.iter().all(|event| event["initial"] == true));
    assert_eq!(lines(&daemon.get("/api/v1/events?since=4").1).len(), 2);
    assert_eq!(lines(&daemon.get("/api/v1/events?type=podsandboxchanged").1).len(), 2);
    assert_eq!(
        lines(&daemon.get("/api/v1/events?pod=web-1&namespace=default").1).len(),
        3
    );

    // A browser that comes back after event 6.
    let headers = "Accept: text/event-stream\r\nLast-Event-ID: 6\r\n";
    let mut sse = BufReader::new(open(&daemon, "/api/v1/events?type=ContainerDied", headers));
    let watch = node.dir.path().join("unused");
    drop(watch);
    exit(&node, "default/web-1");
    let mut text = String::new();
    while !text.contains("\n\n") {
        assert!(sse.read_line(&mut text).unwrap() > 0, "{text}");
    }
    assert!(
        text.to_lowercase().contains("content-type: text/event-stream"),
        "{text}"
    );
    let id = format!("id: {}-7\ndata: ", held[0]["instance"].as_str().unwrap());
    let (_, event) = text.split_once(&id).expect("event 7");
    let event: Value = serde_json::from_str(event.lines().next().unwrap()).unwrap();
    assert_eq!(
        (event["type"].as_str(), event["exit_code"].as_i64()),
        (Some("ContainerDied"), Some(3))
    );
}

// The kubelet drops such events in silence: kubernetes/kubernetes#72709.
#[test]
fn what_is_no_longer_held_is_a_gap() {
    let node = Node::with_pods(4);
    let daemon = node.daemon(&["--feed-capacity", "5"]);
    wait_for("the first events", || {
        lines(&daemon.get("/api/v1/events").1)
            .last()
            .is_some_and(|event| event["seq"] == 12)
    });
    let events = lines(&daemon.get("/api/v1/events?since=2").1);
    let instance = daemon.json("/api/v1/health")["instance"].clone();
    assert_eq!(
        events[0],
        json!({"type": "Gap", "from": 3, "to": 7, "instance": instance, "reason": "overflow"})
    );
    assert_eq!(events.len(), 6);
    let output = pleg(&["watch", "--daemon", &daemon.endpoint(), "--since", "2", "--count", "1"])
        .assert()
        .success()
        .get_output()
        .clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("\n--- 5 events missed: 3 to 7 are no longer held ---\n"),
        "{text}"
    );
}

#[test]
fn commands_ask_the_daemon() {
    let node = Node::with_pods(2);
    let daemon = node.daemon(&[]);
    let endpoint = daemon.endpoint();
    let ask = |args: &[&str]| {
        let mut command = pleg(args);
        command.args(["--daemon", &endpoint]);
        let output = command.assert().success().get_output().clone();
        String::from_utf8(output.stdout).unwrap()
    };
    wait_for("all pods", || ask(&["pods"]).matches("2/2").count() == 2);
    settings().bind(|| insta::assert_snapshot!("daemon_pods", ask(&["pods"])));
    let json: Value = serde_json::from_str(&ask(&["inspect", "web-1", "-o", "json"])).unwrap();
    assert_eq!(json, daemon.json("/api/v1/pods/default/web-1"));
    assert!(ask(&["health"]).starts_with("Healthy: PLEG is healthy\n"));
    let first = ask(&["watch", "--since", "0", "--count", "1", "-o", "json"]);
    assert_eq!(serde_json::from_str::<Value>(&first).unwrap()["seq"], 1);
    // Said by the environment.
    pleg(&["pods", "-v"])
        .env("PLEG_DAEMON", &endpoint)
        .assert()
        .success()
        .stderr(format!("asking the daemon at {endpoint}\n"));
}

// Which call, which container: kubernetes/kubernetes#120292; metrics that move while it is stuck: #87108.
#[test]
fn what_is_stuck_is_named_everywhere() {
    let node = Node::with_pods(2);
    let selector = Selector {
        pod: "default/web-1".parse().unwrap(),
        container: Some("app".to_owned()),
    };
    node.sim.hang(Rpc::ContainerStatus, Some(selector.clone())).unwrap();
    let daemon = node.daemon(&["--inspect-timeout", "1s", "--log-level", "info"]);
    wait_for("quarantine", || daemon.json("/api/v1/health")["level"] == "Degraded");
    let cause = &daemon.json("/api/v1/health")["causes"][0];
    assert_eq!(cause["rpc"], "ContainerStatus");
    assert_eq!(cause["pod"], "default/web-1");
    assert_eq!(cause["container"], "app");
    let (status, ready) = daemon.get("/readyz?verbose");
    assert_eq!(status, 200);
    assert!(
        ready.contains("[-]quarantined-pods failed: ContainerStatus of container app ("),
        "{ready}"
    );
    assert_eq!(
        daemon.json("/api/v1/pods/default/web-1")["error"]["rpc"],
        "ContainerStatus"
    );
    assert!(daemon.get("/metrics").1.contains("\npleg_quarantined_pods 1\n"));
    node.sim.faults().unhang(None, None);
    wait_for("recovery", || daemon.json("/api/v1/health")["level"] == "Healthy");
}

// One container that holds every list: containerd/containerd#9770.
#[test]
fn not_ready_without_a_complete_relist() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&["--threshold", "2s", "--list-patience", "1s", "--list-timeout", "1s"]);
    node.sim.hang(Rpc::ListContainers, None).unwrap();
    wait_for("not ready, and why", || {
        let (status, ready) = daemon.get("/readyz");
        status == 503
            && ready.starts_with("PLEG is not healthy: pleg was last seen active ")
            && ready.contains("ListContainers")
    });
    assert_eq!(daemon.get("/livez").0, 200, "a restart would not help");
    let text = daemon.get("/readyz?verbose").1;
    assert!(
        text.contains("[-]pleg failed: ")
            && text.contains("[-]runtime-lists failed: ")
            && text.contains("ListContainers"),
        "{text}"
    );
    assert!(text.ends_with("\nreadyz check failed\n"), "{text}");
    let ready = &daemon.json("/api/v1/node/conditions")["conditions"][0];
    assert_eq!(ready["reason"], "KubeletNotReady");
    let message = ready["message"].as_str().unwrap();
    assert!(
        message.starts_with("PLEG is not healthy: pleg was last seen active ") && message.contains("ListContainers"),
        "{message}"
    );
    let output = pleg(&["health", "--daemon", &daemon.endpoint()])
        .assert()
        .code(1)
        .get_output()
        .clone();
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("Unhealthy: PLEG is not healthy"));
    node.sim.faults().unhang(None, None);
    wait_for("ready again", || daemon.get("/readyz").0 == 200);
}

#[test]
fn followers_cannot_take_all_connections() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    let mut followers = Vec::new();
    let refused = loop {
        let mut follower = BufReader::new(open(&daemon, "/api/v1/events?follow&since=now", ""));
        let mut line = String::new();
        follower.read_line(&mut line).unwrap();
        if !line.contains("200") {
            break line;
        }
        followers.push(follower);
        assert!(followers.len() < 100);
    };
    assert!(refused.contains("503"), "{refused}");
    assert_eq!(followers.len(), 64);
    assert_eq!(daemon.get("/livez").0, 200);
    // And all connections together have a limit, beyond which one is told so.
    let mut idle: Vec<_> = (0..64).map(|_| UnixStream::connect(&daemon.socket).unwrap()).collect();
    let mut answer = String::new();
    wait_for("a refusal", || {
        let mut one = UnixStream::connect(&daemon.socket).unwrap();
        one.set_read_timeout(Some(std::time::Duration::from_millis(100)))
            .unwrap();
        answer.clear();
        let refused = one.read_to_string(&mut answer).is_ok();
        idle.push(one);
        refused
    });
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.ends_with("{\"error\":\"too many connections\"}\n"),
        "{answer}"
    );
    drop((followers, idle));
    wait_for("room again", || {
        UnixStream::connect(&daemon.socket).is_ok() && daemon.get("/livez").0 == 200
    });
}

#[test]
fn tcp_only_when_asked_for() {
    let node = Node::with_pods(1);
    let socket = node.dir.path().join("t.sock");
    let mut running = node.spawn(&[
        "run",
        "--listen",
        socket.to_str().unwrap(),
        "--listen-tcp",
        "127.0.0.1:0",
    ]);
    let ready = running.stderr_line();
    let address = ready.trim().rsplit("http://").next().unwrap().to_owned();
    let mut stream = std::net::TcpStream::connect(&address).unwrap();
    write!(
        stream,
        "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{answer}");
}
