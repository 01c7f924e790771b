//! `watch` when something goes wrong: with the node, which it tells, and with the daemon, which it survives.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use pleg_cri::Rpc;
use pleg_sim::{Ending, Selector};
use rustix::process::Signal;
use serde_json::Value;

use crate::node::{Daemon, LONG, Node, Running, bare, pleg, wait_for};

fn watch(endpoint: &str, args: &[&str]) -> Running {
    let mut command = bare();
    command.args(["watch", "--daemon", endpoint]).args(args);
    Running::start(command)
}

fn json(watch: &mut Running) -> Value {
    serde_json::from_str(&watch.line()).unwrap()
}

fn stop(mut daemon: Daemon) {
    daemon.running.signal(Signal::TERM);
    assert_eq!(daemon.running.end().0, Some(0));
}

fn kill_app(node: &Node) {
    let pod = "default/web-1".parse().unwrap();
    node.sim.world().exit(&pod, Some("app"), Ending::Exit(3)).unwrap();
}

#[test]
fn quarantine_is_told_by_watch_and_so_is_its_end() {
    let node = Node::with_pods(2);
    let selector = Selector {
        pod: "default/web-1".parse().unwrap(),
        container: Some("app".to_owned()),
    };
    node.sim.hang(Rpc::ContainerStatus, Some(selector)).unwrap();
    let daemon = node.daemon(&["--inspect-timeout", "1s"]);
    let types = "TroubleStarted,TroubleEnded,PlegDegraded,PlegHealthy";
    let mut watch = watch(&daemon.endpoint(), &["--since", "0", "-o", "json", "--type", types]);
    let started = json(&mut watch);
    assert_eq!(started["type"], "TroubleStarted");
    assert_eq!(started["trouble"], "stuck-inspection");
    assert_eq!(
        (&started["pod"]["name"], &started["subject"]["name"]),
        (&"web-1".into(), &"app".into())
    );
    assert!(
        started["reason"].as_str().unwrap().contains("no answer within 1s"),
        "{started}"
    );
    assert_eq!(json(&mut watch)["type"], "PlegDegraded");
    node.sim.faults().unhang(None, None);
    let ended = json(&mut watch);
    assert_eq!(
        (&ended["type"], &ended["trouble"]),
        (&"TroubleEnded".into(), &"stuck-inspection".into())
    );
    assert!(ended["lasted"].as_f64().unwrap() >= 1.0, "{ended}");
    assert_eq!(json(&mut watch)["type"], "PlegHealthy");

    // The same for people.
    let table = pleg(&[
        "watch",
        "--daemon",
        &daemon.endpoint(),
        "--since",
        "0",
        "--type",
        types,
        "--count",
        "3",
    ])
    .assert()
    .success()
    .get_output()
    .clone();
    let table = String::from_utf8(table.stdout).unwrap();
    let lines: Vec<_> = table.lines().collect();
    assert!(
        lines[1].contains("TroubleStarted    default/web-1         app        stuck-inspection: "),
        "{table}"
    );
    assert!(lines[2].contains("PlegDegraded      PLEG is degraded: "), "{table}");
    assert!(lines[3].contains("stuck-inspection, after "), "{table}");
}

#[test]
fn watch_survives_a_restart_of_the_daemon() {
    let node = Node::with_pods(2);
    let daemon = node.daemon(&[]);
    let endpoint = daemon.endpoint();
    let mut watch = watch(&endpoint, &["--since", "0", "-o", "json"]);
    let instance = json(&mut watch)["instance"].clone();
    (0..5).for_each(|_| assert_eq!(json(&mut watch)["instance"], instance));
    stop(daemon);
    assert_eq!(
        watch.stderr_line(),
        format!("the daemon at {endpoint} stopped; reconnecting\n")
    );

    kill_app(&node);
    let daemon = node.daemon(&[]);
    let back = watch.stderr_line();
    assert!(
        back.starts_with(&format!("connected to the daemon at {endpoint} again, after ")),
        "{back}"
    );
    let gap = json(&mut watch);
    assert_eq!((&gap["type"], &gap["reason"]), (&"Gap".into(), &"restarted".into()));
    assert_eq!(gap["after"], format!("{}-6", instance.as_str().unwrap()));
    let state: Vec<_> = (0..6).map(|_| json(&mut watch)).collect();
    assert!(state.iter().all(|event| event["initial"] == true), "{state:?}");
    let died = state.iter().find(|event| event["type"] == "ContainerDied").unwrap();
    assert_eq!(died["exit_code"], 3);
    watch.signal(Signal::INT);
    assert_eq!(watch.end(), (Some(0), String::new()));
    drop(daemon);
}

/// A reader that has read nothing yet has a cursor all the same, from the first heartbeat.
#[test]
fn a_quiet_watch_learns_of_a_restart_too() {
    let node = Node::with_pods(2);
    let daemon = node.daemon(&[]);
    let endpoint = daemon.endpoint();
    let mut watch = watch(&endpoint, &["--type", "ContainerDied"]);
    assert!(watch.line().starts_with("TIME"));
    stop(daemon);
    assert!(watch.stderr_line().ends_with(" stopped; reconnecting\n"));
    kill_app(&node);
    let _daemon = node.daemon(&[]);
    let gap = watch.line();
    assert!(gap.starts_with("--- pleg restarted; missed: events after "), "{gap}");
    assert!(watch.line().contains("default/web-1"));
}

#[test]
fn a_daemon_that_does_not_come_back_in_time_is_an_error() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    let mut watch = watch(&daemon.endpoint(), &["--for", "3s"]);
    assert!(watch.line().starts_with("TIME"));
    stop(daemon);
    let (code, said) = watch.end();
    assert_eq!(code, Some(1));
    assert!(said.contains("Error: the daemon did not come back within "), "{said}");
}

/// Stopped, not ended: the connection stands, and nothing comes.
#[test]
fn a_daemon_that_hangs_is_no_quiet_node() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    let mut watch = watch(&daemon.endpoint(), &["--no-initial"]);
    assert!(watch.line().starts_with("TIME"));
    daemon.running.signal(Signal::STOP);
    let said = watch.stderr_line();
    assert!(
        said.ends_with("does not answer: no heartbeat for 15s; reconnecting\n"),
        "{said}"
    );
    daemon.running.signal(Signal::CONT);
    assert!(watch.stderr_line().starts_with("connected to the daemon at "));
}

/// Plain readers see no other lines than before.
#[test]
fn heartbeats_come_to_those_who_ask() {
    let node = Node::with_pods(1);
    let daemon = node.daemon(&[]);
    wait_for("the first events", || {
        daemon.get("/api/v1/events").1.lines().count() == 3
    });
    let first = |query: &str| {
        let mut stream = UnixStream::connect(&daemon.socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        write!(stream, "GET /api/v1/events?{query} HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        let mut body = lines.skip_while(|line| !line.is_empty()).skip(1);
        serde_json::from_str::<Value>(&body.next().unwrap()).unwrap()
    };
    let instance = daemon.json("/api/v1/health")["instance"].as_str().unwrap().to_owned();
    let heartbeat = first("follow&heartbeat&since=now");
    assert_eq!(heartbeat["type"], "Heartbeat");
    assert_eq!(heartbeat["cursor"], format!("{instance}-3"));
    assert_eq!(first("follow&since=0")["seq"], 1);
    assert!(!daemon.get("/api/v1/events?heartbeat").1.contains("Heartbeat"));
}
