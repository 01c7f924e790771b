//! `--mode`: where changes are found by events, where by relists, and where that is reported.

use std::time::Duration;

use pleg_sim::world::Ending;
use pleg_sim::{Flavour, SimConfig};
use rustix::process::Signal;

use crate::node::{Node, block_on, pleg, settings, wait_for};

fn flavour(flavour: Flavour) -> Node {
    Node::start(SimConfig {
        pods: 2,
        flavour,
        ..SimConfig::default()
    })
}

#[test]
fn a_death_is_found_by_its_event() {
    let node = flavour(Flavour::Containerd2_1);
    let daemon = node.daemon(&[]);
    let period = || {
        daemon.json("/api/v1/health")["mode"]["full_look_period_seconds"]
            .as_f64()
            .unwrap()
    };
    wait_for("rare relists", || period() >= 0.8);
    let exit = node
        .sim
        .world()
        .exit(&"default/web-1".parse().unwrap(), Some("app"), Ending::Exit(3));
    exit.unwrap();
    wait_for("the event", || {
        let events = daemon.get("/api/v1/events?type=ContainerDied").1;
        assert!(!events.contains("\"relist\""), "{events}");
        events.contains("\"evented\"")
    });
    assert!(daemon.get("/metrics").1.contains("pleg_mode{mode=\"evented\"} 1\n"));
    let output = pleg(&["health", "--daemon", &daemon.endpoint()])
        .assert()
        .success()
        .get_output()
        .clone();
    let text = String::from_utf8(output.stdout).unwrap();
    settings().bind(|| insta::assert_snapshot!("mode_evented", text));
    let health = daemon.json("/api/v1/health");
    assert_eq!(health["mode"]["mode"], "evented");
    assert_eq!(health["mode"]["configured"], "auto");
    assert_eq!(health["mode"]["missed_changes"], 0);
}

#[test]
fn where_events_are_split_auto_takes_none_and_says_why() {
    let node = flavour(Flavour::Containerd1_7);
    let mut daemon = node.daemon(&[]);
    wait_for("the reason", || {
        daemon.get("/readyz?verbose").1.contains("one subscriber only")
    });
    let text = daemon.get("/readyz?verbose").1;
    let line = text.lines().find(|line| line.starts_with("mode:")).unwrap();
    assert!(
        line.ends_with(
            "containerd 1.7.24 delivers each event to one subscriber only, so a kubelet on this node would miss events"
        ),
        "{line}"
    );
    assert_eq!(node.sim.world().event_stats().subscribers, 0);
    assert_eq!(daemon.json("/api/v1/health")["level"], "Healthy");
    daemon.running.signal(Signal::TERM);
    let (_, said) = daemon.running.end();
    assert_eq!(said.matches("one subscriber only").count(), 1, "{said}");

    // Who insists is warned.
    let mut daemon = node.daemon(&["--mode", "evented"]);
    wait_for("the stream", || {
        daemon.get("/readyz?verbose").1.contains("mode: evented")
    });
    assert_eq!(node.sim.world().event_stats().subscribers, 1);
    daemon.running.signal(Signal::TERM);
    let (_, said) = daemon.running.end();
    assert!(
        said.contains("WARN containerd 1.7.24 sends each event to one subscriber only"),
        "{said}"
    );
}

#[test]
fn a_stream_that_is_lost_is_degraded_and_comes_back() {
    let node = flavour(Flavour::Containerd1_6);
    let daemon = node.daemon(&["--mode", "evented"]);
    wait_for("the cause", || daemon.json("/api/v1/health")["level"] == "Degraded");
    let text = daemon.get("/readyz?verbose").1;
    assert!(
        text.contains("[-]event-stream failed: no events from the runtime"),
        "{text}"
    );
    assert!(text.contains("not implemented by the runtime"), "{text}");
    drop(daemon);

    let node = flavour(Flavour::CriO);
    let daemon = node.daemon(&[]);
    wait_for("the stream", || {
        daemon.get("/readyz?verbose").1.contains("mode: evented")
    });
    // kubernetes#129827: the kubelet gives up after this.
    block_on(node.sim.down(Duration::from_millis(400)));
    wait_for("its loss", || {
        daemon.get("/metrics").1.contains("connection_error_count 1\n")
    });
    wait_for("its return", || {
        daemon.get("/metrics").1.contains("connection_success_count 2\n")
    });
    wait_for("health", || daemon.json("/api/v1/health")["level"] == "Healthy");
}

#[test]
fn flags_that_cannot_be_meant() {
    let node = Node::with_pods(1);
    for (args, says) in [
        (
            &["--max-period", "2m"][..],
            "--max-period 2m0s must be at most half of --threshold 3m0s",
        ),
        (
            &["--max-period", "6m", "--threshold", "1h"],
            "--max-period 6m0s must be at most 5m0s",
        ),
        (&["--mode", "fast"], "[possible values: generic, evented, auto]"),
    ] {
        let output = node
            .pleg(&[&["run"], args].concat())
            .assert()
            .code(2)
            .get_output()
            .clone();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(says), "{args:?}: {stderr}");
    }
}
